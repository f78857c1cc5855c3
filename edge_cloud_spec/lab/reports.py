"""The style of the reports: figures drawn without a screen, and pages of HTML made of templates.

A page needs only the files beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
    axes.spines[["top", "right", "left"]].set_visible(False)


def legend(figure: Figure, handles: Mapping[str, Artist], **where: Any) -> None:
    """One for the whole figure, without a frame."""
    figure.legend(list(handles.values()), list(handles), frameon=False, **where)


def save(figure: Figure, path: Path) -> None:
    """Write the figure, which is not drawn in any more."""
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def write_page(folder: Path, template: str, **values: Any) -> Path:
    """Write ``index.html`` from a template of ours; returns its path."""
    pages = Environment(
        loader=PackageLoader("edge_cloud_spec.lab"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["number"] = number
    index = folder / "index.html"
    index.write_text(pages.get_template(f"{template}.html.jinja").render(values), "utf-8")
    return index


def number(value: object) -> str:
    """A value in a table or on a card: three digits, a dash for None."""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "-" if value is None else str(value)
