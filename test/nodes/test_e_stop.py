"""``e_stop`` by several publishers, and by their silence: against a model, and over real topics."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from geometry_msgs.msg import Twist
from helpers.graph.nodes_here import node_here
from helpers.graph.peer import Peer
from helpers.navigator_bench import Bench
from std_msgs.msg import Bool

from edge_cloud_spec.nav.e_stop import ABSENT_AFTER_S, EStopMessage, EStops
from edge_cloud_spec.nodes.runtime import e_stop
from edge_cloud_spec.nodes.runtime.qos import LATCHED, RELIABLE, SENSOR_DATA
from edge_cloud_spec.nodes.runtime.subscription_thread import Once
from edge_cloud_spec.nodes.stop_guard import StopGuardNode

TIMEOUT = 0.5


@dataclass
class Box:
    """The truth about a publisher: when it was first heard and last pressed, and its last word."""

    first: float
    pressed: float = -1.0
    holds: bool = False
    heard: float = 0.0
    here: bool = True
    released: bool = False  # by another, as it was not there


class Crowd:
    """Publishers that come, press, release, fall silent and leave; what must be is told by none of
    the logic of ``EStops``."""

    def __init__(self, seed: int, timeout: float, kind: type[EStops]) -> None:
        self.random, self.now, self.timeout = Random(seed), 0.0, timeout
        self.boxes: dict[bytes, Box] = {}
        self.names = map(str.encode, map(str, itertools.count()))
        self.leaves, self.calm = self.random.random() < 0.7, self.random.random() < 0.3
        self.stops = kind(self._present, lambda: timeout)
        self.left = self.ever = False

    def _present(self) -> dict[bytes, str]:
        return {name: "/box" for name, box in self.boxes.items() if box.here}

    def step(self) -> str:
        """One more event; what is wrong then."""
        self.now += self.random.choice((0.01, 0.1, 0.3)) if not self.calm else 0.02
        here = [*self._present()]
        kind = self.random.random()
        if here and kind < 0.15 and self.leaves:
            self.boxes[self.random.choice(here)].here, self.left = False, True
        elif kind < 0.9:
            new = not here or self.random.random() < 0.1
            self._say(next(self.names) if new else self.random.choice(here))
        return self._wrong()

    def _say(self, name: bytes) -> None:
        on = self.random.random() < 0.3 and not self.calm
        box = self.boxes.setdefault(name, Box(first=self.now))
        if on and not box.holds:
            box.pressed = self.now
        box.holds, box.heard = on, self.now
        for each in self.boxes.values():
            later = max(box.first, box.pressed) > each.pressed
            each.released |= not on and not each.here and each.holds and later
        self.stops.receive(EStopMessage(on, name), self.now)

    def _wrong(self) -> str:
        on, boxes = bool(self.stops.why(self.now)), self.boxes.values()
        for box in boxes:  # once it is sure that it has left
            box.holds &= not (box.released and self.now - box.heard > ABSENT_AFTER_S)
        said = any(box.holds for box in boxes)
        silent = [box for box in boxes if box.here and self.now - box.heard > TIMEOUT]
        nobody = all(self.now - box.heard > TIMEOUT for box in boxes)
        if said and not on:
            return "released while somebody holds it"
        if self.timeout and (silent or nobody) and not on:
            return "silence does not stop"
        self.ever |= said or bool(silent) or nobody
        if on and not self.ever:
            return "silence of one that has left stops"
        if on and not said and not (self.timeout and (silent or nobody or self.left)):
            return "held though all have released it"
        return ""


def wrong(kind: type[EStops], timeout: float, seeds: int) -> set[str]:
    """What was wrong in so many crowds."""
    found = set()
    for seed in range(seeds):
        crowd = Crowd(seed, timeout, kind)
        found |= {crowd.step() for _ in range(120)} - {""}
    return found


@pytest.mark.parametrize("timeout", [0.0, TIMEOUT])
def test_one_publishers_false_does_not_release_anothers_true_and_nobody_holds_it_for_ever(
    timeout: float,
) -> None:
    assert not wrong(EStops, timeout, 300)


class LastCounts(EStops):
    """As one without identities."""

    def receive(self, message: EStopMessage, now: float) -> None:
        super().receive(EStopMessage(message.data), now)


class AnyReleases(EStops):
    """Any false releases what those held who have left."""

    def _forget_who_left(self, released: int, now: float) -> None:
        super()._forget_who_left(released and 2**63, now)


class NobodyReleases(EStops):
    """Those who have left hold it for ever."""

    def _forget_who_left(self, released: int, now: float) -> None:
        super()._forget_who_left(0, now)


class Strict(EStops):
    """Who has left must speak, too."""

    def _hold_for_silence(self, now: float, timeout: float, why: str) -> None:
        for each in self._said.values():
            each.why = each.why or why * (now - each.heard > timeout)


class Older(EStops):
    """Who was heard before a silence began releases it, too."""

    def _hold_for_silence(self, now: float, timeout: float, why: str) -> None:
        super()._hold_for_silence(now, timeout, why)
        for each in self._said.values():
            each.held = each.came


class Deaf(EStops):
    """Silence is nothing."""

    def _hold_for_silence(self, now: float, timeout: float, why: str) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "timeout", "what"),
    [
        (LastCounts, 0.0, "released while somebody holds it"),
        (AnyReleases, 0.0, "released while somebody holds it"),
        (NobodyReleases, 0.0, "held though all have released it"),
        (Deaf, TIMEOUT, "silence does not stop"),
        (Strict, TIMEOUT, "silence of one that has left stops"),
    ],
)
def test_a_rule_that_is_wrong_is_found_out(kind: type[EStops], timeout: float, what: str) -> None:
    assert what in wrong(kind, timeout, 100)


@pytest.mark.parametrize("known", [True, False])
def test_silence_holds_whoever_spoke_first_and_whatever_the_graph_calls_them(known: bool) -> None:
    """A program that always says false releases nothing but its own."""
    assert stays_held(EStops, known)
    assert not stays_held(Older, True), "a rule that is wrong is found out"


def stays_held(kind: type[EStops], known: bool) -> bool:
    """Whether each silence is told of, and no other publisher ends it."""
    here = {b"remote": "/remote", b"program": "/program"} if known else {}
    for order in ((b"remote", b"program"), (b"program", b"remote")):
        present = dict(here)
        stops = kind(lambda seen=present: seen, lambda: TIMEOUT)
        for publisher in order:
            stops.receive(EStopMessage(False, publisher), 0.0)
        now = 0.0
        while now < 30.0:
            now += TIMEOUT / 4
            if now > 20.0:
                present.pop(b"remote", None)  # the graph has forgotten who was killed
            stops.receive(EStopMessage(False, b"program"), now)
            if bool(stops.why(now)) != (now > TIMEOUT):
                return False
    return True


def test_a_release_that_comes_a_moment_after_who_pressed_has_left_is_not_lost() -> None:
    """``ros2 topic pub --once``, twice; the graph may know a publisher later than its message."""
    present = {b"first": "/first"}
    stops = EStops(lambda: present)
    stops.receive(EStopMessage(True, b"first"), 0.0)
    present.clear()
    stops.receive(EStopMessage(False, b"second"), 0.5)
    assert stops.why(0.6) and not stops.why(ABSENT_AFTER_S + 0.1)
    for back in (True, False):  # it had not left: it speaks again, or the graph names it late
        stops, here = EStops(lambda: here), dict[bytes, str]()  # noqa: B023
        stops.receive(EStopMessage(True, b"first"), 0.0)
        stops.receive(EStopMessage(False, b"second"), 0.5)
        if back:
            stops.receive(EStopMessage(True, b"first"), 0.7)
        else:
            here[b"first"] = "/first"
        assert stops.why(5.0)


class Boxes(Peer):
    """Publishers of ``e_stop`` in a participant of their own."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.stop = self.create_publisher(Bool, "e_stop", LATCHED)

    def press(self, on: bool, hears: int = 1) -> None:
        self.until(lambda: self.stop.get_subscription_count() >= hears)
        self.stop.publish(Bool(data=on))


def test_an_e_stop_of_several_publishers_is_on_while_one_of_them_holds_it(
    bench: Bench, start_here: Any
) -> None:
    """Two that alternate, of several profiles, and one that joins late; one that is started again
    releases what it held."""
    start_here({})
    bench.until(lambda: bench.state.state == "idle")
    with Boxes("first") as first, Boxes("second") as second:
        bench.e_stop.publish(Bool(data=False))
        bench.spin(0.2)
        first.press(True)
        bench.until(lambda: bench.state.e_stopped)
        for number in range(20):
            second.press(bool(number % 2 == 0))
        bench.hear_diagnostics()
        bench.until(lambda: bench.says("/navigator", b"\1", "e_stop is on, by /first:"))
        for profile in (RELIABLE, SENSOR_DATA):  # late, and of other profiles
            late = bench.create_publisher(Bool, "e_stop", profile)
            bench.until(late.get_subscription_count)
            for _ in range(5):
                late.publish(Bool(data=False))
                bench.spin(0.05)
            bench.destroy_publisher(late)
        assert bench.state.e_stopped
        first.close = lambda: None  # type: ignore[method-assign]
        Peer.close(first)
        bench.until(lambda: bench.says("/navigator", b"\1", "by a publisher that has left"))
        for _ in range(5):  # one that was there before, and has not pressed since
            bench.e_stop.publish(Bool(data=False))
            bench.spin(0.05)
        assert bench.state.e_stopped
    with Boxes("first") as again:
        again.press(False)
        bench.until(lambda: not bench.state.e_stopped)
    assert bench.state.detail.startswith("released: publish an instruction")


def test_a_publisher_of_e_stop_that_falls_silent_stops_the_robot(
    bench: Bench, start_here: Any
) -> None:
    """As nobody's voice does at the start."""
    start_here({"e_stop_timeout": 0.5}, ready=False)
    bench.until(lambda: bench.state.e_stopped and "silent for 0.5 s" in bench.state.detail)
    beat = lambda: bench.e_stop.publish(Bool(data=False))  # noqa: E731
    bench.until(lambda: bench.said("stopped", "-", "released: publish"), meanwhile=beat)
    bench.publish("find it")
    bench.until(lambda: bench.state.state == "idle", meanwhile=beat)
    bench.until(lambda: bench.turning, meanwhile=lambda: (beat(), turn(bench)))
    bench.until(lambda: bench.state.e_stopped and bench.still)
    assert "silent for 0.5 s (parameter e_stop_timeout)" in bench.state.detail


def turn(bench: Bench) -> None:
    if bench.state.state == "idle":
        bench.say("action: turn left large;", f"r{time.monotonic()}", instruction="find it")


def test_while_e_stop_is_on_the_guard_lets_no_command_stand(domain: int) -> None:
    """Whatever a navigator commands; and no longer than that."""
    with node_here(StopGuardNode) as guard, Peer("peer") as peer:
        zeros = peer.collect(Twist, "cmd_vel", 100)
        pulse, stop = peer.create_publisher(Bool, "pulse", 10), peer.create_publisher(*E_STOP)
        import rclpy

        def until(what: Callable[[], Any]) -> None:
            peer.until(what, meanwhile=lambda: rclpy.spin_once(guard, timeout_sec=0.0))

        until(lambda: pulse.get_subscription_count() and stop.get_subscription_count() >= 2)
        until(lambda: peer.count_publishers("cmd_vel"))
        stop.publish(Bool(data=True))
        until(lambda: guard._e_stops.why(time.monotonic()))
        until(lambda: zeros or pulse.publish(Bool(data=True)))
        pulse.publish(Bool(data=False))
        stop.publish(Bool(data=False))
        until(lambda: not guard._e_stops.why(time.monotonic()))


E_STOP = (Bool, "e_stop", 10)


def test_without_rcls_own_function_the_last_message_counts(
    bench: Bench, start_here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(e_stop, "_rcl", lambda: None)
    start_here({})
    other = bench.create_publisher(*E_STOP)
    bench.until(lambda: other.get_subscription_count() >= 2)
    for publisher, on in ((other, True), (bench.e_stop, False)):
        publisher.publish(Bool(data=on))
        bench.until(lambda on=on: bench.state.e_stopped == on)


def test_the_same_word_of_two_publishers_at_one_time_is_heard_of_both() -> None:
    once = Once()
    heard = [
        once.is_news(5, EStopMessage(True, name), by_first=True) for name in (b"a", b"b", b"a")
    ]
    assert heard == [True, True, False]
