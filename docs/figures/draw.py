"""``make figures``: the pictures of ``docs/benchmarks.md``, from the JSON in ``docs/figures``.

``commands.txt`` has the command that wrote each JSON file.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

PAPERS, BASELINE, AUTO = "#b4bac4", "#8fb8de", "#1d5fa8"
COLORS = {
    "cloud_ar": "#1d2330",
    "dsd": "#7a3fb8",
    "fsd": "#c43d2f",
    "picospec": "#b86a00",
    "specedge": "#1e7a44",
    "auto": AUTO,
}
# A cost profile, as its paper would call it, and the preset of that paper.
PUBLISHED = {
    "fsd-go2": ("FSD: Go2,\nQwen2-VL", "fsd"),
    "pico-qwen-gsm8k": ("PicoSpec: Qwen3,\nGSM8K", "picospec"),
    "pico-qwen-humaneval": ("PicoSpec: Qwen3,\nHumanEval", "picospec"),
    "pico-llama-gsm8k": ("PicoSpec: Llama,\nGSM8K", "picospec"),
    "pico-llama-humaneval": ("PicoSpec: Llama,\nHumanEval", "picospec"),
}
Rows = Sequence[Mapping[str, Any]]


def read(folder: Path, name: str) -> Any:
    """One JSON file."""
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def runs(folder: Path, name: str) -> dict[int, Rows]:
    """The rows of one command with several seeds, by seed."""
    files = [
        json.loads(file.read_text("utf-8")) for file in sorted(folder.glob(f"{name}_[0-9]*.json"))
    ]
    return {content["seed"]: content["rows"] for content in files}


def published(folder: Path) -> None:
    """Speed beside each paper's own figure, at the paper's costs: means over the seeds."""
    by: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for rows in runs(folder, "pipelines").values():
        for row in rows:
            by[row["cost_profile"], row["preset"]].append(row)

    def values(field: str, preset: str = "") -> list[list[float]]:
        """The figures of each setting, a seed each; ``preset``: else that of the paper."""
        return [
            [row[field] for row in by[name, preset or own]] for name, (_, own) in PUBLISHED.items()
        ]

    auto = values("speedup", "auto")
    means = list(map(fmean, auto))
    bars = {
        "the paper's figure": (PAPERS, list(map(fmean, values("published")))),
        "the paper's preset, measured here": (BASELINE, list(map(fmean, values("speedup")))),
        "auto, measured here": (AUTO, means),
    }
    figure, axes = pyplot.subplots(figsize=(9, 3.8))
    _grouped(axes, [label for label, _ in PUBLISHED.values()], bars)
    spread = [[mean - min(one), max(one) - mean] for one, mean in zip(auto, means, strict=True)]
    places = [group + 0.8 / len(bars) for group in range(len(auto))]
    axes.errorbar(places, means, list(zip(*spread, strict=True)), fmt="none", color="black", lw=1)
    axes.axhline(1, color=COLORS["cloud_ar"], lw=1, linestyle=":", zorder=0)
    axes.set_ylabel("tokens/s over the cloud without drafts")
    _save(figure, folder / "published.png")


def round_trip(folder: Path) -> None:
    """Speed over the round trip, a line a preset."""
    figure, both = pyplot.subplots(1, 2, figsize=(9, 3.8))
    rows: Rows = read(folder, "round_trip")["rows"]
    titles = {
        "fsd-go2": "costs of FSD's Go2",
        "pico-llama-gsm8k": "costs of PicoSpec's Llama, GSM8K",
    }
    for axes, (name, title) in zip(both, titles.items(), strict=True):
        for preset, color in COLORS.items():
            mine = [row for row in rows if (row["cost_profile"], row["preset"]) == (name, preset)]
            points = [(row["rtt_ms"], row["speedup"]) for row in mine]
            style: dict[str, Any] = {
                "lw": 3 if preset == "auto" else 1.5,
                "marker": "o",
                "markersize": 3.5,
            }
            axes.plot(*zip(*points, strict=True), color=color, label=preset, **style)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_ylim(0.4, 2.9)
        axes.set_xticks((0, 50, 100, 200, 400))
        axes.set_xlabel("round trip, ms")
        axes.grid(axis="y", color="#eceef2")
    both[0].legend(loc="upper right", frameon=False, fontsize=9, ncols=2)
    both[0].set_ylabel("tokens/s over the cloud without drafts")
    _save(figure, folder / "round_trip.png")


def mission(folder: Path) -> None:
    """Seconds of a mission by seed, and what each part of ``auto`` gives."""
    seeds, parts = runs(folder, "mission"), read(folder, "mission_parts")["rows"][1:]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.8))
    bars = {
        name: (COLORS[name], [_of(name, rows)["mission_s_mean"] for rows in seeds.values()])
        for name in ("cloud_ar", "fsd", "auto")
    }
    _grouped(left, [f"seed {seed}" for seed in seeds], bars, "{:.0f}")
    left.set_ylabel("s a mission, mean of 100 rooms")
    shares = [row["mission_over_cloud_ar"] for row in parts]
    right.barh(range(len(shares)), shares, color=AUTO, height=0.62)
    for place, (row, share) in enumerate(zip(parts, shares, strict=True)):
        right.text(share + 0.01, place, f"{share:.2f}  {_options(row)}", va="center", fontsize=8)
    right.set_yticks([])
    right.invert_yaxis()
    right.set_xlim(0, 1.25)
    right.set_xlabel("mission time over that of cloud_ar (25 rooms)")
    _save(figure, folder / "mission.png")


def _of(preset: str, rows: Rows) -> Mapping[str, Any]:
    """The row of a preset."""
    return next(row for row in rows if row["preset"] == preset)


def _options(row: Mapping[str, Any]) -> str:
    """The preset of a mission, and its options beside those of the target alone."""
    options = {
        "without lookup": row["preset"] == "auto" and not row["lookup"],
        "grammar": row["grammar"] != "none",
        f"explain {row['explain']}": row["explain"] != "full",
        "drives on": row["drive"] == "continuous",
    }
    return ", ".join([row["preset"], *(name for name, is_on in options.items() if is_on)])


STOPPING = "cloud_ar explain=full drive=stop_and_go"
SPEEDS = {  # by label of the variant
    STOPPING: ("cloud_ar, which stops to decide", COLORS["cloud_ar"]),
    "auto": ("auto, which drives on", AUTO),
}


def speed(folder: Path) -> None:
    """Speed over time in one room, stopping for each decision and driving on."""
    data = read(folder, "speeds")
    figure, panels = pyplot.subplots(len(SPEEDS), 1, figsize=(9, 3.6), sharex=True, sharey=True)
    for axes, (label, (name, color)) in zip(panels, SPEEDS.items(), strict=True):
        seconds, driven, turned = (data[label][column] for column in ("s", "m_s", "rad_s"))
        axes.fill_between(seconds, driven, color=color, lw=0, label="drives, m/s")
        turns = [abs(rate) for rate in turned]
        axes.plot(seconds, turns, color=PAPERS, lw=1.2, label="turns, rad/s")
        axes.set_title(f"{name}: {seconds[-1]:.1f} s", loc="left", fontsize=9)
        axes.legend(loc="upper right", frameon=False, fontsize=8)
    panels[-1].set_xlim(left=0)
    panels[-1].set_ylim(bottom=0)
    panels[-1].set_xlabel("seconds since the instruction")
    _save(figure, folder / "speed.png")


def fleet(folder: Path) -> None:
    """Many robots and one server: throughput, and the time between tokens."""
    figure, both = pyplot.subplots(1, 2, figsize=(9, 3.8))
    fields = {
        "throughput_ratio": ("throughput over SpecEdge's server-only baseline", 2.22),
        "token_ratio": ("time between tokens over the baseline's", 0.888),
    }
    for axes, (field, (title, paper)) in zip(both, fields.items(), strict=True):
        bars, robots = {}, []
        for preset in ("specedge", "auto"):
            rows: Rows = read(folder, f"fleet_{preset}")["rows"]
            mine = [row for row in rows if row["server"] == "batched" and row["robots"] > 1]
            robots = [f"{row['robots']} robots" for row in mine]
            bars[preset] = (COLORS[preset], [row[field] for row in mine])
        _grouped(axes, robots, bars)
        axes.plot((-0.45, 2.5), (paper, paper), color="#1d2330", lw=1, linestyle="--")
        axes.text(2.55, paper, f"the paper,\n2 robots: {paper}", va="center", fontsize=8)
        axes.set_xlim(-0.5, 3.2)
        axes.set_title(title, loc="left", fontsize=9)
    _save(figure, folder / "fleet.png")


def _grouped(
    axes: Axes,
    groups: Sequence[str],
    bars: Mapping[str, tuple[str, Sequence[float]]],
    form: str = "{:.2f}",
) -> None:
    """Bars side by side, each with its value."""
    width = 0.8 / len(bars)
    for at, (label, (color, values)) in enumerate(bars.items()):
        places = [group + (at - (len(bars) - 1) / 2) * width for group in range(len(groups))]
        axes.bar(places, values, width * 0.94, color=color, label=label)
        for place, value in zip(places, values, strict=True):
            ink = "black" if color in (PAPERS, BASELINE) else "white"
            style: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 8, "color": ink}
            axes.text(place, 0.985 * value, form.format(value), **style)
    axes.set_xticks(range(len(groups)), groups, fontsize=8)
    axes.set_ylim(0, 1.28 * max(max(values) for _, values in bars.values()))
    axes.legend(loc="upper left", frameon=False, fontsize=8, ncols=len(bars))


def _save(figure: Any, path: Path) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


PICTURES: tuple[Callable[[Path], None], ...] = (published, round_trip, mission, speed, fleet)

if __name__ == "__main__":
    for picture in PICTURES:
        picture(Path(sys.argv[1]))
