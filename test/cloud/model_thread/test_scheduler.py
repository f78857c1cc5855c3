"""Whose turn it is: shares by deficit round robin, deadlines within them, and no gain by lies."""

from __future__ import annotations

import math
from collections import Counter
from random import Random
from typing import Any

import pytest

from edge_cloud_spec.cloud.model_thread.scheduler import QUANTUM, PassEstimator, Scheduler
from edge_cloud_spec.cloud.model_thread.sessions import DuePass, WorkerLimits
from edge_cloud_spec.decoding.draft import Draft

DRAFT = Draft(())


def scheduler(fixed: float = 1.0, per_row: float = 0.0, **limits: Any) -> Scheduler:
    """Passes take so many seconds, as was measured."""
    made = Scheduler(WorkerLimits(**{"passes_per_robot": 99, **limits}))
    for rows in (1, 10, 100):
        made.estimator.observe(rows, fixed + per_row * rows)
    return made


def due(of: Scheduler, client: str, rows: int, arrived: float = 0.0, patience: float = 0.0) -> None:
    session: Any = client
    of.of(client).passes.append(DuePass(session, DRAFT, rows, arrived, patience))


def names(batch: list[DuePass]) -> list[str]:
    return [str(each.session) for each in batch]


@pytest.mark.parametrize(("batch", "share"), [(1, 0.95), (4, 0.75)])
def test_clients_that_always_wait_get_the_same_rows_however_they_ask(
    batch: int, share: float
) -> None:
    """One asks for trees, one has twelve sessions, one says that it cannot wait.

    Who has one session is in a pass once at most, so that many sessions may use what is left.
    """
    of = scheduler(per_row=0.01, batch=batch, batch_rows=64)
    sizes = {"trees": 60, "chains": 9, "many": 5, "hasty": 9}
    served: Counter[str] = Counter()
    for number in range(600):
        for client, rows in sizes.items():
            while len(of.of(client).passes) < (12 if client == "many" else 1):
                due(of, client, rows, number, 1e-3 if client == "hasty" else 0.0)
        taken = of.next_batch(number)
        assert 0 < len(taken) <= batch
        assert len(taken) == 1 or sum(each.rows for each in taken) <= 64
        for each in taken:
            served[str(each.session)] += each.rows
    assert min(served.values()) >= share * max(served.values())


def test_a_flood_delays_only_itself() -> None:
    of = scheduler(batch=1)
    for _ in range(1000):
        due(of, "flood", 9)
    for _ in range(5):
        due(of, "robot", 9)
    order = [names(of.next_batch(0.0))[0] for _ in range(12)]
    assert order.count("robot") == 5


def test_a_batch_does_not_grow_beyond_a_deadline_that_can_be_met() -> None:
    of = scheduler(fixed=0.0, per_row=0.01)
    for client in "abcd":
        due(of, client, 10)
    due(of, "hasty", 10, patience=0.25)  # two of them take 0.2 s
    batch = names(of.next_batch(0.0))
    assert batch[0] == "hasty"
    assert len(batch) == 2
    assert len(of.next_batch(0.25)) == 3


@pytest.mark.parametrize("patience", [0.05, 0.0])
def test_a_deadline_that_cannot_be_met_or_is_not_said_limits_nothing(patience: float) -> None:
    of = scheduler(fixed=0.0, per_row=0.01)
    for client in "abcd":
        due(of, client, 10, patience=patience)
    assert len(of.next_batch(0.0)) == 4


def test_who_keeps_batches_small_by_what_it_claims_pays_for_it() -> None:
    """A liar that would be alone in each pass comes no more often than its share allows."""
    of = scheduler(fixed=1.0, per_row=0.01, batch_rows=300)
    robots = [f"robot {n}" for n in range(15)]
    alone, passes = 0, 200
    now = 0.0
    for _ in range(passes):
        for client in robots:
            if not of.of(client).passes:
                due(of, client, 9, now)
        if not of.of("liar").passes:
            due(of, "liar", 9, now, patience=1.1)
        batch = of.next_batch(now)
        now += of.estimator.seconds(sum(each.rows for each in batch))
        alone += names(batch) == ["liar"]
    assert alone <= passes / len(robots) + 2


def test_what_waits_longest_is_served_beside_hasty_ones_at_last() -> None:
    """A tree that fits into no pass beside others gets one, whatever they claim."""
    of = scheduler(batch_rows=64)
    due(of, "tree", 60)
    for now in range(20):
        for n in range(8):
            if not of.of(f"hasty {n}").passes:
                due(of, f"hasty {n}", 9, now, patience=0.5)
        if "tree" in names(of.next_batch(now)):
            break
    else:
        pytest.fail("it starved")


def test_of_one_credential_only_so_many_sessions_are_in_a_pass() -> None:
    of = scheduler(passes_per_robot=3)
    for _ in range(10):
        due(of, "fleet", 2)
    assert len(of.next_batch(0.0)) == 3


def test_messages_of_a_flood_wait_for_the_next_time_where_others_are_heard_now() -> None:
    of = scheduler(fixed=0.0, per_row=0.01)
    flood: Any = [f"f{n}" for n in range(50)]
    of.of("flood").streams.update(dict.fromkeys(flood))
    robot: Any = "r"
    of.of("robot").streams[robot] = None
    heard = []
    for stream in of.take_streams():
        heard.append(stream)
        of.charge("flood" if stream in flood else "robot", 0.1)  # ten rows' worth
    assert "r" in heard
    assert len(heard) <= 2 + QUANTUM / 10 + 1
    assert list(of.take_streams())  # it is not forgotten


def test_who_has_gone_is_forgotten_and_owes_no_more_than_it_used() -> None:
    of = scheduler(batch=1)
    for n in range(500):
        due(of, f"client {n}", 9)
        of.next_batch(0.0)
    assert len(of._shares) < 5
    assert of.waiting == 0


def test_the_estimator_learns_both_parts_and_bears_outliers() -> None:
    random = Random(3)
    estimator = PassEstimator()
    assert estimator.seconds(9) == 0.0
    for number in range(300):
        rows = random.randint(1, 100)
        stall = 100.0 if number % 40 == 20 else 1.0
        estimator.observe(rows, stall * (0.05 + 0.002 * rows) * random.uniform(0.9, 1.1))
    assert estimator.seconds(10) == pytest.approx(0.07, rel=0.35)
    assert estimator.seconds(100) == pytest.approx(0.25, rel=0.35)


def test_the_estimator_follows_a_machine_that_became_slower() -> None:
    estimator = PassEstimator()
    for _ in range(100):
        estimator.observe(10, 0.1)
    for _ in range(60):
        estimator.observe(10, 1.0)
    assert estimator.seconds(10) == pytest.approx(1.0, rel=0.4)
    assert math.isfinite(estimator.row_s)
