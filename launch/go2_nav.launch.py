"""`ros2 launch edge_cloud_spec go2_nav.launch.py`: the node graph of `bringup/graph.py`."""

from __future__ import annotations

from typing import Any

from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from edge_cloud_spec.bringup.graph import GraphSettings, NodeSpec, graph
from edge_cloud_spec.errors import UserError

ARGUMENTS = {
    "cloud": ("local", "HOST:PORT of the verifier; local: one is started on this machine"),
    "authority": ("", "PEM file of the authority that signed the verifier's certificate"),
    "token_file": ("", "file with the token that the verifier asks for"),
    "preset": ("dsd", "a preset's name, or the path of its YAML file"),
    "drafter": ("", "directory or hub name of the draft model; empty: the embedded one"),
    "target": ("", "the same for the target model, where the verifier is started here"),
    "sim": ("true", "true: the simulated Go2; false: a robot's own camera, odometry and base"),
    "seed": ("0", "which simulated room"),
    "namespace": ("", "namespace of all nodes"),
    "rviz": ("false", "true: open RViz"),
    "record": ("", "folder of a bag to record all topics to; empty: none"),
    "parameters": ("", "YAML file of parameters; empty: config/go2_nav.yaml"),
    "camera": ("", "the robot's sensor_msgs/CompressedImage topic"),
    "odom": ("", "the robot's nav_msgs/Odometry topic"),
    "cmd_vel": ("", "the robot's velocity topic"),
}
TOPICS = {"camera": "camera/image_raw/compressed", "odom": "odom", "cmd_vel": "cmd_vel"}


def _settings(context: LaunchContext) -> GraphSettings:
    given = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    for name in ("sim", "rviz"):
        if given[name].lower() not in ("true", "false"):
            raise UserError(f"{name} must be true or false, not {given[name]!r}")
    if not given["seed"].isdigit():
        raise UserError(f"seed must be a whole number, not {given['seed']!r}")
    renames = [(TOPICS[name], given.pop(name)) for name in TOPICS]
    return GraphSettings(
        **{
            **given,
            "sim": given["sim"].lower() == "true",
            "rviz": given["rviz"].lower() == "true",
            "seed": int(given["seed"]),
            "renames": tuple((ours, theirs) for ours, theirs in renames if theirs),
        }
    )


def _parameters(spec: NodeSpec) -> dict[str, Any]:
    # a text is a text, also one that YAML would read as a number, or as an error (a URDF)
    return {
        name: ParameterValue(value, value_type=str) if isinstance(value, str) else value
        for name, value in spec.parameters
    }


def _action(spec: NodeSpec, settings: GraphSettings) -> Node:
    if not spec.is_node:
        return Node(
            package=spec.package,
            executable=spec.executable,
            arguments=list(spec.arguments),
            output="screen",
        )
    return Node(
        package=spec.package,
        executable=spec.executable,
        name=spec.name,
        namespace=spec.namespace,
        arguments=list(spec.arguments),
        parameters=[settings.parameter_file, _parameters(spec)],
        remappings=list(spec.remappings),
        output="screen",
    )


def _start(context: LaunchContext) -> list[Node]:
    # A UserError ends the launch with its one sentence and a status that is not 0.
    settings = _settings(context)
    return [_action(spec, settings) for spec in graph(settings)]


def generate_launch_description() -> LaunchDescription:
    """The arguments, and the graph that they ask for."""
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=about)
        for name, (default, about) in ARGUMENTS.items()
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=_start)])
