"""The drafter's parameters: its model, and how decisions are decoded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from ..decoding.policy import SamplingPolicy, temperature_of
from ..decoding.preset import Preset
from ..dialects import load_dialect
from ..edge.runner import LOOKUP_SUFFIXES, DecodeOptions, DecodeSettings
from ..errors import UserError, check_installed
from ..models.load_drafter import DraftModelSettings
from ..nav.answer import Dialect
from ..nav.history import MOST_TURNS
from ..nav.mission import MissionSettings
from ..options import bounded, chosen
from ..presets import load_preset
from .decision_loop import EXPLAIN, UNTIL_NEXT, LoopSettings
from .pilot import PilotSettings

STOP, CREEP = "stop", "creep"  # while the link is lost
WITHOUT_CLOUD = "edge_only"  # the preset of decisions without the cloud


@dataclass(frozen=True)
class DrafterSettings(DecodeOptions):
    """How decisions are decoded. A decision uses the values of the moment it begins."""

    temperature: float = bounded(0.8, 0.01, 10.0, "of coupled and rejection; greedy has none")
    top_k: int = bounded(0, 0, 100_000, "tokens sampled from; 0: all")
    top_p: float = bounded(1.0, 0.01, 1.0, "probability mass sampled from")
    seed: int = bounded(0, 0, 2**31, "of the sampling; each decision's seed is derived from it")
    first_decision: int = bounded(0, 0, 2**31, "number of the first decision after this is set")
    explain: str = chosen(
        UNTIL_NEXT,
        EXPLAIN,
        "what is decoded after an action: all, all until the next decision, nothing",
    )
    max_tokens: int = bounded(64, 1, 1024, "longest answer")
    reply_timeout: float = bounded(
        10.0, 0.2, 120.0, "a decision fails after this long a silence of the cloud, s"
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
    when_lost: str = chosen(STOP, (STOP, CREEP), "while the link is lost: wait, or decide alone")
    model: DraftModelSettings = field(default_factory=DraftModelSettings)
    mission: MissionSettings = field(default_factory=MissionSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("preset", "dialect"):
            try:
                getattr(self, f"loaded_{name}")
            except UserError as error:
                raise ValueError(f"{name}: {error}") from None
        if self.grammar != "none":
            try:
                check_installed("llguidance", "a grammar")
            except UserError as error:
                raise ValueError(f"grammar: {error}") from None

    # A change of the preset's file alone has no effect; the next change of any parameter makes new
    # settings, which read it again.
    @cached_property
    def loaded_preset(self) -> Preset:
        """The preset, read once when these settings are made."""
        return load_preset(self.preset)

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
        temperature = temperature_of(self.rule, self.temperature)
        grammar = self.loaded_dialect.grammar(self.grammar, self.order)
        policy = SamplingPolicy(temperature, self.top_k, self.top_p, self.seed, grammar)
        return PilotSettings(
            DecodeSettings(
                self.loaded_preset,
                self.rule,
                policy,
                self.max_tokens,
                self.reply_timeout,
                self.planner,
            ),
            LoopSettings(
                self.explain, self.retry, self.camera_lag, self.mission, self.loaded_dialect
            ),
            self.order,
            load_preset(WITHOUT_CLOUD) if self.when_lost == CREEP else None,
        )
