"""``edge-cloud-spec doctor``: what this machine has, a line each, and what to do about it."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from . import __version__
from .errors import UserError
from .models import EMBEDDED

OK, WARN, FAIL = "ok", "warn", "fail"
OLDEST, NEWEST = (3, 10), (3, 13)
MODEL_FILES = (  # one of each
    ("config.json",),
    ("tokenizer.json", "vocab.json"),
    ("preprocessor_config.json", "processor_config.json"),
    ("model.safetensors", "model.safetensors.index.json"),
)
LIBRARIES = ("numpy", "torch", "transformers", "tokenizers", "grpcio", "protobuf", "pillow")


@dataclass(frozen=True)
class Finding:
    """One thing looked at. ``advice`` is empty where nothing needs doing."""

    check: str
    state: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        advice = f"\n      {self.advice}" if self.advice else ""
        return f"{self.state:4}  {self.check}: {self.found}{advice}"


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``doctor``."""
    parser.add_argument("--cloud", default="", metavar="HOST:PORT", help="a verifier to reach")
    parser.add_argument("--authority", default="", help="PEM file of its certificate authority")
    parser.add_argument("--target", default=str(EMBEDDED / "target"), help="model directory")
    parser.add_argument("--drafter", default=str(EMBEDDED / "drafter"), help="model directory")
    parser.add_argument("--json", default="", metavar="FILE", help="write the findings there too")


def run(args: argparse.Namespace) -> int:
    """Print every finding; 0 if nothing failed, else 1."""
    checks: list[Callable[[], Finding]] = [
        check_python,
        check_libraries,
        check_ros,
        check_messages,
        check_simulator,
        lambda: check_model("target", args.target),
        lambda: check_model("drafter", args.drafter),
        check_threads,
    ]
    if args.cloud:
        checks.append(lambda: check_cloud(args.cloud, args.authority))
    findings = []
    for check in checks:
        findings.append(check())
        print(findings[-1], flush=True)
    if args.json:
        _write(args.json, findings)
    return 1 if any(finding.state == FAIL for finding in findings) else 0


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
        gl = importlib.import_module("edge_cloud_spec.sim.engine")
    except ImportError as error:
        advice = "pip install -r requirements/sim.txt; a real robot does not need it"
        return Finding("simulator", WARN, f"MuJoCo cannot be imported ({error})", advice)
    if gl.no_gl_because:
        advice = "the camera is ray cast, which is slower and needs nothing"
        return Finding("simulator", OK, f"no EGL: {gl.no_gl_because}", advice)
    return Finding("simulator", OK, "MuJoCo renders by EGL")


def check_model(name: str, directory: str) -> Finding:
    """Whether a model directory has its files, and its weights are whole; they are not loaded."""
    path = Path(directory).expanduser()
    if not path.is_dir():
        advice = f"give a directory with --{name}; a hub name is fetched at its first use"
        return Finding(name, FAIL, f"there is no directory {directory}", advice)
    missing = [
        choices[0]
        for choices in MODEL_FILES
        if not any((path / choice).is_file() for choice in choices)
    ]
    if missing:
        advice = "copy what is missing from the checkpoint"
        return Finding(name, FAIL, f"{path} lacks {', '.join(missing)}", advice)
    try:
        files = _open_weights(path)
    except ImportError as error:
        return Finding(
            name, FAIL, f"cannot be looked into ({error})", "install the libraries first"
        )
    except UserError as error:
        advice = "copy it anew from the checkpoint; the embedded pair's comes with this package"
        return Finding(name, FAIL, str(error), advice)
    size = sum(file.stat().st_size for file in files) / 2**20
    return Finding(name, OK, f"{path}, {size:.1f} MiB")


def _open_weights(directory: Path) -> list[Path]:
    """The files of a model's weights and exits; raises UserError where one is not whole."""
    from safetensors import SafetensorError, safe_open

    from .models.load import weight_files

    files = [*weight_files(directory), *sorted(directory.glob("exits/*.safetensors"))]
    for file in files:
        try:
            with safe_open(file, "np") as tensors:  # compares the header with the file's length
                tensors.keys()
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file} is damaged or cut short ({error})") from None
    return files


def check_threads() -> Finding:
    """Cores, torch's threads, and an accelerator."""
    import torch

    cores = len(os.sched_getaffinity(0))
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no CUDA"
    found = f"{torch.get_num_threads()} torch threads on {cores} cores, {device}"
    if torch.get_num_threads() > cores:
        return Finding("threads", WARN, found, f"set OMP_NUM_THREADS={cores}")
    return Finding("threads", OK, found)


def check_cloud(address: str, authority: str) -> Finding:
    """Whether a verifier answers its health service within three seconds."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from .wire.channel import SERVICE, is_loopback

    if is_loopback(address) and not authority:
        channel = grpc.insecure_channel(address)
    else:
        try:
            roots = Path(authority).read_bytes() if authority else None
        except OSError as error:
            raise UserError(f"the authority {authority} cannot be read: {error.strerror}") from None
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(roots))
    with channel:
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                request, timeout=3.0, wait_for_ready=True
            )
        except grpc.RpcError as error:
            advice = (
                "start one with edge-cloud-spec serve, and check the address, the firewall and, "
                "off this machine, --authority"
            )
            return Finding("cloud", FAIL, f"{address}: {error.code().name.lower()}", advice)
    if reply.status == health_pb2.HealthCheckResponse.SERVING:
        return Finding("cloud", OK, f"{address} serves")
    return Finding("cloud", FAIL, f"{address} answers but does not serve", "wait until it is up")


def _write(file: str, findings: list[Finding]) -> None:
    report = {
        "suite": "doctor",
        "seed": 0,
        "versions": {"edge_cloud_spec": __version__},
        "rows": [asdict(finding) for finding in findings],
    }
    try:
        Path(file).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None
