"""Decisions from before a stop or for another instruction move nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.drill import FORWARD, Drill, drives, reports, words

from edge_cloud_spec.nav.events import EStop, Event, Halt, Hold, Instruction, Show
from edge_cloud_spec.nav.navigator import Navigator

OTHER = "find the cup"


@pytest.mark.parametrize("skew", [-0.4, 0.0, 0.4])
@pytest.mark.parametrize("step", [-2.0, 0.0, 0.2])
def test_a_decision_from_before_a_stop_moves_nothing_whatever_the_clocks_say(
    skew: float, step: float
) -> None:
    drill = Drill()
    drill.on(Instruction(OTHER))
    old = drill.current(FORWARD, "old")
    drill.on(EStop(True), 0.1)
    between = drill.current(FORWARD, "between")
    drill.on(EStop(False), 0.1)
    released = drill.current(FORWARD, "released")
    drill.on(Instruction(OTHER), 0.1)
    for late in (old, between, released):
        age = 0.3 - skew + step  # camera clock ahead; ROS time stepped back
        effects = drill.on(replace(late, age=age), 0.1)
        assert not drives(effects + drill.run(0.5))
        assert drill.status.startswith(f"idle {late.request} 3 refused"), "the drafter may go on"
    assert drives(drill.on(drill.current(FORWARD, "new", age=0.05), 1.0))


def test_words_of_another_count_move_nothing_be_it_higher() -> None:
    drill = Drill()
    for stops in (1, 7, 2**63):
        assert not drives(drill.on(words(FORWARD, f"r{stops}", stops=stops)))
    restarted = Navigator(stops=12345)
    assert not drives(restarted.on(words(FORWARD, "r"), 10.0)), "for the one before it"


@pytest.mark.parametrize("hold", [EStop(True), Instruction("stop"), Hold("x"), EStop(False)])
def test_each_stop_and_each_release_counts_and_is_told(hold: Event) -> None:
    drill = Drill()
    counts, states = [0], []
    for event in (hold, hold, EStop(False), Hold(""), Instruction("find it")):
        states += [effect.status.stops for effect in drill.on(event) if isinstance(effect, Show)]
        counts.append(drill.navigator.stops)
    assert states == sorted(set(states)) and (states[-1] if states else 0) == counts[-1]
    released_by_itself = {EStop(False): 0, Instruction("stop"): 3}
    assert counts[-1] == released_by_itself.get(hold, 4)


def test_words_for_another_instruction_move_nothing_once_one_was_heard() -> None:
    drill = Drill()
    drill.on(Instruction(f"  {OTHER} \n"))
    assert drives(drill.on(words(FORWARD, "r1", instruction=OTHER)))
    drill.run(3.0)
    drill.on(Instruction("find the door"))
    effects = drill.on(words(FORWARD, "r2", age=0.05, instruction=OTHER), 0.1)
    assert not drives(effects) and "another instruction" in reports(effects)
    assert drill.status.startswith("idle r2 0 refused")
    assert drives(drill.on(words(FORWARD, "r3", age=0.0, instruction="find the door"), 0.1))
    effects = drill.on(words("action: stop;", "r4", age=0.0, instruction=OTHER), 0.1)
    assert isinstance(effects[0], Halt), "to stop is right whoever says it"


def test_the_first_words_say_what_an_answer_was_decided_for() -> None:
    drill = Drill()
    drill.on(Instruction("find the door"))
    drill.on(words("action: move", instruction=OTHER))
    late = words(" forward large;", position=4, instruction="find the door")
    assert not drives(drill.on(late))
