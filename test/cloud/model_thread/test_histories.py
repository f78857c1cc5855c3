"""What a verifier keeps for robots is bounded by what it costs; nothing is kept of a refusal."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from helpers.checkpoints import fresh, jpeg
from helpers.cloud.grpc_robot import opening
from helpers.cloud.worker_robot import Robot, cloud, do_all
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.cloud.model_thread.histories import Histories
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.history import History, HistorySpec, Turn
from edge_cloud_spec.wire.messages import Fault, Opened

EACH = 2**18  # bytes
TURNS: dict[str, Callable[[int], Turn]] = {
    "tiny frames": lambda n: Turn.of(n.to_bytes(3, "big"), ""),
    "frames": lambda n: Turn.of(n.to_bytes(3, "big") * 5000, "action: search;"),
    "answers": lambda n: Turn.of(b"\1", chr(0x1F600 + n % 80) * 4000 + str(n)),
}


@pytest.mark.parametrize("kind", TURNS)
def test_what_is_kept_takes_no_more_memory_than_its_bound(kind: str) -> None:
    histories = Histories(EACH, 60.0, 2)
    tracemalloc.start()
    try:
        for number in range(400):
            turns = tuple(TURNS[kind](number * 8 + each) for each in range(8))
            asked = opening(number, jpeg=b"\2", history=History(turns))
            histories.keep(asked, "robot", 0.0)
            histories.answered(asked, "robot", [f"action: turn {number};"])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert EACH / 4 < histories.size <= EACH
    assert kept < 1.5 * EACH


def conversing() -> tuple[Worker, History]:
    target = fresh()
    history = HistorySpec(8)
    worker = Worker(target, replace(target.spec("You guide a robot.", 4), history=history))
    return worker, History(tuple(Turn.of(jpeg(n), "action: search;") for n in range(3)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"jpeg": jpeg(9)[:60]},
        {"instruction": ""},
        {"verified": (10**6,)},
        {"policy": SamplingPolicy(grammar="start: (")},
        {"history": History((Turn.of(jpeg(4), ""), Turn(b"?" * 16, "", b"another")))},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_nothing_is_kept_of_a_request_that_is_refused(wrong: dict[str, Any]) -> None:
    worker, history = conversing()
    good = replace(opening(1), jpeg=jpeg(9), rule="greedy", policy=GREEDY, history=history)
    good = replace(good, tokenizer_digest=b"")
    robot = Robot(worker)
    assert isinstance(robot.ask(replace(good, **wrong)), Fault)
    assert worker.histories.size == 0
    robot.ask(good)  # the control
    assert robot.count(Opened) and worker.histories.size > len(good.jpeg)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(40, 100))
def test_the_pictures_of_one_robots_sessions_have_a_bound(sizes: list[int], most: int) -> None:
    """The first is let in whatever it has; a session without its robot makes room."""
    worker = cloud(bytes_per_robot=most)
    robots = [Robot(worker) for _ in sizes]
    for number, (robot, size) in enumerate(zip(robots, sizes, strict=True)):
        robot.stream.client = "one"
        others = worker.held._sessions.values()
        lost = sum(other.opening.nbytes for other in others if other.stream is None)
        held = sum(other.opening.nbytes for other in others)
        said = robot.ask(opening(number, jpeg=b"." * size))
        assert isinstance(said, Opened) == (held == 0 or held - lost + size <= most or held == lost)
        assert sum(other.opening.nbytes for other in others) <= max(most, size)
        if number % 3 == 2:
            robot.leave()
            do_all(worker)
