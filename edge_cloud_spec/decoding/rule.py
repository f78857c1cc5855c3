"""The acceptance rules by name, and the temperatures that go with each."""

from __future__ import annotations

from ..errors import UserError

RULES = ("greedy", "coupled", "rejection")


def check_rule(rule: str, temperature: float) -> None:
    """Raise UserError for an unknown rule, or one that does not go with this temperature."""
    if rule not in RULES:
        raise UserError(f"rule must be {', '.join(RULES[:-1])} or {RULES[-1]}, not {rule!r}")
    if (rule == "greedy") != (temperature == 0):
        raise UserError(
            "rule greedy goes with temperature 0, coupled and rejection with one above 0; "
            f"got {rule} at {temperature:g}"
        )


def temperature_of(rule: str, sampling: float) -> float:
    """The temperature of a decode: 0 under greedy, ``sampling`` under the rules that sample."""
    return 0.0 if rule == "greedy" else sampling


def seeded_rule(temperature: float) -> str:
    """The rule whose answer depends on the seed alone, not on drafts: at 0 greedy, else coupled."""
    return "coupled" if temperature else "greedy"
