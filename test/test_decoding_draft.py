"""Malformed drafts and presets are refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.decoding.draft import MAX_NODES, BadDraft, Draft, check_draft
from edge_cloud_spec.decoding.preset import Preset, load_preset, preset_names
from edge_cloud_spec.errors import UserError

ROW = np.full((1, 4), 0.25, np.float32)


def rows_with(value: float) -> np.ndarray:
    rows = ROW.copy()
    rows[0, 0] = value
    return rows


@pytest.mark.parametrize(
    ("draft", "complaint"),
    [
        (Draft(()), "at least one token"),
        (Draft((0,) * (MAX_NODES + 1)), f"at most {MAX_NODES} tokens"),
        (Draft((0,) * 10**6, tuple(range(-1, 10**6 - 1))), f"at most {MAX_NODES} tokens"),
        (Draft((4,)), "outside the vocabulary of 4"),
        (Draft((-1,)), "outside the vocabulary of 4"),
        (Draft((1, 1), (-1,)), "2 tokens but 1 parents"),
        (Draft((1, 1), (-1, 1)), "parent of node 1"),  # its own parent
        (Draft((1, 1), (1, -1)), "parent of node 0"),  # points forward
        (Draft((1, 1), (-1, -2)), "parent of node 1"),
        (Draft((1,), rows=ROW[:, :3]), "shape"),
        (Draft((1, 1), rows=ROW), "shape"),
        (Draft((1,), rows=rows_with(np.nan)), "not a probability"),
        (Draft((1,), rows=rows_with(np.inf)), "not a probability"),
        (Draft((1,), rows=rows_with(-0.25)), "not a probability"),
        (Draft((1,), rows=rows_with(1.5)), "does not sum to 1"),
        (Draft((1,), rows=np.zeros((1, 4), np.float32)), "does not sum to 1"),
    ],
)
def test_a_malformed_draft_is_refused_by_name(draft: Draft, complaint: str) -> None:
    with pytest.raises(BadDraft, match=complaint):
        check_draft(draft, 4)


@given(st.data())
def test_a_proper_tree_passes_and_its_walk_ends(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 30))
    parents = tuple(data.draw(st.integers(-1, node - 1)) for node in range(size))
    draft = Draft((2,) * size, parents)
    check_draft(draft, 4)
    assert sorted(c for node in range(-1, size) for c in draft.children(node)) == list(range(size))
    assert all(draft.parent(c) == node for node in range(-1, size) for c in draft.children(node))


def test_a_chain_has_one_child_each() -> None:
    draft = Draft((5, 6, 7))
    assert [list(draft.children(node)) for node in range(-1, 3)] == [[0], [1], [2], []]


def test_every_shipped_preset_loads() -> None:
    assert {"cloud_ar", "edge_only", "cloud_sd", "dsd"} <= set(preset_names())
    for name in preset_names():
        preset = load_preset(name)
        assert preset.name == name
        assert preset.verified or not preset.exact
    assert not load_preset("edge_only").verified


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("drafter: moon\nsummary: x", "drafter must be one of edge, cloud, none, not moon"),
        ("drafter: edge\nsummary: x", "draft_length must be 1 to 64"),
        ("drafter: edge\nsummary: x\ndraft_length: 65", "draft_length must be 1 to 64"),
        ("drafter: none\nsummary: x\ndraft_length: 2", "without a drafter"),
        ("drafter: edge\nsummary: x\ndraft_length: 2\nverified: false", "cannot be exact"),
        ("drafter: edge\nsummary: x\ndraft_length: many", "own.yaml"),
        ("drafter: none", "summary"),
        ("drafter: none\nsummary: x\nturbo: true", "unknown field turbo"),
        ("- a list", "mapping"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_preset_that_cannot_be_is_refused_with_the_reason(
    text: str, complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=complaint):
        load_preset(str(path))


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"no preset 'warp'.*cloud_ar"):
        load_preset("warp")


def test_a_preset_says_what_its_drafts_carry() -> None:
    dsd = load_preset("dsd")
    assert dsd.payload("rejection") == "dense"
    assert dsd.payload("coupled") == "ids"
    assert Preset("x", "", "none").uses_cloud
