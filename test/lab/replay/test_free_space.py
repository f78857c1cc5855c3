"""A prompt that tells free space is the same in a replay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

pytest.importorskip("rclpy")

from helpers.checkpoints import vlm
from helpers.scripted_runner import ScriptedRunner
from rclpy.time import Time

from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.msg import DecodeRequest
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec.nav.events import Instruction
from edge_cloud_spec.nav.free_space import FreeSpace
from edge_cloud_spec.nav.history import HistorySpec
from edge_cloud_spec.nodes.nav_messages import to_free_space
from edge_cloud_spec.pilot.decision_loop import Decide
from edge_cloud_spec.pilot.pilot import Pilot, PilotSettings
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec_lab.replay.recording import ReplayTask
from edge_cloud_spec_lab.running.run_log import RunLog

IT = "find the blue box"
TEXT = f"{CLAUSES.user_text}\nFree space: {{free_space}}."
SHOWN = ((FreeSpace(0.84, 0.3, 1.1, 0.2), FreeSpace(0.1)), (), (FreeSpace(1.7),))


class Drafter:
    """A pilot that decides at once, and the requests that it has made."""

    def __init__(self, now: float) -> None:
        dialect = replace(CLAUSES, user_text=TEXT, history=HistorySpec(8))
        tokens = vlm().tokenizer("action: search;", add_special_tokens=False)["input_ids"]
        self.now, self.runner = now, ScriptedRunner(vlm(), tuple(tokens))
        self.runner.go_on.set()
        self.pilot = Pilot(
            PilotSettings(DecodeSettings(load_preset("dsd")), dialect=dialect),
            lambda decide, on_receive: pytest.fail("scripted runners need no transport"),
            clock=lambda: self.now,
            stamp_clock=lambda: round(self.now * 1e9),
        )
        self.pilot.use(self.runner)  # type: ignore[arg-type]
        self.pilot.receive(Instruction(IT))

    def decide(self, stamp: int, spaces: Iterable[FreeSpace]) -> Decide:
        self.now += 1.0
        for space in spaces:
            self.pilot.receive(space)
        self.pilot.see(stamp, b"picture")
        decide = self.pilot.take()
        assert decide is not None
        self.pilot.make(decide)
        return decide


def test_what_a_prompt_told_is_told_again_in_a_replay() -> None:
    """By way of the messages on the topics and in the bag, also where decisions follow each other
    sooner than free space is told."""
    once, again, log = Drafter(50.0), Drafter(1e6), RunLog()
    for number, shown in enumerate(SHOWN):
        stamp = round(once.now * 1e9) + 10**9
        spaces = [replace(each, at=stamp - 10**8 * n) for n, each in enumerate(shown)]
        spaces += [replace(each, at=stamp - 5 * 10**9) for each in SHOWN[number - 1]]
        decide = once.decide(stamp, sorted(spaces, key=lambda space: space.at))
        message = DecodeRequest(request_id=decide.request, kind=DecodeRequest.OPEN)
        message.header.stamp = Time(nanoseconds=decide.frame.stamp).to_msg()
        message.free_space = to_free_space(decide.free_space)
        log.on_message("decode_request", message, 0.0)
    for recorded in log.decisions.values():
        task = ReplayTask(0.0, 1, recorded.stamp, IT, b"picture", {}, recorded)
        again.decide(task.stamp, [FreeSpace.read(to_free_space(task.free_space))])
    asked, asked_again = once.runner.requests, again.runner.requests
    assert [request.digest for request in asked] == [request.digest for request in asked_again]
    told = [request.text.splitlines()[-1] for request in asked]
    assert told[0] == "Free space: ahead 0.8 m, left 0.3 m, right 1.1 m, behind 0.2 m."
    assert "ahead not seen" in told[1] and "ahead 1.7 m" in told[2]
