"""A motion under way: whose it is, until when, and when the next decision may begin."""

from __future__ import annotations

from dataclasses import dataclass

from .action import Action
from .motion import Motion


@dataclass(frozen=True)
class Run:
    """``expiry`` and ``ready_at`` (when the next decision is welcome) in steady seconds."""

    request: str
    action: Action
    motion: Motion
    expiry: float
    ready_at: float
    closed_loop: bool
