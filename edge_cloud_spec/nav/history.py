"""The earlier frames and answers of a mission that a prompt contains.

A conversation grows at its end, so both models have already read everything before the newest
frame.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ..errors import refuse
from ..request import MOST_PICTURES, Picture

CHOICES = CONVERSATION, LAST_FRAMES, UNIFORM, SPREAD = "conversation", "last", "uniform", "spread"
FRAMES_PLACE = "{frames}"  # the place of the pictures in the text around them
MOST_TURNS = MOST_PICTURES - 1  # earlier frames of one prompt
MAX_ANSWER_CHARACTERS = 4096  # characters of an answer that is remembered
MOST_KEPT = 512  # frames of one mission, where a prompt takes some of all


@dataclass(frozen=True)
class Turn:
    """An earlier decision of the mission: its frame, the verified answer to it, and the free space
    that its prompt told."""

    picture: Picture
    answer: str
    free_space: str = ""

    @classmethod
    def of(cls, jpeg: bytes, answer: str, free_space: str = "") -> Turn:
        """The turn of this frame and answer."""
        return cls(Picture.of(jpeg), answer, free_space)


@dataclass(frozen=True)
class HistorySpec:
    """Which earlier frames a prompt contains: at most ``frames``, before the newest one; 0: none.

    ``choose``: a ``conversation`` keeps frames and answers in order. When it is full it begins
    anew with its newest turn, the only one that is read twice. ``last`` takes the last frames,
    ``uniform`` frames at equal distances with the first one (as NaVILA does), ``spread`` the same
    with the first and the newest one (as InternVLA-N1 does). ``text`` stands around the frames, at
    ``{history}`` in the user's text, where there are frames. ``size``: WIDTHxHEIGHT in pixels to
    which every picture is stretched; empty: none is. ValueError: a value is wrong.
    """

    frames: int = 0
    choose: str = CONVERSATION
    text: str = FRAMES_PLACE
    size: str = ""

    def __post_init__(self) -> None:
        refuse(
            (
                not isinstance(self.frames, int) or not 0 <= self.frames <= MOST_TURNS,
                f"history frames {self.frames!r}: give 0 to {MOST_TURNS}",
            ),
            (
                self.choose not in CHOICES,
                f"history choose {self.choose!r}: one of {', '.join(CHOICES)}",
            ),
            (
                not isinstance(self.text, str) or self.text.count(FRAMES_PLACE) != 1,
                f"history text {self.text!r}: it holds {FRAMES_PLACE} once",
            ),
            (
                not isinstance(self.size, str) or (self.size and min(self.stretched or (0,)) < 1),
                f"history size {self.size!r}: give WIDTHxHEIGHT in pixels, as 384x384",
            ),
            (
                self.choose == CONVERSATION and self.text != FRAMES_PLACE,
                "history text: a conversation has no text around its frames",
            ),
            error=ValueError,
        )

    @property
    def stretched(self) -> tuple[int, int] | None:
        """Width and height in pixels to which every picture is stretched; None: none is."""
        sides = re.fullmatch(r"(\d{1,4})x(\d{1,4})", self.size)
        return (int(sides[1]), int(sides[2])) if sides else None

    def kept(self, turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
        """The turns that a mission must remember, the newest last."""
        if not self.frames:
            return ()
        if self.choose in (UNIFORM, SPREAD):
            return turns if len(turns) <= MOST_KEPT else turns[::2]
        if len(turns) <= self.frames:
            return turns
        return turns[-self.frames :] if self.choose == LAST_FRAMES else turns[-1:]

    def chosen(self, kept: tuple[Turn, ...]) -> tuple[Turn, ...]:
        """Of the kept turns those that a prompt holds."""
        if self.choose not in (UNIFORM, SPREAD) or len(kept) <= self.frames:
            return kept
        ends = self.choose == SPREAD
        places = np.linspace(0, len(kept) - ends, self.frames, endpoint=ends).astype(int)
        return tuple(kept[place] for place in places)


NO_HISTORY = HistorySpec()
