"""A short run as a bag, written without ROS: one decision with a rejected word, and its motion."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from helpers.graph.topic_messages import INSTRUCTION, draft, message, settled, verdict
from rosbags.interfaces import Nodetype
from rosbags.typesys.store import Typestore

from edge_cloud_spec.observe.bag_writer import BagWriter, types
from edge_cloud_spec_lab.sim.camera import encode_jpeg

OURS = "edge_cloud_spec/msg"
KINDS = {
    "camera/image_raw/compressed": "sensor_msgs/msg/CompressedImage",
    "camera/image_raw": "sensor_msgs/msg/Image",
    "instruction": "std_msgs/msg/String",
    "instruction_status": "edge_cloud_spec/msg/InstructionStatus",
    "e_stop": "std_msgs/msg/Bool",
    "odom": "nav_msgs/msg/Odometry",
    "cmd_vel": "geometry_msgs/msg/Twist",
    "decode_request": f"{OURS}/DecodeRequest",
    "draft": f"{OURS}/Draft",
    "prediction": f"{OURS}/Prediction",
    "verdict": f"{OURS}/Verdict",
    "verified_tokens": f"{OURS}/VerifiedTokens",
    "nav_command": f"{OURS}/NavCommand",
    "nav_status": f"{OURS}/NavStatus",
    "decode_stats": f"{OURS}/DecodeStats",
    "link_state": "edge_cloud_spec/msg/LinkState",
    "/diagnostics": "diagnostic_msgs/msg/DiagnosticArray",
}
Said = tuple[float, str, dict[str, Any] | SimpleNamespace]


def jpeg() -> bytes:
    return encode_jpeg(np.full((24, 32, 3), (200, 60, 30), np.uint8))


def status(level: int, message: str) -> dict[str, Any]:
    return {"status": [{"level": level, "name": "/drafter", "message": message}]}


def odometry(x: float, yaw: float = 0.0, y: float = 0.0) -> dict[str, Any]:
    turned = {"z": math.sin(yaw / 2), "w": math.cos(yaw / 2)}
    return {"pose": {"pose": {"position": {"x": x, "y": y}, "orientation": turned}}}


def run() -> list[Said]:
    """(seconds, topic, fields): drafted "turn left medium", answered "turn left small"."""
    return [
        (0.0, "instruction", {"data": INSTRUCTION}),
        (0.0, "odom", odometry(0.0)),
        (0.1, "link_state", {"state": 1, "round_trip_ms": 40.0}),
        (0.1, "/diagnostics", status(1, "no camera")),
        (0.2, "camera/image_raw/compressed", {"format": "jpeg", "data": jpeg()}),
        (0.5, "decode_request", message(kind=0, instruction=INSTRUCTION)),
        (1.0, "draft", draft(0, ["turn", " left", " medium"])),
        (1.2, "prediction", message(base_length=0, confidence=0.83)),
        (1.5, "verdict", verdict(0, 0, 1)),
        (1.5, "verified_tokens", settled(0, "turn left small", [1, 2, 3])),
        (1.6, "nav_command", message(action={"verb": "turn"}, magnitude=0.3, verified=True,
                                     text="turn left small")),
        (1.7, "cmd_vel", {"angular": {"z": 0.5}}),
        (2.0, "odom", odometry(0.5, 0.3)),
        (2.1, "verified_tokens", settled(3, "", [], finished=True, finish_reason="end",
                                         answer="turn left small")),
        (2.1, "decode_stats", message(up_bytes=1234, down_bytes=567, rounds=1)),
        (2.2, "nav_status", {"state": 1, "request_id": "r", "stops": 4, "code": 1,
                            "detail": "done"}),
        (2.5, "instruction_status", {"state": 6, "instruction": INSTRUCTION}),
    ]  # fmt: skip


def write_run(folder: Path, *robots: str, said: list[Said] | None = None) -> Path:
    """A bag of the run of each robot (a namespace; none: without one)."""
    said = run() if said is None else said
    spaces = [f"/{robot}" for robot in robots] or [""]
    topics = {
        f"{'' if topic.startswith('/') else space}/{topic.strip('/')}": kind
        for space in spaces
        for topic, kind in KINDS.items()
    }
    bag = BagWriter(folder, topics)
    for at, topic, fields in said:
        cdr = cdr_of(topic, fields)
        for space in [""] if topic.startswith("/") else spaces:
            bag.write(f"{space}/{topic.strip('/')}", round(1e18 + at * 1e9), cdr)
    bag.close()
    return folder


def cdr_of(topic: str, fields: dict[str, Any] | SimpleNamespace) -> bytes:
    """A serialized message of ``topic`` with these fields, and blanks for the rest."""
    return blank(KINDS[topic], fields)


def blank(kind: str, fields: dict[str, Any] | SimpleNamespace | None = None) -> bytes:
    """A serialized message of a type, with blanks for the fields that are not given."""
    return bytes(types().serialize_cdr(_message(types(), kind, fields or {}), kind))


def _message(store: Typestore, kind: str, fields: Any) -> Any:
    fields = vars(fields) if isinstance(fields, SimpleNamespace) else fields
    values = {
        name: _value(store, node, fields.get(name)) for name, node in store.fielddefs[kind][1]
    }
    return store.types[kind](**values)


def _value(store: Typestore, node: Any, given: Any) -> Any:
    form, inner = node
    if form == Nodetype.NAME:
        return _message(store, inner, given or {})
    if form == Nodetype.BASE:
        blank = {"string": "", "bool": False, "float32": 0.0, "float64": 0.0}.get(inner[0], 0)
        return blank if given is None else given
    (element, base), count = inner
    given = [] if given is None else given
    if element == Nodetype.NAME:
        return [_message(store, base, each) for each in given]
    if base[0] == "string":
        return list(given)
    if isinstance(given, bytes):
        return np.frombuffer(given, np.uint8)
    size = count if form == Nodetype.ARRAY else len(given)
    return np.array(given if len(given) else [0] * size, np.dtype(base[0]))
