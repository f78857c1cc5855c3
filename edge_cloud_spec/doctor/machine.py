"""What this machine has: Python, libraries, ROS 2, the simulator, cores."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..edge.client import ClientSettings, open_channel
from ..edge.probe import TIMEOUT_S, CloudState, probe
from ..errors import UserError
from ..models import BYTES, OPENAI
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


IMPORTED = {  # what ROS needs, and what to do where it is missing
    "ROS 2": (
        "rclpy",
        "source your ROS 2 (source /opt/ros/DISTRO/setup.bash) or pip install -r "
        "requirements/ros.txt; a cloud machine needs neither",
    ),
    "messages": (
        "edge_cloud_spec.msg",
        "make messages in a checkout, pip install . elsewhere, or source install/setup.bash "
        "after colcon build; a cloud machine does not need them",
    ),
}


def check_ros() -> Iterator[Finding]:
    """rclpy, and our messages, which are generated when the package is built."""
    distribution = os.environ.get("ROS_DISTRO", "the wheels of this Python environment")
    for check, (module, advice) in IMPORTED.items():
        try:
            importlib.import_module(module)
        except ImportError as error:
            yield Finding(check, WARN, f"{module} cannot be imported ({error})", advice)
        else:
            source = f", from {distribution}" if module == "rclpy" else ""
            yield Finding(check, OK, f"{module}{source}")


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


MODEL_FILES = (  # one of each
    ("config.json",),
    ("tokenizer.json", "vocab.json"),
    ("preprocessor_config.json", "processor_config.json"),
    ("model.safetensors", "model.safetensors.index.json"),
)


def check_model(name: str, directory: str) -> Finding:
    """Whether a model directory has its files, and its weights are whole; they are not loaded."""
    if directory == BYTES:
        return Finding(name, OK, "bytes: no draft model, for a target behind an API")
    if directory.startswith(OPENAI):
        return Finding(name, OK, f"{directory}: a server, which is tried when it is loaded")
    path = Path(directory).expanduser()
    gguf = [path] if path.is_file() and path.suffix == ".gguf" else []
    path = path.parent if gguf else path
    if not path.is_dir():
        advice = f"give a directory with --{name}; a hub name is fetched at its first use"
        return Finding(name, FAIL, f"there is no directory {directory}", advice)
    missing = [
        choices[0]
        for choices in (MODEL_FILES[:-1] if gguf else MODEL_FILES)
        if not any((path / choice).is_file() for choice in choices)
    ]
    if missing:
        advice = "copy what is missing from the checkpoint"
        return Finding(name, FAIL, f"{path} lacks {', '.join(missing)}", advice)
    try:
        from ..models.llama import vision_file

        files = [*gguf, *map(vision_file, gguf)] or _open_weights(path)
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

    from ..models.checkpoint import weight_files

    files = [*weight_files(directory), *sorted(directory.glob("exits/*.safetensors"))]
    for file in files:
        try:
            with safe_open(file, "np") as tensors:  # compares the header with the file's length
                tensors.keys()
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file} is damaged or cut short ({error})") from None
    return files


def check_cloud(settings: ClientSettings, timeout: float = TIMEOUT_S) -> Finding:
    """Open a stream to the verifier with the token and close it at once.

    ``timeout``: s of each step.
    """
    state = asyncio.run(_probe(settings, timeout))
    if state.serves:
        how = "over TLS" if settings.secure else "without TLS"
        token = "takes the token" if settings.read_token() else "asks for no token"
        return Finding(
            "cloud", OK, f"{state.text} {how}, {token}, answers in {state.round_trip * 1e3:.1f} ms"
        )
    return Finding("cloud", FAIL, f"{state.text} ({state.kind})", state.advice)


async def _probe(settings: ClientSettings, timeout: float) -> CloudState:
    async with open_channel(settings) as channel:
        return await probe(channel, settings, timeout)
