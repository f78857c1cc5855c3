"""Bursts of signals at every stage of a node's life: each must end the program, and quietly."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NoReturn

from fuzz import Broken
from helpers.graph.ros_domain import ros_domain
from helpers.processes import installed_script

from edge_cloud_spec.nodes.runtime.run import FORCED

NODES = ("navigator", "stop_guard", "instruction_server")  # those that start without a model
IMPORTED_S, UP_S = 3.0, 1.5  # s that a program imports, and that its node then takes to run
END_S = 5.0  # a launch allows no more
AT_ONCE = 4
MIXED = (signal.SIGINT, signal.SIGTERM)


def run(count: int, seed: int) -> Counter[str]:
    """Start as many nodes, and signal each 2 to 5 times, up to 100 us apart, at a random moment.

    Every tenth is a program of its own, signalled from its first moment on; the others begin where
    they have imported. Raises Broken if one does not end in time, or with a traceback.
    """
    with (
        ros_domain(),
        TemporaryDirectory() as folder,
        ProcessPoolExecutor(AT_ONCE, get_context("spawn")) as pool,
    ):
        return Counter(
            said
            for one in pool.map(partial(burst, seed, Path(folder)), range(count))
            for said in one
        )


def burst(seed: int, folder: Path, number: int) -> list[str]:
    """Start, signal and await one node; returns its name and how it ended."""
    random, node = Random(f"{seed} {number}"), NODES[number % len(NODES)]
    numbers = [random.choice(MIXED) for _ in range(random.randint(2, 5))]
    module, log = import_module(f"edge_cloud_spec.nodes.{node}"), folder / f"{number}"
    program = installed_script(folder / f"{number}.py", module.__name__)
    imports = number % 10 == 0
    delay = random.uniform(0.0, (IMPORTED_S if imports else 0.0) + UP_S)
    log.touch()
    pid = os.fork()
    if pid == 0:
        _become(node, program if imports else None, log)
    time.sleep(delay)
    for each in numbers:
        os.kill(pid, each)
        next_at = time.perf_counter() + random.uniform(0.0, 100e-6)
        while time.perf_counter() < next_at:
            pass
    began, status = time.monotonic(), (0, 0)
    while status[0] == 0 and time.monotonic() < began + END_S:
        time.sleep(0.01)
        status = os.waitpid(pid, os.WNOHANG)
    about = f"{node} {number}, {[each.name for each in numbers]} {delay:.2f} s after its start"
    if status[0] == 0:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise Broken(f"{about}: it hung")
    code, errors = os.waitstatus_to_exitcode(status[1]), log.read_text()
    early = [-each for each in MIXED] + imports * [1]  # no handler yet; 1: Python itself starts
    forced = FORCED in errors  # DDS takes seconds to make a participant, now and then
    said = errors.replace(f"{FORCED}\n", "")
    if code not in [forced, *early] or str(program) in said or "\nerror: " in f"\n{said}":
        raise Broken(f"{about}: status {code}, {errors}")
    stage = "by force" if forced else "before its handlers" if code else "in its node"
    return [node, f"{stage}, within {int(time.monotonic() - began) + 1} s"]


def _become(node: str, program: Path | None, log: Path) -> NoReturn:
    """Continue as this program, or as this node, which is imported already."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored, where a shell started this beside it
    written = os.open(log, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(written, stream)
    if program is not None:
        os.execv(sys.executable, [sys.executable, str(program)])
    sys.argv = [node]
    import_module(f"edge_cloud_spec.nodes.{node}").main()
    os._exit(99)  # no node returns
