"""With a grammar every answer is the target's own over the tokens that the grammar allows.

The reference is a target whose logits are -inf elsewhere, which knows of no grammar.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.exactness import (
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

from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.grammar import allowed_after, forced_tokens, masked
from edge_cloud_spec.decoding.policy import GREEDY, MAX_GRAMMAR, SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.decoding.shape import BestFirst
from edge_cloud_spec.lab.harness.toy import ToyGrammar

PRESETS = {
    "chain": Preset("chain", "", "edge", draft_length=2),
    "sparse": Preset("sparse", "", "edge", draft_length=2, payload="sparse", draft_top_k=2),
    "likeliest": Preset("likeliest", "", "edge", draft_length=3, payload="ids"),
    "tree": Preset("tree", "", "edge", expansion=(2, 1)),
    "distinct": Preset("distinct", "", "edge", expansion=(2, 1), replacement=False),
    "best_first": Preset("bf", "", "edge", best_first=BestFirst(5, 3, 3), payload="ids"),
    "robot": Preset(
        "robot", "", "edge", 2, payload="probabilities", resample="robot", residual="dense"
    ),
}


class InGrammar(Model):
    """A target that says only what the grammar allows, by itself."""

    def __init__(self, model: Model, grammar: ToyGrammar) -> None:
        super().__init__(model.seed, model.vocabulary, model.spread)
        self._grammar = grammar

    def logits(self, prefix: tuple[int, ...]) -> np.ndarray:
        return masked(super().logits(prefix), self._grammar.allowed(prefix))


@pytest.mark.parametrize("name", PRESETS)
@settings(max_examples=8)
@given(
    vocabulary=st.sampled_from([3, 4]),
    seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    text=st.sampled_from(["a", "b", "c"]),
    policy=st.sampled_from(
        [SamplingPolicy(1.0), SamplingPolicy(0.7, top_k=2), SamplingPolicy(1.5, top_p=0.8)]
    ),
    one_word=st.booleans(),
)
def test_a_round_of_rejection_has_the_distribution_of_the_allowed_tokens(
    name: str,
    vocabulary: int,
    seeds: tuple[int, int],
    text: str,
    policy: SamplingPolicy,
    one_word: bool,
) -> None:
    """Also where the draft model says one token only, which may not be allowed."""
    preset, grammar = PRESETS[name], ToyGrammar(text, vocabulary)
    draft_model = (OneWord if one_word else Model)(seeds[0], vocabulary, 1.0)
    target = Model(seeds[1], vocabulary, 1.0)

    def run(random_source):
        models = draft_model, target
        both = pair(preset, "rejection", policy, models, random_source, as_it_is, grammar)
        both.round()
        return both.emitted

    length = preset.shape.depth + 1
    reference = InGrammar(target, grammar)
    joint = joint_of(run, reference, policy, length)
    assert sum(joint.values()) == pytest.approx(1, abs=1e-9)
    assert distance(joint, continued(reference, policy, (), length)) < 1e-9


def test_a_mask_on_the_draft_alone_is_found_out() -> None:
    """The negative control: the target must be masked before it is compared with Q."""
    grammar = ToyGrammar("b", 4)
    draft_model, target = Model(1, 4, 1.0), Model(2, 4, 1.0)
    reference = InGrammar(target, grammar)

    def run(random_source):
        models, policy = (draft_model, target), SamplingPolicy(1.0)
        both = pair(PRESETS["chain"], "rejection", policy, models, random_source, as_it_is, grammar)
        both.cloud.grammar = None  # the cloud forgets it
        both.round()
        return both.emitted

    joint = joint_of(run, reference, SamplingPolicy(1.0), 3)
    assert distance(joint, continued(reference, SamplingPolicy(1.0), (), 3)) > 1e-3


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("vocabulary", [4, 5000])  # of which the second is screened in float32
@pytest.mark.parametrize("drafter", [Model, OneWord])
def test_greedy_and_coupled_say_what_the_target_says_alone(
    name: str, rule: str, vocabulary: int, drafter: type[Model]
) -> None:
    policy = GREEDY if rule == "greedy" else SamplingPolicy(0.9, seed=5)
    for text in ("a", "b"):
        grammar = ToyGrammar(text, vocabulary)
        draft_model, target = drafter(3, vocabulary, 1.0), Model(4, vocabulary, 1.0)
        both = pair(PRESETS[name], rule, policy, (draft_model, target), None, as_it_is, grammar)
        while len(both.emitted) < 12:
            both.round()
        own = own_tokens(InGrammar(target, grammar), policy, 0, len(both.emitted))
        assert list(both.emitted) == own


def test_a_draft_against_the_grammar_is_never_accepted() -> None:
    class Only(ToyGrammar):
        def allowed(self, answer):
            return np.arange(4) == 2

    lying = Draft((1, 2))  # as of a robot that does not keep to the grammar
    after = allowed_after(Only("", 4), (), lying)
    assert after is not None
    assert not after(-1)[1]
    both = pair(PRESETS["likeliest"], "greedy", GREEDY, (Model(1, 4, 1.0), Model(2, 4, 1.0)))
    both.cloud.grammar = Only("", 4)
    both.round()
    assert both.emitted[0] == 2
    assert set(both.emitted) == {2}


def test_forced_tokens_go_on_until_there_is_a_choice_or_the_end() -> None:
    class Counting(ToyGrammar):
        def allowed(self, answer):
            return np.arange(9) == len(answer) if len(answer) != 3 else np.arange(9) >= 3

    grammar = Counting("", 9)
    assert forced_tokens(grammar, (), (), 9) == (0, 1, 2)
    assert forced_tokens(grammar, (), (1,), 9) == (0, 1)
    assert forced_tokens(grammar, (), (), 1) == (0,)
    assert forced_tokens(grammar, (7, 7, 7), (), 9) == ()


def test_a_long_grammar_is_refused() -> None:
    replace(GREEDY, grammar="x" * MAX_GRAMMAR)
    with pytest.raises(ValueError, match="at most 4096 characters"):
        replace(GREEDY, grammar="x" * (MAX_GRAMMAR + 1))
