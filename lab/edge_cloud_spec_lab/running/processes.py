"""Starts the processes of a run together, monitors them, and always ends them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from edge_cloud_spec.bringup.exits import exit_text, last_words
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.signals import handled

ENDING = ("setpriv", "--pdeathsig", "TERM")  # becomes the program, which ends with its parent
SIGNAL_GRACE_S = 4.0  # s for SIGINT, and again for SIGTERM


class Processes:
    """A context manager that ends all processes on exit. Their output is written to ``logs``.

    ``programs``: the command line of each, by its name.
    Each has its own session, so that Ctrl-C reaches only this process, which ends them in order. If
    this process is killed before, Linux ends them: each is started by ``ENDING``. A ``preexec_fn``
    would need a fork, in which gRPC, if it runs in this process, aborts the child now and then.
    """

    def __init__(
        self, programs: Mapping[str, Sequence[str]], environment: Mapping[str, str], logs: Path
    ) -> None:
        self._programs, self._logs = programs, logs
        self._environment = {**os.environ, **environment}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Processes:
        self._logs.mkdir(parents=True, exist_ok=True)
        if shutil.which(ENDING[0]) is None:
            raise UserError("programs are started by setpriv, which is not there: get util-linux")
        try:
            for name, program in self._programs.items():
                with open(self._log(name), "wb") as log:
                    self._running[name] = subprocess.Popen(
                        [*ENDING, *program],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=self._environment,
                        start_new_session=True,
                    )
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {name: process.pid for name, process in self._running.items()}

    def check(self) -> None:
        """Raise UserError if a process has ended by itself."""
        for name, process in self._running.items():
            status = process.poll()
            if status is not None:
                why = self.last_error(name) if status >= 0 else f"see {self._log(name)}"
                raise UserError(f"{name} ended ({exit_text(status)}): {why}")

    def last_error(self, name: str) -> str:
        """The last line of a process's output that mentions an error, else the last line; and its
        log file."""
        log = self._log(name)
        return f"{last_words(log.read_text('utf-8', 'replace').splitlines())} (log: {log})"

    def end(self) -> None:
        """Send SIGINT, then SIGTERM, then SIGKILL to all that still run."""
        with handled(signal.SIG_IGN):  # a second Ctrl-C leaves no processes behind
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
                running = [p for p in self._running.values() if p.poll() is None]
                for process in running:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, number)
                deadline = time.monotonic() + SIGNAL_GRACE_S
                for process in running:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(max(0.01, deadline - time.monotonic()))

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"
