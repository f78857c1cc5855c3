"""What a prompt remembers of its mission: the frames that were decided on, and the answers.

A conversation grows at its end, so that everything before the newest frame is a prefix that both
models have read already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

CHOICES = ("conversation", "last", "uniform")
MOST_TURNS = 64  # earlier frames of one prompt
MOST_KEPT = 512  # frames of one mission, where a prompt takes some of all


def picture_digest(jpeg: bytes) -> bytes:
    """16 bytes that name a picture."""
    return hashlib.blake2b(jpeg, digest_size=16).digest()


@dataclass(frozen=True)
class Turn:
    """An earlier decision of the mission: the camera's frame and the verified answer to it."""

    jpeg: bytes
    answer: str

    @cached_property
    def image_digest(self) -> bytes:
        """16 bytes that name the frame."""
        return picture_digest(self.jpeg)


@dataclass(frozen=True)
class HistorySpec:
    """Which earlier frames a prompt holds: ``frames`` at most, before the newest one; 0: none.

    ``choose``: ``conversation`` keeps frames and answers in their order and drops the older half
    when it is full, so that the prefix stays the same for many decisions; ``last`` takes the last
    frames, ``uniform`` takes frames at equal distances from the first on (NaVILA, section III-A).
    ValueError: there is no such choice.
    """

    frames: int = 0
    choose: str = CHOICES[0]

    def __post_init__(self) -> None:
        if not isinstance(self.frames, int) or not 0 <= self.frames <= MOST_TURNS:
            raise ValueError(f"history frames {self.frames!r}: give 0 to {MOST_TURNS}")
        if self.choose not in CHOICES:
            raise ValueError(f"history choose {self.choose!r}: one of {', '.join(CHOICES)}")

    def kept(self, turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
        """What a mission keeps of its turns, the newest last."""
        if not self.frames:
            return ()
        if (
            self.choose == "uniform"
        ):  # beyond that, of what is kept the most crowded place gives way
            return turns if len(turns) <= MOST_KEPT else _thinned(turns)
        if len(turns) <= self.frames:
            return turns
        size = self.frames if self.choose == "last" else self.frames - self.frames // 2
        return turns[-size:]

    def chosen(self, kept: tuple[Turn, ...]) -> tuple[Turn, ...]:
        """The turns that a prompt holds, of those that are kept."""
        if self.choose != "uniform" or len(kept) <= self.frames:
            return kept
        places = np.linspace(0, len(kept), self.frames, endpoint=False).astype(int)
        return tuple(kept[place] for place in places)


NO_HISTORY = HistorySpec()


def history_digest(turns: Sequence[tuple[bytes, str]]) -> bytes:
    """16 bytes that name these turns, each a frame's digest and an answer; empty for none."""
    digest = b""
    for image, answer in turns:
        digest = hashlib.blake2b(digest + image + answer.encode(), digest_size=16).digest()
    return digest
