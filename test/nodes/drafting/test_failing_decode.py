"""A decode that raises or hangs: its words get an end, and the next one starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("rclpy")
from diagnostic_msgs.msg import DiagnosticArray
from helpers.graph.decode_graph import INSTRUCTION, Watcher

from edge_cloud_spec.nodes.runtime.heartbeat import HUNG

# edge_only needs neither a bridge nor a cloud.
PROGRAM = """
import sys, time
from edge_cloud_spec.nodes.runtime import heartbeat
heartbeat.HANG_S, heartbeat.CHECK_S = 1.0, 0.1
from edge_cloud_spec.nodes.drafter import DrafterNode
from edge_cloud_spec.nodes.runtime.run import spin

class Failing(DrafterNode):
    def load(self):
        super().load()
        self.kept, self.runs = self._runner.run, 0
        self._runner.run = self.run_next

    def run_next(self, *arguments):
        self.runs += 1
        if self.runs == 1:
            raise RuntimeError("the model broke")
        if arguments[0].instruction == "find the brown door":
            time.sleep(600)
        return self.kept(*arguments)

sys.exit(spin(Failing))
"""


def test_a_decode_that_raises_ends_its_words_and_one_that_hangs_ends_the_node(domain: int) -> None:
    """In between, a drafter that has nothing to decide is alive for longer than a hang may last."""
    given = ["preset:=edge_only", "retry:=0.1", "patience:=1.0"]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "--ros-args"]
        + [part for each in given for part in ("-p", each)],
        stderr=subprocess.PIPE,
        text=True,
    )
    watcher = Watcher()
    try:
        watcher.ask(INSTRUCTION)
        watcher.until(lambda: len(watcher.finished()) >= 2)
        assert next(m.finish_reason for m in watcher.finished()) == "failed"
        assert watcher.finished()[1].finish_reason in ("end", "length")
        ended = {m.request_id for m in watcher.finished()[:2]}
        watcher.until(lambda: {m.request_id for m in watcher.heard["decode_stats"]} >= ended)
        watcher.ask("stop")
        signs: list[DiagnosticArray] = []
        watcher.create_subscription(DiagnosticArray, "/diagnostics", signs.append, 10)
        watcher.until(lambda: len(signs) > 5 or process.poll() is not None)  # one a second
        assert process.poll() is None
        watcher.ask("find the brown door")
        watcher.until(lambda: process.poll() is not None)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == HUNG
        assert "the thread model hangs for" in errors and "the model broke" in errors
    finally:
        process.kill()
        watcher.close()
