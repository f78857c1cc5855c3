"""Presets: what is refused, what goes together, and the rules and shapes that they name."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from helpers.drafting import VOCABULARY, Drafting
from helpers.exactness import Model
from hypothesis import Phase, assume, example, given, settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.policy import (
    GREEDY,
    RULES,
    SamplingPolicy,
    check_rule,
    temperature_of,
)
from edge_cloud_spec.decoding.preset import PAYLOADS, STOP_AND_WAIT, Preset, Speculation
from edge_cloud_spec.decoding.propose import ProposalConfig
from edge_cloud_spec.decoding.shape import BestFirst, Expansion, Shape, chain
from edge_cloud_spec.decoding.split import RESIDUALS, Split
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.presets import load_preset, preset_names
from edge_cloud_spec.share import share
from edge_cloud_spec_lab.harness.virtual_decode import Conditions, Decode

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
    {**TREE, "pacing": "verify_bound"},
    {**TREE, "pacing": "verify_bound", "payload": "ids"},
    {**TREE, "pacing": "verify_bound", "payload": "sparse", "draft_top_k": 2},
    {**best(), "pacing": "auto"},
    {**TREE, "pacing": "auto", "payload": "ids"},
    {**CHAIN, "pacing": "auto", "payload": "ids"},
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
    ({**TREE, "expansion": 3}, "expansion must be a list"),
    ({**BEST, "best_first": {"nodes": 4}}, "best_first needs nodes"),
    ({**CHAIN, "turbo": True}, "unknown field turbo"),
    ({**CHAIN, "pacing": "auto"}, "give payload ids, or another pacing"),
    ({**CHAIN, "verified": False, "exact": False, "pacing": "auto"}, "give pacing fixed"),
    ({"drafter": "none", "summary": "x", "pacing": "auto"}, "give pacing fixed"),
    ({"drafter": "none", "summary": "x", "verified": False, "exact": False}, "give drafter edge"),
    ({"drafter": "moon", "summary": "x"}, "drafter must be one of edge, cloud, lookup, none, not"),
    ({**SPLIT, "residual_tail": 5000}, "are at most 4096"),
    ({**SPLIT, "residual_tail": -1}, "residual_tail must be a whole number of 0 or more"),
    ({**SPLIT, "residual": "half"}, "residual must be one of dense, top_k, sparse, not half"),
    (guessing(least="low"), "least must be a number from 0 to 1, not .low."),
    (guessing(push=1), "push must be true or false, not 1"),
    (guessing(ahead=1.5), "ahead must be a whole number of 0 or more"),
]


@pytest.mark.parametrize("fields", ALLOWED)
def test_what_is_just_allowed_loads_as_it_is_written(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    preset = own(tmp_path, fields)
    written = {**fields, "expansion": tuple(fields.get("expansion", ()))}
    for name, kind in (("best_first", BestFirst), ("speculation", Speculation)):
        if name in fields:
            written[name] = kind(**fields[name])
    assert {name: getattr(preset, name) for name in written} == written


@pytest.mark.parametrize(("fields", "complaint"), REFUSED)
def test_what_is_just_beyond_is_refused_with_the_reason(
    fields: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=complaint) as refusal:
        own(tmp_path, fields)
    assert "own" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["none", "none.yaml", 300 * "x", "a\0b", "x/" * 3000 + ".yaml"])
def test_a_name_of_no_file_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="there is no preset"):
        load_preset(name)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\xff\xfe\x00", "cannot be read"),
        (b"a: [", "cannot be read"),
        (b"- a list", "mapping"),
        (None, "there is no preset"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(
    content: bytes | None, complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        load_preset(str(path))


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"no preset 'warp'.*cloud_ar"):
        load_preset("warp")


@pytest.mark.parametrize("name", preset_names())
def test_what_goes_over_the_wire_follows_from_rule_and_preset(name: str) -> None:
    preset = load_preset(name)
    assert preset.drafts_on_robot == (preset.drafter == "edge")
    assert preset.verified == (name != "edge_only")
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


TEMPERATURES = {"greedy": 0.0, "coupled": 0.9, "rejection": 0.9}
PARTS = [field.name for field in fields(Preset) if field.name != "name"]
GUESSES = [field.name for field in fields(Speculation)]
PACINGS = ("fixed", "verify_bound", "auto")

small = st.integers(0, 3)
shapes: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"draft_length": st.integers(1, 5)}),
    st.fixed_dictionaries({"expansion": st.lists(st.integers(1, 3), min_size=1, max_size=3)}),
    st.fixed_dictionaries(
        {
            "best_first": st.builds(
                BestFirst, st.integers(1, 8), st.integers(1, 4), st.integers(1, 3)
            )
        }
    ),
)
speculations = st.builds(
    Speculation,
    all_accepted=st.booleans(),
    open=st.booleans(),
    runners_up=st.booleans(),
    exits=st.booleans(),
    push=st.booleans(),
    ahead=st.integers(1, 3),
    cut=small,
    width=st.integers(1, 5),
    least=st.sampled_from([0.0, 0.02, 0.4]),
)
on_the_robot = st.fixed_dictionaries(
    {
        "drafter": st.just("edge"),
        "payload": st.sampled_from(PAYLOADS),
        "draft_top_k": small,
        "draft_top_p": st.sampled_from([1.0, 0.4]),
        "replacement": st.booleans(),
        "residual": st.sampled_from(RESIDUALS),
        "residual_top_k": small,
        "residual_tail": small,
        "speculation": st.one_of(st.just(STOP_AND_WAIT), speculations),
        "pacing": st.sampled_from(PACINGS),
        "verified": st.sampled_from([True, True, True, False]),
        "exact": st.booleans(),
    }
)
elsewhere = st.fixed_dictionaries(
    {
        "drafter": st.sampled_from(["cloud", "none"]),
        "payload": st.sampled_from(PAYLOADS),
        "pacing": st.sampled_from(PACINGS),
        "verified": st.booleans(),
        "exact": st.booleans(),
    }
)


@st.composite
def presets(draw: st.DrawFn) -> Preset:
    """Anything that ``Preset`` takes, with small numbers."""
    for _ in range(4):  # most draws are refused, and Hypothesis fails a test that drops so many
        chosen = draw(st.one_of(on_the_robot, on_the_robot, on_the_robot, elsewhere))
        if chosen["drafter"] != "none":
            chosen |= draw(shapes)
        chosen["expansion"] = tuple(chosen.get("expansion", ()))
        if chosen["payload"] == "probabilities" and chosen["drafter"] == "edge":
            chosen["resample"] = "robot"
        with suppress(UserError):
            return Preset("drawn", "any that can be written", **chosen)
    assume(False)
    raise AssertionError


conditions_met = st.builds(
    Conditions,
    delay=st.sampled_from([0.0, 0.05, 0.4]),
    jitter=st.sampled_from([0.0, 0.2, 2.0]),
    duplicated=st.sampled_from([0.0, 0.5]),
    reordered=st.booleans(),
    cuts=st.sampled_from([0.0, 0.0, 0.5]),
    cloud_job=st.sampled_from([0.02, 0.3]),
)


# What the robot draws itself may be what it pushed a draft for: the token that was rejected, where
# only the top of P is told, or the runner-up.
picospec = load_preset("picospec")
redrawn = replace(picospec, residual="top_k", residual_top_k=1, draft_top_k=2, exact=False)
runners_up = replace(picospec, speculation=replace(picospec.speculation, runners_up=True))


@example(redrawn, "rejection", 0, 0.5, 0, Conditions(jitter=0.0), Random(0))
@example(runners_up, "rejection", 3, 0.5, 0, Conditions(jitter=0.0), Random(0))
@settings(max_examples=120, phases=[Phase.explicit, Phase.generate])
@given(
    preset=presets(),
    rule=st.sampled_from([*TEMPERATURES, "rejection"]),
    seed=st.integers(0, 1000),
    draft_noise=st.sampled_from([0.0, 0.5, 5.0]),
    max_tokens=st.sampled_from([0, 1, 5]),
    conditions=conditions_met,
    random=st.randoms(use_true_random=False),
)
def test_every_preset_that_can_be_written_decodes(
    preset: Preset,
    rule: str,
    seed: int,
    draft_noise: float,
    max_tokens: int,
    conditions: Conditions,
    random: Random,
) -> None:
    policy = SamplingPolicy(TEMPERATURES[rule], seed=seed)
    if not preset.verified:
        conditions = replace(conditions, cuts=0.0)  # there is no link that breaks
    decode = Decode(
        random,
        preset,
        rule,
        policy,
        conditions=conditions,
        seed=seed,
        draft_noise=draft_noise,
        max_tokens=max_tokens,
    )
    finish = decode.run()
    assert finish.reason in ("end", "length"), finish.text
    if preset.verified and rule != "rejection":
        assert (decode.emitted, finish.reason) == decode.own_answer()


ODD = [None, True, -1, 0, 1, 0.5, 65, 2**40, "x", "edge", [], [1], {}, {"ahead": 1}, float("nan")]


@settings(max_examples=300, phases=[Phase.generate])
@given(
    st.sampled_from(preset_names()),
    st.sampled_from([*PARTS, *(f"speculation.{name}" for name in GUESSES)]),
    st.sampled_from(ODD),
    st.sampled_from(sorted(TEMPERATURES)),
)
def test_a_preset_with_any_odd_value_is_refused_or_decodes(
    name: str, part: str, value: object, rule: str
) -> None:
    written = yaml.safe_load((share() / f"config/presets/{name}.yaml").read_text())
    head, _, inner = part.partition(".")
    written[head] = {**written.get(head, {}), inner: value} if inner else value
    with TemporaryDirectory() as folder:
        path = Path(folder) / "own.yaml"
        path.write_text(yaml.safe_dump(written))
        try:
            preset = load_preset(str(path))
        except UserError:
            return
    decode = Decode(Random(0), preset, rule, SamplingPolicy(TEMPERATURES[rule]), max_tokens=4)
    assert decode.run().reason in ("end", "length")


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_accepted_at_its_own_temperatures_only(rule: str) -> None:
    check_rule(rule, temperature_of(rule, 0.8))
    with pytest.raises(UserError, match="greedy goes with temperature 0"):
        check_rule(rule, 0.8 if rule == "greedy" else 0.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_unknown_rule_is_refused_with_the_names_that_there_are(temperature: float) -> None:
    with pytest.raises(UserError, match="must be greedy, coupled or rejection, not 'luck'"):
        check_rule("luck", temperature)


@pytest.mark.parametrize(
    ("shape", "most"),
    [
        (chain(5), 5),
        (Expansion((2, 2, 2)), 14),
        (Expansion((3, 1, 2)), 12),
        (Expansion(()), 0),
        (BestFirst(7, 3, 2), 7),
    ],
)
def test_a_shape_says_how_many_nodes_it_has_at_most(shape: Shape, most: int) -> None:
    assert shape.max_nodes == most
    drafting = Drafting(Model(1, VOCABULARY, 1.0), ProposalConfig("greedy", GREEDY), 0)
    if most:
        assert len(drafting.grow(shape).draft) == most
    for depth in range(1, 7):
        short = shape.within(depth)
        assert short.depth == min(depth, shape.depth)
        assert type(short) is type(shape)
        assert short.within(depth) == short
        if isinstance(shape, Expansion):
            assert short == Expansion(shape.sizes[:depth])
        else:
            assert (short.nodes, short.width) == (shape.nodes, shape.width)  # type: ignore[union-attr]
