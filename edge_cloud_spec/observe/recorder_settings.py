"""The recorder's parameters."""

from __future__ import annotations

from dataclasses import dataclass

from ..bounds import described


@dataclass(frozen=True)
class RecorderSettings:
    """Where the recorder writes."""

    folder: str = described("", "of the bag; empty: bags/ and the time", fixed=True)
