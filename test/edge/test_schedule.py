"""Robot and cloud in virtual time: whatever the link does, the answer is the target's own."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from helpers.exactness import probabilities
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.edge.events import Event, Received
from edge_cloud_spec.lab.harness.toy import END, MAX_TOKENS, ToyVlm, own_answer, spec_of
from edge_cloud_spec.lab.harness.virtual_decode import Conditions, Decode
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import DraftMessage, Open, Verdict

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
TIGHT = replace(load_preset("dssd"), residual_top_k=1, residual_tail=1)  # often asks for the row
RULES = {"greedy": GREEDY, "coupled": SamplingPolicy(0.9, seed=3)}

conditions_met = st.builds(
    Conditions,
    delay=st.sampled_from([0.0, 0.05, 0.4]),
    jitter=st.sampled_from([0.0, 0.2, 2.0]),
    duplicated=st.sampled_from([0.0, 0.5]),
    reordered=st.booleans(),
    cuts=st.sampled_from([0.0, 0.3, 1.0]),
    outage=st.sampled_from([0.0, 1.0]),
    cloud_job=st.sampled_from([0.02, 0.3]),
)
specs = st.sampled_from([None, b"", spec_of(20).to_bytes()])  # the cloud's, none, an old one


@settings(max_examples=120, phases=[Phase.explicit, Phase.generate])
@given(
    random=st.randoms(use_true_random=False),
    preset=st.sampled_from(PRESETS),
    rule=st.sampled_from(sorted(RULES)),
    conditions=conditions_met,
    seed=st.integers(0, 50),
    draft_noise=st.sampled_from([0.0, 0.5, 5.0]),
    known_spec=specs,
    max_tokens=st.sampled_from([0, 1, 5]),
    grammar=st.sampled_from(["", "one", "another"]),
)
def test_whatever_the_link_does_the_answer_is_the_targets_own(
    random: Random,
    preset: str,
    rule: str,
    conditions: Conditions,
    seed: int,
    draft_noise: float,
    known_spec: bytes | None,
    max_tokens: int,
    grammar: str,
) -> None:
    decode = Decode(
        random,
        preset,
        rule,
        replace(RULES[rule], grammar=grammar),
        conditions=conditions,
        seed=seed,
        draft_noise=draft_noise,
        known_spec=known_spec,
        max_tokens=max_tokens,
    )
    finish = decode.run()
    assert (decode.emitted, finish.reason) == decode.own_answer()
    stats = decode.decoder.stats
    assert decode.decoder.tokens == decode.emitted
    assert stats.stale == decode.verdicts_received - len(stats.rounds)
    assert sum(r.emitted for r in stats.rounds) == len(decode.emitted)


@settings(max_examples=60, phases=[Phase.explicit, Phase.generate])
@given(
    random=st.randoms(use_true_random=False),
    preset=st.sampled_from(PRESETS),
    rule=st.sampled_from(sorted(RULES)),
    seed=st.integers(0, 50),
    known_spec=specs,
    reply_timeout=st.sampled_from([0.3, 2.0, 1e6]),
)
def test_a_verifier_that_forgets_the_session_goes_on_after_what_is_verified(
    random: Random,
    preset: str,
    rule: str,
    seed: int,
    known_spec: bytes | None,
    reply_timeout: float,
) -> None:
    conditions = Conditions(cuts=1.0, outage=3.0, restart=0.5, duplicated=0.2, reordered=True)
    decode = Decode(
        random,
        preset,
        rule,
        RULES[rule],
        conditions=conditions,
        seed=seed,
        known_spec=known_spec,
        reply_timeout=reply_timeout,
    )
    finish = decode.run()
    own, reason = decode.own_answer()
    assert decode.emitted == own[: len(decode.emitted)]
    if finish.reason == "timeout":
        assert reply_timeout < 1e6
        assert finish.text
    else:
        assert (decode.emitted, finish.reason) == (own, reason)


def test_a_cloud_that_drafts_itself_may_be_cut_off_in_any_pass() -> None:
    conditions = Conditions(jitter=0.1, cuts=1.5, cloud_job=0.3, duplicated=0.3)
    for seed in range(40):
        decode = Decode(Random(seed), "cloud_sd", conditions=conditions, seed=seed, draft_noise=0.2)
        finish = decode.run()
        assert (decode.emitted, finish.reason) == decode.own_answer()


def test_a_restarted_verifier_gets_the_verified_tokens_from_the_robot() -> None:
    decode = Decode(Random(1), "dsd", conditions=Conditions(cuts=2.0, restart=1.0), seed=3)
    finish = decode.run()
    assert (decode.emitted, finish.reason) == decode.own_answer()
    given = [message.verified for message in decode.sent if isinstance(message, Open)]
    assert given[0] == ()
    assert any(given)
    assert all(list(tokens) == decode.emitted[: len(tokens)] for tokens in given)


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
        *((preset, 0.0) for preset in (*PRESETS, TIGHT)),
        *((preset, 0.7) for preset in ("dsd", TIGHT)),
    ],
    ids=lambda given: getattr(given, "name", given),
)
def test_rejection_over_the_whole_path_has_the_targets_distribution(
    preset: str | Preset, restart: float
) -> None:
    """250 seeds through worker, codec and a link that breaks: its first token.

    restart: how often another verifier goes on after a break.
    """
    counts: dict[int, int] = defaultdict(int)
    runs = 250
    fallbacks = 0
    conditions = Conditions(cuts=0.3, duplicated=0.3, reordered=True, restart=restart)
    for seed in range(runs):
        policy = SamplingPolicy(1.0, seed=seed)
        decode = Decode(
            Random(seed),
            preset,
            "rejection",
            policy,
            conditions=conditions,
            max_tokens=2,
            draft_noise=1.0,
        )
        assert decode.run().reason in ("end", "length")
        counts[decode.emitted[0]] += 1
        fallbacks += decode.decoder.stats.fallbacks
    assert (fallbacks > 0) == (preset is TIGHT)
    expected = runs * probabilities(ToyVlm(0).logits(()), SamplingPolicy(1.0))
    statistic = sum((counts[i] - e) ** 2 / e for i, e in enumerate(expected))
    assert statistic < 6 + 5 * np.sqrt(12)


def test_presets_agree_with_each_other_under_rejection_only_in_distribution() -> None:
    """A control: another preset draws other tokens, so equal answers above mean something."""
    policy = SamplingPolicy(1.0, seed=5)
    answers = set()
    for preset in PRESETS:
        decode = Decode(Random(0), preset, "rejection", policy, draft_noise=2.0, seed=8)
        decode.run()
        answers.add(tuple(decode.emitted))
    assert len(answers) > 1


def test_the_drafter_alone_is_not_verified_and_not_the_target() -> None:
    decode = Decode(Random(0), "edge_only", draft_noise=3.0, seed=1)
    assert decode.run().reason in ("end", "length")
    assert not decode.sent
    assert decode.emitted == own_answer(decode.draft_model, GREEDY, MAX_TOKENS)[0]
    assert decode.emitted != decode.own_answer()[0]


def test_the_drafter_alone_keeps_the_robots_length_limit() -> None:
    decode = Decode(Random(0), "edge_only", max_tokens=3, seed=4)
    assert decode.run().reason == "length"
    assert len(decode.emitted) == 3


def test_a_draft_is_longer_or_shorter_and_the_answer_is_the_same() -> None:
    answers = set()
    for length in (1, 2, 3, 8, 64):
        preset = replace(load_preset("dsd"), draft_length=length)
        decode = Decode(Random(0), preset, "coupled", RULES["coupled"], seed=6)
        decode.run()
        answers.add(tuple(decode.emitted))
        assert max(r.drafted for r in decode.decoder.stats.rounds) <= length
    assert answers == {tuple(decode.own_answer()[0])}


# Drafting on as if all were accepted: the cloud leaves open what goes on, pushed ahead or not.

LONGEST = 40
STREAMED_RULES = {
    "greedy": GREEDY,
    "coupled": SamplingPolicy(0.9, seed=3),
    "rejection": SamplingPolicy(0.9, seed=3),
}


class Heard(Decode):
    """Keeps the verdicts that the robot heard."""

    def __init__(self, *given, **changes) -> None:
        self.verdicts: list[Verdict] = []
        super().__init__(*given, **changes)

    def on_event(self, event: Event) -> Event:
        if isinstance(event, Received) and isinstance(event.message, Verdict):
            self.verdicts.append(event.message)
        return super().on_event(event)


def streamed(seed: int, rule: str, draft_noise: float, **changes) -> Heard:
    chosen = {"spec": spec_of(LONGEST), "seed": seed, "draft_noise": draft_noise, **changes}
    one = Heard(Random(seed), "picospec", rule, STREAMED_RULES[rule], **chosen)
    assert one.run().reason in ("end", "length")
    return one


@pytest.mark.parametrize("draft_noise", [0.0, 0.5])
@pytest.mark.parametrize("rule", sorted(STREAMED_RULES))
def test_every_draft_says_where_it_goes_on_unless_the_answer_ends_there(
    rule: str, draft_noise: float
) -> None:
    pushed = 0
    for seed in range(12):
        conditions = Conditions(jitter=0.1, cuts=0.2, outage=0.2)
        for message in streamed(seed, rule, draft_noise, conditions=conditions).sent:
            if not isinstance(message, DraftMessage):
                continue
            tokens = message.draft.tokens
            left = LONGEST - message.base.length - len(tokens)
            goes_on = left > 1 and tokens[-1] != END
            assert message.open_at == (len(tokens) - 1 if goes_on else None)
            pushed += message.base.length > 0
    assert pushed > 30


@pytest.mark.parametrize("rule", sorted(STREAMED_RULES))
def test_a_right_draft_costs_the_cloud_no_token_of_its_own(rule: str) -> None:
    """Where the drafter is the target every verdict is open, or ends the answer."""
    verdicts = 0
    for seed in range(12):
        one = streamed(seed, rule, 0.0)
        *before, last = one.verdicts
        assert last.finish
        for verdict in before:
            assert verdict.token is None and verdict.path
        assert one.worker.counters.judged == len(one.verdicts)
        verdicts += len(one.verdicts)
    assert verdicts > 20
