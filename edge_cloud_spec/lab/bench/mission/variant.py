"""What a row of ``bench mission`` is about: a preset, and how it is used."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from ....decoding.policy import RULES, temperature_of
from ....decoding.preset import Preset
from ....errors import UserError
from ....nav.answer import GRAMMARS
from ....nav.decision_loop import EXPLAIN, FULL
from ....nav.settings import Settings
from ....presets import load_preset
from ...harness.emulated_link import LinkProfile
from ...harness.mission.virtual_robot import MissionConditions
from ...harness.regimes import Regime

BASELINE = "cloud_ar"
LOOKUP = ("", "on", "off")
OPTIONS = ("rule", "explain", "lead_time", "lookup", "grammar", "look")  # of a preset
NUMBERS = ("lead_time", "look")  # among them


@dataclass(frozen=True)
class Variant:
    """A preset with its options, as ``--presets`` writes it: NAME[:OPTION=VALUE]...

    ``rtt_ms`` and ``outage`` (every, for; s) are the link's. ``lookup``: empty for what the preset
    says. ``look``: the share of a picture's tokens that the draft model keeps, and of the time that
    it needs to read them. Raises UserError.
    """

    preset: str
    rtt_ms: float = 0.0
    outage: tuple[float, float] = (0.0, 0.0)
    rule: str = "greedy"
    explain: str = FULL
    lead_time: float = 0.0
    lookup: str = ""
    grammar: str = "none"
    look: float = 1.0

    def __post_init__(self) -> None:
        _ = self.loaded_preset
        for name, value, known in (
            ("rule", self.rule, RULES),
            ("explain", self.explain, EXPLAIN),
            ("lookup", self.lookup, LOOKUP),
            ("grammar", self.grammar, GRAMMARS),
        ):
            if value not in known:
                choices = ", ".join(filter(None, known))
                raise UserError(f"{name} {value!r} is unknown: choose one of {choices}")
        if not 0 < self.look <= 1:
            raise UserError(f"look is {self.look:g}: give a share of the picture, above 0 to 1")
        try:
            self.navigator_settings()
        except ValueError as error:
            raise UserError(str(error)) from None

    def navigator_settings(self) -> Settings:
        """The navigator's; ValueError for a lead time out of its range."""
        return Settings(lead_time=self.lead_time)

    @property
    def loaded_preset(self) -> Preset:
        """The preset, with or without looking up as it was asked for; raises UserError."""
        preset = load_preset(self.preset)
        return replace(preset, lookup=self.lookup == "on") if self.lookup else preset

    @property
    def label(self) -> str:
        """The preset, and what is not as usual."""
        usual = Variant(self.preset, self.rtt_ms, self.outage)
        changed = (f.name for f in fields(self) if getattr(self, f.name) != getattr(usual, f.name))
        return " ".join([self.preset, *(f"{name}={getattr(self, name)}" for name in changed)])

    def repeats(self, other: Variant) -> bool:
        """Whether its decisions are to be those of the other, on the same frames."""
        exact = all(each.loaded_preset.exact and each.lead_time == 0 for each in (self, other))
        same = (self.rule, self.grammar) == (other.rule, other.grammar)
        return exact and same and self.rule != "rejection"

    def baseline(self, variants: Sequence[Variant]) -> Variant | None:
        """The target alone under the same conditions, or at least over the same link."""
        alone = [v for v in variants if v.preset == BASELINE and v.link == self.link]
        same = [v for v in alone if replace(v, preset=self.preset, lookup=self.lookup) == self]
        return next(iter(same or alone), None)

    @property
    def link(self) -> tuple[float, float, float]:
        """Round trip and outages."""
        return self.rtt_ms, *self.outage

    def conditions(self, regime: Regime) -> MissionConditions:
        """What a robot's missions are carried out under."""
        seen = replace(regime, draft_prefill_ms=self.look * regime.draft_prefill_ms)
        return MissionConditions(
            preset=self.loaded_preset,
            regime=seen.with_rtt(self.rtt_ms),
            link=LinkProfile(self.rtt_ms / 2, 0.0, 0.0, *self.outage),
            rule=self.rule,
            temperature=temperature_of(self.rule, 0.8),
            look=self.look,
            explain=self.explain,
            grammar=self.grammar,
            navigator=self.navigator_settings(),
        )


def variants_of(args: argparse.Namespace, regime: Regime) -> list[Variant]:
    """Those that ``--presets`` names, over each round trip; raises UserError."""
    names = ("explain", "lead_time", "outage", "grammar")
    usual = {name: getattr(args, name) for name in names}
    return [
        _variant(text, rtt_ms=rtt, **usual)
        for rtt in args.rtt or [regime.rtt_ms]
        for text in args.presets.split(",")
    ]


def _variant(text: str, **usual: object) -> Variant:
    preset, *options = text.split(":")
    given: dict[str, object] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in OPTIONS or not value:
            raise UserError(
                f"--presets {text}: {option!r} is no OPTION=VALUE; options are "
                f"{', '.join(OPTIONS)}, as in {preset}:explain=none:lead_time=-1"
            )
        if name in given:
            raise UserError(f"--presets {text}: {name} is given twice")
        try:
            given[name] = float(value) if name in NUMBERS else value
        except ValueError:
            raise UserError(f"--presets {text}: {value!r} is no number") from None
    return Variant(preset, **(usual | given))  # type: ignore[arg-type]
