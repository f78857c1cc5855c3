"""Draws a decision's words, coloured by their fate, below the camera's picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ..edge.link.state import LinkQuality, LinkReport
from .decision import Fate, WordSpan, words_of_decision
from .word_log import D, WordLog

CAPTION_WIDTH_PX, CAPTION_LINE_PX, CAPTION_MARGIN_PX = 480, 22, 8
CAPTION_ROWS = 4  # of words
CAPTION_HEIGHT_PX = (CAPTION_ROWS + 3) * CAPTION_LINE_PX
RGB = tuple[int, int, int]
CAPTION_INK, CAPTION_BACKGROUND, CAPTION_GREY = (240, 242, 246), (18, 20, 24), (140, 140, 140)
GOOD, DOUBTFUL, BAD = (120, 220, 120), (250, 210, 90), (250, 90, 90)
FATE_COLOURS: dict[Fate, RGB] = {
    "drafted": (110, 190, 250),
    "accepted": GOOD,
    "rejected": BAD,
    "left": CAPTION_GREY,
    "own": DOUBTFUL,
    "unverified": (250, 120, 250),
    "missed": (250, 150, 60),
}
FATE_NAMES: dict[Fate, str] = {
    "drafted": "drafted",
    "accepted": "accepted",
    "rejected": "rejected",
    "left": "branches left",
    "own": "the cloud's own",
    "unverified": "not verified",
    "missed": "not received",
}
LEGEND: tuple[Fate, ...] = ("drafted", "accepted", "rejected", "own", "unverified")
LINK_COLOURS = {LinkQuality.CLOUD: GOOD, LinkQuality.DEGRADED: DOUBTFUL, LinkQuality.LOST: BAD}


@dataclass(frozen=True)
class DecisionCaption:
    """The text below the picture. ``status``: the navigator's state and its detail.
    ``remembered``: earlier frames in the prompt."""

    instruction: str = ""
    words: tuple[WordSpan, ...] = ()
    status: str = ""
    link: LinkReport | None = None
    remembered: int = 0


def caption_of(log: WordLog[D], instruction: str) -> DecisionCaption:
    """The caption of a run's newest decision, with the navigator's and the link's state."""
    decision = next(reversed(log.decisions.values()), None)
    words = tuple(words_of_decision(decision)) if decision is not None else ()
    status = log.nav_status.text if log.nav_status is not None else ""
    remembered = decision.remembered if decision is not None else 0
    return DecisionCaption(instruction, words, status, log.link_state, remembered)


@lru_cache(maxsize=1)
def draw_caption(caption: DecisionCaption, scale: int = 1) -> np.ndarray:
    """Draw instruction, words, status, link and legend: RGB uint8 [scale
    CAPTION_HEIGHT_PX, scale CAPTION_WIDTH_PX, 3]; the last one is kept, to be read only."""
    sheet = Image.new(
        "RGB", (scale * CAPTION_WIDTH_PX, scale * CAPTION_HEIGHT_PX), CAPTION_BACKGROUND
    )
    pen = _Pen(ImageDraw.Draw(sheet), scale)
    if caption == DecisionCaption():
        return np.array(sheet)
    pen.write(CAPTION_MARGIN_PX, 0, caption.instruction[:60], CAPTION_INK)
    if caption.remembered:
        pen.write_right(0, f"remembers {caption.remembered}", CAPTION_GREY)
    for x, row, text, fate in _laid_out(pen, caption.words):
        pen.write(x, row + 1, text, FATE_COLOURS[fate])
        if fate == "rejected":
            pen.strike(x, row + 1, text, FATE_COLOURS[fate])
    pen.write(CAPTION_MARGIN_PX, CAPTION_ROWS + 1, caption.status[:44], CAPTION_INK, small=True)
    if caption.link is not None:
        text = f"link: {caption.link}"[:40]
        pen.write_right(CAPTION_ROWS + 1, text, LINK_COLOURS[caption.link.quality])
    x = float(CAPTION_MARGIN_PX)
    for fate in LEGEND:
        pen.write(x, CAPTION_ROWS + 2, FATE_NAMES[fate], FATE_COLOURS[fate], small=True)
        x += pen.wide(FATE_NAMES[fate], small=True) + 2 * CAPTION_MARGIN_PX
    return np.array(sheet)


def annotate(picture: Image.Image, caption: np.ndarray) -> np.ndarray:
    """The picture, scaled to the caption's width, above the caption: RGB uint8 [H, W, 3].

    The picture is drawn at most four times as high as wide, which bounds memory.
    """
    width = caption.shape[1]
    height = max(1, round(width * min(4.0, picture.height / max(1, picture.width))))
    shown = picture.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
    return np.concatenate([np.array(shown), caption])


class _Pen:
    """Writes lines of text; positions in pixels of a sheet of scale 1."""

    def __init__(self, pen: ImageDraw.ImageDraw, scale: int) -> None:
        self._pen, self._scale = pen, scale

    def wide(self, text: str, small: bool = False) -> float:
        return self._pen.textlength(text, _font(self._scale, small)) / self._scale

    def write(self, x: float, row: int, text: str, colour: RGB, small: bool = False) -> None:
        at = (self._scale * x, self._scale * (row * CAPTION_LINE_PX + (5 if small else 3)))
        self._pen.text(at, text, colour, _font(self._scale, small))

    def write_right(self, row: int, text: str, colour: RGB) -> None:
        x = CAPTION_WIDTH_PX - CAPTION_MARGIN_PX - self.wide(text, small=True)
        self.write(x, row, text, colour, small=True)

    def strike(self, x: float, row: int, text: str, colour: RGB) -> None:
        middle = self._scale * (row * CAPTION_LINE_PX + 12)
        ends = (self._scale * x, middle, self._scale * (x + self.wide(text)), middle)
        self._pen.line(ends, colour, self._scale)


@lru_cache(maxsize=8)
def _font(scale: int, small: bool) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(scale * (12 if small else 15))


def _laid_out(pen: _Pen, words: tuple[WordSpan, ...]) -> Iterator[tuple[float, int, str, Fate]]:
    """(x, row) of each word; only the last CAPTION_ROWS rows, which belong to the current
    decision."""
    placed: list[tuple[float, int, str, Fate]] = []
    x, row, blank = float(CAPTION_MARGIN_PX), 0, pen.wide(" ")
    for piece in words:
        for text in piece.text.split():
            text = f"(+{text})" if piece.fate == "left" else text
            wide = pen.wide(text)
            if x + wide > CAPTION_WIDTH_PX - CAPTION_MARGIN_PX and x > CAPTION_MARGIN_PX:
                x, row = float(CAPTION_MARGIN_PX), row + 1
            placed.append((x, row, text, piece.fate))
            x += wide + blank
    skipped = max(0, row + 1 - CAPTION_ROWS)
    for x, row, text, fate in placed:
        if row >= skipped:
            yield x, row - skipped, text, fate
