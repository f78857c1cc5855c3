"""The scripted model keeps the promises of a session; its acceptance is the one it was given."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.cloud.worker_robot import Costly

from edge_cloud_spec.errors import UserError
from edge_cloud_spec_lab.harness.cost_profiles import Head, custom_cost_profile, load_cost_profile
from edge_cloud_spec_lab.harness.scripted.model import (
    ScriptedPrompt,
    TargetVlm,
)
from edge_cloud_spec_lab.harness.toy import ToyVlm


class Slow(Costly):
    """A prompt of 100 rows takes a second."""

    prompt_rows = 100

    def read(self, share: float) -> None:
        self.now += share


COSTS = custom_cost_profile(0.0, draft_ms=1.0, verify_ms=10.0, ar_ms=8.0, alpha=0.5)


def asked(session: Any, tokens: list[int], parents: Any = None, on_layer: Any = None) -> Any:
    return SimpleNamespace(session=session, tokens=tokens, parents=parents, on_layer=on_layer)


def test_misuse_is_refused() -> None:
    session = ToyVlm(1).open(None)
    session.forward([1, 2], [-1, -1])
    with pytest.raises(ValueError, match="not a path"):
        session.commit([0, 1])
    with pytest.raises(ValueError, match="truncate"):
        session.truncate(1)


def test_a_prompt_in_steps_costs_what_it_costs_at_once_and_gives_the_same_rows() -> None:
    model = Slow(3)
    prefill = model.prefill(None)
    with pytest.raises(ValueError, match="not computed yet"):
        _ = prefill.session
    spent = []
    while not prefill.step(30):
        spent.append(model.now)
    assert spent == pytest.approx([0.3, 0.6, 0.9])
    assert model.now == pytest.approx(1.0)
    assert np.array_equal(prefill.session.forward([1]), model.open(None).forward([1]))


def test_a_pass_over_several_sessions_costs_once_and_a_bad_request_costs_its_own_only() -> None:
    model = Slow(3)
    alone, together = ([model.open(None) for _ in range(3)] for _ in range(2))
    alone[0].extend([1])
    together[0].extend([1])
    drafts = [([2, 3], None), ([4], None), ([2, 5], [-1, -1])]
    expected = [s.forward(*each) for s, each in zip(alone, drafts, strict=True)]
    requests = [asked(s, *each) for s, each in zip(together, drafts, strict=True)]
    bad = asked(model.open(None), [1], [4])
    model.now = 0.0
    *found, error, again = model.forward_together([*requests, bad, requests[0]])
    assert all(map(np.array_equal, expected, found))
    assert isinstance(error, ValueError) and isinstance(again, ValueError)
    assert model.now == 1.0 + 6
    together[2].commit([1])
    assert together[2].tokens == (5,)


def test_exits_of_a_pass_look_on_each_for_its_own_session() -> None:
    slept: list[float] = []
    target = TargetVlm(COSTS, slept.append)
    seen: list[tuple[int, float]] = []

    def sees(logits: np.ndarray) -> None:
        seen.append((len(logits), sum(slept)))
        if len(logits) == 3:
            raise RuntimeError("this exit fails")

    sessions = [target.open(ScriptedPrompt(n, b"")) for n in range(3)]
    first, second, third = target.forward_together(
        [asked(each, [1] * (n + 1), None, sees if n else None) for n, each in enumerate(sessions)]
    )
    assert isinstance(second, RuntimeError)
    assert not isinstance(first, Exception) and not isinstance(third, Exception)
    assert [len(first), len(third)] == [2, 4]
    assert seen == [(3, pytest.approx(0.003)), (4, pytest.approx(0.003))]
    assert sum(slept) == pytest.approx(0.010)


def test_a_batch_costs_its_rows_and_reads_the_weights_once() -> None:
    cost_profile = COSTS
    flat, slope = cost_profile.flat_tokens, cost_profile.per_token
    assert cost_profile.batch_pass_ms([5]) == cost_profile.verify_pass_ms(5) == 10.0
    assert cost_profile.batch_pass_ms([0]) == cost_profile.batch_pass_ms([0], exits=False) == 8.0
    rows = 32 + 32 + 1
    assert cost_profile.batch_pass_ms([32, 32]) == pytest.approx(10 * (1 + slope * (rows - flat)))
    assert cost_profile.batch_pass_ms([32, 32]) < 2 * cost_profile.batch_pass_ms([32])


def test_a_head_says_what_it_can_be() -> None:
    assert Head((0.75, 0.47, 0.27), 0.03).tokens == pytest.approx(2.49)
    for acceptance, cost in (((), 0.0), ((0.5, 0.6), 0.0), ((1.1,), 0.0), ((0.5,), -0.1)):
        with pytest.raises(UserError, match="a head's"):
            Head(acceptance, cost)


def test_what_no_paper_prints_is_as_the_cost_profiles_assume_it() -> None:
    published = load_cost_profile("fsd-go2")
    assert published.prefill_ms == published.draft_prefill_ms == 0.0
    assert published.batch_pass_ms([4], exits=False) == published.verify_ms == 620
    cost_profile = published.with_assumed()
    assert cost_profile.prefill_ms == pytest.approx(1.5 * 354)
    assert cost_profile.draft_prefill_ms == pytest.approx(8 * 72)
    assert cost_profile.batch_pass_ms([4], exits=False) == pytest.approx(1.05 * 354)
    assert cost_profile.batch_pass_ms([4]) == 620
    assert cost_profile.batch_pass_ms([32], exits=False) > cost_profile.batch_pass_ms(
        [16], exits=False
    )
    without = load_cost_profile("pico-qwen-gsm8k").with_assumed()
    assert without.batch_pass_ms([4], exits=False) == without.verify_ms
    with pytest.raises(UserError, match="prefills"):
        replace(published, prefill_ms=-1.0)


def test_a_cost_profile_of_today_says_what_a_prompt_takes() -> None:
    """In ms, the parts of a model added up; what is assumed of others does not go before it."""
    for name, prefill_ms in (("today-7b", 60.0), ("today-32b", 200.0), ("today-72b", 450.0)):
        cost_profile = load_cost_profile(name)
        assert cost_profile.with_assumed() == cost_profile
        assert (cost_profile.prefill_ms, cost_profile.draft_prefill_ms) == (prefill_ms, 500.0)
        assert cost_profile.verify_pass_ms(cost_profile.flat_tokens) == cost_profile.ar_ms
        assert cost_profile.verify_pass_ms(cost_profile.flat_tokens + 10) == pytest.approx(
            1.05 * cost_profile.ar_ms
        )
    assert load_cost_profile("instant").with_assumed().prefill_ms == pytest.approx(1.5 * 0.2)
