"""Lines take turns: in order, for the same time, and nothing is owed to one that was empty."""

from __future__ import annotations

from random import Random

import pytest

from edge_cloud_spec.cloud.turns import Line, Turns


def test_lines_that_use_the_same_take_turns_in_order() -> None:
    turns, done = Turns(), []
    lines = {name: Line() for name in "abc"}
    for name in "aaabbc":
        turns.put(lines[name], lambda name=name: done.append(name))
    while len(turns):
        job = turns.take()
        assert job is not None
        job()
    assert "".join(done) == "abcaba"


@pytest.mark.parametrize("seed", range(10))
def test_lines_that_are_never_empty_get_the_same_time(seed: int) -> None:
    random = Random(seed)
    turns = Turns()
    costs = {Line(): 10 ** random.uniform(-2, 1) for _ in range(4)}
    used = dict.fromkeys(costs, 0.0)
    most = max(costs.values())
    for line in costs:
        turns.put(line, lambda: None)
    while sum(used.values()) < 100 * most:
        before = {line: len(line.jobs) for line in costs}
        turns.take()
        (line,) = (line for line in costs if len(line.jobs) < before[line])
        used[line] += costs[line]
        turns.spend(costs[line])
        turns.put(line, lambda: None)
        assert max(used.values()) - min(used.values()) <= 2 * most


def test_a_line_is_owed_nothing_for_the_time_that_it_was_empty() -> None:
    turns = Turns()
    busy, back = Line(), Line()
    for line in (busy, back):
        turns.put(line, lambda: None)
        turns.take()
        turns.spend(1.0)
    order = []
    for _ in range(50):
        turns.put(busy, lambda: None)
        turns.take()
        turns.spend(1.0)
    for _ in range(6):
        turns.put(busy, lambda: order.append("busy"))
        turns.put(back, lambda: order.append("back"))
    while len(turns):
        job = turns.take()
        assert job is not None
        job()
        turns.spend(1.0)
    assert order[:6].count("busy") == 3
