"""Checks this machine: Python, libraries, ROS 2, the simulator, cores."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from ..edge.client import open_channel
from ..edge.link.probe import CONNECT_TIMEOUT_S, ROUND_TRIP_MS, probe
from ..edge.link.route import ClientSettings
from ..errors import UserError, installed_version, sentence
from ..health import Health, Level
from ..models import BYTES, OPENAI
from ..plugins import load_plugins
from ..share import path_of

LIBRARIES = ("numpy", "tokenizers", "jinja2", "grpcio", "protobuf", "pillow")
FOR_TORCH = ("torch", "transformers")  # which a robot needs only for a draft model in torch


def check_python() -> Health:
    """Report the interpreter and its version; under an older one nothing here could be imported."""
    found = f"{sys.version.split()[0]} at {sys.executable}"
    return Health(Level.OK, found, check="python")


def check_libraries() -> Health:
    """Check for the Python packages that every part needs."""
    versions = {name: installed_version(name) for name in (*LIBRARIES, *FOR_TORCH)}
    if missing := [name for name in LIBRARIES if not versions[name]]:
        advice = "pip install -r requirements/base.txt"
        return Health(Level.ERROR, f"no {', '.join(missing)}", advice, check="libraries")
    found = (f"{name} {version}" if version else f"no {name}" for name, version in versions.items())
    return Health(Level.OK, ", ".join(found), check="libraries")


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


def check_plugins() -> Iterator[Health]:
    """The checks that other distributions add, as the lab does for its simulator."""
    try:
        for check in load_plugins("checks"):
            yield check()
    except UserError as error:
        yield Health(Level.WARN, "not all checks are made", str(error), check="lab")


def check_threads() -> Health:
    """Report cores, torch's threads, and an accelerator."""
    cores = len(os.sched_getaffinity(0))
    if find_spec("torch") is None:
        advice = "a draft model is a GGUF file, or behind a server (openai:URL), or none (bytes)"
        return Health(Level.OK, f"{cores} cores, no torch", advice, check="threads")
    import torch

    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no CUDA"
    found = f"{torch.get_num_threads()} torch threads on {cores} cores, {device}"
    if torch.get_num_threads() > cores:
        return Health(Level.WARN, found, f"set OMP_NUM_THREADS={cores}", check="threads")
    return Health(Level.OK, found, check="threads")


MODEL_FILES = ("config.json",), ("tokenizer.json",)
PROCESSOR_FILES = "preprocessor_config.json", "processor_config.json"
WEIGHT_FILES = "model.safetensors", "model.safetensors.index.json"


def check_model(name: str, directory: str) -> Health:
    """Check that a model directory is complete; does not load the weights."""
    if directory == BYTES:
        return Health(Level.OK, "bytes: no draft model, for a target behind an API", check=name)
    if directory.startswith(OPENAI):
        return Health(
            Level.OK, f"{directory}: a server, which is tried when it is loaded", check=name
        )
    try:
        path = path_of(directory)
        gguf = [path] if path.is_file() and path.suffix == ".gguf" else []
        path = path.parent if gguf else path
        if not path.is_dir():
            advice = f"give a directory with --{name}; a hub name is fetched at its first use"
            return Health(Level.ERROR, f"there is no directory {directory}", advice, check=name)
        from ..models.checkpoint import read_json, reads_pictures

        sees = reads_pictures(read_json(path, "config.json", needed=False))
        needed = *MODEL_FILES, *[PROCESSOR_FILES] * sees, *[WEIGHT_FILES] * (not gguf)
        missing = [
            choices[0]
            for choices in needed
            if not any((path / choice).is_file() for choice in choices)
        ]
        if missing:
            advice = "copy what is missing from the checkpoint"
            return Health(Level.ERROR, f"{path} lacks {', '.join(missing)}", advice, check=name)
        from ..models.llama import vision_file

        files = [*gguf, *map(vision_file, gguf * sees)] or _open_weights(path)
    except ImportError as error:
        found = f"{path} cannot run here ({error})"
        return Health(Level.WARN, found, sentence(error), check=name)
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


def check_cloud(settings: ClientSettings, timeout: float = CONNECT_TIMEOUT_S) -> Health:
    """Open a stream to the verifier with the token and close it at once.

    ``timeout``: s of each step.
    """
    found = asyncio.run(_probe(settings, timeout))
    message = f"{found.message} ({found.check})"
    if found.level == Level.OK:
        how = "over TLS" if settings.secure else "without TLS"
        token = "takes the token" if settings.read_token() else "asks for no token"
        took = f"answers in {found.values[ROUND_TRIP_MS]:.1f} ms"
        message = f"{found.message} {how}, {token}, {took}"
    return replace(found, message=message, check="cloud")


async def _probe(settings: ClientSettings, timeout: float) -> Health:
    async with open_channel(settings.cloud, settings.credentials()) as channel:
        return await probe(channel, settings, timeout)
