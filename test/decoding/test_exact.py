"""The acceptance rules are exact: all outcomes enumerated; wrong ones are noticed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from helpers.enumeration import BranchingChooser
from helpers.exactness import (
    ONE,
    Model,
    OneWord,
    as_it_is,
    continued,
    distance,
    joint_of,
    own_tokens,
    pair,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_cloud_spec.decoding import accept as accept_module
from edge_cloud_spec.decoding.accept import Acceptance
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.grammar import forced_tokens
from edge_cloud_spec.decoding.noise import Purpose
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.decoding.processors import UNPROCESSED, LogitsProcessing, LogitsProcessors
from edge_cloud_spec.decoding.random_source import RandomSource
from edge_cloud_spec.decoding.shape import BestFirst
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec_lab.harness.loopback import Wire, over_the_codec
from edge_cloud_spec_lab.harness.toy import ToyGrammar

PRESETS = {
    "dsd": Preset("dsd", "", "edge", draft_length=2),
    "tslt": Preset("tslt", "", "edge", draft_length=2, payload="sparse", draft_top_k=2),
    "tslt_top_p": Preset("tslt", "", "edge", draft_length=2, payload="sparse", draft_top_p=0.7),
    "likeliest": Preset("likeliest", "", "edge", draft_length=3, payload="ids"),
    "mc_dsd": Preset("mc_dsd", "", "edge", expansion=(2, 1)),
    "mc_three": Preset("mc_dsd", "", "edge", expansion=(3,)),
    "mc_distinct": Preset("mc", "", "edge", expansion=(2, 1), replacement=False),
    "mc_wide": Preset("mc", "", "edge", expansion=(3,), replacement=False),
    "mc_tslt": Preset(
        "mc", "", "edge", expansion=(2, 1), payload="sparse", draft_top_k=2, replacement=False
    ),
    "mc_likeliest": Preset("mc", "", "edge", expansion=(2, 2), payload="ids"),
    "best_first": Preset("bf", "", "edge", best_first=BestFirst(5, 3, 3), payload="ids"),
    "dssd_dense": Preset(
        "dssd", "", "edge", 2, payload="probabilities", resample="robot", residual="dense"
    ),
    "dssd": Preset(
        "dssd",
        "",
        "edge",
        1,
        payload="probabilities",
        resample="robot",
        residual_top_k=1,
        residual_tail=1,
    ),
    "dssd_of_tslt": Preset(
        "dssd",
        "",
        "edge",
        1,
        payload="probabilities",
        resample="robot",
        draft_top_k=2,
        residual_top_k=2,
        residual_tail=2,
    ),
}


class Processed(Model):
    """A target whose own logits are what the processors make of them."""

    def __init__(self, model: Model, processors: LogitsProcessors) -> None:
        super().__init__(model.seed, model.vocabulary, model.spread)
        self._processors = processors

    def logits(self, prefix: tuple[int, ...]) -> NDArray[np.float32]:
        return self._processors.after(prefix).of(super().logits(prefix))


def processed(target: Model, processors: LogitsProcessors | None) -> Model:
    """The target alone, which knows of no processors."""
    return Processed(target, processors) if processors else target


PROMPT = (1, 0, 1, 1)
OWN = {
    "": UNPROCESSED,
    "penalty": LogitsProcessing(repetition_penalty=1.7),
    "reward": LogitsProcessing(repetition_penalty=0.6),
    "ngrams": LogitsProcessing(repetition_penalty=1.2, no_repeat_ngram_size=3, min_new_tokens=2),
    "suppressed": LogitsProcessing(suppress_tokens=(1,), begin_suppress_tokens=(0,)),
}


def processors_of(text: str | None, vocabulary: int, own: str = "") -> LogitsProcessors | None:
    """Of a grammar's text, and a checkpoint's own by name; a vocabulary of two allows no bans."""
    given = OWN[own] if vocabulary > 3 or own in ("penalty", "reward") else UNPROCESSED
    if not text and given == UNPROCESSED:
        return None
    grammar = ToyGrammar(text, vocabulary) if text else None
    return LogitsProcessors(vocabulary, grammar, given, PROMPT, (0,))


def error(
    preset: Preset,
    policy: SamplingPolicy,
    models: tuple[Model, Model],
    wire: Wire = as_it_is,
    processors: LogitsProcessors | None = None,
    cloud_forgets: bool = False,
) -> float:
    """The largest error of the probability of an answer after one round."""

    def run(random_source: BranchingChooser) -> tuple[int, ...]:
        both = pair(preset, "rejection", policy, models, random_source, wire, processors)
        if cloud_forgets:
            both.cloud.processors = None
        both.round()
        return both.emitted

    target, length = processed(models[1], processors), preset.shape.depth + 1
    endless = preset.resample == "robot" and preset.residual == "sparse"
    joint = joint_of(run, target, policy, length, 3 if endless else None)
    assert sum(joint.values()) == pytest.approx(1, abs=1e-9)
    return distance(joint, continued(target, policy, (), length))


texts = st.sampled_from([None, None, "a", "b", "c"])  # of the grammar
owns = st.sampled_from(["", *OWN])


@pytest.mark.parametrize("name", PRESETS)
@settings(max_examples=12)
@given(
    vocabulary=st.sampled_from([2, 3, 4]),
    seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    spreads=st.tuples(st.sampled_from([0.0, 1.0, 3.0, 20.0]), st.sampled_from([0.0, 1.0, 3.0])),
    policy=st.builds(
        SamplingPolicy,
        temperature=st.sampled_from([0.3, 0.8, 1.0, 2.0]),
        top_k=st.sampled_from([0, 0, 2, 3]),
        top_p=st.sampled_from([1.0, 1.0, 0.9, 0.6]),
    ),
    coded=st.booleans(),
    drafter=st.sampled_from([Model, Model, OneWord]),
    text=texts,
    own=owns,
)
def test_a_round_of_rejection_has_the_targets_distribution(
    name: str,
    vocabulary: int,
    seeds: tuple[int, int],
    spreads: tuple[float, float],
    policy: SamplingPolicy,
    coded: bool,
    drafter: type[Model],
    text: str | None,
    own: str,
) -> None:
    """Also where the draft model says one token only, which may not be allowed."""
    models = drafter(seeds[0], vocabulary, spreads[0]), Model(seeds[1], vocabulary, spreads[1])
    wire, tolerance = (over_the_codec, 1e-6) if coded else (as_it_is, 1e-9)
    processors = processors_of(text, vocabulary, own)
    assert error(PRESETS[name], policy, models, wire, processors) < tolerance


@settings(max_examples=25)
@given(
    top_k=st.integers(1, 5),
    tail=st.integers(0, 3),
    seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    spreads=st.tuples(st.sampled_from([0.0, 1.0, 3.0]), st.sampled_from([0.0, 1.0, 3.0])),
)
def test_the_sparse_residual_is_exact_for_every_k_and_m(
    top_k: int, tail: int, seeds: tuple[int, int], spreads: tuple[float, float]
) -> None:
    preset = replace(PRESETS["dssd"], residual_top_k=top_k, residual_tail=tail)
    assert (
        error(preset, ONE, (Model(seeds[0], 4, spreads[0]), Model(seeds[1], 4, spreads[1]))) < 1e-9
    )


@pytest.mark.parametrize("name", PRESETS)
@settings(max_examples=16)
@given(
    seed=st.integers(0, 10**6),
    vocabulary=st.sampled_from([4, 6, 5000]),  # of which the last is screened in float32
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    stray=st.sampled_from([0.0, 0.5, 3.0]),
    drafter=st.sampled_from([Model, OneWord]),
    text=texts,
    own=owns,
)
def test_greedy_and_coupled_give_the_targets_own_tokens(
    name: str,
    seed: int,
    vocabulary: int,
    temperature: float,
    stray: float,
    drafter: type[Model],
    text: str | None,
    own: str,
) -> None:
    policy, processors = (
        SamplingPolicy(temperature, seed=seed),
        processors_of(text, vocabulary, own),
    )
    target = Model(seed, vocabulary, 1.5)
    draft_model = drafter(seed + bool(stray), vocabulary, stray or 1.5)
    rule = "coupled" if temperature else "greedy"
    models = draft_model, target
    both = pair(PRESETS[name], rule, policy, models, wire=over_the_codec, processors=processors)
    for _ in range(4):
        both.round()
    alone = own_tokens(processed(target, processors), policy, 0, len(both.emitted))
    assert list(both.emitted) == alone
    if (stray, drafter, text, own) == (0.0, Model, None, "") and name != "best_first":
        assert len(both.emitted) == 4 * (PRESETS[name].shape.depth + 1)  # nothing is rejected


def test_a_truncated_tail_and_a_mask_on_the_draft_alone_are_found_out() -> None:
    """What is not exact: PicoSpec's top K of P, and a cloud that forgets grammar or penalty."""
    preset = replace(
        PRESETS["dssd_dense"], draft_length=1, residual="top_k", residual_top_k=2, exact=False
    )
    assert error(preset, ONE, (Model(1, 6, 0.5), Model(2, 6, 0.5))) > 0.003
    models = Model(1, 4, 1.0), Model(2, 4, 1.0)
    for forgotten in (processors_of("b", 4), processors_of(None, 4, "penalty")):
        assert error(PRESETS["dsd"], ONE, models, processors=forgotten, cloud_forgets=True) > 1e-3


def test_a_draft_against_the_grammar_is_never_accepted() -> None:
    """As of a robot that does not keep to it."""
    models, processors = (Model(1, 4, 1.0), Model(2, 4, 1.0)), processors_of("b", 4)
    both = pair(PRESETS["likeliest"], "greedy", GREEDY, models)
    both.cloud.processors = processors
    while len(both.emitted) < 12:
        both.round()
    own = own_tokens(processed(models[1], processors), GREEDY, 0, len(both.emitted))
    assert list(both.emitted) == own


def test_forced_tokens_go_on_until_there_is_a_choice_or_the_end() -> None:
    class Counting(ToyGrammar):
        def allowed(self, answer: Sequence[int]) -> NDArray[np.bool_]:
            return np.arange(9) == len(answer) if len(answer) != 3 else np.arange(9) >= 3

    grammar = Counting("", 9)
    assert forced_tokens(grammar, (), (), 9) == (0, 1, 2)
    assert forced_tokens(grammar, (), (1,), 9) == (0, 1)
    assert forced_tokens(grammar, (), (), 1) == (0,)
    assert forced_tokens(grammar, (7, 7, 7), (), 9) == ()


def inverted(
    draft: Draft,
    target_row: Callable[[int], TokenDistribution],
    position: int,
    random_source: RandomSource,
    **_: object,
) -> Acceptance:
    """The ratio as DSSD and TSLT print it, q / p."""
    for i, token in enumerate(draft.tokens):
        p, q = target_row(i - 1), draft.row(i - 1)
        if not random_source.accept(
            min(1.0, q.at(token) / p.at(token)), Purpose.ACCEPT, position + i
        ):
            token = p.residual(q).draw(random_source, Purpose.RESIDUAL, position + i)
            return Acceptance(tuple(range(i)), token)
    last = len(draft)
    token = target_row(last - 1).draw(random_source, Purpose.RESIDUAL, position + last)
    return Acceptance(tuple(range(last)), token)


def test_the_inverted_ratio_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    models = Model(1, 5, 1.5), Model(2, 5, 1.5)
    assert error(PRESETS["dsd"], ONE, models) < 1e-9
    monkeypatch.setattr(accept_module, "rejection", inverted)
    assert error(PRESETS["dsd"], ONE, models) > 0.02
