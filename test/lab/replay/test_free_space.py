"""A prompt that tells free space is the same in a replay."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import pytest

pytest.importorskip("rclpy")

from helpers.checkpoints import vlm
from helpers.scripted_runner import ScriptedRunner
from rclpy.time import Time

from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.msg import DecodeRequest
from edge_cloud_spec.nav.answer import CLAUSES, Dialect
from edge_cloud_spec.nav.events import Instruction
from edge_cloud_spec.nav.free_space import RANGES, FreeSpace
from edge_cloud_spec.nav.history import HistorySpec
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nodes.nav_messages import to_free_space
from edge_cloud_spec.pilot.decision_loop import Decide
from edge_cloud_spec.pilot.pilot import Decided, Output, Pilot, PilotSettings
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec_lab.replay.recording import ReplayTask
from edge_cloud_spec_lab.running.run_log import RunLog

IT = "find the blue box"
TEXT = f"{CLAUSES.user_text}\nFree space: {{free_space}}."
SHOWN = ((FreeSpace(0.84, 0.3, 1.1, 0.2), FreeSpace(0.1)), (), (FreeSpace(1.7),))


TELLS_WAYS = replace(CLAUSES, user_text=TEXT, history=HistorySpec(8))


class Drafter:
    """A pilot that decides at once, and the requests that it has made."""

    def __init__(
        self, now: float, dialect: Dialect = TELLS_WAYS, answer: str = "action: search;"
    ) -> None:
        tokens = vlm().tokenizer(answer, add_special_tokens=False)["input_ids"]
        self.now, self.runner = now, ScriptedRunner(vlm(), tuple(tokens))
        self.runner.go_on.set()
        self.said, self.told = list[Output](), list[FreeSpace]()
        self.pilot = Pilot(
            PilotSettings(DecodeSettings(load_preset("dsd")), dialect=dialect),
            lambda decide, on_receive: pytest.fail("scripted runners need no transport"),
            self.said.append,
            clock=lambda: self.now,
            stamp_clock=lambda: round(self.now * 1e9),
        )
        self.pilot.use(self.runner)  # type: ignore[arg-type]
        self.pilot.receive(Instruction(IT))

    def instruct(self, *texts: str) -> None:
        for text in texts:
            self.pilot.receive(Instruction(text))

    def decide(self, stamp: int, spaces: Iterable[FreeSpace]) -> Decide:
        self.now += 1.0
        for space in spaces:
            self.pilot.receive(space)
        self.pilot.see(stamp, b"picture")
        decide = self.pilot.take()
        assert decide is not None
        self.pilot.make(decide)
        self.told += [out.decide.free_space for out in self.said if isinstance(out, Decided)]
        self.said.clear()
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


SEES = "reason: blue box far 2.0 left 28, alone; action: turn left medium;"
LOOKS = "reason: blue box near 1.0 right 10, alone; action: search;"
AROUND = tuple(n / 9 for n in range(18))


@pytest.mark.parametrize("answer", [SEES, LOOKS])
def test_a_replay_tells_of_each_mission_what_its_prompts_told_whatever_it_answers(
    answer: str,
) -> None:
    """The same instruction twice, with a stop in between, by the dialect that is shipped."""
    dialect, log = load_dialect("around"), RunLog()
    once, again = Drafter(50.0, dialect, SEES), Drafter(1e6, dialect, answer)
    for number in range(4):
        if number == 2:
            once.instruct("stop", IT)
        stamp = round(once.now * 1e9) + 10**9
        front = Pose(0.3 * number, 0.0, 0.2 * number)
        shown = FreeSpace(1.0, around=AROUND, ranges=(1.5,) * RANGES, body=(0.4, 0.2))
        decide = once.decide(stamp, [replace(shown, front=front, at=stamp)])
        message = DecodeRequest(request_id=decide.request, kind=DecodeRequest.OPEN)
        message.header.stamp = Time(nanoseconds=decide.frame.stamp).to_msg()
        message.free_space = to_free_space(once.told[-1])
        log.on_message("decode_request", message, 0.0)
    for recorded in log.decisions.values():
        task = ReplayTask(0.0, 1, recorded.stamp, IT, b"picture", {}, recorded)
        again.decide(task.stamp, [FreeSpace.read(to_free_space(task.free_space))])
    told = [request.text.splitlines()[-2] for request in once.runner.requests]
    assert told == [request.text.splitlines()[-2] for request in again.runner.requests]
    assert all(re.match(r"way (left|right|ahead) \d+ \d\.\d; free 0 1", line) for line in told)
    assert [line.split("; ", 2)[2] for line in (told[0], told[2])] == 2 * [
        "seen not seen; not nothing"
    ]
    assert all("seen left" in line for line in (told[1], told[3]))
