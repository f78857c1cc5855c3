"""A verifier gives back what it no longer uses, so that its memory is what its options say."""

from __future__ import annotations

import ctypes
import os

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # of glibc's mallopt
MAPPED_BYTES = 2**20  # a buffer of more is mapped by itself, and given back when it is freed
HEAPS = 2  # for all threads; by default eight a core, each of which keeps its own fragments
KERNELS_KEPT = 128  # of oneDNN, one for each shape of a product: some 170 kB each, by default 1,024
OPERATIONS_KEPT = 256  # of each that torch has from oneDNN: some 200 kB a shape, by default 1,024


def bound_memory() -> None:
    """Call this before torch is imported.

    glibc maps large buffers by themselves only until one is freed: then it takes others of that
    size from its heaps, where what lies between keeps them. oneDNN keeps a kernel for each number
    of rows that a pass had, and torch what it prepared for it.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KERNELS_KEPT))
    os.environ.setdefault("LRU_CACHE_CAPACITY", str(OPERATIONS_KEPT))
    if set_option := getattr(ctypes.CDLL(None), "mallopt", None):
        set_option(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        set_option(_M_ARENA_MAX, HEAPS)


def trim() -> None:
    """Give back what glibc keeps of freed memory; takes a moment."""
    if trim_heaps := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim_heaps(0)
