"""What the soak of random faults counts as grown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")
from edge_cloud_spec.lab.bench.faults.suite import Samples
from edge_cloud_spec.lab.bench.leaks import quarters


def sampled(*taken: dict[str, tuple[int, int, float]]) -> dict[str, tuple[int, float]]:
    samples = Samples()
    for resources in taken:
        rig: Any = SimpleNamespace(resources=lambda now=resources: now)
        samples.take(rig)
    return samples.growth()


def test_what_holds_as_much_as_before_has_not_grown_and_what_holds_more_has() -> None:
    flat = [{"drafter": (7, 12, 400.0 + n % 3)} for n in range(40)]
    assert sampled(*flat) == {"drafter": (0, pytest.approx(0.0, abs=1.5))}
    leaking = [{"drafter": (7, 12 + n // 4, 400.0 + n)} for n in range(40)]
    threads, megabytes = sampled(*leaking)["drafter"]
    assert threads >= 6 and megabytes > 20


def test_a_program_that_was_started_again_is_another_one() -> None:
    before = [{"drafter": (7, 12, 400.0)}] * 20
    after = [{"drafter": (8, 30, 700.0)}] * 20
    assert sampled(*before, *after) == {"drafter": (0, 0.0)}


def test_the_warm_up_is_not_counted_and_few_samples_are_compared_with_themselves() -> None:
    samples = [(1, 10.0)] * 4 + [(2, 20.0)] * 36
    first, last = quarters(samples)
    assert set(first) == set(last) == {(2, 20.0)} and len(first) == len(last) == 9
    assert quarters(samples[:2]) == (samples[:2], samples[:2])
