"""A verifier in a process of its own, for benchmarks and tests: what ``serve`` starts."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType

from ...errors import UserError


class VerifierProcess:
    """``edge-cloud-spec serve`` on the CPU with these options; ``address`` is where it listens.

    After ``kill`` or ``stop`` it can be started again at the same address. Raises UserError when
    the verifier does not come up.
    """

    def __init__(self, options: Sequence[str] = (), address: str = "127.0.0.1:0") -> None:
        self._options = tuple(options)
        self.address = address
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> VerifierProcess:
        """Start it and wait until robots can connect."""
        command = [sys.executable, "-m", "edge_cloud_spec.cli", "serve", "--address", self.address]
        command += ["--device", "cpu", "--dtype", "float32"]  # as the models of the other side are
        self._process = subprocess.Popen(
            [*command, *self._options], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if match := re.match(r"serving on (\S+)", line):
                self.address = match[1]
                return self
        raise UserError(f"the verifier ended with status {self._process.wait()} at its start")

    @property
    def pid(self) -> int:
        """The number of its process."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> int:
        """Ask it to end; returns its exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """End it with SIGKILL, as a power cut would; returns its exit status."""
        return self._end(signal.SIGKILL)

    def _end(self, number: int) -> int:
        process = self._process
        if process is None:
            return 0
        self._process = None
        process.send_signal(number)
        try:
            status = process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        assert process.stdout is not None
        process.stdout.close()
        return status

    def __enter__(self) -> VerifierProcess:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
