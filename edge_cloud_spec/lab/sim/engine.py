"""MuJoCo, imported once with a GL back end that exists.

MuJoCo reads ``MUJOCO_GL`` at its import and fails there when the library is missing, so the
library is probed before. Where other code of the process imported MuJoCo earlier, its own
``mujoco.GLContext`` is GLFW's, which draws nothing without a screen: the context is therefore
taken from the back end by name. Everything in this folder takes ``mujoco`` from here.
"""

from __future__ import annotations

import ctypes
import os
from importlib import import_module
from typing import Any

_EGL_DEFAULT_DISPLAY = 0
_EGL_PLATFORM_DEVICE = 0x313F


def why_no_egl() -> str | None:
    """None when EGL can open a display in this process, else a clause on what is missing."""
    try:
        ctypes.CDLL("libGL.so.1")
    except OSError:
        return "libGL.so.1 is not installed (Debian: apt install libgl1)"
    try:
        egl = ctypes.CDLL("libEGL.so.1")
    except OSError:
        return "libEGL.so.1 is not installed (Debian: apt install libegl1)"
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    egl.eglGetDisplay.restype = ctypes.c_void_p
    egl.eglGetDisplay.argtypes = [ctypes.c_void_p]
    egl.eglInitialize.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    displays = [egl.eglGetDisplay(_EGL_DEFAULT_DISPLAY), *_device_displays(egl)]
    if any(display and egl.eglInitialize(display, None, None) for display in displays):
        return None
    return "no EGL display could be opened"


def _device_displays(egl: ctypes.CDLL) -> list[int]:
    query = egl.eglGetProcAddress(b"eglQueryDevicesEXT")
    platform = egl.eglGetProcAddress(b"eglGetPlatformDisplayEXT")
    if not query or not platform:
        return []
    query_devices = ctypes.CFUNCTYPE(
        ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)
    )(query)
    get_display = ctypes.CFUNCTYPE(
        ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p
    )(platform)
    devices = (ctypes.c_void_p * 16)()
    count = ctypes.c_int()
    if not query_devices(16, devices, ctypes.byref(count)):
        return []
    return [get_display(_EGL_PLATFORM_DEVICE, devices[i], None) for i in range(count.value)]


def _choose_gl() -> tuple[Any, str | None]:
    """Set MUJOCO_GL unless the user did; the class of GL contexts and None, or None and why not."""
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    if chosen not in ("", "egl", "osmesa"):
        return None, f"MUJOCO_GL is set to {chosen}"
    chosen = chosen or "egl"
    reason = why_no_egl() if chosen == "egl" else None
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

__all__ = ["gl_context_class", "mujoco", "no_gl_because", "why_no_egl"]
