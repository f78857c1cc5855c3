"""The report of ``bench pipelines``: its pictures, its words, and what it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from helpers.traced_decode import decode
from PIL import Image

from edge_cloud_spec.cli import main
from edge_cloud_spec.lab.bench.pipelines.report import curve_of, verdict
from edge_cloud_spec.lab.bench.pipelines.speedup_plot import estimated_speedup
from edge_cloud_spec.lab.harness.regimes import custom_regime, load_regime
from edge_cloud_spec.presets import load_preset

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


@pytest.mark.parametrize(
    ("published", "words"),
    [(1.049, "agree"), (1.1, "10% above"), (0.9, "10% below"), (None, "nothing published")],
)
def test_a_changed_result_changes_the_words(published: float | None, words: str) -> None:
    claim = {"preset": "fsd", "published": published, "published_over_formula": published}
    assert words in verdict(load_regime("fsd-go2"), claim)


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


def test_the_promise_of_the_target_alone_is_one() -> None:
    assert estimated_speedup(load_regime("fsd-go2"), load_preset("cloud_ar")) == pytest.approx(1)


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
