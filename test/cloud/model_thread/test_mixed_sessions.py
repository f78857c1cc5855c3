"""Sessions that are batched and evicted beside each alone; controls that must fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.bounded_toy import SESSION_BYTES, BoundedToy
from helpers.cloud.mixed_sessions import embedded_tokens_row, rejection_row, tokens_row
from helpers.cloud.worker_robot import opening

from edge_cloud_spec.cloud.model_thread.sessions import WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.cloud.session import session
from edge_cloud_spec.decoding.accept import Acceptance
from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.lab.harness.toy import spec_of
from edge_cloud_spec.wire.messages import Open

OPENING = replace(opening(), policy=GREEDY, rule="greedy", draft_identity="d")


def openings(count: int) -> list[Open]:
    return [replace(OPENING, nonce=n, max_tokens=1 + n % 14) for n in range(count)]


class Cloud:
    """Makes workers of a toy; with ``noise`` the batched one has another target."""

    def __init__(self, room: float = 3, batch: int = 32, noise: float = 0.0) -> None:
        self.room, self.batch, self.noise = room, batch, noise

    def __call__(self, alone: bool) -> Worker:
        room, batch = (999, 1) if alone else (self.room, self.batch)
        limits = WorkerLimits(
            sessions=9999, batch=batch, batch_rows=100, kv_mb=room * SESSION_BYTES / 2**20
        )
        model: Any = BoundedToy(1, 0.0 if alone else self.noise)
        return Worker(model, spec_of(14), None, limits)


def test_sessions_of_the_embedded_target_are_mixed_and_equal() -> None:
    row = embedded_tokens_row(10, seed=0)
    assert row["passed"] and row["equal_answers"] == row["sessions"] == 10
    counts = ("evictions", "restored_rows", "pushed", "chains", "trees", "generated", "predictions")
    assert min(row[count] for count in counts) > 0


def test_a_run_in_which_nothing_was_mixed_does_not_pass() -> None:
    mixed = tokens_row(Cloud(), openings(30), 0)
    assert mixed["equal"] and mixed["evictions"] > 0 and mixed["batch_max"] > 1
    assert not mixed["passed"], "a toy has no exits"
    assert tokens_row(Cloud(room=999), openings(30), 0)["evictions"] == 0
    assert tokens_row(Cloud(batch=1), openings(30), 0)["batch_max"] == 1


def test_another_target_is_told_by_its_tokens() -> None:
    row = tokens_row(Cloud(noise=0.5), openings(30), 0)
    assert row["equal_answers"] < 30 and not row["equal"]


def test_rejection_in_a_batch_has_the_distribution_of_the_target_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rule that accepts all that is drafted is told from it, and so is another target."""
    opening = replace(OPENING, max_tokens=1)
    right = rejection_row(Cloud(), opening, 400, 0)
    assert right["passed"] and right["rejected"] > 50
    assert not rejection_row(Cloud(noise=2.0), opening, 100, 0)["equal"]
    accept = session.accept

    def gullible(rule: str, draft: Any, *others: Any, **more: Any) -> Acceptance:
        taken = accept(rule, draft, *others, **more)
        return replace(taken, path=(0,)) if len(draft) and not taken.path else taken

    monkeypatch.setattr(session, "accept", gullible)
    assert not rejection_row(Cloud(), opening, 100, 0)["equal"]
