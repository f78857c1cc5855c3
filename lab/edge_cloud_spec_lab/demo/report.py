"""Writes a run's report: a folder with film, path, figures and bag, and a page that shows them."""

from __future__ import annotations

import contextlib
import io
import json
import math
import platform
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image, ImageDraw, ImageFont

from edge_cloud_spec import __version__
from edge_cloud_spec.observe.decision import branched, joined

from ..running.console_view import size
from ..running.run_log import Decision, RunLog
from ..sim.floor_plan import draw_plan
from ..sim.room import Pose, Room
from .outside import outside_view
from .run_result import RunResult, seconds_spent

_SUMS = ("tokens", "rounds", "drafted", "accepted", "stale", "up_bytes", "down_bytes")
_ROUND_TIMES = ("draft_ms", "verify_ms", "link_ms", "total_ms")


def figures(
    run: dict[str, Any], run_log: RunLog, result: RunResult, started: float
) -> dict[str, Any]:
    """All figures of a run; ``started``: how long the graph took to start, s."""
    decisions = [d for d in run_log.decisions.values() if d.stats]
    total = {name: sum(d.stats[name] for d in decisions) for name in _SUMS}
    times = {name: round(sum(d.stats[name] for d in decisions), 2) for name in _ROUND_TIMES}
    return {
        **run,
        "success": result.success,
        "ending": result.text,
        "outcome": run_log.outcome,
        "start_ms": round(1e3 * started),
        "drive_ms": round(1e3 * result.seconds),
        "seconds": round(result.seconds, 2),
        **{name: round(s, 2) for name, s in seconds_spent(run_log, result.seconds).items()},
        "decisions": len(decisions),
        **total,
        "acceptance": round(total["accepted"] / total["drafted"], 4) if total["drafted"] else None,
        "tokens_per_s": round(1e3 * total["tokens"] / (times["total_ms"] or 1.0), 2),
        "tokens_per_round": round(total["tokens"] / (total["rounds"] or 1), 3),
        **times,
        "path_m": round(path_length(run_log), 3),
        "versions": {"edge_cloud_spec": __version__, "python": platform.python_version()},
        "rows": [row(decision) for decision in run_log.decisions.values()],
    }


def row(decision: Decision) -> dict[str, Any]:
    """The figures of one decision and its rounds."""
    stats = {k: round(v, 3) if isinstance(v, float) else v for k, v in decision.stats.items()}
    return {
        "decision": decision.number,
        "request": decision.request,
        "at_ms": round(1e3 * decision.begun),
        "answer": decision.answer,
        "action": decision.action,
        "verified": decision.verified,
        "distance": decision.pose.get("distance"),
        "bearing": decision.pose.get("bearing"),
        **stats,
        "words": [
            {
                "accepted": joined(r.kept),
                "rejected": branched(r.branches),
                "other_branches": r.others,
                "own": r.own if r.draft.words else (r.settled or "").strip(),
            }
            for r in sorted(decision.rounds.values(), key=lambda r: r.base)
        ],
    }


def path_length(run_log: RunLog) -> float:
    """The distance that the robot drove, m."""
    places = [complex(o["x"], o["y"]) for _, o in run_log.outcomes]
    return float(sum(abs(b - a) for a, b in pairwise(places)))


# Pixels of a picture, and of the strip below one and below two; multiples of 16, as video encoders
# like them.
PICTURE_PX, STRIP_PX = 448, (192, 144)
RATE = 10.0  # frames per second
MAX_FRAMES = 400  # of the film; a longer run gets fewer a second
HOLD = 1.5  # s on the last frame
_BACK_RGB, _DIM_RGB, _INK_RGB = (22, 24, 29), (139, 147, 163), (240, 242, 246)
_ACTION_RGB, _OWN_RGB, _GOOD_RGB, _BAD_RGB = (
    (110, 206, 245),
    (250, 204, 90),
    (120, 220, 140),
    (250, 120, 110),
)

Word = tuple[str, tuple[int, int, int]]


def write_film(
    folder: Path, run_log: RunLog, room: Room, instruction: str, result: RunResult
) -> Path:
    """Write ``camera.mp4`` into ``folder``, or ``camera.gif`` if there is no video encoder.

    A robot with legs is also shown from outside, beside its own camera.
    """
    rate = min(RATE, MAX_FRAMES / max(1.0, result.seconds))
    try:
        return _write(folder / "camera.mp4", run_log, room, instruction, result, rate)
    except (ImportError, OSError, RuntimeError):  # imageio-ffmpeg or its program is missing
        (folder / "camera.mp4").unlink(missing_ok=True)
        return _write(folder / "camera.gif", run_log, room, instruction, result, rate / 2)


def _write(
    path: Path, run_log: RunLog, room: Room, instruction: str, result: RunResult, rate: float
) -> Path:
    options: dict[str, Any] = {"fps": rate}
    if path.suffix == ".mp4":
        options["macro_block_size"] = 16
    caption = Caption(run_log, instruction)
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(contextlib.closing(imageio.get_writer(path, **options)))
        views: list[Callable[[float], np.ndarray]] = []
        if "posture" in run_log.outcome:
            views = [stack.enter_context(outside_view(room, run_log.outcomes, PICTURE_PX))]
        last = None
        for at, jpeg in _paced(run_log.frames, rate):
            beside = [Image.fromarray(view(at)) for view in views]
            last = caption.draw([*beside, _open(jpeg)], at)
            writer.append_data(last)
        if last is not None:
            caption.draw_result(last, result)
            for _ in range(round(HOLD * rate)):
                writer.append_data(last)
    return path


def _paced(frames: Sequence[tuple[float, bytes]], rate: float) -> Iterator[tuple[float, bytes]]:
    """The latest frame at each of ``rate`` times a second."""
    if not frames:
        return
    index, begin = 0, frames[0][0]
    for tick in range(round((frames[-1][0] - begin) * rate) + 1):
        while index + 1 < len(frames) and frames[index + 1][0] <= begin + tick / rate:
            index += 1
        yield begin + tick / rate, frames[index][1]


def _open(jpeg: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(jpeg)).convert("RGB")
    except OSError:  # a truncated frame is part of what happened
        return Image.new("RGB", (PICTURE_PX, PICTURE_PX))


def last_words(decision: Decision) -> float:
    """When the last words of a decision were verified, s."""
    answered = [r.answered for r in decision.rounds.values() if math.isfinite(r.answered)]
    return max(answered, default=decision.begun)


def motions(run_log: RunLog) -> list[tuple[float, float]]:
    """(begin, duration), s, of each time in which the navigator reported motion."""
    bars: list[tuple[float, float]] = []
    begun = None
    for at, status in run_log.statuses:
        moving = status.state in ("moving", "ready")
        if moving and begun is None:
            begun = at
        elif not moving and begun is not None:
            bars.append((begun, at - begun))
            begun = None
    return bars


class Caption:
    """Draws under each frame what was known at its time."""

    def __init__(self, run_log: RunLog, instruction: str) -> None:
        self._decisions = list(run_log.decisions.values())
        self._instruction = instruction
        self._end = max((at for at, _ in run_log.frames), default=0.0)
        self._lanes = {
            "decides": (_OWN_RGB, [(d.begun, last_words(d)) for d in self._decisions]),
            "moves": (_GOOD_RGB, [(begin, begin + wide) for begin, wide in motions(run_log)]),
        }
        self._small = ImageFont.load_default(15)
        self._large = ImageFont.load_default(22)

    def draw(self, pictures: Sequence[Image.Image], at: float) -> np.ndarray:
        """The pictures side by side with their caption, uint8 [H, n * PICTURE_PX, 3]."""
        size = (len(pictures) * PICTURE_PX, PICTURE_PX + STRIP_PX[len(pictures) - 1])
        sheet = Image.new("RGB", size, _BACK_RGB)
        for i, picture in enumerate(pictures):
            sheet.paste(
                picture.resize((PICTURE_PX, PICTURE_PX), Image.Resampling.BICUBIC),
                (i * PICTURE_PX, 0),
            )
        pen, right, bottom = ImageDraw.Draw(sheet), sheet.width - 12, sheet.height
        pen.text((12, PICTURE_PX + 8), self._instruction[:60], _DIM_RGB, self._small)
        clock = f"{max(0.0, at):.1f} s"
        pen.text(
            (right - pen.textlength(clock, self._small), PICTURE_PX + 8),
            clock,
            _DIM_RGB,
            self._small,
        )
        acting = next((d for d in reversed(self._decisions) if d.acting <= at), None)
        pen.text((12, PICTURE_PX + 30), acting.action if acting else "-", _ACTION_RGB, self._large)
        decoding = next((d for d in reversed(self._decisions) if d.begun <= at), None)
        if decoding is not None:
            self._words(pen, self.words_at(decoding, at), PICTURE_PX + 64, right)
        self._time_line(pen, at, right, bottom)
        return np.array(sheet)

    def words_at(self, decision: Decision, at: float) -> list[Word]:
        """The words verified until ``at``: drafted ones, and the cloud's own."""
        words: list[Word] = []
        for round_ in sorted(decision.rounds.values(), key=lambda r: r.base):
            if not round_.complete or not round_.answered <= at:
                break
            if decision.verified and round_.draft.words:
                words += [(word, _INK_RGB) for word in joined(round_.kept).split()]
                words += [(word, _OWN_RGB) for word in round_.own.split()]
            else:
                words += [(word, _INK_RGB) for word in (round_.settled or "").split()]
        return words

    def _words(self, pen: ImageDraw.ImageDraw, words: Sequence[Word], top: int, right: int) -> None:
        x, y = 12.0, top
        for word, colour in words:
            wide = pen.textlength(f"{word} ", self._small)
            closing = word[0] in ";:,."
            if x + wide > right and not closing:
                x, y = 12.0, y + 20
            if closing and x > 12:
                x -= pen.textlength(" ", self._small)
            pen.text((x, y), word, colour, self._small)
            x += wide

    def _time_line(self, pen: ImageDraw.ImageDraw, at: float, right: int, bottom: int) -> None:
        """Draw when it decided and moved, up to the film's current time."""
        left = 76
        scale = (right - left) / max(self._end, 1e-3)
        for row, (name, (colour, spans)) in enumerate(self._lanes.items()):
            top = bottom - 44 + 20 * row
            pen.text((12, top - 5), name, _DIM_RGB, self._small)
            for begin, end in spans:
                if begin < at:
                    x = left + scale * max(0.0, begin), left + scale * min(at, end)
                    pen.rectangle([x[0], top, max(x[0], x[1]), top + 10], fill=colour)
        now = left + scale * min(max(0.0, at), self._end)
        pen.line([(now, bottom - 48), (now, bottom - 10)], _INK_RGB)

    def draw_result(self, sheet: np.ndarray, result: RunResult) -> None:
        """Draw the result over the bottom of the frame, in place."""
        image = Image.fromarray(sheet)
        pen = ImageDraw.Draw(image)
        text, colour = ("done", _GOOD_RGB) if result.success else ("not done", _BAD_RGB)
        pen.rectangle(
            [0, PICTURE_PX - 34, 40 + pen.textlength(text, self._large), PICTURE_PX], fill=_BACK_RGB
        )
        pen.text((16, PICTURE_PX - 31), text, colour, self._large)
        sheet[:] = np.array(image)


def write_report(
    folder: Path,
    run: dict[str, Any],
    room: Room,
    run_log: RunLog,
    result: RunResult,
    started: float,
) -> tuple[Path, dict[str, Any]]:
    """Write everything but the bag, which is in ``folder`` already; returns the page's path, and
    the figures."""
    numbers = figures(run, run_log, result, started)
    path = [_pose(outcome) for _, outcome in run_log.outcomes]
    stops = [_pose(d.pose) for d in run_log.decisions.values() if d.pose]
    Image.fromarray(draw_plan(room, path, stops)).save(folder / "path.png")
    numbers["film"] = write_film(folder, run_log, room, run["instruction"], result).name
    (folder / "figures.json").write_text(json.dumps(numbers, indent=1) + "\n", "utf-8")
    title = f"Room {run['seed']}: {run['instruction']}"
    index = folder / "index.html"
    filled = page(Path(__file__).with_name("report.html.jinja"), title=title, size=size, **numbers)
    index.write_text(filled, "utf-8")
    return index, numbers


def _pose(outcome: dict[str, Any]) -> Pose:
    return Pose(outcome["x"], outcome["y"], outcome["yaw"])


def page(template: Path, **values: Any) -> str:
    """An HTML page by the template in this file. It needs all its values."""
    pages = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return pages.get_template(template.name).render(**values)
