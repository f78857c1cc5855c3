"""The report of a run: a folder with plots, figures and the bag, and the page that shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

from ...observe.run_log import RunLog
from ..sim.floor_plan import draw_plan
from ..sim.room import Pose, Room
from .figures import figures
from .film import write_film
from .page import page
from .run_result import RunResult
from .timeline import draw_timeline


def write_report(
    folder: Path,
    run: dict[str, Any],
    room: Room,
    run_log: RunLog,
    result: RunResult,
    started: float,
) -> Path:
    """Write everything but the bag, which is in ``folder`` already; returns the page's path."""
    numbers = figures(run, run_log, result, started)
    (folder / "figures.json").write_text(json.dumps(numbers, indent=1) + "\n", "utf-8")
    path = [_pose(outcome) for _, outcome in run_log.outcomes]
    stops = [_pose(d.pose) for d in run_log.decisions.values() if d.pose]
    Image.fromarray(draw_plan(room, path, stops=stops)).save(folder / "path.png")
    draw_timeline(folder / "timeline.png", run_log)
    film = write_film(folder, run_log, run["instruction"], result)
    index = folder / "index.html"
    index.write_text(page(numbers, film.name), "utf-8")
    return index


def _pose(outcome: dict[str, Any]) -> Pose:
    return Pose(outcome["x"], outcome["y"], outcome["yaw"])
