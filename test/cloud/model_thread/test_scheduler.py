"""Whose turn it is: shares by deficit round robin, deadlines within them, and no gain by lies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.cloud.model_thread.scheduler import QUANTUM, PassEstimator, Scheduler
from edge_cloud_spec.cloud.session.events import EMPTY, UNSAID_S, DuePass

CLIENTS = 5
PASS_S, ROW_S = 0.03, 0.001
REPLY_TIMEOUT = st.sampled_from((0.0, 1e-3, 0.05, 0.3, 20.0))
CLIENT = st.integers(0, CLIENTS - 1)
LIMITS = st.builds(
    WorkerLimits,
    batch=st.integers(1, 9),
    batch_rows=st.integers(16, 90),
    passes_per_robot=st.integers(1, 4),
)
STEP = st.one_of(
    st.tuples(st.just("pass"), CLIENT, st.integers(1, 120), REPLY_TIMEOUT),
    st.tuples(st.just("stream"), CLIENT),
    st.tuples(st.just("job"), CLIENT),
    st.tuples(st.just("charge"), CLIENT, st.floats(0, 3)),
    st.tuples(st.just("batch")),
    st.tuples(st.just("streams")),
    st.tuples(st.just("take_job")),
)


def scheduler(fixed: float = 1.0, per_row: float = 0.0, **limits: Any) -> Scheduler:
    """Passes take so many seconds, as was measured."""
    return scheduler_of(WorkerLimits(**{"passes_per_robot": 99, **limits}), fixed, per_row)


def scheduler_of(limits: WorkerLimits, fixed: float = PASS_S, per_row: float = ROW_S) -> Scheduler:
    made = Scheduler(limits)
    for rows in (1, 10, 100):
        made.estimator.observe(rows, fixed + per_row * rows)
    return made


class Asks:
    """A session, of which the scheduler wants the pass that is due."""

    def __init__(self, name: Any, rows: int, arrived: float, reply_timeout: float) -> None:
        self.name = name
        self.due = DuePass(EMPTY, rows=rows, arrived=arrived, reply_timeout_s=reply_timeout)


def due(
    of: Scheduler, client: str, rows: int, arrived: float = 0.0, reply_timeout: float = 0.0
) -> None:
    session: Any = Asks(client, rows, arrived, reply_timeout)
    of.of(client).passes.append(session)


def names(batch: Sequence[Any]) -> list[str]:
    return [each.name for each in batch]


def test_clients_with_credit_and_the_same_deadline_take_turns() -> None:
    of = scheduler(batch=1)
    for client in "abc" * 2:
        due(of, client, 1)
    assert [names(of.next_batch(0.0)) for _ in range(6)] == [[client] for client in "abc" * 2]


@pytest.mark.parametrize(
    ("reply_timeout", "others", "size"),
    [(0.25, 0.0, 2), (0.05, 0.0, 5), (0.0, 0.0, 5), (0.05, 0.05, 5)],
    ids=["can be met: two of them take 0.2 s", "cannot be met", "is not said", "nobody's can"],
)
def test_a_batch_does_not_grow_beyond_a_deadline_that_can_be_met(
    reply_timeout: float, others: float, size: int
) -> None:
    of = scheduler(fixed=0.0, per_row=0.01)
    for client in "abcd":
        due(of, client, 10, reply_timeout=others)
    due(of, "hasty", 10, reply_timeout=reply_timeout)
    batch = names(of.next_batch(0.0))
    assert len(batch) == size
    assert "hasty" in batch and (not reply_timeout or others or batch[0] == "hasty")
    assert len(of.next_batch(0.25)) == 5 - size


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
            due(of, "liar", 9, now, reply_timeout=1.1)
        batch = of.next_batch(now)
        now += of.estimator.seconds(sum(each.due.rows for each in batch))
        alone += names(batch) == ["liar"]
    assert alone <= passes / len(robots) + 2


def test_messages_of_a_flood_wait_for_the_next_time_where_others_are_heard_now() -> None:
    of = scheduler(fixed=0.0, per_row=0.01)
    clients: Any = {f"f{n}": "flood" for n in range(50)} | {"r": "robot"}
    for stream, client in clients.items():
        of.of(client).streams[stream] = None
    heard: list[Any] = []
    for stream in of.take_streams():
        heard.append(stream)
        of.charge(clients[stream], 0.1)  # ten rows' worth
    assert "r" in heard and len(heard) <= 2 + QUANTUM / 10 + 1
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
    assert estimator.seconds(9) == estimator.row_s == 0.0
    for number in range(300):
        rows = random.randint(1, 100)
        stall = 100.0 if number % 40 == 20 else 1.0
        estimator.observe(rows, stall * (0.05 + 0.002 * rows) * random.uniform(0.9, 1.1))
    assert estimator.seconds(10) == pytest.approx(0.07, rel=0.35)
    assert estimator.seconds(100) == pytest.approx(0.25, rel=0.35)


def test_the_estimator_follows_a_machine_that_became_slower() -> None:
    estimator = PassEstimator()
    for seconds in [0.1] * 100 + [1.0] * 60:
        estimator.observe(10, seconds)
    assert estimator.seconds(10) == pytest.approx(1.0, rel=0.4)
    assert math.isfinite(estimator.row_s)


class Crowd:
    """Hands a scheduler numbered things of each client, and checks what comes out, and when."""

    def __init__(self, limits: WorkerLimits) -> None:
        self.of, self.limits, self.now = scheduler_of(limits), limits, 0.0
        self.handed: list[tuple[Any, ...]] = []
        self.served: list[tuple[Any, ...]] = []

    def name(self, client: int, kind: str) -> Any:
        self.handed.append((client, kind, len(self.handed)))
        return self.handed[-1]

    def step(self, what: str, *given: Any) -> None:
        match what:
            case "pass":
                client, rows, reply_timeout = given
                session: Any = Asks(self.name(client, what), rows, self.now, reply_timeout)
                self.of.of(client).passes.append(session)
            case "stream":
                self.of.of(given[0]).streams[self.name(given[0], what)] = None
            case "job":
                self.of.of(given[0]).jobs[self.name(given[0], what)] = None
            case "charge":
                self.of.charge(*given)
            case "batch":
                self.batch()
            case "streams":
                for stream in self.of.take_streams():
                    self.served.append(stream)  # type: ignore[arg-type]
            case "take_job":
                if (taken := self.of.take_job()) is not None:
                    self.served.append(taken[1])  # type: ignore[arg-type]
                    assert self.served[-1][0] == taken[0]

    def batch(self) -> None:
        """One pass, within all limits."""
        waits = any(share.passes for share in self.of._shares.values())
        batch = self.of.next_batch(self.now)
        assert bool(batch) == waits  # the device is not idle while a draft waits
        rows = sum(each.due.rows for each in batch)
        assert len(batch) <= self.limits.batch
        assert len(batch) <= 1 or rows <= self.limits.batch_rows
        by_client = Counter(each.name[0] for each in batch)
        assert max(by_client.values(), default=0) <= self.limits.passes_per_robot
        self.served += [each.name for each in batch]
        self.now += PASS_S + ROW_S * rows if batch else 0.0

    def of_client(self, things: list[tuple[Any, ...]], client: int, kind: str) -> list[int]:
        return [number for who, what, number in things if (who, what) == (client, kind)]


@settings(deadline=None)
@given(limits=LIMITS, steps=st.lists(STEP, max_size=80))
def test_all_that_is_handed_in_comes_out_once_and_each_clients_in_its_order(
    limits: WorkerLimits, steps: list[tuple[Any, ...]]
) -> None:
    crowd = Crowd(limits)
    for step in steps:
        crowd.step(*step)
        assert crowd.of.waiting == len(crowd.handed) - len(crowd.served)
    while crowd.of.waiting:
        before = len(crowd.served)
        for kind in ("streams", "batch", "take_job"):
            crowd.step(kind)
        assert len(crowd.served) > before  # at least one thing comes out each time
    assert sorted(crowd.served) == sorted(crowd.handed)
    for client, kind in product(range(CLIENTS), ("pass", "stream", "job")):
        handed = crowd.of_client(crowd.handed, client, kind)
        assert crowd.of_client(crowd.served, client, kind) == handed


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=2, max_size=CLIENTS),
    reply_timeout=st.lists(REPLY_TIMEOUT, min_size=CLIENTS, max_size=CLIENTS),
    passes=st.integers(1, 150),
)
def test_clients_that_always_wait_are_never_further_apart_than_a_quantum_and_a_pass(
    sizes: list[int], reply_timeout: list[float], passes: int
) -> None:
    """Whatever sizes they ask for and whatever they say of their deadlines (Shreedhar, 1995)."""
    crowd = Crowd(WorkerLimits(batch=1))
    rows: Counter[int] = Counter(dict.fromkeys(range(len(sizes)), 0))
    for _ in range(passes):
        for client, size in enumerate(sizes):
            if not crowd.of.of(client).passes:
                crowd.step("pass", client, size, reply_timeout[client])
        crowd.batch()
        client = crowd.served[-1][0]
        rows[client] += sizes[client]
        assert max(rows.values()) - min(rows.values()) <= QUANTUM + max(sizes)


def batches_until_served(limits: WorkerLimits, rivals: list[tuple[int, float]], rows: int) -> int:
    """How many passes are begun until a tree of so many rows is in one, beside a crowd.

    Each rival always has as many passes waiting as it may have in one, of its size and timeout.
    """
    crowd = Crowd(limits)
    crowd.step("pass", len(rivals), rows, 0.0)
    for number in range(2000):
        for client, (size, reply_timeout) in enumerate(rivals):
            while len(crowd.of.of(client).passes) < limits.passes_per_robot:
                crowd.step("pass", client, size, reply_timeout)
        crowd.batch()
        if any(who == len(rivals) for who, _, _ in crowd.served):
            return number + 1
    return 2000


def bound(limits: WorkerLimits, rivals: int) -> int:
    """Passes before its deadline, and those for which all rivals' saved credit lasts."""
    saved = rivals * max(QUANTUM, limits.batch_rows) // QUANTUM
    return int(UNSAID_S / PASS_S) + 2 * saved + 2


@settings(deadline=None, max_examples=60)
@given(
    limits=LIMITS,
    rivals=st.lists(st.tuples(st.integers(1, 60), REPLY_TIMEOUT), min_size=1, max_size=4),
    rows=st.integers(1, 90),
)
def test_nobody_starves_whatever_the_others_claim(
    limits: WorkerLimits, rivals: list[tuple[int, float]], rows: int
) -> None:
    rows = min(rows, limits.batch_rows)
    assert batches_until_served(limits, rivals, rows) <= bound(limits, len(rivals))


def test_a_scheduler_without_credit_would_let_it_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: first deadline first, and nobody pays, so that liars are always first."""
    monkeypatch.setattr(DuePass, "deadline", property(lambda due: due.reply_timeout_s or 1e9))
    free = Scheduler._begin_rounds

    def rich(self: Scheduler, count: int) -> None:
        free(self, count)
        for share in self._shares.values():
            share.credit = 1e9

    monkeypatch.setattr(Scheduler, "_begin_rounds", rich)
    limits = WorkerLimits(batch=1)
    assert batches_until_served(limits, [(9, 0.05)] * 2, 9) > bound(limits, 2)


def test_ten_times_the_clients_do_not_take_a_hundred_times_the_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each client the deadline is looked at once for a pass, and for each that is in it."""
    looks: list[DuePass] = []
    real: Any = DuePass.deadline

    def look(due: DuePass) -> float:
        looks.append(due)
        return float(real.__get__(due))

    monkeypatch.setattr(DuePass, "deadline", property(look))
    for clients in (100, 1000):
        of = scheduler_of(WorkerLimits())
        looks.clear()
        for client in range(clients):
            due(of, str(client), 9, reply_timeout=0.5)
        assert len(of.next_batch(0.0)) == 256 // 9
        assert len(looks) <= 2 * clients
