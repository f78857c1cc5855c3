"""Processes of a graph: none outlives its parent, and one that ends by itself is named."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from edge_cloud_spec.bringup.processes import Processes, Program
from edge_cloud_spec.errors import UserError

STAY = """
import signal, time
for number in (2, 15):
    signal.signal(number, signal.SIG_IGN)
print('here', flush=True)
time.sleep(600)
"""


def test_processes_that_will_not_end_are_ended(tmp_path: Path) -> None:
    stubborn = Program("stubborn", [sys.executable, "-c", STAY])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edge_cloud_spec.bringup.processes.GRACE", 0.2)
        with Processes([stubborn], {}, tmp_path) as processes:
            while "here" not in (tmp_path / "stubborn.log").read_text():
                time.sleep(0.02)
            pid = processes.pids["stubborn"]
            processes.check()
    assert not alive(pid)


def test_a_part_that_ends_by_itself_is_named_with_its_last_words(tmp_path: Path) -> None:
    program = Program(
        "verifier", [sys.executable, "-c", "raise SystemExit('error: no such model')"]
    )
    said = r"verifier ended \(exit status 1\): error: no such model"
    with Processes([program], {}, tmp_path) as processes, pytest.raises(UserError, match=said):
        while True:
            processes.check()
            time.sleep(0.02)


def test_a_part_that_is_killed_is_told_so_and_none_of_its_words_are_the_cause(
    tmp_path: Path,
) -> None:
    code = "print('error: of long ago', flush=True); import os; os.kill(os.getpid(), 9)"
    said = r"verifier ended \(killed by SIGKILL, perhaps out of memory\): see .*\.log$"
    program = Program("verifier", [sys.executable, "-c", code])
    with Processes([program], {}, tmp_path) as processes, pytest.raises(UserError, match=said):
        while True:
            processes.check()
            time.sleep(0.02)


def test_nothing_outlives_a_demo_that_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from edge_cloud_spec.bringup.processes import Processes, Program\n"
        f"program = Program('child', [sys.executable, '-c', {STAY.replace('(2, 15)', '()')!r}])\n"
        f"with Processes([program], {{}}, pathlib.Path({str(tmp_path)!r})) as p:\n"
        "    print(p.pids['child'], flush=True)\n"
        "    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 120
    while alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
