"""Runs one of our programs with a model that fails on demand.

``python -m edge_cloud_spec_lab.bench.faults.poisoned FILE MODULE ARGUMENTS``: before each pass of
its model the program reads FILE, whose word says how that pass fails (``FAILURES``); an empty or
missing file means no failure. With ``SPEAKS`` in its environment it uses that version of the
protocol. The program itself is unchanged.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SPEAKS = "EDGE_CLOUD_SPEC_BENCH_PROTOCOL"


def _out_of_memory(run: Callable[[], list[Any]]) -> list[Any]:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def _not_a_number(run: Callable[[], list[Any]]) -> list[Any]:
    return [logits * float("nan") for logits in run()]


def _error(run: Callable[[], list[Any]]) -> list[Any]:
    raise RuntimeError("a pass of the model failed")


FAILURES = {"out_of_memory": _out_of_memory, "nan": _not_a_number, "error": _error}


def poison(file: Path) -> None:
    """Make every pass of this process's models read the file first."""
    session: Any = importlib.import_module("edge_cloud_spec.models.session")
    run_pass = session.run_pass

    def asking(*arguments: Any, **options: Any) -> list[Any]:
        word = file.read_text() if file.exists() else ""
        if word in FAILURES:
            return FAILURES[word](lambda: run_pass(*arguments, **options))
        logits: list[Any] = run_pass(*arguments, **options)
        return logits

    session.run_pass = asking


def main() -> None:
    """Poison, then run the module as a program."""
    file, module, *arguments = sys.argv[1:]
    if SPEAKS in os.environ:  # before anything else is imported that knows the version
        messages: Any = importlib.import_module("edge_cloud_spec.wire.messages")
        messages.PROTOCOL = int(os.environ[SPEAKS])
    poison(Path(file))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
