"""The graph's topics, with types and QoS, in one table. All names but /diagnostics are relative."""

from __future__ import annotations

from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import Twist
from nav_msgs.msg import Odometry, Path
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, LaserScan
from std_msgs.msg import Bool, String
from visualization_msgs.msg import MarkerArray

from edge_cloud_spec.msg import (
    DecodeRequest,
    DecodeStats,
    Draft,
    FreeSpace,
    InstructionStatus,
    LinkState,
    NavCommand,
    NavStatus,
    Prediction,
    Verdict,
    VerifiedTokens,
)

from .runtime.qos import DECODE, LATCHED, RELIABLE, SENSOR_DATA

TOPICS: dict[str, tuple[type[Any], QoSProfile]] = {
    "camera/image_raw/compressed": (CompressedImage, SENSOR_DATA),
    "camera/camera_info": (CameraInfo, SENSOR_DATA),
    "odom": (Odometry, SENSOR_DATA),
    "scan": (LaserScan, SENSOR_DATA),
    "cmd_vel": (Twist, RELIABLE),
    "pulse": (Bool, RELIABLE),
    "e_stop": (Bool, RELIABLE),
    "instruction": (String, RELIABLE),
    "instruction_status": (InstructionStatus, LATCHED),
    "run_info": (String, LATCHED),
    "decode_request": (DecodeRequest, DECODE),
    "draft": (Draft, DECODE),
    "prediction": (Prediction, DECODE),
    "verdict": (Verdict, DECODE),
    "verified_tokens": (VerifiedTokens, DECODE),
    "nav_command": (NavCommand, RELIABLE),
    "nav_status": (NavStatus, LATCHED),
    "free_space": (FreeSpace, RELIABLE),
    "link_state": (LinkState, LATCHED),
    "decode_stats": (DecodeStats, RELIABLE),
    "markers": (MarkerArray, RELIABLE),
    "/diagnostics": (DiagnosticArray, RELIABLE),
    "sim/outcome": (String, LATCHED),
}

# The annotator's, for people: made only while somebody subscribes, and in no bag.
DRAWN: dict[str, tuple[type[Any], QoSProfile]] = {
    "image_annotated": (Image, RELIABLE),
    "image_annotated/compressed": (CompressedImage, SENSOR_DATA),
    "path": (Path, RELIABLE),
}
