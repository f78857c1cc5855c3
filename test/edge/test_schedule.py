"""Robot and cloud in virtual time: whatever link and models do, the answer is the target's own."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from helpers.exactness import probabilities
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.draft_planner import DraftPlanner
from edge_cloud_spec.edge.events import DrafterFailed, Event
from edge_cloud_spec.edge.rounds import Mode
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.presets import load_preset, preset_names
from edge_cloud_spec.wire.messages import (
    ClientMessage,
    DraftMessage,
    Prediction,
    RowMessage,
    RowRequest,
    ServerMessage,
    Verdict,
)
from edge_cloud_spec_lab.harness.toy import (
    TOY_END,
    TOY_MAX_TOKENS,
    TOY_VOCABULARY,
    ToyVlm,
    own_answer,
    spec_of,
)
from edge_cloud_spec_lab.harness.virtual_decode import Conditions, Decode

PRESETS = (
    "cloud_ar",
    "cloud_lookup",
    "cloud_sd",
    "dsd",
    "dssd",
    "tslt",
    "mc_dsd",
    "best_first",
    "fsd",
    "picospec",
    "specedge",
    "auto",
)
TIGHT = replace(
    load_preset("dssd"), name="tight", residual_top_k=1, residual_tail=1
)  # often asks for the row
PICOSPEC = load_preset("picospec")
GUESSING = replace(  # pushes drafts for tokens that it may draw itself
    PICOSPEC, name="guessing", speculation=replace(PICOSPEC.speculation, runners_up=True, least=0.0)
)
SOME = SamplingPolicy(0.9, seed=3)
RULES = {"greedy": GREEDY, "coupled": SOME, "rejection": SOME}


def named(given: object) -> object:
    return getattr(given, "name", given)


conditions_met = st.builds(
    Conditions,
    delay=st.sampled_from([0.0, 0.05, 0.4]),
    jitter=st.sampled_from([0.0, 0.2, 2.0]),
    duplicated=st.sampled_from([0.0, 0.5]),
    reordered=st.booleans(),
    cuts=st.sampled_from([0.0, 0.3, 1.0]),
    outage=st.sampled_from([0.0, 1.0, 3.0]),
    restart=st.sampled_from([0.0, 0.0, 0.5]),
    cloud_job=st.sampled_from([0.02, 0.3]),
)
specs = st.sampled_from([None, b"", spec_of(20).to_bytes()])  # the cloud's, none, an old one


@settings(max_examples=150, phases=[Phase.explicit, Phase.generate])
@given(
    random=st.randoms(use_true_random=False),
    preset=st.sampled_from(PRESETS),
    rule=st.sampled_from(["greedy", "coupled"]),
    conditions=conditions_met,
    seed=st.integers(0, 50),
    draft_noise=st.sampled_from([0.0, 0.5, 5.0]),
    known_spec=specs,
    max_tokens=st.sampled_from([0, 1, 5]),
    grammar=st.sampled_from(["", "one", "another"]),
    reply_timeout=st.sampled_from([1e6, 1e6, 1e6, 2.0, 0.3]),
)
def test_whatever_the_link_does_the_answer_is_the_targets_own(
    random: Random, preset: str, rule: str, conditions: Conditions, grammar: str, **others: Any
) -> None:
    """Also of verifiers that forget the session; a timeout ends it after what is verified."""
    policy = replace(RULES[rule], grammar=grammar)
    decode = Decode(random, preset, rule, policy, conditions=conditions, **others)
    finish = decode.run()
    stats, own = decode.decoder.stats, decode.own_answer()
    assert decode.decoder.tokens == decode.emitted
    if finish.reason == "timeout":
        assert finish.text and others["reply_timeout"] < 1e6
        assert decode.emitted == own[0][: len(decode.emitted)]
    else:
        assert (decode.emitted, finish.reason) == own
    if not conditions.restart:
        assert stats.stale == decode.verdicts_received - len(stats.rounds)
    assert sum(r.emitted for r in stats.rounds) == len(decode.emitted)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_link_that_comes_and_goes_without_an_answer_ends_in_time(preset: str) -> None:
    conditions = Conditions(delay=3.0, cuts=5.0, outage=0.01, max_cuts=1000)
    decode = Decode(Random(2), preset, conditions=conditions, reply_timeout=20.0)
    assert decode.run().reason == "timeout"
    assert decode.now == pytest.approx(20.0)
    assert decode.faults.cuts > 20


@pytest.mark.parametrize(
    ("preset", "restart"),
    [
        *((preset, 0.0) for preset in ("cloud_lookup", "cloud_sd", "dssd", "tslt", "mc_dsd")),
        *((preset, 0.0) for preset in ("fsd", "picospec", "specedge", "auto")),
        *((preset, 0.7) for preset in ("dsd", TIGHT)),
    ],
    ids=named,
)
def test_rejection_over_the_whole_path_has_the_targets_distribution(
    preset: str | Preset, restart: float
) -> None:
    """125 seeds through worker, codec and a link that breaks: its first token.

    restart: how often another verifier goes on after a break.
    """
    counts, runs, fallbacks = defaultdict[int, int](int), 125, 0
    conditions = Conditions(cuts=0.3, duplicated=0.3, reordered=True, restart=restart)
    for seed in range(runs):
        policy = SamplingPolicy(1.0, seed=seed)
        chosen = {"conditions": conditions, "max_tokens": 2, "draft_noise": 3.0}
        decode = Decode(Random(seed), preset, "rejection", policy, **chosen)
        assert decode.run().reason in ("end", "length")
        counts[decode.emitted[0]] += 1
        fallbacks += decode.decoder.stats.fallbacks
    assert (fallbacks > 0) == (preset is TIGHT)
    expected = runs * probabilities(ToyVlm(0).logits(()), SamplingPolicy(1.0))
    statistic = sum((counts[i] - e) ** 2 / e for i, e in enumerate(expected))
    assert statistic < 6 + 5 * np.sqrt(12)


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_the_drafter_alone_is_not_the_target_and_keeps_the_robots_limit(max_tokens: int) -> None:
    decode = Decode(Random(0), "edge_only", draft_noise=3.0, seed=1, max_tokens=max_tokens)
    reason = decode.run().reason
    own = own_answer(decode.draft_model, GREEDY, max_tokens or TOY_MAX_TOKENS)
    assert (decode.emitted, reason) == own != decode.own_answer()
    assert not decode.sent


# Drafting on as if all were accepted: the cloud leaves open what goes on, pushed ahead or not.

LONGEST = 40


@pytest.mark.parametrize("draft_noise", [0.0, 0.5])
@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_draft_says_where_it_goes_on_unless_the_answer_ends_there(
    rule: str, draft_noise: float
) -> None:
    """Where the drafter is the target every verdict is open, or ends the answer."""
    pushed = verdicts = 0
    for seed in range(12):
        chosen = {"spec": spec_of(LONGEST), "seed": seed, "draft_noise": draft_noise}
        conditions = Conditions(jitter=0.1, cuts=0.2 if draft_noise else 0.0, outage=0.2)
        policy = RULES[rule]
        one = Decode(Random(seed), "picospec", rule, policy, conditions=conditions, **chosen)
        assert one.run().reason in ("end", "length")
        for message in one.sent:
            if not isinstance(message, DraftMessage):
                continue
            tokens = message.draft.tokens
            left = LONGEST - message.base.length - len(tokens)
            goes_on = left > 1 and tokens[-1] != TOY_END
            assert message.open_at == (len(tokens) - 1 if goes_on else None)
            pushed += message.base.length > 0
        rounds = one.decoder.stats.rounds
        if not draft_noise:  # a right draft costs the cloud no token of its own
            assert all(0 < each.accepted == each.emitted for each in rounds[:-1])
            assert one.worker.counters.verified == len(rounds)
        verdicts += len(rounds)
    assert pushed > 30 and verdicts > 20


# Whatever names a place where the answer is not changes nothing, whenever it comes.

UNIFORM = TokenDistribution(np.full(TOY_VOCABULARY, 1 / TOY_VOCABULARY, np.float32))


class Disturbed(Decode):
    """Before each event the robot is told things that are not for it."""

    told = 0
    strays = True
    asked: PrefixDigest | None = None  # the row that is awaited

    def on_event(self, event: Event) -> Event:
        base = self.decoder._base  # of the empty answer, once the robot has it
        if not self.decoder.finished and self.strays and base is not None:
            for message in self._for_others(base):
                stale = self.decoder.stats.stale
                assert EdgeDecoder.handle(self.decoder, message, self.now) == [], message
                assert self.decoder.stats.stale == stale + 1
                self.told += 1
        if isinstance(event, RowMessage):
            self.asked = None
        return super().on_event(event)

    def _for_others(self, base: PrefixDigest) -> list[ServerMessage]:
        """About where the answer was, never was, and is not yet."""
        size, here = len(self.emitted), base.extend(self.emitted)
        was = [base.extend(self.emitted[:n]) for n in range(size)]
        not_yet = (PrefixDigest(size, 5), PrefixDigest(size + 2, 5), PrefixDigest(0, 0))
        places = [*was[-3:], *not_yet]
        verdicts = [Verdict(place, (), 3) for place in places if place.length <= size]
        rows = [RowMessage(place, UNIFORM) for place in (*places, here) if place != self.asked]
        return [*verdicts, *rows, *(Prediction(place, (), 3, 0.9) for place in places)]

    def on_send(self, message: ClientMessage) -> None:
        if isinstance(message, RowRequest):
            self.asked = message.base
        super().on_send(message)


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("preset", [*PRESETS, TIGHT], ids=named)
def test_what_names_another_place_is_dropped_and_counted(preset: str | Preset, rule: str) -> None:
    """Rows, verdicts and predictions, before every event of a decode; the answer is the same."""
    told, policy, conditions = 0, RULES[rule], Conditions(jitter=0.3)
    for seed in range(4):
        answers = []
        for strays in (False, True):
            decode = Disturbed(Random(seed), preset, rule, policy, conditions=conditions, seed=seed)
            decode.strays = strays
            finish = decode.run()
            assert finish.reason in ("end", "length"), finish
            answers.append((decode.emitted, len(decode.sent), decode.decoder.stats.stale))
            told += decode.told
        assert answers[0][:2] == answers[1][:2]
        assert answers[0][2] + decode.told == answers[1][2]
    assert told > 100


@pytest.mark.parametrize("preset", ["dssd", TIGHT, "dssd_dense", PICOSPEC, GUESSING], ids=named)
def test_the_cloud_hears_of_each_token_that_the_robot_drew(preset: str | Preset) -> None:
    """It travels with the next message, and with no other: the cloud refuses what carries one."""
    fallbacks = 0
    for seed in range(30):
        policy = SamplingPolicy(1.0, seed=seed)
        decode = Decode(Random(seed), preset, "rejection", policy, seed=seed, draft_noise=0.7)
        finish = decode.run()
        assert finish.reason in ("end", "length"), finish
        decode.settle()
        assert [session.tokens for session in decode.sessions] == [decode.emitted]
        fallbacks += decode.decoder.stats.fallbacks
    assert (fallbacks > 0) == (preset is TIGHT)


# Where the draft model fails the cloud goes on alone, whenever that is, under every preset


WHY = "the process of the draft model was killed"


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


class Noted(Decode):
    """A decode that notes in which mode its draft model failed."""

    failed_in: Mode | None = None

    def on_event(self, event: Event) -> Event:
        if isinstance(event, DrafterFailed):
            self.failed_in = self.decoder.mode
        return super().on_event(event)


def failed_in(
    decode: Noted, lasts: int, layer: int, leads: bool, error: type[Exception] = UserError
) -> Mode | None:
    """The mode in which the draft model failed, if it did; the answer is the target's own.

    leads: the robot does under ``auto``, as it does once it has learned that this pays.
    """
    if leads and decode.preset.pacing == "auto":
        measures = decode._runner.measures
        measures.planners[decode.preset] = DraftPlanner(decode.preset, measures)
    failing = Failing(decode, lasts, layer, error)
    outcome = decode.run()
    own, reason = decode.own_answer()
    assert (list(outcome.tokens), outcome.reason) == (own, reason)
    assert decode.emitted == own
    assert outcome.stats.failure == (WHY if failing.failed else "")
    return decode.failed_in


@settings(max_examples=80)
@given(
    random=st.randoms(use_true_random=False),
    preset=st.sampled_from(["auto", "auto", "auto", "dsd", "specedge", "picospec", "fsd"]),
    rule=st.sampled_from(["greedy", "coupled"]),
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
    decode = Noted(random, preset, rule, replace(RULES[rule], grammar=grammar), **others)
    failed_in(decode, lasts, layer, leads, error)


def test_the_answer_is_the_targets_own_whoever_leads_when_the_draft_model_fails() -> None:
    modes = set()
    for number in range(48):
        preset = ("auto", "auto", "dsd", "specedge")[number % 4]
        decode = Noted(Random(number), preset, seed=number)
        modes.add(failed_in(decode, number // 4, 0, leads=number % 4 == 0))
    assert modes - {None} == set(Mode) - {Mode.RESAMPLING}


@settings(max_examples=60)
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
    conditions = Conditions(cuts=cuts, moves=0.5)
    decode = Decode(random, preset, "rejection", SOME, conditions=conditions, seed=seed)
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
