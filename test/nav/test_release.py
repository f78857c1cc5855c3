"""After a stop, from any cause, only an instruction and a frame from after the release move."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.drill import FORWARD, Drill, drives, reports, words
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.events import EStop, Event, Halt, Hold, Instruction
from edge_cloud_spec.nav.navigator import Navigator
from edge_cloud_spec.nav.status import START

CUP = "find the cup"
STOPS: dict[str, tuple[Event, Event | None]] = {
    "e_stop": (EStop(True), EStop(False)),
    "hold": (Hold("a parameter is wrong"), Hold("")),
    "inactive": (Hold("the navigator is not active", "active"), Hold("", "active")),
}
stops = st.sampled_from([each for pair in STOPS.values() for each in pair if each is not None])


@pytest.mark.parametrize("cause", STOPS)
def test_an_instruction_published_during_a_stop_moves_nothing_at_its_release(cause: str) -> None:
    stop, release = STOPS[cause]
    assert release is not None
    drill = Drill()
    drill.on(stop)
    assert "was not taken" in reports(drill.on(Instruction(CUP), 0.1))
    drill.on(release, 1.0)
    for age in (0.0, 0.3, 5.0):
        late = drill.current(FORWARD, f"r{age}", age=age, instruction=CUP)
        assert not drives(drill.on(late, 0.5) + drill.run(0.2))
    assert drill.status.startswith("stopped") and "publish an instruction" in drill.status
    drill.on(Instruction(CUP))
    assert drives(drill.on(drill.current(FORWARD, "new", age=0.1), 0.2))


@pytest.mark.parametrize("cause", STOPS)
def test_an_instruction_from_before_a_stop_moves_nothing_after_it(cause: str) -> None:
    stop, release = STOPS[cause]
    assert release is not None
    drill = Drill()
    drill.on(Instruction(CUP))
    drill.on(stop, 0.1)
    drill.on(release, 0.1)
    assert not drives(drill.on(drill.current(FORWARD, "r1", age=0.0), 0.1))
    before = drill.current(FORWARD, "r2", age=0.0)
    drill.on(Instruction(CUP), 0.1)
    assert not drives(drill.on(before, 0.1)), "its frame is from before the instruction"
    assert drives(drill.on(drill.current(FORWARD, "r3", age=0.0), 0.1))


def test_the_word_stop_stops_until_the_next_instruction() -> None:
    drill = Drill()
    drill.on(words(FORWARD))
    assert isinstance(drill.on(Instruction("Stop"))[0], Halt)
    assert not drives(drill.run(0.5) + drill.on(drill.current(FORWARD, "r2", age=0.0)))
    drill.on(Instruction(CUP))
    drill.now += 0.5
    assert drives(drill.on(drill.current(FORWARD, "r3", age=0.1, instruction=CUP)))


def test_the_word_stop_needs_an_instruction_that_nothing_else_holds() -> None:
    drill = Drill()
    drill.on(Instruction("stop"))
    drill.on(EStop(True))
    drill.on(Instruction(CUP), 0.1)
    drill.on(EStop(False), 0.1)
    assert drill.status.endswith("told to stop"), "it came while e_stop was on"
    drill.on(Instruction("stop"), 0.1)
    drill.on(Instruction(CUP), 0.1)
    assert drill.status.startswith("idle")


@pytest.mark.parametrize("text", ["", " \n", "\x07 find it", "x" * 501])
def test_what_is_no_instruction_ends_no_stop(text: str) -> None:
    drill = Drill()
    drill.on(EStop(True))
    drill.on(EStop(False))
    drill.on(Instruction(text), 0.1)
    assert drill.status.startswith("stopped")
    assert not drives(drill.on(drill.current(FORWARD, "r1", age=0.0), 0.1))


def test_a_navigator_that_starts_moves_nothing_yet_and_is_stopped_by_what_it_hears_then() -> None:
    drill = Drill()
    drill.navigator = Navigator(starting="listening for e_stop")
    drill.on(Instruction(CUP))
    assert not drives(drill.on(drill.current(FORWARD, "r1", age=0.0), 0.1))
    drill.on(EStop(True), 0.1)
    drill.on(Hold("", START), 1.0)
    assert drill.status.endswith("e_stop is on")
    drill.on(EStop(False), 0.1)
    assert not drives(drill.on(drill.current(FORWARD, "r2", age=0.0), 0.1))


@pytest.mark.parametrize("heard", [[CUP], ["stop", CUP]])
def test_a_navigator_that_starts_takes_instructions_and_moves_once_it_has_started(
    heard: list[str],
) -> None:
    drill = Drill()
    drill.navigator = Navigator(starting="listening for e_stop")
    for text in heard:
        assert "not taken" not in reports(drill.on(Instruction(text)))
    drill.on(Hold("", START), 1.0)
    assert drives(drill.on(drill.current(FORWARD, "r1", age=0.0), 0.1)), "it was no stop"


def test_an_instruction_that_is_done_moves_nothing_until_it_is_published_again() -> None:
    drill = Drill()
    drill.on(Instruction(CUP))
    drill.on(drill.current("action: stop;", "r1", age=0.0), 0.1)
    assert "is done" in reports(drill.on(drill.current(FORWARD, "r2", age=0.0), 0.1))
    drill.on(Instruction(CUP), 0.1)
    drill.on(drill.current("action: stop;", "r3", age=1.0), 0.1)
    assert drives(drill.on(drill.current(FORWARD, "r4", age=0.0), 0.1)), "r3 was about the first"


@given(
    st.lists(st.sampled_from([CUP, "stop", "find the door"]).map(Instruction) | stops, max_size=6),
    st.sampled_from([0.0, 0.25, 1.0, 4.0]),
)
def test_a_stop_that_was_decided_before_an_instruction_was_published_again_does_not_end_it(
    meanwhile: list[Event], before: float
) -> None:
    """Whatever happens in between: frames from before it, and up to its very moment, are older."""
    drill = Drill()
    drill.on(Instruction(CUP))
    late = drill.current("action: stop;", "late")
    for event in meanwhile:
        drill.on(event, 0.125)
    for release in (EStop(False), Hold(""), Hold("", "active"), Instruction(CUP)):
        drill.on(release)
    assert isinstance(drill.on(replace(late, age=0.125 + before), 0.125)[0], Halt)
    assert drives(drill.on(drill.current(FORWARD, "new", age=0.0), 0.125))
    drill.run(5.0)
    drill.on(drill.current("action: stop;", "found", age=0.0), 0.125)
    assert "is done" in reports(drill.on(drill.current(FORWARD, "more", age=0.0), 0.125))


@pytest.mark.parametrize("age", [0.0, -0.25, -0.5])
def test_a_stop_from_before_a_release_does_not_end_an_instruction_whatever_the_clocks_say(
    age: float,
) -> None:
    drill = Drill()
    drill.on(Instruction(CUP))
    late = drill.current("action: stop;", "late", age=age)
    for event in (EStop(True), EStop(False), Instruction(CUP)):
        drill.on(event, 0.125)
    drill.on(late, 0.125)
    assert drives(drill.on(drill.current(FORWARD, "new", age=0.0), 0.125))


def test_another_instruction_halts_the_motion_under_way_and_the_same_one_does_not() -> None:
    drill = Drill()
    drill.on(Instruction(CUP))
    drill.on(drill.current(FORWARD, "r1", age=0.0), 0.1)
    drill.run(0.2)
    drill.on(Instruction(f" {CUP} "))
    assert drill.navigator.moving
    drill.on(drill.current(FORWARD, "r2", age=0.0), 0.1)  # waits, and is forgotten
    drill.on(Instruction("find the door"))
    assert not drill.navigator.moving and drill.run(0.3) == []
    assert drill.status == "idle r1 0 another instruction came"


@pytest.mark.parametrize("name", ["", "-", "a b", "a\n", "a\tb", "a" * 201])
def test_words_of_a_request_that_is_not_one_word_are_dropped(name: str) -> None:
    drill = Drill()
    effects = drill.on(words(FORWARD, name))
    assert not drives(effects) and "no request's name" in reports(effects)
    assert drill.status == "idle - 0 started"


events = st.one_of(stops, st.sampled_from(["stop", CUP, "find the door", ""]).map(Instruction))


@given(st.lists(events, min_size=1, max_size=12), st.floats(0.0, 0.4))
def test_whatever_stopped_it_the_newest_instruction_is_newer_than_the_last_release(
    schedule: list[Event], age: float
) -> None:
    drill, holding, armed = Drill(), set[str](), True
    for number, event in enumerate(schedule):
        drill.on(event, 1.0)
        if isinstance(event, Instruction):
            text = event.text
            if text == "stop":
                holding.add("told")
                armed = False
            elif not holding - {"told"}:
                armed = armed or bool(text)
                holding -= {"told"} if text else set()
        else:
            cause = "e_stop" if isinstance(event, EStop) else event.cause  # type: ignore[union-attr]
            on = event.on if isinstance(event, EStop) else bool(event.why)  # type: ignore[union-attr]
            (holding.add if on else holding.discard)(cause)
            armed = armed and not on
        decided = drill.on(drill.current(FORWARD, f"r{number}", age=age), 0.5)
        moved = drives(decided + drill.run(0.1))  # a motion under way ends first, by its gap
        assert not moved or (armed and not holding)
        if armed and not holding and isinstance(event, Instruction):
            assert moved or not event.text
