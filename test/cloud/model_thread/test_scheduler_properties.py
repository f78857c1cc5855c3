"""Whatever comes in whatever order, all that is handed to the scheduler comes out once, in time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.cloud.model_thread.scheduler import QUANTUM, Scheduler
from edge_cloud_spec.cloud.model_thread.sessions import UNSAID_S, DuePass, WorkerLimits
from edge_cloud_spec.decoding.draft import Draft

CLIENTS = 5
PASS_S, ROW_S = 0.03, 0.001
PATIENCE = st.sampled_from((0.0, 1e-3, 0.05, 0.3, 20.0))
CLIENT = st.integers(0, CLIENTS - 1)
LIMITS = st.builds(
    WorkerLimits,
    batch=st.integers(1, 9),
    batch_rows=st.integers(16, 90),
    passes_per_robot=st.integers(1, 4),
)
STEP = st.one_of(
    st.tuples(st.just("pass"), CLIENT, st.integers(1, 120), PATIENCE),
    st.tuples(st.just("stream"), CLIENT),
    st.tuples(st.just("job"), CLIENT),
    st.tuples(st.just("charge"), CLIENT, st.floats(0, 3)),
    st.tuples(st.just("batch")),
    st.tuples(st.just("streams")),
    st.tuples(st.just("take_job")),
)


def scheduler(limits: WorkerLimits) -> Scheduler:
    made = Scheduler(limits)
    for rows in (1, 10, 100):
        made.estimator.observe(rows, PASS_S + ROW_S * rows)
    return made


class Crowd:
    """Hands a scheduler numbered things of each client, and checks what comes out, and when."""

    def __init__(self, limits: WorkerLimits) -> None:
        self.of, self.limits, self.now = scheduler(limits), limits, 0.0
        self.handed: list[tuple[Any, ...]] = []
        self.served: list[tuple[Any, ...]] = []

    def name(self, client: int, kind: str) -> Any:
        self.handed.append((client, kind, len(self.handed)))
        return self.handed[-1]

    def step(self, what: str, *given: Any) -> None:
        match what:
            case "pass":
                client, rows, patience = given
                session = self.name(client, what)
                due = DuePass(session, Draft(()), rows, self.now, patience)
                self.of.of(client).passes.append(due)
            case "stream":
                self.of.of(given[0]).streams[self.name(given[0], what)] = None
            case "job":
                named = self.name(given[0], what)
                self.of.of(given[0]).jobs.append(lambda: self.served.append(named))
            case "charge":
                self.of.charge(*given)
            case "batch":
                self.batch()
            case "streams":
                for stream in self.of.take_streams():
                    self.served.append(stream)  # type: ignore[arg-type]
            case "take_job":
                if (taken := self.of.take_job()) is not None:
                    taken[1]()
                    assert self.served[-1][0] == taken[0]

    def batch(self) -> None:
        """One pass, within all limits."""
        waits = any(share.passes for share in self.of._shares.values())
        batch = self.of.next_batch(self.now)
        assert bool(batch) == waits  # the device is not idle while a draft waits
        rows = sum(due.rows for due in batch)
        assert len(batch) <= self.limits.batch
        assert len(batch) <= 1 or rows <= self.limits.batch_rows
        by_client = Counter(due.session[0] for due in batch)  # type: ignore[index]
        assert max(by_client.values(), default=0) <= self.limits.passes_per_robot
        self.served += [due.session for due in batch]  # type: ignore[misc]
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
        assert crowd.of.busy == (crowd.of.waiting > 0)
    left = crowd.of.waiting
    for _ in range(left):  # at least one thing comes out each time
        before = len(crowd.served)
        for kind in ("streams", "batch", "take_job"):
            crowd.step(kind)
        if not crowd.of.busy:
            break
        assert len(crowd.served) > before
    assert not crowd.of.busy
    assert sorted(crowd.served) == sorted(crowd.handed)
    for client in range(CLIENTS):
        for kind in ("pass", "stream", "job"):
            handed = crowd.of_client(crowd.handed, client, kind)
            assert crowd.of_client(crowd.served, client, kind) == handed


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=2, max_size=CLIENTS),
    patience=st.lists(PATIENCE, min_size=CLIENTS, max_size=CLIENTS),
    passes=st.integers(1, 150),
)
def test_clients_that_always_wait_are_never_further_apart_than_a_quantum_and_a_pass(
    sizes: list[int], patience: list[float], passes: int
) -> None:
    """Whatever sizes they ask for and whatever they say of their deadlines (Shreedhar, 1995)."""
    crowd = Crowd(WorkerLimits(batch=1))
    rows: Counter[int] = Counter(dict.fromkeys(range(len(sizes)), 0))
    for _ in range(passes):
        for client, size in enumerate(sizes):
            if not crowd.of.of(client).passes:
                crowd.step("pass", client, size, patience[client])
        crowd.batch()
        client = crowd.served[-1][0]
        rows[client] += sizes[client]
        assert max(rows.values()) - min(rows.values()) <= QUANTUM + max(sizes)


def batches_until_served(limits: WorkerLimits, rivals: list[tuple[int, float]], rows: int) -> int:
    """How many passes are begun until a tree of so many rows is in one, beside a crowd.

    Each rival always has as many passes waiting as it may have in one, of its size and patience.
    """
    crowd = Crowd(limits)
    crowd.step("pass", len(rivals), rows, 0.0)
    for number in range(2000):
        for client, (size, patience) in enumerate(rivals):
            while len(crowd.of.of(client).passes) < limits.passes_per_robot:
                crowd.step("pass", client, size, patience)
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
    rivals=st.lists(st.tuples(st.integers(1, 60), PATIENCE), min_size=1, max_size=4),
    rows=st.integers(1, 90),
)
def test_nobody_starves_whatever_the_others_claim(
    limits: WorkerLimits, rivals: list[tuple[int, float]], rows: int
) -> None:
    rows = min(rows, limits.batch_rows)
    assert batches_until_served(limits, rivals, rows) <= bound(limits, len(rivals))


def test_a_scheduler_without_credit_would_let_it_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: first deadline first, and nobody pays, so that liars are always first."""
    monkeypatch.setattr(DuePass, "deadline", property(lambda due: due.patience_s or 1e9))
    free = Scheduler._begin_rounds

    def rich(self: Scheduler, count: int) -> None:
        free(self, count)
        for share in self._shares.values():
            share.credit = 1e9

    monkeypatch.setattr(Scheduler, "_begin_rounds", rich)
    limits = WorkerLimits(batch=1)
    assert batches_until_served(limits, [(9, 0.05)] * 2, 9) > bound(limits, 2)


def test_ten_times_the_clients_do_not_take_a_hundred_times_the_looks() -> None:
    """Of each client the deadline is looked at once for a pass, and for each that is in it."""
    looks = 0
    real = DuePass.deadline

    class Counted(DuePass):
        @property
        def deadline(self) -> float:
            nonlocal looks
            looks += 1
            return float(real.__get__(self))

    for clients in (100, 1000):
        of, looks = scheduler(WorkerLimits()), 0
        for client in range(clients):
            session: Any = client
            of.of(client).passes.append(Counted(session, Draft(()), 9, 0.0, 0.5))
        assert len(of.next_batch(0.0)) == 256 // 9
        assert looks <= 2 * clients
