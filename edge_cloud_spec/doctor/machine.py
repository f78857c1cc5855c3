"""Checks this machine: Python, libraries, ROS 2, the simulator, cores."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..edge.client import ClientSettings, open_channel
from ..edge.link.probe import ROUND_TRIP, TIMEOUT_S, probe
from ..errors import UserError
from ..health import Health, Level
from ..models import BYTES, OPENAI
from ..share import lab

OLDEST = (3, 10)
LIBRARIES = ("numpy", "torch", "transformers", "tokenizers", "grpcio", "protobuf", "pillow")


def check_python() -> Health:
    """Check the interpreter's version."""
    found = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info[:2] >= OLDEST:
        return Health(Level.OK, found, check="python")
    return Health(Level.ERROR, found, "use Python 3.10 or newer", check="python")


def check_libraries() -> Health:
    """Check for the Python packages that every part needs."""
    versions, missing = [], []
    for name in LIBRARIES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        advice = "pip install -r requirements/torch.txt -r requirements/base.txt"
        return Health(Level.ERROR, f"no {', '.join(missing)}", advice, check="libraries")
    return Health(Level.OK, ", ".join(versions), check="libraries")


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


def check_ros() -> Iterator[Health]:
    """Check for rclpy, and for our messages, which are generated when the package is built."""
    distribution = os.environ.get("ROS_DISTRO", "the wheels of this Python environment")
    for check, (module, advice) in IMPORTED.items():
        try:
            importlib.import_module(module)
        except ImportError as error:
            yield Health(Level.WARN, f"{module} cannot be imported ({error})", advice, check=check)
        else:
            source = f", from {distribution}" if module == "rclpy" else ""
            yield Health(Level.OK, f"{module}{source}", check=check)


def check_simulator() -> Health:
    """Check for MuJoCo and its rendering backend."""
    try:
        gl = lab("sim.engine")
    except UserError as error:
        return Health(
            Level.OK, "not installed", f"{error}; a real robot needs none", check="simulator"
        )
    except ImportError as error:
        advice = "pip install -r requirements/sim.txt; a real robot does not need it"
        return Health(Level.WARN, f"MuJoCo cannot be imported ({error})", advice, check="simulator")
    if gl.no_gl_because:
        advice = "the camera is ray cast, which is slower and needs nothing"
        return Health(Level.OK, f"no EGL: {gl.no_gl_because}", advice, check="simulator")
    return Health(Level.OK, "MuJoCo renders by EGL", check="simulator")


def check_threads() -> Health:
    """Report cores, torch's threads, and an accelerator."""
    import torch

    cores = len(os.sched_getaffinity(0))
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no CUDA"
    found = f"{torch.get_num_threads()} torch threads on {cores} cores, {device}"
    if torch.get_num_threads() > cores:
        return Health(Level.WARN, found, f"set OMP_NUM_THREADS={cores}", check="threads")
    return Health(Level.OK, found, check="threads")


MODEL_FILES = (  # one of each
    ("config.json",),
    ("tokenizer.json", "vocab.json"),
    ("preprocessor_config.json", "processor_config.json"),
    ("model.safetensors", "model.safetensors.index.json"),
)


def check_model(name: str, directory: str) -> Health:
    """Check that a model directory is complete; does not load the weights."""
    if directory == BYTES:
        return Health(Level.OK, "bytes: no draft model, for a target behind an API", check=name)
    if directory.startswith(OPENAI):
        return Health(
            Level.OK, f"{directory}: a server, which is tried when it is loaded", check=name
        )
    path = Path(directory).expanduser()
    gguf = [path] if path.is_file() and path.suffix == ".gguf" else []
    path = path.parent if gguf else path
    if not path.is_dir():
        advice = f"give a directory with --{name}; a hub name is fetched at its first use"
        return Health(Level.ERROR, f"there is no directory {directory}", advice, check=name)
    missing = [
        choices[0]
        for choices in (MODEL_FILES[:-1] if gguf else MODEL_FILES)
        if not any((path / choice).is_file() for choice in choices)
    ]
    if missing:
        advice = "copy what is missing from the checkpoint"
        return Health(Level.ERROR, f"{path} lacks {', '.join(missing)}", advice, check=name)
    try:
        from ..models.llama import vision_file

        files = [*gguf, *map(vision_file, gguf)] or _open_weights(path)
    except ImportError as error:
        return Health(
            Level.ERROR,
            f"cannot be looked into ({error})",
            "install the libraries first",
            check=name,
        )
    except UserError as error:
        advice = "copy it anew from the checkpoint; the embedded pair's comes with this package"
        return Health(Level.ERROR, str(error), advice, check=name)
    size = sum(file.stat().st_size for file in files) / 2**20
    return Health(Level.OK, f"{path}, {size:.1f} MiB", check=name)


def _open_weights(directory: Path) -> list[Path]:
    """Open a model's weights and exits; raises UserError if a file is incomplete."""
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


def check_cloud(settings: ClientSettings, timeout: float = TIMEOUT_S) -> Health:
    """Open a stream to the verifier with the token and close it at once.

    ``timeout``: s of each step.
    """
    found = asyncio.run(_probe(settings, timeout))
    said = f"{found.message} ({found.check})"
    if found.level == Level.OK:
        how = "over TLS" if settings.secure else "without TLS"
        token = "takes the token" if settings.read_token() else "asks for no token"
        took = f"answers in {found.values[ROUND_TRIP]:.1f} ms"
        said = f"{found.message} {how}, {token}, {took}"
    return replace(found, message=said, check="cloud")


async def _probe(settings: ClientSettings, timeout: float) -> Health:
    async with open_channel(settings.cloud, settings.credentials()) as channel:
        return await probe(channel, settings, timeout)
