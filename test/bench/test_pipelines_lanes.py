"""The timelines of ``bench pipelines``: what each lane holds, and that it is what happened."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from helpers.traced_decode import decode
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.lab.bench.pipelines.timeline import (
    DecodeTimeline,
    idle,
    representative_start,
    timeline_of,
)
from edge_cloud_spec.lab.harness.emulated_link import LinkProfile
from edge_cloud_spec.lab.harness.regimes import load_regime
from edge_cloud_spec.lab.harness.trace import DraftPass
from edge_cloud_spec.lab.harness.virtual import VirtualHarness
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import DraftMessage, Verdict

PRESETS = ("cloud_ar", "dsd", "fsd", "picospec", "specedge", "auto")
ANY_PRESET = ("cloud_sd", *PRESETS)


@settings(max_examples=15, deadline=None)
@given(
    preset=st.sampled_from(ANY_PRESET),
    name=st.sampled_from(["fsd-go2", "fsd-llama7b-rtx", "pico-llama-gsm8k"]),
    rtt=st.sampled_from([0.0, 20.0, 400.0]),
    jitter=st.sampled_from([0.0, 30.0]),
    seed=st.integers(0, 10**6),
)
def test_a_lane_does_one_thing_at_a_time_and_messages_arrive_after_they_left(
    preset: str, name: str, rtt: float, jitter: float, seed: int
) -> None:
    regime = load_regime(name).with_rtt(rtt)
    answer, trace = decode(regime, preset, 60, seed, jitter_ms=jitter)
    lanes = timeline_of(answer.outcome, trace)
    for lane in (lanes.robot, lanes.cloud):
        assert all(span.start < span.end for span in lane)
        assert all(a.end <= b.start + 1e-6 for a, b in pairwise(lane))
    assert all(arrow.arrived >= arrow.left + rtt / 2 - 1e-6 for arrow in lanes.link)
    assert sum(tokens for _, tokens in lanes.settled) == 60
    # every pass of the target ends with a verdict; what is asked for again is said again
    verdicts = {arrow.left for arrow in lanes.link if arrow.kind == "verdict"}
    assert verdicts >= {span.end for span in lanes.cloud if span.kind == "verify"}
    part = lanes.between(begin := representative_start(lanes, 500.0), begin + 500.0)
    spans = (*part.robot, *part.cloud)
    assert all(0 <= span.start <= span.end <= 500 + 1e-6 for span in spans)
    assert 0 <= idle(part.robot, 500.0) <= 1


@settings(max_examples=15, deadline=None)
@given(
    preset=st.sampled_from(PRESETS[1:]),
    name=st.sampled_from(["fsd-go2", "fsd-llama7b-rtx", "pico-llama-gsm8k"]),
    rtt=st.sampled_from([0.0, 20.0, 400.0]),
    seed=st.integers(0, 10**6),
)
def test_the_cloud_never_waits_while_it_holds_the_draft_of_its_place(
    preset: str, name: str, rtt: float, seed: int
) -> None:
    regime = load_regime(name).with_rtt(rtt)
    _, trace = decode(regime, preset, 60, seed)
    came: dict[object, float] = {}
    for hop in trace.hops:
        if isinstance(hop.message, DraftMessage):
            came[hop.message.base] = min(hop.arrived, came.get(hop.message.base, np.inf))
    passes = {each.end: each for each in trace.cloud}
    free, said = 0.0, set()
    for hop in trace.hops:
        if not isinstance(hop.message, Verdict) or hop.message.base in said:
            continue  # a verdict may be said again
        said.add(hop.message.base)
        if hop.left in passes:
            each = passes.pop(hop.left)
            if each.drafted:
                due = max(free, came.get(hop.message.base, np.inf))
                # beside a cloud alone, what is left of a draft for an earlier place is used at once
                at_once = preset == "auto" and each.start == pytest.approx(free)
                assert at_once or each.start == pytest.approx(due)
            free = each.end
    assert not passes or min(passes) >= free  # what the end of the answer came before


def lanes(preset: str, **changes: float) -> DecodeTimeline:
    regime = replace(load_regime("fsd-llama7b-rtx"), **changes)
    answer, trace = decode(regime, preset, 120, 1)
    return timeline_of(answer.outcome, trace)


def test_a_draft_that_always_comes_true_is_never_thrown_away() -> None:
    whole = lanes("picospec", alpha=1.0)
    confidence = whole.between(
        0.0, whole.settled[-8][0]
    )  # what is drafted for after the end is wasted
    assert {span.kind for span in confidence.robot} == {"draft", "pre-draft"}
    assert "wasted push" not in {arrow.kind for arrow in confidence.link}
    usual = lanes("picospec")
    assert {span.kind for span in usual.robot} == {"draft", "pre-draft", "wasted"}
    assert {"pushed", "wasted push"} < {arrow.kind for arrow in usual.link}
    assert {span.kind for span in lanes("dsd").robot} == {"draft"}


def test_an_exits_prediction_is_told_right_from_wrong() -> None:
    right = lanes("fsd", exit_hit=1.0)
    last = right.cloud[-1].start  # the answer's end cuts its verdict short
    kinds = {arrow.kind for arrow in right.link if arrow.left < last}
    assert "prediction" in kinds and "wrong prediction" not in kinds
    kinds = {arrow.kind for arrow in lanes("fsd", exit_hit=1e-9).link}
    assert "wrong prediction" in kinds and "prediction" not in kinds


def test_what_the_cloud_drafts_itself_is_in_its_lane() -> None:
    whole = lanes("cloud_sd")
    assert not whole.robot
    drafts = [span for span in whole.cloud if span.kind == "draft"]
    assert len(drafts) > len(whole.cloud) / 2 and not any(span.label for span in drafts)


def test_a_draft_for_a_place_that_has_one_is_told_from_a_new_one() -> None:
    regime = load_regime("fsd-llama7b-rtx")
    answer, trace = decode(regime, "dsd", 20, 1)
    sent = next(hop for hop in trace.hops if isinstance(hop.message, DraftMessage))
    trace.hops.append(replace(sent, left=sent.left + 0.001))
    kinds = [arrow.kind for arrow in timeline_of(answer.outcome, trace).link]
    assert kinds.count("repeated") == 1 and kinds[-1] == "repeated"


def test_an_interrupted_pass_is_drawn_as_wasted() -> None:
    answer, trace = decode(load_regime("fsd-llama7b-rtx"), "dsd", 20, 1)
    trace.robot.append(DraftPass(0.5, 0.6, 1, 0, ()))
    assert timeline_of(answer.outcome, trace).robot[-1].kind == "wasted"


def test_what_an_outage_swallows_is_not_drawn() -> None:
    regime = load_regime("fsd-go2")
    answer, trace = decode(regime, "picospec", 100, 1, outage_every_s=5.0, outage_s=2.0)
    assert answer.equal and answer.outcome.stats.resumed
    out = [(5.0 * n, 5.0 * n + 2.0) for n in range(1, 9)]
    assert not any(hop.left < begin < hop.arrived for hop in trace.hops for begin, _ in out)
    assert not any(begin < hop.left < end for hop in trace.hops for begin, end in out)


def test_nothing_is_traced_unless_it_is_asked_for() -> None:
    regime = load_regime("fsd-go2")
    there = VirtualHarness(regime, LinkProfile(regime.one_way_ms))
    untraced = there.robot.decode(load_preset("fsd"), 60, 1)
    assert there.robot.runner.on_pass is None
    traced, trace = decode(regime, "fsd", 60, 1)
    assert traced.outcome.tokens == untraced.outcome.tokens
    assert traced.outcome.seconds == untraced.outcome.seconds
    verify = (each.end - each.start for each in trace.cloud)
    assert sum(verify) == pytest.approx(there.cloud_busy.total)
    assert sum(each.end - each.start for each in trace.robot) == pytest.approx(
        there.robot.busy.total
    )
