"""The report of ``bench pipelines``: its pictures, its words, and what its timelines hold."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from edge_cloud_spec.bench.pipelines.report.claims import PublishedClaim
from edge_cloud_spec.bench.pipelines.report.estimate import estimated_speedup
from edge_cloud_spec.bench.pipelines.report.timeline import (
    Timeline,
    idle,
    representative_start,
    timeline_of,
)
from edge_cloud_spec.bench.pipelines.report.write import curve_of
from edge_cloud_spec.cli import main
from edge_cloud_spec.harness.emulated_link import LinkProfile
from edge_cloud_spec.harness.regimes import Regime, custom_regime, load_regime
from edge_cloud_spec.harness.robot import DecodedAnswer
from edge_cloud_spec.harness.trace import DraftPass, Trace
from edge_cloud_spec.harness.virtual import VirtualHarness
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import DraftMessage, Verdict

PRESETS = ("cloud_ar", "dsd", "fsd", "picospec", "specedge", "auto")
ANY_PRESET = ("cloud_sd", *PRESETS)
EMPTY = {"meta", "img", "br"}  # elements without an end


class Page(HTMLParser):
    """What a page holds; fails where an element is not closed, or another one is."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.images: list[str] = []
        self.text = ""
        self.elements: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        if tag == "img":
            told = dict(attrs)
            assert told["alt"]
            self.images.append(told["src"] or "")
        if tag not in EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def decode(
    regime: Regime, preset: str, tokens: int, seed: int, **weather: float
) -> tuple[DecodedAnswer, Trace]:
    """An answer in virtual time, and all that happened in it."""
    trace = Trace()
    link = LinkProfile(regime.one_way_ms, **weather)
    there = VirtualHarness(regime, link, seed, trace=trace)
    return there.robot.decode(load_preset(preset), tokens, seed), trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a small run."""
    out = tmp_path_factory.mktemp("runs") / "new" / "report"
    options = ["--regime", "fsd-go2,pico-qwen-gsm8k", "--presets", "cloud_ar,dsd,fsd,picospec"]
    small = ["--tokens", "60", "--answers", "1"]
    assert main(["bench", "pipelines", *options, *small, "--out", str(out)]) == 0
    return out


def test_the_page_is_whole_and_shows_its_pictures(folder: Path) -> None:
    page = Page((folder / "index.html").read_text("utf-8"))
    assert page.images == [
        f"{regime}-{what}.png"
        for regime in ("fsd-go2", "pico-qwen-gsm8k")
        for what in ("timeline", "speedup")
    ]
    assert "script" not in page.elements
    for name in page.images:
        with Image.open(folder / name) as picture:
            pixels = np.asarray(picture.convert("L"), dtype=float)
        height, width = pixels.shape
        assert width >= 1000 and height >= 500
        # no stripe of it is blank, but for what is between the panels
        assert pixels.std() > 20
        assert min(stripe.std() for stripe in np.array_split(pixels, 6)) > 5


def test_the_page_says_where_a_result_and_its_formula_disagree(folder: Path) -> None:
    text = " ".join(Page((folder / "index.html").read_text("utf-8")).text.split())
    assert "3 of 4 published results differ from their own paper's formula" in text
    assert "the result is 19% above its own formula: table 4's formula needs a cache" in text
    assert "the result is 37% above its own formula, although that counts a bonus token" in text
    assert "the result is 40% below its own formula" in text
    assert "agree within 5%" in text


def test_a_changed_result_changes_the_words() -> None:
    regime = load_regime("fsd-go2")
    claim = PublishedClaim(regime, "fsd", 1.0, 1.0, 1.049)
    assert not claim.disagrees and "agree" in claim.words
    assert "10% above" in replace(claim, published=1.1).words
    assert "10% below" in replace(claim, published=0.9).words
    assert replace(claim, published=None).words == "nothing published"


def test_the_rows_hold_every_point_of_the_plots(folder: Path) -> None:
    rows = json.loads((folder / "rows.json").read_text())["rows"]
    assert {r["rtt_ms"] for r in rows if r["regime"] == "fsd-go2"} == {
        0.0, 20.0, 50.0, 100.0, 200.0, 240.0, 400.0,
    }  # fmt: skip
    fsd = [r for r in rows if (r["regime"], r["preset"]) == ("fsd-go2", "fsd")]
    (own,) = [r for r in fsd if r["rtt_ms"] == 240.0]
    assert own["published_over_formula"] == pytest.approx(1.21 / own["formula_speedup"])
    assert all(r["published"] is None for r in fsd if r["rtt_ms"] != 240.0)
    assert all(r["cache_miss"] is None for r in rows if r["preset"] == "cloud_ar")


def test_a_round_trip_that_is_asked_for_is_all_that_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--regime", "fsd-go2", "--presets", "dsd", "--rtt", "80", "--tokens", "20"]
    assert main(["bench", "pipelines", *options, "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert {row["rtt_ms"] for row in rows} == {80.0}
    page = Page((tmp_path / "index.html").read_text("utf-8"))
    assert "Nothing was published for these presets on these links." in page.text
    shown = capsys.readouterr().out
    assert "published" in shown and max(map(len, shown.splitlines())) <= 100


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    where = str(tmp_path / "file" / "report")
    assert main(["bench", "pipelines", "--regime", "fsd-go2", "--out", where]) == 2
    told = capsys.readouterr().err
    assert where in told and "name another folder" in told and "ms:" not in told


def test_without_a_report_nothing_is_drawn() -> None:
    check = (
        "import sys; from edge_cloud_spec.cli import main;"
        "main(['bench', 'pipelines', '--regime', 'fsd-go2', '--presets', 'dsd', '--tokens', '9']);"
        "assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True, capture_output=True)


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
                assert each.start == pytest.approx(max(free, came[hop.message.base]))
            free = each.end
    assert not passes or min(passes) >= free  # what the end of the answer came before


def lanes(preset: str, **changes: float) -> Timeline:
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
    assert answer.equal and answer.outcome.ledger.resumed
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


def test_the_promise_of_the_target_alone_is_one() -> None:
    assert estimated_speedup(load_regime("fsd-go2"), load_preset("cloud_ar")) == 1


@pytest.mark.parametrize("preset", ["cloud_sd", "dsd", "fsd", "picospec"])
@pytest.mark.parametrize("rtt", [20.0, 240.0])
def test_what_is_promised_of_a_fixed_pipeline_is_measured(preset: str, rtt: float) -> None:
    regime = load_regime("fsd-go2").with_rtt(rtt)
    answers = [decode(regime, preset, 400, seed)[0].outcome for seed in range(3)]
    speed = sum(len(a.tokens) for a in answers) / sum(a.seconds for a in answers)
    promised = estimated_speedup(regime, load_preset(preset))
    assert speed * regime.ar_ms / 1e3 == pytest.approx(promised, rel=0.06)


def test_over_grpc_rows_are_real_and_curves_and_timelines_virtual(tmp_path: Path) -> None:
    costs = ["--draft-ms", "2", "--verify-ms", "5", "--ar-ms", "5", "--alpha", "0.7"]
    options = [*costs, "--presets", "dsd", "--rtt", "10", "--tokens", "20", "--harness", "grpc"]
    assert main(["bench", "pipelines", *options, "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    page = Page((tmp_path / "index.html").read_text("utf-8"))
    assert "measured in real time, over gRPC" in " ".join(page.text.split())
    assert page.images == ["custom-timeline.png", "custom-speedup.png"]
    regime = custom_regime(10.0, draft_ms=2.0, verify_ms=5.0, ar_ms=5.0, alpha=0.7)
    (point,) = curve_of(regime, load_preset("dsd"), rows).measured
    (real,) = [row for row in rows if row["preset"] == "dsd"]
    assert real["harness"] == "grpc"
    assert point == (10.0, pytest.approx(real["virtual_tokens_per_s"] * 5 / 1e3))
