"""The common style of the reports' figures; matplotlib draws them without a screen."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes

COLOURS = {
    "drafting": "#4c9be8",
    "waiting": "#d5d9e0",
    "verifying": "#f0a53a",
    "moving": "#59b87b",
}


def plain(axes: Axes) -> None:
    """Small digits, a faint vertical grid, and no frame but the lower line."""
    axes.tick_params(labelsize=8)
    axes.grid(axis="x", color="#eceef2", lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
