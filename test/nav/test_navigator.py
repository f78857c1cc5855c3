"""The navigator's decisions: who may move the robot, what stops it, and how it goes on."""

from __future__ import annotations

import math
import queue
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from helpers.drill import FORWARD, Drill, drives, read_as, reports, words

from edge_cloud_spec.nav.answer import CLAUSES, SEARCH_ACTION, Action, every_action
from edge_cloud_spec.nav.events import (
    Announce,
    Drive,
    Halt,
    Report,
    Show,
)
from edge_cloud_spec.nav.limits import Limits
from edge_cloud_spec.nav.performer import Performer
from edge_cloud_spec.nav.pose import Velocity
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.nav.status import NavCode, NavigatorStatus
from edge_cloud_spec.nav.steps import goal_of
from edge_cloud_spec.nav.watchdog import STOP_REPEATS, Watchdog


@pytest.fixture
def moving() -> Drill:
    """A robot that moves forward by the decision r1."""
    drill = Drill()
    drill.on(words(FORWARD))
    drill.run(0.3)
    return drill


def test_an_action_starts_at_its_delimiter_and_the_reason_follows() -> None:
    drill, texts = Drill(), ("action: move forward", " large;", " reason: it is far;")
    begun, action, reason = read_as(
        CLAUSES, *(words(t, position=4 * n) for n, t in enumerate(texts))
    )
    assert drill.on(begun) == []
    effects = drill.on(action)
    assert any(isinstance(effect, Announce) and effect.goal.distance == 0.9 for effect in effects)
    assert drill.status == "moving r1 0 move forward large" and drives(effects)
    assert drill.on(replace(reason, finished=True)) == []
    effects = drill.run(2.5)
    assert drill.status == "idle r1 0 done: move forward large"
    assert max(v.vx for v in drives(effects)) == pytest.approx(0.6)
    assert sum(isinstance(effect, Halt) for effect in effects) == 1


@pytest.mark.parametrize("age", [11.0, float("inf"), float("nan")])
def test_an_old_frame_moves_nothing(age: float) -> None:
    assert not drives(Drill().on(words(FORWARD, age=age)))


@pytest.mark.parametrize("settings", [NavigatorSettings(), NavigatorSettings(drive="stop_and_go")])
def test_an_action_that_nobody_asked_for_in_motion_is_refused_and_the_motion_goes_on(
    settings: NavigatorSettings,
) -> None:
    """Without odometry, or where it decides standing."""
    drill = Drill(settings)
    drill.on(words(FORWARD))
    drill.run(0.3)
    effects = drill.on(words("action: turn left small;", "r2", age=0.1), 0.02)
    assert "nothing else is decided" in reports(effects)
    assert drill.status == "moving r2 0 move forward large"
    assert drill.run(2.0) and drill.status == "idle r2 0 done: move forward large"


def test_a_command_expires() -> None:
    drill = Drill(NavigatorSettings(command_lifetime=0.5, limits=Limits(speed=0.1)))
    drill.on(words(FORWARD))
    effects = drill.run(1.0)
    assert "expired" in reports(effects) and not drill.navigator.moving
    last = max(effect.until for effect in effects if isinstance(effect, Drive))
    assert last <= 50.5, "no velocity command outlives its action"


def test_a_status_is_read_back_from_its_message() -> None:
    stopped = NavigatorStatus("stopped", "r1", "so", 2**32, NavCode.E_STOP, SEARCH_ACTION)
    assert NavigatorStatus.read(SimpleNamespace(**stopped.fields)) == stopped
    fly, none = Action("fly"), Action("move", "forward", amount=math.nan)
    for wrong in (
        *({"state": 0}, {"state": 5}, {"request_id": ""}, {"request_id": "two words"}),
        *({"code": 200}, {"action": fly}, {"action": none}),
    ):
        with pytest.raises(ValueError, match="is no"):
            NavigatorStatus.read(SimpleNamespace(**{**stopped.fields, **wrong}))


def test_whoever_has_the_base_commands_are_watched_and_what_is_told_comes_in_its_order() -> None:
    """The watchdog hears of a command before the base, whose driver may hang."""
    now, done = 0.0, list[object]()
    watchdog = Watchdog(lambda repeat: None, 0.5, lambda: now)
    watched = lambda: watchdog.due(1.5)  # noqa: E731

    def command(velocity: Velocity) -> None:
        assert watched() and not watchdog.due(1.4)
        done.append(velocity)

    performer = Performer(command, lambda: done.append("stands"), done.append, watchdog)
    told, ahead = Report("it is slow"), Velocity(0.3)
    performer.carry_out([told, Drive(ahead, 1.0), Show(NavigatorStatus("moving"))])
    assert watched() and done == [told, ahead, Show(NavigatorStatus("moving"))]
    performer.carry_out([Halt()])
    assert not watched() and done[3:] == ["stands"]


ACTIONS = [str(action) for action in every_action() if action.verb != "stop"]


@pytest.mark.parametrize("action", ACTIONS)
def test_turns_keep_their_angle_and_moves_their_direction(action: str) -> None:
    drill = Drill(NavigatorSettings(allow_unverified=True))
    whole = goal_of(next(a for a in every_action() if str(a) == action), NavigatorSettings().steps)
    effects = drill.on(words(f"action: {action};", verified=False))
    (told,) = [effect.goal for effect in effects if isinstance(effect, Announce)]
    assert told.angle == whole.angle
    assert told.distance == pytest.approx(max(-0.25, min(0.25, whole.distance)))


def test_a_motion_ends_when_its_permission_is_withdrawn() -> None:
    drill = Drill(NavigatorSettings(allow_unverified=True))
    drill.on(words("action: move forward large;", verified=False))
    drill.run(0.2)
    drill.navigator.configure(NavigatorSettings(allow_unverified=True), drill.now)
    assert drill.navigator.moving, "nothing has changed"
    begun = drill.current(FORWARD, "begun", age=0.0)
    drill.navigator.configure(NavigatorSettings(), drill.now)
    assert not drill.navigator.moving and not drives(drill.run(0.5))
    assert "released" in reports(drill.on(begun)), "nor does a decision that began under them"
    assert drives(drill.on(drill.current(FORWARD, "new", age=0.0), 0.1))


def test_a_stop_that_does_not_count_ends_no_motion(moving: Drill) -> None:
    effects = moving.on(words("action: stop;", "r2", age=0.1, verified=False))
    assert "not verified" in reports(effects)
    assert moving.navigator.moving and moving.status.startswith("moving r2")
    moving.run(5.0)
    assert moving.status == "idle r2 0 done: move forward large"


def test_a_stop_counts_whoever_has_spoken_since(moving: Drill) -> None:
    begun, end = words("action: st", "r2", age=0.1), words("op;", "r2", position=4, age=0.15)
    begun, end = read_as(CLAUSES, begun, end)
    assert moving.on(begun) == []
    moving.on(words("action: turn", "r3", age=0.05))
    assert isinstance(moving.on(end)[0], Halt)
    assert isinstance(moving.on(words("action: stop;", "r0", age=3.0))[0], Halt)
    assert not drives(moving.run(0.5)) and moving.status == "idle r0 0 stop"


def test_it_is_due_only_a_grace_after_the_last_command_expired() -> None:
    dog = Watchdog(lambda repeat: None, grace=0.5)
    assert not dog.due(1e9), "nothing was commanded"
    dog.feed(10.0)
    assert not dog.due(10.49) and dog.due(10.5)
    dog.feed(11.0)
    assert not dog.due(10.6)
    dog.calm()
    assert not dog.due(1e9)


def test_it_stops_the_robot_by_itself_and_repeats_it_though_a_message_fails() -> None:
    said: queue.Queue[int] = queue.Queue()

    def stop(repeat: int) -> None:
        said.put(repeat)
        raise RuntimeError("the message could not be sent")

    dog = Watchdog(stop, grace=0.05)
    dog.start()
    dog.feed(time.monotonic())
    assert [said.get(timeout=60) for _ in range(STOP_REPEATS)] == list(range(STOP_REPEATS))
    assert dog.fired == 1
    dog.feed(time.monotonic())
    assert said.get(timeout=60) == 0, "it watches the next command too"
    now = time.monotonic()
    dog.feed(now + 3600.0)
    time.sleep(0.05)  # its thread sleeps until then
    dog.feed(now + 3600.0, stop_by=now + 0.1)
    while said.get(timeout=60):
        pass  # the stop before is repeated until the next command
    assert dog.fired == 3, "and stops sooner what may not stand so long"
    dog.close()
