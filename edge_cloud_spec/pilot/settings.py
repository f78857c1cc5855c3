"""The drafter's parameters: its model, and how decisions are decoded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from ..dialects import load_dialect
from ..edge.decode_options import DecodeOptions
from ..edge.runner import LOOKUP_SUFFIXES
from ..models.load_drafter import DraftModelSettings
from ..nav.answer import Dialect
from ..nav.history import MOST_TURNS
from ..nav.mission import MissionSettings
from ..options import bounded, chosen, like
from ..presets import load_preset
from .decision_loop import EXPLAIN, EXPLAIN_UNTIL_NEXT, LoopSettings
from .pilot import PilotSettings

WHEN_LOST_STOP, WHEN_LOST_CREEP = "stop", "creep"
WITHOUT_CLOUD = "edge_only"  # the preset of decisions without the cloud


@dataclass(frozen=True)
class DrafterSettings(DecodeOptions):
    """How decisions are decoded. A decision uses the values of the moment it begins."""

    seed: int = like(DecodeOptions, "seed", high=2**31 - 1)
    # An action and a short reason, so that an answer that rambles keeps no robot waiting.
    max_tokens: int = like(DecodeOptions, "max_tokens", default=64)
    first_decision: int = bounded(0, 0, 2**31, "number of the first decision after this is set")
    explain: str = chosen(
        EXPLAIN_UNTIL_NEXT,
        EXPLAIN,
        "what is decoded after an action: all, all until the next decision, nothing",
    )
    retry: float = bounded(1.0, 0.1, 60.0, "pause after a decision that failed, s")
    camera_lag: float = bounded(
        0.0, 0.0, 10.0, "how much older a picture is than its stamp says, s"
    )
    history: int = bounded(
        -1, -1, MOST_TURNS, "earlier frames that a prompt remembers; -1: as the dialect has it"
    )
    lookup_suffixes: int = bounded(
        LOOKUP_SUFFIXES,
        0,
        2**24,
        "suffixes of verified answers that it drafts from, 44 bytes each; 0: none",
        fixed=True,
    )
    when_lost: str = chosen(
        WHEN_LOST_STOP,
        (WHEN_LOST_STOP, WHEN_LOST_CREEP),
        "while the link is lost: wait, or decide alone",
    )
    model: DraftModelSettings = field(default_factory=DraftModelSettings)
    mission: MissionSettings = field(default_factory=MissionSettings)

    @cached_property
    def loaded_dialect(self) -> Dialect:
        """The dialect, read once when these settings are made, with this history."""
        dialect = load_dialect(self.dialect)
        if self.history < 0:
            return dialect
        return replace(dialect, history=replace(dialect.history, frames=self.history))

    @property
    def caution(self) -> str:
        """What the dialect's models were trained for and are not given; empty: nothing."""
        dialect = self.loaded_dialect
        if dialect.several_frames and not dialect.history.frames:
            return f"{dialect.name} was trained on several pictures: it is shown one"
        return ""

    @cached_property
    def pilot(self) -> PilotSettings:
        """The pilot's settings from these parameters."""
        return PilotSettings(
            self.settings,
            LoopSettings(self.explain, self.retry, self.camera_lag, self.mission),
            self.order,
            load_preset(WITHOUT_CLOUD) if self.when_lost == WHEN_LOST_CREEP else None,
            self.loaded_dialect,
        )
