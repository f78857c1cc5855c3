"""A recorded run played to the real nodes again, and what they decide compared with it."""

from __future__ import annotations

from .command import add_replay_arguments, run_replay

__all__ = ["add_replay_arguments", "run_replay"]
