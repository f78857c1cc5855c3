"""The watchdog: the robot is told to stand when nobody renews its command."""

from __future__ import annotations

import queue
import time

import pytest

from edge_cloud_spec.nav.watchdog import REPEATS, Watchdog


def test_it_is_due_only_a_grace_after_the_last_command_expired() -> None:
    dog = Watchdog(lambda repeat: None, grace=0.5)
    assert not dog.due(1e9), "nothing was commanded"
    dog.feed(10.0)
    assert not dog.due(10.49) and dog.due(10.5)
    dog.feed(11.0)
    assert not dog.due(10.6)
    dog.calm()
    assert not dog.due(1e9)


@pytest.mark.parametrize("fails", [False, True])
def test_it_stops_the_robot_by_itself_and_repeats_it(fails: bool) -> None:
    said: queue.Queue[int] = queue.Queue()

    def stop(repeat: int) -> None:
        said.put(repeat)
        if fails:
            raise RuntimeError("the message could not be sent")

    dog = Watchdog(stop, grace=0.05)
    dog.start()
    dog.feed(time.monotonic())
    assert [said.get(timeout=60) for _ in range(REPEATS)] == list(range(REPEATS))
    assert dog.fired == 1
    dog.feed(time.monotonic())
    assert said.get(timeout=60) == 0, "it watches the next command too"
    dog.close()


def test_a_robot_told_to_stand_is_left_alone() -> None:
    said: list[int] = []
    dog = Watchdog(said.append, grace=0.01)
    dog.start()
    dog.feed(time.monotonic() + 0.6)
    dog.calm()
    time.sleep(0.8)
    dog.close()
    assert said == [] and dog.fired == 0


def test_a_command_that_may_not_stand_so_long_is_stopped_sooner() -> None:
    said: queue.Queue[int] = queue.Queue()
    dog = Watchdog(said.put, grace=0.5)
    dog.start()
    now = time.monotonic()
    dog.feed(now + 3600.0)
    time.sleep(0.05)  # its thread sleeps until then
    dog.feed(now + 3600.0, stop_by=now + 0.1)
    assert said.get(timeout=60) == 0 and dog.fired == 1
    dog.close()
