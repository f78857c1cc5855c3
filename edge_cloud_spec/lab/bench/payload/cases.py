"""The cases of ``bench payload``: which presets, rules, lengths and temperatures are measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ....decoding.policy import RULES, SamplingPolicy
from ....decoding.preset import Preset
from ....presets import load_preset, preset_names
from ..command import Row

GAMMAS = (4, 8)
TEMPERATURES = (0.3, 0.7, 1.0)
SHARES = (0.1, 0.01, 0.001)  # of the vocabulary: TSLT's K


@dataclass(frozen=True)
class Case:
    """A preset, without what the rule does not use, over one pair of models."""

    tail: str
    vocab: int
    preset: Preset
    rule: str
    temperature: float

    @property
    def nameless(self) -> Case:
        """The case without names: equal ones are measured once."""
        return replace(self, preset=replace(self.preset, name="", summary=""))

    @property
    def distributions(self) -> Case | None:
        """The fields that its P and Q depend on; None where nothing is drawn from Q."""
        preset = self.preset
        if not preset.proposal(self.rule, self.policy(0)).draws:
            return None
        cut = Preset(
            "",
            "",
            preset.drafter,
            draft_length=1,
            payload=preset.payload if preset.payload == "sparse" else "dense",
            draft_top_k=preset.draft_top_k,
            draft_top_p=preset.draft_top_p,
        )
        return replace(self, preset=cut)

    def policy(self, seed: int) -> SamplingPolicy:
        """The sampling policy of its requests."""
        return SamplingPolicy(self.temperature, seed=seed)

    def row(self, measured: Row) -> Row:
        """The row: the case and what was measured of it."""
        return {
            "tail": self.tail,
            "preset": self.preset.name,
            "rule": self.rule,
            "gamma": self.preset.shape.depth,
            "vocab": self.vocab,
            "k": _k(self.preset, self.rule),
            "temperature": self.temperature,
            **measured,
            "exact": self.preset.exact,
        }


def _k(preset: Preset, rule: str) -> int:
    """To how many tokens Q is cut (tslt), or P on its way down (dssd); 0: not at all."""
    split = preset.split_of(rule)
    if split is not None:
        return 0 if split.residual == "dense" else split.top_k
    return preset.draft_top_k if preset.payload_of(rule) == "sparse" else 0


def cases(tail: str, vocab: int, temperatures: Sequence[float] = TEMPERATURES) -> list[Case]:
    """All cases over one pair of models."""
    found = [
        Case(tail, vocab, _effective(preset, rule), rule, temperature)
        for preset in _presets(vocab)
        for rule in RULES
        for temperature in ((0.0,) if rule == "greedy" else temperatures)
    ]
    return list(dict.fromkeys(found))


def _presets(vocab: int) -> Iterator[Preset]:
    """Those that draft on the robot: chains of each length, cut to each share of the vocabulary."""
    tree_depth = load_preset("mc_dsd").shape.depth
    for name in preset_names():
        preset = load_preset(name)
        if not (preset.drafts_on_robot and preset.verified) or preset.speculation.predicts:
            continue
        if not preset.draft_length:
            yield preset
            continue
        for gamma in (tree_depth, *GAMMAS) if name == "dsd" else GAMMAS:
            chain = replace(preset, draft_length=gamma)
            yield chain
            for share in SHARES if preset.payload == "sparse" else ():
                yield replace(chain, draft_top_k=max(1, round(share * vocab)))


def _effective(preset: Preset, rule: str) -> Preset:
    """The preset as the rule uses it: greedy and coupled use its shape only."""
    if rule == "rejection":
        return preset
    return Preset(
        preset.name,
        preset.summary,
        preset.drafter,
        preset.draft_length,
        preset.expansion,
        preset.best_first,
        payload="ids",
    )
