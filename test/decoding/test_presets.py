"""Where the grammar of presets ends: what is just allowed loads, what is just beyond does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.preset import STOP_AND_WAIT, Preset, Speculation
from edge_cloud_spec.decoding.propose import ProposalConfig
from edge_cloud_spec.decoding.shape import BestFirst, Expansion, chain
from edge_cloud_spec.decoding.split import Split
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.presets import load_preset, preset_names

CHAIN: dict[str, Any] = {"drafter": "edge", "summary": "x", "draft_length": 4}
TREE: dict[str, Any] = {"drafter": "edge", "summary": "x", "expansion": [2, 2]}
BEST: dict[str, Any] = {"drafter": "edge", "summary": "x", "payload": "ids"}
SPLIT = {**CHAIN, "payload": "probabilities", "resample": "robot"}
GUESS = {"all_accepted": True, "ahead": 1}


def own(tmp_path: Path, fields: dict[str, Any]) -> Preset:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(fields))
    return load_preset(str(path))


def best(nodes: int = 4, depth: int = 2, width: int = 2) -> dict[str, Any]:
    return {**BEST, "best_first": {"nodes": nodes, "depth": depth, "width": width}}


def guessing(**changes: Any) -> dict[str, Any]:
    return {**CHAIN, "speculation": {**GUESS, **changes}}


ALLOWED = [
    {**CHAIN, "draft_length": 1},
    {**CHAIN, "draft_length": 64},
    {**TREE, "expansion": [1]},
    {**TREE, "expansion": [128]},
    {**TREE, "expansion": [8, 15]},  # 128 nodes
    best(nodes=1, depth=1, width=1),
    best(nodes=128),
    {**CHAIN, "drafter": "cloud"},
    {"drafter": "none", "summary": "x"},
    {"drafter": "lookup", "summary": "x", "lookup": True},
    {**CHAIN, "lookup": True},
    {**CHAIN, "verified": False, "exact": False},
    {**CHAIN, "exact": False},
    {**CHAIN, "replacement": False},
    {**CHAIN, "payload": "ids"},
    {**CHAIN, "payload": "sparse", "draft_top_k": 1},
    {**CHAIN, "payload": "sparse", "draft_top_p": 0.99},
    {**CHAIN, "draft_top_p": 1.0},
    {**CHAIN, "draft_top_p": 0.01},
    SPLIT,
    {**SPLIT, "residual_top_k": 1, "residual_tail": 0},
    {**SPLIT, "residual": "dense", "residual_top_k": 0},
    {**SPLIT, "residual": "top_k", "exact": False},
    guessing(),
    guessing(width=64),
    guessing(width=1),
    guessing(ahead=64),
    guessing(cut=64),
    guessing(open=True),
    guessing(push=True),
    guessing(all_accepted=False, runners_up=True),
    guessing(all_accepted=False, exits=True),
    {**SPLIT, "speculation": {**GUESS, "open": True, "push": True}},
    {**SPLIT, "speculation": GUESS},
    {**CHAIN, "pacing": "verify_bound"},
    {**best(), "pacing": "auto"},
]
REFUSED = [
    ({**CHAIN, "draft_length": 65}, "draft_length must be 1 to 64"),
    ({**CHAIN, "draft_length": -1}, "draft_length must be a whole number"),
    ({**CHAIN, "draft_length": 2.0}, "draft_length must be a whole number"),
    ({**CHAIN, "draft_length": True}, "draft_length must be a whole number"),
    ({**CHAIN, "draft_length": 0}, "give one of"),
    ({**CHAIN, "expansion": [2]}, "give one of"),
    ({**best(), "draft_length": 2}, "give one of"),
    ({**best(), "expansion": [2]}, "give one of"),
    ({**TREE, "expansion": [129]}, "1 to 128 nodes"),
    ({**TREE, "expansion": [8, 16]}, "1 to 128 nodes"),
    ({**TREE, "expansion": [0]}, "children at each level"),
    ({**TREE, "expansion": [2, -1]}, "a size of a tree"),
    (best(nodes=129), "1 to 128 nodes"),
    (best(nodes=0), "at least 1"),
    (best(depth=0), "at least 1"),
    (best(width=0), "at least 1"),
    (best(width=-1), "a size of a tree"),
    ({**best(), "best_first": {"nodes": 4, "depth": 2, "width": 2, "high": 1}}, "a mapping of"),
    ({**best(), "best_first": [4, 2, 2]}, "a mapping of"),
    ({**best(), "payload": "dense"}, "not drawn from Q"),
    ({**CHAIN, "speculation": {"wide": 2}}, "a mapping of"),
    ({**CHAIN, "speculation": [1]}, "a mapping of"),
    ({**TREE, "drafter": "cloud"}, "drafts chains"),
    ({"drafter": "none", "summary": "x", "expansion": [2]}, "without a drafter"),
    ({"drafter": "lookup", "summary": "x"}, "goes with lookup: true"),
    ({"drafter": "lookup", "summary": "x", "lookup": True, "draft_length": 2}, "without a drafter"),
    ({**CHAIN, "lookup": 1}, "lookup must be true or false"),
    ({**CHAIN, "lookup": True, "verified": False, "exact": False}, "only a verifier looks up"),
    ({**best(), "drafter": "none"}, "without a drafter"),
    ({**TREE, "verified": False, "exact": False}, "what nobody verifies is a chain"),
    ({**CHAIN, "verified": False}, "cannot be exact"),
    ({**CHAIN, "replacement": 1}, "replacement must be true or false"),
    ({**CHAIN, "verified": "yes"}, "verified must be true or false"),
    ({**CHAIN, "exact": None}, "exact must be true or false"),
    ({**CHAIN, "draft_top_p": 0.0}, "draft_top_p must be above 0"),
    ({**CHAIN, "draft_top_p": 1.01}, "draft_top_p must be a number"),
    ({**CHAIN, "draft_top_k": -1}, "draft_top_k must be a whole number"),
    ({**CHAIN, "payload": "sparse"}, "needs draft_top_k or draft_top_p"),
    ({**TREE, "payload": "probabilities", "resample": "robot"}, "needs the rows of Q"),
    ({**CHAIN, "payload": "probabilities"}, "go together"),
    ({**CHAIN, "resample": "robot"}, "go together"),
    ({**CHAIN, "drafter": "cloud", "resample": "robot"}, "without a drafter of its own"),
    ({**SPLIT, "residual": "top_k"}, "loses the tail"),
    ({**SPLIT, "residual_top_k": 0}, "residual_top_k must be at least 1"),
    ({**SPLIT, "residual": "top_k", "exact": False, "residual_top_k": 0}, "at least 1"),
    (guessing(width=0), "width is 1 to 64"),
    (guessing(width=65), "width is 1 to 64"),
    (guessing(ahead=65), "at most 64"),
    (guessing(cut=65), "at most 64"),
    (guessing(cut=-1), "speculation.cut must be"),
    (guessing(ahead=0), "speculation.ahead of at least 1"),
    ({**CHAIN, "speculation": {"ahead": 1}}, "something to guess"),
    (guessing(all_accepted=False, runners_up=True, open=True), "go with all_accepted"),
    ({**SPLIT, "speculation": {**GUESS, "push": True}}, "push open drafts"),
    ({**guessing(), "drafter": "cloud"}, "waits for verdicts"),
    ({**guessing(), "verified": False, "exact": False}, "waits for verdicts"),
    ({**CHAIN, "pacing": "brisk"}, "pacing must be one of fixed, verify_bound, auto"),
    ({**CHAIN, "payload": "words"}, "payload must be one of"),
    ({**CHAIN, "resample": "nobody"}, "resample must be one of cloud, robot"),
    ({"drafter": "edge", "draft_length": 2}, "summary"),
    ({"summary": "x", "draft_length": 2}, "drafter"),
]


@pytest.mark.parametrize("fields", ALLOWED)
def test_what_is_just_allowed_loads_as_it_is_written(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    preset = own(tmp_path, fields)
    for name, value in fields.items():
        told = getattr(preset, name)
        if name == "expansion":
            assert told == tuple(value)
        elif name == "best_first":
            assert told == BestFirst(**value)
        elif name == "speculation":
            assert told == Speculation(**value)
        else:
            assert told == value


@pytest.mark.parametrize(("fields", "complaint"), REFUSED)
def test_what_is_just_beyond_is_refused_with_the_reason(
    fields: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=complaint) as refusal:
        own(tmp_path, fields)
    assert "own" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read"):
        load_preset(str(path))
    with pytest.raises(UserError, match="there is no preset"):
        load_preset(str(tmp_path / "none.yaml"))


def test_a_preset_has_one_shape_and_says_which() -> None:
    assert Preset("x", "", "edge", draft_length=3).shape == chain(3)
    assert Preset("x", "", "edge", expansion=(2, 1)).shape == Expansion((2, 1))
    tree = BestFirst(4, 2, 2)
    assert Preset("x", "", "edge", best_first=tree, payload="ids").shape is tree


@pytest.mark.parametrize("name", preset_names())
def test_what_goes_over_the_wire_follows_from_rule_and_preset(name: str) -> None:
    preset = load_preset(name)
    assert preset.drafts_on_robot == (preset.drafter == "edge")
    assert preset.uses_cloud == (name != "edge_only")
    policy = SamplingPolicy(0.7, seed=5)
    for rule in ("greedy", "coupled"):
        assert preset.payload_of(rule) == "ids"
        assert preset.split_of(rule) is None
        assert not preset.proposal(rule, policy).draws
    payload = preset.payload if preset.drafts_on_robot else "ids"
    assert preset.payload_of("rejection") == payload
    split = Split(preset.residual, preset.residual_top_k, preset.residual_tail)
    assert preset.split_of("rejection") == (split if payload == "probabilities" else None)
    assert preset.proposal("rejection", policy) == ProposalConfig(
        "rejection",
        policy,
        preset.payload != "ids",
        preset.draft_top_k,
        preset.draft_top_p,
        preset.replacement,
    )


def test_a_preset_that_says_little_is_plain() -> None:
    plain = Preset("x", "", "edge", draft_length=2)
    assert (plain.payload, plain.replacement, plain.resample, plain.pacing) == (
        "dense",
        True,
        "cloud",
        "fixed",
    )
    assert plain.verified and plain.exact
    assert plain.speculation == STOP_AND_WAIT
    assert not plain.speculation.predicts
    assert plain.proposal("greedy", GREEDY) == ProposalConfig("greedy", GREEDY)
    for guess in ("all_accepted", "runners_up", "exits"):
        assert Speculation(**{guess: True}).predicts
