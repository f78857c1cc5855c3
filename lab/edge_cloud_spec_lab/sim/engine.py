"""Imports MuJoCo once, with a GL back end that works.

MuJoCo reads ``MUJOCO_GL`` at its import and fails there if a library or a display is missing; then
it is imported without GL. If other code of the process imported MuJoCo earlier, its
``mujoco.GLContext`` is GLFW's, which draws nothing without a screen: so the context is taken from
the back end by name. Everything in this folder imports ``mujoco`` from here.
"""

from __future__ import annotations

import ctypes
import os
from importlib import import_module
from typing import Any

# What EGL draws with, and Debian's packages of it.
_LIBRARIES = {"libGL.so.1": "libgl1", "libEGL.so.1": "libegl1"}


def _missing_library() -> str | None:
    """Names the missing library that EGL needs, as a clause; None if all are installed."""
    for library, package in _LIBRARIES.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            return f"{library} is not installed (Debian: apt install {package})"
    return None


def _choose_gl() -> tuple[Any, str | None]:
    """Set MUJOCO_GL unless the user did; returns the class of GL contexts, or why there is none."""
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    if chosen not in ("", "egl", "osmesa"):
        return None, f"MUJOCO_GL is set to {chosen}"
    chosen = chosen or "egl"
    reason = _missing_library() if chosen == "egl" else None
    # libmujoco reads it too, when it draws for the first time
    os.environ["MUJOCO_GL"] = "disable" if reason else chosen
    if reason is None:
        try:
            return import_module(f"mujoco.{chosen}").GLContext, None
        except Exception as error:  # whatever PyOpenGL or a driver may raise
            reason = f"MuJoCo could not start {chosen} ({error})"
            os.environ["MUJOCO_GL"] = "disable"
    return None, reason


gl_context_class, no_gl_because = _choose_gl()
"""MuJoCo's class of GL contexts; and why pictures cannot be drawn by GL, None when they can."""

import mujoco  # noqa: E402

__all__ = ["gl_context_class", "mujoco", "no_gl_because"]
