"""Large buffers are given back, whatever was freed before."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys

import pytest

from edge_cloud_spec.cloud import command

CODE = """
import ctypes, sys
from edge_cloud_spec.cloud.serving.memory import bound_memory, trim
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
if sys.argv[1] == "bound":
    bound_memory()
libc.free(libc.malloc(16 * 2**20))  # from now on glibc takes this size from its heap
held = libc.malloc(12 * 2**20)
with open("/proc/self/maps") as maps:
    heap = next(line for line in maps if "[heap]" in line).split()[0]
begin, end = (int(at, 16) for at in heap.split("-"))
print(begin <= held < end)
trim()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
@pytest.mark.parametrize(("how", "in_heap"), [("bound", "False"), ("as it is", "True")])
def test_a_large_buffer_is_mapped_by_itself_after_one_was_freed(how: str, in_heap: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, how], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [in_heap]


def test_whoever_makes_a_worker_bounds_memory_before_and_freezes_what_was_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One verifier's process, and each replica's on Ray, which calls ``make_worker``, too."""
    done: list[str] = []
    monkeypatch.setattr(command, "bound_memory", lambda: done.append("bound"))
    monkeypatch.setattr(command, "_make_local", lambda _: done.append("loaded"))
    monkeypatch.setattr(gc, "freeze", lambda: done.append("frozen"))
    command.make_worker(command.ServeSettings())
    assert done == ["bound", "loaded", "frozen"]
