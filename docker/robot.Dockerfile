# The robot's nodes on ROS 2 Jazzy (or Humble: --build-arg ROS_DISTRO=humble), for a dock that has another system (the stock one: Ubuntu 20.04).
# Not tried: where this was written there was no docker. From the repository's root:
#
#   docker build -f docker/robot.Dockerfile -t edge-cloud-spec-robot .
#
# docs/deployment.md says how to run it.
ARG ROS_DISTRO=jazzy
FROM ros:${ROS_DISTRO}-ros-base

# rmw-cyclonedds is what the Go2 itself speaks (unitree_ros2); rmw-fastrtps is ROS's own default.
RUN apt-get update && apt-get install -y --no-install-recommends \
      g++ python3-dev python3-venv \
      ros-${ROS_DISTRO}-image-transport-plugins \
      ros-${ROS_DISTRO}-rmw-cyclonedds-cpp ros-${ROS_DISTRO}-rmw-fastrtps-cpp \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /ws
COPY requirements /ws/src/edge_cloud_spec/requirements
# TORCH=yes: for a draft model in torch (transformers and gigabytes more). INDEX: options of pip,
# "--index-url" with PyTorch's own index of CPU builds: pip's default is a CUDA build, on aarch64 too, for
# other GPUs. An Orin under Ubuntu 20.04 has no CUDA for this Python: the draft model runs on its CPU.
ARG TORCH=""
ARG INDEX=""
RUN cd src/edge_cloud_spec && python3 -m venv --system-site-packages ../../.venv \
    && . ../../.venv/bin/activate && touch ../../.venv/COLCON_IGNORE \
    && pip config --site set global.constraint "$PWD/requirements/apt.txt" \
    && if [ -n "${TORCH}" ]; then pip install --no-cache-dir ${INDEX} -r requirements/torch.txt \
       && pip install --no-cache-dir -r requirements/transformers.txt ; fi \
    && pip install --no-cache-dir -r requirements/robot.txt -r requirements/grammar.txt \
       -r requirements/openai.txt -r requirements/endpoint.txt -r requirements/mcp.txt \
    && pip install --no-cache-dir --no-deps -r requirements/view.txt

COPY . /ws/src/edge_cloud_spec
SHELL ["/bin/bash", "-c"]
RUN source /opt/ros/${ROS_DISTRO}/setup.bash && source .venv/bin/activate \
    && apt-get update && rosdep update --rosdistro ${ROS_DISTRO} \
    && rosdep install --from-paths src --ignore-src -y --rosdistro ${ROS_DISTRO} \
         --skip-keys "rviz2 rviz_default_plugins robot_state_publisher" \
    && rm -rf /var/lib/apt/lists/* && colcon build --cmake-args -DEDGE_CLOUD_SPEC_LAB=OFF

# A fixed uid, so that secrets of mode 600 can be given to it (docs/deployment.md).
RUN useradd --create-home --uid 10001 robot
USER robot
# exec: SIGINT reaches ros2 launch itself, which ends the nodes; the navigator stops the robot first.
ENTRYPOINT ["/bin/bash", "-c", "source /ws/.venv/bin/activate && source /ws/install/setup.bash && exec \"$@\"", "--"]
CMD ["ros2", "launch", "edge_cloud_spec", "go2_nav.launch.py", "--show-args"]
STOPSIGNAL SIGINT
