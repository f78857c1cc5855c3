"""Where the draft model fails the cloud goes on alone, whenever that is, under every preset."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.edge.draft_planner import DraftPlanner
from edge_cloud_spec.edge.events import DrafterFailed, Event
from edge_cloud_spec.edge.rounds import Mode
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.lab.harness.toy import spec_of
from edge_cloud_spec.lab.harness.virtual_decode import Conditions, Decode
from edge_cloud_spec.presets import load_preset, preset_names

WHY = "the process of the draft model was killed"
RULES = {"greedy": GREEDY, "coupled": SamplingPolicy(0.9, seed=3)}


class Failing:
    """Lets a draft model compute so often, and then no more."""

    def __init__(
        self, decode: Decode, lasts: int, layer: int, error: type[Exception] = UserError
    ) -> None:
        self.failed, self._left, self._layer, self._error = 0, lasts, layer, error
        model: Any = decode.draft_model
        self._compute, self._read = model.compute, model.read
        model.compute, model.read = self.compute, self.read

    def compute(self, rows: int, on_layer: Any) -> None:
        self._left -= 1

        def fail_at(layer: int, hidden: object) -> None:
            if self._left < 0 and layer == self._layer:
                self.fail(self._error)
            on_layer(layer, hidden)

        self._compute(rows, fail_at)

    def read(self, share: float) -> None:
        self._left -= 1
        if self._left < 0:
            self.fail()
        self._read(share)

    def fail(self, error: type[Exception] = UserError) -> None:
        self.failed += 1
        raise error(WHY)


def leading(decode: Decode) -> None:
    """Let the robot lead from the start, as ``auto`` does once it has learned that this pays."""
    measures = decode._runner.measures
    measures.planners[decode.preset] = DraftPlanner(decode.preset, measures)


@settings(max_examples=150)
@given(
    random=st.randoms(use_true_random=False),
    preset=st.sampled_from(["auto", "auto", "auto", "dsd", "specedge", "picospec", "fsd"]),
    rule=st.sampled_from(sorted(RULES)),
    grammar=st.sampled_from(["", "one"]),
    lasts=st.sampled_from([0, 1, 2, 3, 4, 6, 9, 15]),
    layer=st.sampled_from([0, 1]),
    conditions=st.builds(
        Conditions,
        delay=st.sampled_from([0.0, 0.05, 0.4]),
        cuts=st.sampled_from([0.0, 0.5]),
        cloud_job=st.sampled_from([0.02, 0.3]),
    ),
    seed=st.integers(0, 50),
    known_spec=st.sampled_from([None, b"", spec_of(20).to_bytes()]),
    leads=st.booleans(),
    error=st.sampled_from([UserError, ValueError]),  # the latter: of logits that are no numbers
)
def test_the_answer_is_the_targets_own_whenever_the_draft_model_fails(
    random: Random,
    preset: str,
    rule: str,
    grammar: str,
    lasts: int,
    layer: int,
    leads: bool,
    error: type[Exception],
    **others: Any,
) -> None:
    policy = replace(RULES[rule], grammar=grammar)
    decode = Decode(random, preset, rule, policy, **others)
    if leads and preset == "auto":
        leading(decode)
    failing = Failing(decode, lasts, layer, error)
    outcome = decode.run()
    own, reason = decode.own_answer()
    assert (list(outcome.tokens), outcome.reason) == (own, reason)
    assert decode.emitted == own
    assert outcome.stats.failure == (WHY if failing.failed else "")


@settings(max_examples=100)
@given(
    random=st.randoms(use_true_random=False),
    preset=st.sampled_from([name for name in preset_names() if load_preset(name).drafts_on_robot]),
    lasts=st.integers(0, 15),
    layer=st.sampled_from([0, 1]),
    cuts=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 50),
)
def test_where_the_robot_has_drawn_a_token_the_cloud_goes_on_after_it(
    random: Random, preset: str, lasts: int, layer: int, cuts: float, seed: int
) -> None:
    """As after a split rejection, of which the cloud hears with the next draft alone."""
    policy, conditions = SamplingPolicy(0.9, seed=3), Conditions(cuts=cuts, moves=0.5)
    decode = Decode(random, preset, "rejection", policy, conditions=conditions, seed=seed)
    failing = Failing(decode, lasts, layer)
    outcome = decode.run()
    if failing.failed and not decode.preset.verified:
        assert (outcome.reason, outcome.text) == ("drafter_failed", WHY)
        return
    assert outcome.completed and decode.emitted == list(outcome.tokens)
    assert outcome.stats.failure == (WHY if failing.failed else "")
    decode.settle()
    assert any(decode.emitted == answer.tokens for answer in decode.sessions)


def test_a_draft_model_that_hangs_keeps_no_decode_beyond_its_reply_timeout() -> None:
    """It is waited for as long as any pass may take; the robot hears, and is alive meanwhile."""
    conditions = Conditions(delay=20.0, jitter=0.0)
    decode = Decode(Random(0), "picospec", conditions=conditions, reply_timeout=5.0)
    model: Any = decode.draft_model
    signs, passes = [], 0
    decode._runner.on_alive = lambda: signs.append(decode.now)

    def compute(rows: int, on_layer: Any) -> None:
        nonlocal passes
        passes += 1
        end = decode.now + (0.01 if passes < 8 else 100.0)
        while decode.now < end:
            decode.timeline.sleep(0.1)
            on_layer(0, None)

    model.compute = compute
    outcome = decode.run()
    assert passes >= 8 and outcome.reason == "timeout"
    assert decode.now < 30.0
    assert max(b - a for a, b in pairwise(signs)) < 6.0


def test_these_decodes_fail_whoever_leads() -> None:
    modes = set()
    for number in range(48):
        preset = ("auto", "auto", "dsd", "specedge")[number % 4]
        decode = Decode(Random(number), preset, seed=number)
        if number % 4 == 0:
            leading(decode)

        def on_event(event: Event, decode: Decode = decode) -> Event:
            if isinstance(event, DrafterFailed):
                modes.add(decode.decoder.mode)
            return event

        decode.on_event = on_event  # type: ignore[method-assign]
        Failing(decode, number // 4, 0)
        decode.run()
    assert modes == set(Mode) - {Mode.RESAMPLING}
