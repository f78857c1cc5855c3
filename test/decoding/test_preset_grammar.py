"""Every preset that can be written decodes, under every rule; what cannot is refused when read."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import Phase, assume, example, find, given, settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.preset import PAYLOADS, STOP_AND_WAIT, Preset, Speculation
from edge_cloud_spec.decoding.shape import BestFirst
from edge_cloud_spec.decoding.split import RESIDUALS
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.lab.harness.virtual_decode import Conditions, Decode
from edge_cloud_spec.presets import load_preset, preset_names
from edge_cloud_spec.share import share

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
@settings(max_examples=300, phases=[Phase.explicit, Phase.generate])
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
    if not preset.uses_cloud:
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


AXES = [
    *[("fixed", payload, "draft_length") for payload in PAYLOADS],
    *[("verify_bound", payload, "expansion") for payload in ("ids", "dense", "sparse")],
    *[("auto", "ids", shape) for shape in ("draft_length", "expansion", "best_first")],
]


@pytest.mark.parametrize(("pacing", "payload", "shape"), AXES)
def test_what_is_drawn_above_goes_along_every_axis(pacing: str, payload: str, shape: str) -> None:
    """A control: presets that are refused by mistake would never fail above."""
    find(
        presets(),
        lambda p: (p.pacing, p.payload) == (pacing, payload) and bool(getattr(p, shape)),
        settings=settings(max_examples=3000, phases=[Phase.generate], database=None),
    )


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
