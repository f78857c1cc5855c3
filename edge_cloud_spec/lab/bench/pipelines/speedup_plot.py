"""Speed-up over the round-trip time: measured, estimated by the cost model, and published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ....decoding.cost_model import Costs
from ....decoding.preset import Preset
from ...harness.regimes import Regime
from ...harness.virtual import with_regime_length
from ...reports import legend, plain, save
from ..formulas import promised


def costs_of(regime: Regime) -> Costs:
    """A regime's times in seconds, as the cost model takes them."""
    return Costs(
        lambda nodes: regime.draft_pass_ms(nodes) / 1e3,
        lambda nodes: regime.verify_pass_ms(nodes) / 1e3,
        regime.ar_ms / 1e3,
        regime.one_way_ms / 1e3,
        regime.alpha,
        regime.runner_up,
        regime.exit_hit,
    )


def estimated_speedup(regime: Regime, preset: Preset) -> float:
    """Over the target alone, as the cost model promises it."""
    return promised(with_regime_length(preset, regime), costs_of(regime)) * regime.ar_ms / 1e3


PALETTE = ("#1d2330", "#1d5fa8", "#c43d2f", "#1e7a44", "#b86a00", "#7a3fb8", "#0e8a9a", "#c0388a")
MARKERS = "osD^vPXh"
FAINT = "#d9dde4"
COLUMNS = 3
HEADROOM = 1.06  # height of a plot over its highest point
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Curve:
    """A preset's speed-ups by round-trip time in ms. published: the paper's (ms, speed-up),
    if any."""

    measured: Points
    estimated: Points
    published: tuple[float, float] | None

    @property
    def highest(self) -> float:
        """The largest of its speed-ups."""
        published: Points = (self.published,) if self.published else ()
        return max(speedup for _, speedup in (*self.measured, *self.estimated, *published))


def draw_curves(path: Path, regime: Regime, curves: Mapping[str, Curve]) -> None:
    """All presets in one plot, then each with its estimate and its paper's result."""
    rows = -(-len(curves) // COLUMNS)
    figure = pyplot.figure(figsize=(13, 4.4 + 2.5 * rows))
    parts = figure.subfigures(2, 1, height_ratios=(4.4, 2.5 * rows), squeeze=False)
    together, each = parts[:, 0]
    _draw_all(together.subplots(), curves)
    together.suptitle(f"{regime.name}: speed over the target alone", x=0.01, ha="left")
    together.subplots_adjust(left=0.055, right=0.88, top=0.9, bottom=0.12)
    panels = each.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False)
    for axes in panels.flat[len(curves) :]:
        axes.set_visible(False)
    for place, (axes, name) in enumerate(zip(panels.flat, curves, strict=False)):
        _draw_one(axes, place, name, curves)
        if place + COLUMNS >= len(curves):
            axes.set_xlabel("round trip, ms", fontsize=8)
            axes.tick_params(labelbottom=True)
    panels[0, 0].set_ylim(0, HEADROOM * max(curve.highest for curve in curves.values()))
    inch = 1 / (2.5 * rows)
    each.subplots_adjust(left=0.055, right=0.985, top=1 - 0.7 * inch, bottom=0.5 * inch)
    each.subplots_adjust(hspace=0.3, wspace=0.08)
    styles: dict[str, dict[str, Any]] = {
        "measured in virtual time": {"color": "#1d2330", "marker": "o", "ls": ""},
        "estimated by the cost model": {"color": "#1d2330"},
        "published": {"color": "#1d2330", "marker": "*", "ms": 11, "mfc": "w", "ls": ""},
        "the other presets, measured": {"color": FAINT},
    }
    handles = {name: Line2D([], [], **style) for name, style in styles.items()}
    legend(each, handles, loc="upper left", ncols=4, fontsize=8)
    save(figure, path)


def _draw_all(axes: Axes, curves: Mapping[str, Curve]) -> None:
    ends: dict[str, float] = {}
    for place, (name, curve) in enumerate(curves.items()):
        colour, marker = _style(place)
        axes.plot(*zip(*curve.measured, strict=True), color=colour, marker=marker, ms=6, lw=1.4)
        ends[name] = curve.measured[-1][1]
        if curve.published:
            axes.plot(*curve.published, marker="*", ms=15, color=colour, mfc="w", ls="")
    high = HEADROOM * max(curve.highest for curve in curves.values())
    axes.set_ylim(0, high)
    spread = _spread(ends, 0.052 * high)
    right = max(curve.measured[-1][0] for curve in curves.values())
    for place, name in enumerate(curves):
        colour, _ = _style(place)
        axes.annotate(
            f"{name} {ends[name]:.2f}",
            (right, ends[name]),
            (1.015, spread[name] / high),
            textcoords="axes fraction",
            va="center",
            color=colour,
            fontsize=9,
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.5, "relpos": (0, 0.5)},
        )
    axes.set_xlabel("round trip, ms; a star is what a paper published", fontsize=8)
    _decorate(axes)


def _draw_one(axes: Axes, place: int, name: str, curves: Mapping[str, Curve]) -> None:
    for other in curves.values():
        axes.plot(*zip(*other.measured, strict=True), color=FAINT, lw=1, zorder=0)
    colour, marker = _style(place)
    curve = curves[name]
    dash: dict[str, Any] = {"marker": "_", "ms": 18} if len(curve.estimated) == 1 else {}
    axes.plot(*zip(*curve.estimated, strict=True), color=colour, lw=1.4, **dash)
    axes.plot(*zip(*curve.measured, strict=True), color=colour, marker=marker, ms=5, ls="")
    if curve.published:
        axes.plot(*curve.published, marker="*", ms=13, color=colour, mfc="w", ls="")
    axes.set_title(name, loc="left", fontsize=9, color=colour)
    _decorate(axes)


def _style(place: int) -> tuple[str, str]:
    return PALETTE[place % len(PALETTE)], MARKERS[place % len(MARKERS)]


def _decorate(axes: Axes) -> None:
    axes.axhline(1, color="#8a93a3", lw=0.8, ls=(0, (2, 2)), zorder=0)
    plain(axes)
    axes.grid(axis="y", color="#eceef2", lw=0.8)


def _spread(ends: Mapping[str, float], least: float) -> dict[str, float]:
    """Heights of labels, at least so far apart, near the ends of their curves."""
    names = sorted(ends, key=lambda name: ends[name])
    wanted = np.array([ends[name] for name in names])
    steps = least * np.arange(len(names))
    rising = np.maximum.accumulate(wanted - steps) + steps
    falling = np.minimum.accumulate((wanted - steps)[::-1])[::-1] + steps
    return dict(zip(names, ((rising + falling) / 2).tolist(), strict=True))
