"""What this machine has: Python, libraries, ROS 2, the simulator, cores."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import PackageNotFoundError, version

from ..errors import UserError
from ..share import lab
from .finding import FAIL, OK, WARN, Finding

OLDEST, NEWEST = (3, 10), (3, 13)
LIBRARIES = ("numpy", "torch", "transformers", "tokenizers", "grpcio", "protobuf", "pillow")


def check_python() -> Finding:
    """The interpreter's version."""
    found = f"{sys.version.split()[0]} at {sys.executable}"
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return Finding("python", OK, found)
    return Finding("python", FAIL, found, "use Python 3.10 to 3.13")


def check_libraries() -> Finding:
    """The Python packages that every part needs."""
    versions, missing = [], []
    for name in LIBRARIES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        advice = "pip install -r requirements/torch.txt -r requirements/base.txt"
        return Finding("libraries", FAIL, f"no {', '.join(missing)}", advice)
    return Finding("libraries", OK, ", ".join(versions))


def check_ros() -> Finding:
    """rclpy, and which ROS 2 it is of."""
    try:
        importlib.import_module("rclpy")
    except ImportError as error:
        advice = (
            "source your ROS 2 (source /opt/ros/DISTRO/setup.bash) or pip install -r "
            "requirements/ros.txt; a cloud machine needs neither"
        )
        return Finding("ROS 2", WARN, f"rclpy cannot be imported ({error})", advice)
    distribution = os.environ.get("ROS_DISTRO", "the wheels of this Python environment")
    return Finding("ROS 2", OK, f"rclpy, from {distribution}")


def check_messages() -> Finding:
    """edge_cloud_spec.msg, which is generated when the package is built."""
    try:
        importlib.import_module("edge_cloud_spec.msg")
    except ImportError as error:
        advice = (
            "make messages in a checkout, pip install . elsewhere, or source install/setup.bash "
            "after colcon build; a cloud machine does not need them"
        )
        return Finding("messages", WARN, f"cannot be imported ({error})", advice)
    return Finding("messages", OK, "edge_cloud_spec.msg")


def check_simulator() -> Finding:
    """MuJoCo, and what the camera is rendered with."""
    try:
        gl = lab("sim.engine")
    except UserError as error:
        return Finding("simulator", OK, "not installed", f"{error}; a real robot needs none")
    except ImportError as error:
        advice = "pip install -r requirements/sim.txt; a real robot does not need it"
        return Finding("simulator", WARN, f"MuJoCo cannot be imported ({error})", advice)
    if gl.no_gl_because:
        advice = "the camera is ray cast, which is slower and needs nothing"
        return Finding("simulator", OK, f"no EGL: {gl.no_gl_because}", advice)
    return Finding("simulator", OK, "MuJoCo renders by EGL")


def check_threads() -> Finding:
    """Cores, torch's threads, and an accelerator."""
    import torch

    cores = len(os.sched_getaffinity(0))
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no CUDA"
    found = f"{torch.get_num_threads()} torch threads on {cores} cores, {device}"
    if torch.get_num_threads() > cores:
        return Finding("threads", WARN, found, f"set OMP_NUM_THREADS={cores}")
    return Finding("threads", OK, found)
