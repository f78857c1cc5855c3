"""The judge of the fault matrix: a verified motion passes, and every kind of other one does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.wire.messages import DraftMessage, Opened, Verdict
from edge_cloud_spec_lab.bench.judge import (
    BASE_TIMEOUT,
    Asked,
    BaseCommand,
    BaseMotion,
    Command,
    Event,
    Instructed,
    Judgement,
    OnWire,
    Reported,
    judge,
    replaced_motions,
)

WORDS = ("", "action:", " turn", " left", " right", " small", ";")
BASE = PrefixDigest(0, 77)
TAKEN = {5: 99.0, 6: 99.5}
INSTRUCTION = "find the red box"


def decode(tokens: Sequence[int]) -> str:
    return "".join(WORDS[token] for token in tokens)


def said(*tokens: int) -> Verdict:
    """The cloud accepts the first two of the draft 1 2 3 5, and goes on with others."""
    return Verdict(BASE, (0, 1), tokens[0], leads_to=BASE.extend((1, 2, tokens[0])).short)


def run(**changes: Any) -> list[Event]:
    """A decode, its action and the motion, as a sound system publishes them."""
    after = BASE.extend((1, 2, 3))
    rest = Verdict(after, (0,), 6, leads_to=after.extend((5, 6)).short)
    command = Command(100.0, "r", "turn left small", 5, 102.0, True, True)
    moving = [BaseCommand(100.0 + n / 20, True) for n in range(10)]
    return [
        Instructed(98.0, INSTRUCTION),
        Asked(99.1, "r", INSTRUCTION, 5),
        OnWire(99.2, "r", Opened("s", b"", BASE)),
        OnWire(99.3, "r", DraftMessage(BASE, Draft((1, 2, 4, 5)), 0)),
        OnWire(99.4, "r", said(3)),
        OnWire(99.5, "r", DraftMessage(after, Draft((5,)), 1)),
        OnWire(99.6, "r", rest),
        replace(command, **changes),
        *moving,
        BaseMotion(100.2, True),
        BaseCommand(100.5, False),
        Reported(100.51, "nav_status", "idle r 3 done"),
        BaseMotion(100.6, True),
        BaseMotion(100.8, False),
    ]


def judged(events: list[Event]) -> Judgement:
    return judge(events, TAKEN.get, decode)


def test_a_verified_motion_traces_to_its_verdicts() -> None:
    found = judged(run())
    assert found.unverified == []
    assert found.standstill_s == pytest.approx(0.0)
    assert found.base_stands_s == pytest.approx(0.3)


def astray(event: Event) -> Event:
    """A verdict that does not lead where it says."""
    if isinstance(event, OnWire) and isinstance(event.message, Verdict):
        return replace(event, message=replace(event.message, leads_to=1))
    return event


def told(*others: Event) -> list[Event]:
    """Other instructions in place of the one."""
    return [*(each for each in run() if not isinstance(each, Instructed)), *others]


DOOR = "find the door"
WITHOUT_REPORT = [each for each in run() if not isinstance(each, Reported)]
AGAIN = Command(101.0, "r", "turn left small", 5, 103.0, True, True)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([e for e in run() if not isinstance(getattr(e, "message", None), Opened)], []),
        # a command that the verdicts do not bear out, and its velocities
        (run(request="forged"), ["nobody asked", "of no action"]),
        (run(verified=False), ["not verified", "of no action"]),
        (run(text="turn right small"), ["verdicts say", "of no action"]),
        (run(at=99.5), ["verdicts say", "of no action"]),  # before the last verdict
        (run(stamp=6), ["none that was decided on", "of no action"]),
        (run(at=110.0, expiry=112.0), ["11.0 s old", "of no action"]),
        ([astray(each) for each in run()], ["verdicts say", "of no action"]),
        ([*run(), Instructed(99.7, DOOR)], ["decided for", "of no action"]),
        ([*run(), AGAIN], ["moved the robot before"]),
        # an instruction is in force at once, and the one before for a moment
        (told(Instructed(98.0, DOOR), Instructed(99.9, INSTRUCTION)), []),
        (told(Instructed(98.0, INSTRUCTION), Instructed(99.9, DOOR)), []),
        (told(Instructed(98.0, DOOR)), ["decided for", "of no action"]),
        # a velocity after the action or before any, or after the operator's stop
        *(([*run(), BaseCommand(at, True)], ["of no action"]) for at in (101.0, 102.5, 90.0)),
        ([*WITHOUT_REPORT, Instructed(100.1, "stop")], ["of no action"]),
        ([*run(), BaseCommand(101.0, True, foreign=True)], []),
    ],
)
def test_what_is_not_borne_out_is_counted_and_only_that(
    events: list[Event], why: list[str]
) -> None:
    found = judged(events).unverified
    assert all(words in problem for words, problem in zip(why, found, strict=True))


def test_silence_counts_until_the_base_stops_by_itself() -> None:
    moving = [e for e in WITHOUT_REPORT if not (isinstance(e, BaseCommand) and not e.moves)]
    found = judged([*moving, BaseMotion(103.0, False)])
    assert found.standstill_s == pytest.approx(BASE_TIMEOUT - 0.05)


def test_a_frame_from_too_much_driving_ago_is_counted_and_standing_makes_none_old() -> None:
    def before(moves: bool, foreign: bool, seconds: float) -> list[Event]:
        steps = range(round(20 * seconds) + 1)
        return [BaseCommand(99.99 - seconds + n / 20, moves, foreign) for n in steps]

    for moves, foreign, seconds in ((True, False, 1.1), (False, False, 3.0), (True, True, 3.0)):
        events = [*run(), *before(moves, foreign, seconds)]
        assert judge(events, {5: 97.0}.get, decode, since=99.995).unverified == []
    events = [*run(), *before(True, False, 2.0)]
    assert judge(events, {5: 99.0}.get, decode, since=99.995).unverified == []
    (problem, _) = judge(events, {5: 98.5}.get, decode, since=99.995).unverified
    assert "from 1.5 s of driving ago" in problem


def test_a_motion_that_takes_anothers_place_is_told_from_one_that_begins_standing() -> None:
    other = Command(100.25, "s", "search", 6, 103.0, True, True)
    assert replaced_motions([*run(), other], 0.0) == 1
    assert replaced_motions([*run(), other], 100.3) == 0
    assert replaced_motions([*run(), replace(other, moves=False)], 0.0) == 0
    assert replaced_motions([*run(), replace(other, at=100.6)], 0.0) == 0
    alone = [each for each in run() if not isinstance(each, BaseCommand)]
    theirs = BaseCommand(100.1, True, foreign=True)
    assert replaced_motions([*alone, theirs, other], 0.0) == 0
