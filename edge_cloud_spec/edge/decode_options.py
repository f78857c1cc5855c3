"""What a user chooses of a decode, declared once for all programs, and what a decode follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypedDict

from ..decoding.policy import GREEDY, RULES, SamplingPolicy, check_rule, temperature_of
from ..decoding.preset import Preset
from ..dialects import load_dialect
from ..errors import UserError, check_installed
from ..nav.answer import CLAUSES_FORM, GRAMMARS, ORDERS, Dialect
from ..options import Bounded, bounded, changed, chosen, described
from ..presets import load_preset
from .draft_planner import PlannerSettings

MAX_ANSWER_TOKENS = 65_536


@dataclass(frozen=True)
class DecodeOptions(Bounded):
    """How requests are decoded; raises ValueError.

    Parameters of the drafter node, options of ``decode`` and ``replay``, keyword arguments of
    ``Decoder``, and what the suites of ``bench`` have of these.
    """

    preset: str = described("auto", "name of a preset, or the path of its YAML file")
    rule: str = chosen("greedy", RULES, "acceptance rule")
    temperature: float = bounded(0.8, 0.0, 10.0, "of coupled and rejection; greedy has none, or 0")
    top_k: int = bounded(0, 0, 100_000, "tokens sampled from; 0: all")
    top_p: float = bounded(1.0, 0.01, 1.0, "probability mass sampled from")
    seed: int = bounded(0, 0, 2**63 - 1, "of the sampling; a robot derives each decision's from it")
    grammar: str = described(
        "none",
        "what an answer may be: none (anything), action (what the dialect can read), or the text "
        "of a grammar in llguidance's Lark form",
    )
    dialect: str = described(
        CLAUSES_FORM,
        "in which the target is asked and answers: a name, or the path of its YAML file",
        fixed=True,
    )
    order: str = chosen(ORDERS[0], ORDERS, "what an answer says first")
    max_tokens: int = bounded(128, 1, MAX_ANSWER_TOKENS, "longest answer")
    reply_timeout: float = bounded(
        10.0, 0.2, 120.0, "a decode fails after this long a silence of the cloud, s"
    )
    planner: PlannerSettings = field(default_factory=PlannerSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule != "greedy" and not self.temperature:
            raise ValueError(f"rule {self.rule} goes with a temperature above 0")
        for name in ("preset", "dialect", "grammar"):
            try:
                getattr(self, f"loaded_{name}")
            except UserError as error:
                raise ValueError(f"{name}: {error}") from None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> DecodeOptions:
        """The options with what a user gave, by dotted name.

        Raises UserError, also for a temperature above 0 under ``greedy``, which would do nothing.
        """
        try:
            options = changed(cls(), given)
        except ValueError as error:
            raise UserError(str(error)) from None
        if "temperature" in given:
            check_rule(options.rule, options.temperature)
        return options

    # A change of a file alone has no effect; the next change of any option makes new options, which
    # read it again.
    @cached_property
    def loaded_preset(self) -> Preset:
        """The preset, read once when these options are made."""
        return load_preset(self.preset)

    @cached_property
    def loaded_dialect(self) -> Dialect:
        """The dialect, read once when these options are made."""
        return load_dialect(self.dialect)

    @cached_property
    def loaded_grammar(self) -> str:
        """The text of the grammar; empty: none."""
        if self.grammar != "none":
            check_installed("llguidance", "a grammar")
        if self.grammar in GRAMMARS:
            return self.loaded_dialect.grammar(self.grammar, self.order)
        if "start:" not in self.grammar:
            known = ", ".join(GRAMMARS)
            raise UserError(f"{self.grammar!r:.80} is none of {known}, and has no rule start:")
        return self.grammar

    @property
    def settings(self) -> DecodeSettings:
        """What a decode follows."""
        temperature = temperature_of(self.rule, self.temperature)
        policy = SamplingPolicy(temperature, self.top_k, self.top_p, self.seed, self.loaded_grammar)
        return DecodeSettings(
            self.loaded_preset,
            self.rule,
            policy,
            self.max_tokens,
            self.reply_timeout,
            self.planner,
        )


class DecodeKeywords(TypedDict, total=False):
    """The fields of ``DecodeOptions``, for whoever takes them as keyword arguments."""

    preset: str
    rule: str
    temperature: float
    top_k: int
    top_p: float
    seed: int
    grammar: str
    dialect: str
    order: str
    max_tokens: int
    reply_timeout: float
    planner: PlannerSettings


@dataclass(frozen=True)
class DecodeSettings:
    """What a decode follows; ``reply_timeout`` (s) is as in ``EdgeDecoder``.

    ``max_tokens``: 0 means the prompt specification's limit. ``log_probs``: what they are told of,
    one of ``wire.messages.LOG_PROBS``. Raises UserError.
    """

    preset: Preset
    rule: str = DecodeOptions.rule
    policy: SamplingPolicy = GREEDY
    max_tokens: int = 0
    reply_timeout: float = DecodeOptions.reply_timeout
    planner: PlannerSettings = field(default_factory=PlannerSettings)
    log_probs: str = ""

    def __post_init__(self) -> None:
        check_rule(self.rule, self.policy.temperature)
