"""The end of a decode: whichever side ends the stream, and however late the other, nothing is lost.

The losses that are none came on a loaded machine, where the robot's Close was late.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from helpers.cloud.grpc_robot import Talk, opening
from helpers.cloud.scripted_cloud import RobotSide, ScriptedCloud
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.edge.events import LinkLost, LinkUp
from edge_cloud_spec.edge.link import stream as link_stream
from edge_cloud_spec.wire.codec import encode_client, encode_server
from edge_cloud_spec.wire.messages import Close, Fault, Opened, Prediction, Resume, Verdict

BASE = PrefixDigest(0, 7)
OPENED = encode_server(Opened("s", b"", BASE))
LAST = encode_server(Verdict(BASE, (), 3, "end"))
GOES_ON = encode_server(Verdict(BASE, (), 3))
FAULT = encode_server(Fault("internal", "no more of this"))
LATE = encode_server(Prediction(BASE, (), 3, 0.5))


def cloud_that_ends(answers: tuple[bytes, ...], broken: bool = False) -> Any:
    """It answers an Open with these and ends its side at once, without waiting for a Close."""

    def script(robot: RobotSide) -> Iterator[bytes]:
        robot.hear()
        yield OPENED
        yield from answers
        if broken:
            robot.context.abort(grpc.StatusCode.UNAVAILABLE, "the machine went down")

    return ScriptedCloud(script)


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(0.01)


def hear_answers(robot: Talk, count: int) -> list[Any]:
    return [robot.hear() for _ in range(1 + count)]


def ended(robot: Talk) -> bool:
    return not robot.link._streams


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("answers", [(LAST,), (FAULT,), (GOES_ON, LAST), (LAST, LATE)])
def test_an_end_after_the_last_answer_is_no_loss_however_late_the_robot_closes(
    answers: tuple[bytes, ...], broken: bool
) -> None:
    with cloud_that_ends(answers, broken) as cloud, Talk(cloud.address, retry_s=0.01) as robot:
        robot.say(opening())
        hear_answers(robot, len(answers))
        with pytest.raises(queue.Empty):  # longer than it takes to reconnect thirty times
            robot.heard.get(timeout=0.3)
        robot.stream.close(encode_client(Close()))
        until(lambda: ended(robot))
        assert robot.heard.empty()
        assert cloud.streams == 1


def test_an_end_before_the_last_answer_is_a_loss() -> None:
    """The negative control: a verdict that the decode goes on after."""
    with cloud_that_ends((GOES_ON,)) as cloud, Talk(cloud.address, retry_s=0.01) as robot:
        robot.say(opening())
        hear_answers(robot, 1)
        assert robot.hear() == LinkLost("the cloud ended the stream")
        assert isinstance(robot.hear(), LinkUp)


def test_a_robot_that_resumes_after_the_last_answer_gets_a_stream_again() -> None:
    """It took that answer for another draft's."""
    with cloud_that_ends((LAST,)) as cloud, Talk(cloud.address, retry_s=0.01) as robot:
        robot.say(opening())
        hear_answers(robot, 1)
        robot.say(Resume("s", BASE))
        while isinstance(heard := robot.hear(), Opened):
            pass  # the first connection was late, so that the robot said it again
        assert isinstance(heard, LinkLost)
        assert isinstance(robot.hear(), LinkUp)


def test_a_break_after_the_last_answer_is_told_to_a_robot_that_still_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two answers that were under way the later one came, and the link broke."""
    monkeypatch.setattr(link_stream, "LATE_CLOSE_S", 0.05)
    with cloud_that_ends((LAST,), broken=True) as cloud, Talk(cloud.address, retry_s=0.01) as robot:
        robot.say(opening())
        hear_answers(robot, 1)
        assert robot.hear() == LinkLost("the machine went down")
        assert isinstance(robot.hear(), LinkUp)


@settings(max_examples=25, deadline=None)
@given(
    answers=st.lists(st.sampled_from([GOES_ON, LATE]), max_size=3).map(tuple),
    broken=st.booleans(),
    close_after_ms=st.sampled_from([0, 0, 1, 5, 20]),
    said_too_late=st.lists(st.sampled_from(["draft", "noise"]), max_size=2),
)
def test_whoever_ends_first_in_whatever_order_nothing_is_reported(
    answers: tuple[bytes, ...], broken: bool, close_after_ms: int, said_too_late: list[str]
) -> None:
    with (
        cloud_that_ends((*answers, LAST), broken) as cloud,
        Talk(cloud.address, retry_s=0.01) as robot,
    ):
        robot.say(opening())
        hear_answers(robot, len(answers) + 1)
        for what in said_too_late:  # a draft that was pushed before the verdict was read
            robot.say(b"\x12\x00" if what == "draft" else b"\x99")
        time.sleep(close_after_ms / 1e3)
        robot.stream.close(encode_client(Close()))
        until(lambda: ended(robot))
        assert robot.heard.empty()
