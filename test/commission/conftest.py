"""The helpers of these tests write bags and messages of ROS."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("rclpy") and find_spec("rosbags") else ["test_*"]
