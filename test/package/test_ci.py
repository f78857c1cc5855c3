"""What CI runs: a failure that says nothing of the change is told and passes, any other fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / ".ci" / "run"
MAKEFILE = """
WORKERS ?= 1
lint:
	@echo linted; {lint}
test:
	@echo run >> runs
	@{python} -m pytest -q -p xdist -p pytest_timeout --numprocesses $(WORKERS) $(ARGS)
"""
# What fails beside others and passes alone.
HEAD = """
import os, pytest, time
ALONE = "PYTEST_XDIST_WORKER" not in os.environ
def test_another(): pass
"""
FAILS = "def test_it(): assert ALONE, 'how it failed'"
IN_FIXTURE = """
@pytest.fixture
def given(): assert ALONE, 'how its fixture failed'
def test_other(given): pass"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def ci(folder: Path, tests: str, lint: str = "true") -> tuple[int, str, int]:
    """Status and output of the script for these tests, and how often it ran them."""
    (folder / "runs").touch()
    (folder / ".ci").mkdir()
    shutil.copy(RUN, folder / ".ci")
    (folder / "Makefile").write_text(MAKEFILE.format(python=sys.executable, lint=lint))
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_some.py").write_text(HEAD + tests)
    path = f"{Path(sys.executable).parent}:{os.defpath}"
    environment = {"PATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [folder / ".ci" / "run"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, (folder / "runs").read_text().count("run")


def test_what_passes_alone_is_told_as_flaky_with_how_it_failed(tmp_path: Path) -> None:
    status, said, runs = ci(tmp_path, FAILS + IN_FIXTURE)
    assert (status, runs) == (0, 2)
    for name, how in ("it", "how it failed"), ("other", "how its fixture failed"):
        assert f"FLAKY: test_some.py::test_{name} - AssertionError: {how}\n" in said
        told = [line for line in said.splitlines() if line.startswith("E ") and how in line]
        assert len(told) == 2, "at once, and at the end"
    assert said.splitlines()[-1].startswith("2 passed in ")


def test_where_all_pass_nothing_is_run_again(tmp_path: Path) -> None:
    status, said, runs = ci(tmp_path, "")
    assert (status, runs) == (0, 1)
    assert said.splitlines()[-1].startswith("1 passed in ") and "FLAKY" not in said


@pytest.mark.parametrize(
    ("tests", "lint", "runs"),
    [
        ("", "false", 0),
        ("def test_it(): assert False", "true", 2),
        (f"{FAILS}\ndef test_other(): assert False", "true", 2),
        ("@pytest.mark.parametrize('n', range(6))\ndef test_it(n): assert ALONE", "true", 1),
        ("def test_it(): ALONE or os._exit(3)", "true", 1),
        ("@pytest.mark.timeout(0.2)\ndef test_it(): ALONE or time.sleep(60)", "true", 1),
        ("assert ALONE", "true", 1),
    ],
    ids=["lint", "failure", "one of two", "many", "crash", "hang", "collection"],
)
def test_any_other_failure_fails(tests: str, lint: str, runs: int, tmp_path: Path) -> None:
    """What the lint refuses is not tested."""
    status, said, ran = ci(tmp_path, tests, lint)
    assert (status != 0, ran) == (True, runs), said
    assert "FLAKY" not in said and "linted" in said
