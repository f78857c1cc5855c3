"""Text that was said before, beside a model's draft: what is added, and that it stays exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.drafting import paths_of
from helpers.enumeration import BranchingChooser
from helpers.exactness import Model, continued, distance, joint_of
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.accept import Acceptance, accept
from edge_cloud_spec.decoding.draft import BadDraft, Draft, check_distinct, check_draft
from edge_cloud_spec.decoding.noise import Purpose
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.decoding.propose import Growth
from edge_cloud_spec.decoding.random_source import RandomSource, SeededRandomSource
from edge_cloud_spec.decoding.target_rows import LogitRows
from edge_cloud_spec.decoding.token_distribution import TokenDistribution, distribution_of
from edge_cloud_spec.lookup import with_looked_up

VOCABULARY = 4


@st.composite
def trees(
    draw: st.DrawFn, looked_up: bool, vocabulary: int = VOCABULARY, most: int = 12, depth: int = 12
) -> Draft:
    """Any tree without equal siblings."""
    nodes: list[tuple[int, int]] = []
    depths = {-1: 0}
    for _ in range(draw(st.integers(0, most))):
        parent = draw(st.sampled_from([node for node in depths if depths[node] < depth]))
        node = parent, draw(st.integers(0, vocabulary - 1))
        if node not in nodes:
            depths[len(nodes)] = 1 + depths[parent]
            nodes.append(node)
    parents, tokens = (tuple(node[place] for node in nodes) for place in (0, 1))
    return Draft(tokens, parents or None, looked_up=len(nodes) if looked_up else 0)


@given(trees(looked_up=False), trees(looked_up=True), st.integers(0, 30))
def test_a_merged_draft_says_what_both_say_and_nothing_else(
    own: Draft, looked_up: Draft, nodes: int
) -> None:
    merged = with_looked_up(own, looked_up, nodes)
    before, after, added = paths_of(own), paths_of(merged), set(paths_of(looked_up))
    assert after[: len(own)] == before
    assert merged.drafted == own.drafted and merged.looked_up == len(merged) - len(own)
    assert len(merged) <= max(nodes, len(own))
    assert set(after[len(own) :]) <= added - set(before)
    assert len(set(after[len(own) :])) == merged.looked_up
    if nodes >= len(own) + len(looked_up):
        assert set(after) == set(before) | added
    if len(merged):
        check_draft(merged, VOCABULARY)


@given(trees(looked_up=False), trees(looked_up=True), st.data())
def test_nothing_follows_the_leaf_where_the_draft_goes_on(
    own: Draft, looked_up: Draft, data: st.DataObject
) -> None:
    leaves = [node for node in range(-1, len(own)) if not list(own.children(node))]
    open_at = data.draw(st.sampled_from(leaves))
    assert not list(with_looked_up(own, looked_up, 100, open_at).children(open_at))


@given(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6), trees(looked_up=True))
def test_where_the_robot_resamples_nothing_stands_beside_a_drawn_token(
    tokens: list[int], looked_up: Draft
) -> None:
    own = Draft(tuple(tokens), values=(0.5,) * len(tokens))
    merged = with_looked_up(own, looked_up, 100)
    for node in range(-1, len(own) - 1):
        assert list(merged.children(node)) == [node + 1]
    check_draft(merged, VOCABULARY)


def test_only_drawn_siblings_must_differ() -> None:
    check_distinct(Draft((1, 2, 1), (-1, -1, -1), looked_up=1))
    with pytest.raises(BadDraft, match="proposed twice"):
        check_distinct(Draft((1, 1, 2), (-1, -1, -1), looked_up=1))


PRESETS = {
    "chain": Preset("chain", "", "edge", draft_length=2),
    "sparse": Preset("sparse", "", "edge", draft_length=2, payload="sparse", draft_top_k=2),
    "tree": Preset("tree", "", "edge", expansion=(2, 1)),
    "distinct": Preset("distinct", "", "edge", expansion=(2, 1), replacement=False),
    "sparse_distinct": Preset(
        "both", "", "edge", expansion=(2,), payload="sparse", draft_top_k=2, replacement=False
    ),
    "likeliest": Preset("likeliest", "", "edge", expansion=(2, 1), payload="ids"),
    "split": Preset(
        "split", "", "edge", 2, payload="probabilities", resample="robot", residual="dense"
    ),
}
LENGTH = 4  # tokens of the answers that are compared


def drawn(preset: Preset, model: Model, policy: SamplingPolicy, source: RandomSource) -> Draft:
    """A draft of this model, with its rows."""
    growth = Growth(preset.shape, preset.proposal("rejection", policy), 0, (), source)
    while not growth.done:
        growth.grow(np.stack([model.logits(path) for path in growth.frontier]))
    return growth.finished().draft


def told(draft: Draft) -> Draft:
    """The draft as it is sent under split resampling."""
    values = tuple(draft.row(draft.parent(i)).at(t) for i, t in enumerate(draft.tokens))
    return replace(draft, rows=None, values=values)


def judged_by_q(draft: Draft, model: Model, policy: SamplingPolicy) -> Draft:
    """The same nodes as if all had been drawn."""
    paths = [*paths_of(draft), ()]
    every = replace(draft, looked_up=0)
    rows = tuple(distribution_of(model.logits(paths[node]), policy) for node in every.inner)
    return replace(every, rows=rows)


def emitted(
    preset: Preset,
    models: tuple[Model, Model],
    policy: SamplingPolicy,
    looked_up: Draft,
    open_at: bool,
    source: RandomSource,
    wrong: bool = False,
) -> tuple[int, ...]:
    """The tokens of one round."""
    split = preset.payload == "probabilities"
    own = drawn(preset, models[0], policy, source)
    leaf = len(own) - 1 if open_at else None
    draft = with_looked_up(told(own) if split else own, looked_up, 100, leaf)
    check_draft(draft, models[1].vocabulary)
    if not preset.replacement:
        check_distinct(draft)
    if wrong:
        draft = judged_by_q(draft, models[0], policy)
    paths = paths_of(draft)
    rows = LogitRows(np.stack([models[1].logits(path) for path in [(), *paths]]))
    taken: Acceptance = accept(
        "rejection", draft, rows, policy, 0, source, replacement=preset.replacement, open_at=leaf
    )
    said = paths[taken.path[-1]] if taken.path else ()
    if taken.rejected is not None:
        row: TokenDistribution = own.row(taken.path[-1] if taken.path else -1)
        left = taken.rejected.residual(row)
        return (*said, left.draw(source, Purpose.RESIDUAL, len(said)))
    return said if taken.token is None else (*said, taken.token)


def error(
    name: str,
    models: tuple[Model, Model],
    policy: SamplingPolicy,
    looked_up: Draft,
    open_at: bool = False,
    wrong: bool = False,
) -> float:
    """The largest error of the probability of an answer."""

    def run(source: BranchingChooser) -> tuple[int, ...]:
        return emitted(PRESETS[name], models, policy, looked_up, open_at, source, wrong)

    joint = joint_of(run, models[1], policy, LENGTH)
    return distance(joint, continued(models[1], policy, (), LENGTH))


@pytest.mark.parametrize("name", PRESETS)
@settings(max_examples=8)
@given(
    looked_up=trees(True, 3, 6, 3),
    seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    spreads=st.tuples(st.sampled_from([0.0, 1.0, 20.0]), st.sampled_from([0.0, 1.0, 3.0])),
    policy=st.sampled_from([SamplingPolicy(1.0), SamplingPolicy(0.5), SamplingPolicy(1.0, 2)]),
    open_at=st.booleans(),
)
def test_looked_up_nodes_leave_the_targets_distribution(
    name: str,
    looked_up: Draft,
    seeds: tuple[int, int],
    spreads: tuple[float, float],
    policy: SamplingPolicy,
    open_at: bool,
) -> None:
    models = (Model(seeds[0], 3, spreads[0]), Model(seeds[1], 3, spreads[1]))
    assert error(name, models, policy, looked_up, open_at) < 1e-9


def test_a_looked_up_child_that_is_judged_by_q_is_found_out() -> None:
    looked_up = Draft((0, 1, 2, 0), (-1, -1, 0, 1), looked_up=4)
    models, policy = (Model(1, 3, 1.5), Model(2, 3, 1.5)), SamplingPolicy(1.0)
    for name in ("chain", "tree", "distinct"):
        assert error(name, models, policy, looked_up) < 1e-9
        assert error(name, models, policy, looked_up, wrong=True) > 1e-3


def test_a_draft_of_looked_up_nodes_alone_says_what_the_target_would_alone() -> None:
    """Its draws are those of no draft at all."""
    target, policy = Model(3, 4, 1.0), SamplingPolicy(1.0)
    looked_up = Draft((0, 1, 2, 3, 0, 1), (-1, -1, 0, 1, 2, 3), looked_up=6)
    paths = paths_of(looked_up)
    rows = LogitRows(np.stack([target.logits(path) for path in [(), *paths]]))
    lengths = set()
    for seed in range(50):
        source = SeededRandomSource(seed)
        taken = accept("rejection", looked_up, rows, policy, 0, source)
        said = (*(paths[taken.path[-1]] if taken.path else ()), taken.token)
        lengths.add(len(said))
        alone: tuple[int, ...] = ()
        while len(alone) < len(said):
            row = LogitRows(target.logits(alone)[None])
            alone += (accept("rejection", Draft(()), row, policy, len(alone), source).token or 0,)
        assert said == alone
    assert lengths == {1, 2, 3, 4}
