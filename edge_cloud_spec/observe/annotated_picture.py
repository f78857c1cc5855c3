"""The camera's picture with the words of the decision, as people see it in RViz."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from .draft_words import Fate, Words

WIDTH = 480  # pixels of the picture
LINE = 22  # pixels
ROWS = 4  # of words
MARGIN = 8  # pixels
FONT, SCALE, SMALL = cv2.FONT_HERSHEY_SIMPLEX, 0.45, 0.36
BGR = tuple[int, int, int]
INK: BGR = (246, 242, 240)
COLOURS: dict[Fate, BGR] = {
    "drafted": (250, 190, 110),
    "accepted": (120, 220, 120),
    "rejected": (90, 90, 250),
    "left": (140, 140, 140),
    "own": (90, 210, 250),
    "unverified": (250, 120, 250),
}
LEGEND: tuple[tuple[Fate, str], ...] = (
    ("drafted", "drafted"),
    ("accepted", "accepted"),
    ("rejected", "rejected"),
    ("own", "the cloud's own"),
    ("unverified", "not verified"),
)
LINK: dict[str, BGR] = {
    "cloud": (120, 220, 120),
    "degraded": (90, 210, 250),
    "lost": (90, 90, 250),
}


@dataclass(frozen=True)
class Caption:
    """What is written below the picture. ``link`` and ``status`` are states and their details."""

    instruction: str = ""
    words: Sequence[Words] = ()
    status: str = ""
    link: str = ""


def annotate(picture: np.ndarray, caption: Caption) -> np.ndarray:
    """The picture, WIDTH wide, above the caption's lines; BGR uint8 [H, W, 3] in and out."""
    height = max(1, round(picture.shape[0] * WIDTH / picture.shape[1]))
    sheet = np.zeros((height + (ROWS + 3) * LINE, WIDTH, 3), np.uint8)
    sheet[:height] = cv2.resize(picture, (WIDTH, height), interpolation=cv2.INTER_AREA)
    below = sheet[height:]
    state, _, detail = caption.link.partition(" ")
    if state:
        text = f"link: {state} {detail}".strip()[:48]
        _write(below, WIDTH - MARGIN - _wide(text, SMALL), ROWS + 1, text, LINK.get(state, INK))
    _write(below, MARGIN, 0, caption.instruction, INK, SCALE)
    for x, row, text, fate in _laid_out(caption.words):
        _write(below, x, row + 1, text, COLOURS[fate], SCALE)
        if fate == "rejected":
            middle = (row + 1) * LINE + 12
            cv2.line(below, (x, middle), (x + _wide(text, SCALE), middle), COLOURS[fate], 1)
    _write(below, MARGIN, ROWS + 1, caption.status[:40], INK)
    x = MARGIN
    for fate, name in LEGEND:
        if any((caption.instruction, caption.words)):
            _write(below, x, ROWS + 2, name, COLOURS[fate])
            x += _wide(name, SMALL) + 2 * MARGIN
    return sheet


def _laid_out(words: Sequence[Words]) -> Iterator[tuple[int, int, str, Fate]]:
    """(x, row) of each word; the last ROWS rows, as those are what is decided now."""
    placed, x, row = [], MARGIN, 0
    for piece in words:
        for text in piece.text.split():
            text = f"(+{text})" if piece.fate == "left" else text
            wide = _wide(text, SCALE)
            if x + wide > WIDTH - MARGIN and x > MARGIN:
                x, row = MARGIN, row + 1
            placed.append((x, row, text, piece.fate))
            x += wide + MARGIN
    skipped = max(0, row + 1 - ROWS)
    for x, row, text, fate in placed:
        if row >= skipped:
            yield x, row - skipped, text, fate


def _wide(text: str, scale: float) -> int:
    return int(cv2.getTextSize(_printable(text), FONT, scale, 1)[0][0])


def _write(
    sheet: np.ndarray, x: int, row: int, text: str, colour: BGR, scale: float = SMALL
) -> None:
    origin = (x, LINE * row + 16)
    cv2.putText(sheet, _printable(text), origin, FONT, scale, colour, 1, cv2.LINE_AA)


def _printable(text: str) -> str:
    return text.encode("ascii", "replace").decode()
