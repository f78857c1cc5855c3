"""Every run of the tests is the same run: hypothesis draws by seed and nothing depends on speed."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Before numpy and torch are imported: their models here are too small to gain by a second thread,
# and with several workers (pytest-xdist) each has a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# As Humble checks fields of messages in any case: a float is no int, and an int is none of numpy.
os.environ["ROS_PYTHON_CHECK_FIELDS"] = "1"

# Under nohup what is started here would ignore SIGHUP, too: a handler is not inherited.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# What starts graphs of ROS nodes, in two rows: each graph has processes enough for two cores, and
# waits for much of its time.
NODES = ("test/nodes/",)
GRAPHS = (
    "test/lab/simulator/",
    "test/agent_tools/",
    "test/examples/",
    "test/lab/demo/test_demo.py",
    "test/lab/replay/test_replay.py",
    "test/observe/test_recorder.py",
    "test/lab/bench/test_stop.py",
    "test/lab/bench/test_faults.py",
    "test/lab/view/test_view_server.py",
)

# Where the longest files are: they begin next, so that none is left for the end.
LONG = ("test/package/", "test/lab/bench/", "test/lab/training/", "test/cloud/test_")

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
settings.load_profile("repeatable")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What is imported and collected stays to the end: no collection of garbage goes over it.

    Later ones are rarer than by default: each goes over the models and traces that a test holds.
    """
    gc.disable()
    found = yield
    gc.freeze()
    gc.set_threshold(10_000, 5, 5)
    gc.enable()
    return found


@pytest.fixture(autouse=True)
def root_log() -> Iterator[None]:
    """A command sets up the process's log; a later test would write to this one's closed stream."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in set(root.handlers).difference(before):
        root.removeHandler(handler)
    root.setLevel(level)


def unit(nodeid: str) -> str:
    """The tests that one worker runs in a row: those of a file, or a row of graphs."""
    if nodeid.startswith(NODES):
        return "nodes"
    return "graphs" if nodeid.startswith(GRAPHS) else nodeid.partition("::")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The graphs take longest: they begin first, so that several workers end together."""

    def place(item: pytest.Item) -> int:
        if unit(item.nodeid) in ("nodes", "graphs"):
            return 0
        return 1 if item.nodeid.startswith(LONG) else 2

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    config.option.loadscopereorder = False
    return ByUnit(config, log)
