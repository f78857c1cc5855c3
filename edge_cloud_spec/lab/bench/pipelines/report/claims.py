"""Papers' published results beside their own formulas and the measurements here, in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....harness.regimes import Regime
from ... import formulas

NEAR = 0.05  # a result this close to its formula agrees with it


@dataclass(frozen=True)
class PublishedClaim:
    """Speed-ups over the target alone of a preset on a paper's own figures."""

    regime: Regime
    preset: str
    measured: float
    formula: float | None
    published: float | None

    @property
    def ratio(self) -> float | None:
        """The published result over the paper's own formula."""
        if self.formula is None or self.published is None:
            return None
        return self.published / self.formula

    @property
    def disagrees(self) -> bool:
        return self.ratio is not None and abs(self.ratio - 1) > NEAR

    @property
    def words(self) -> str:
        """Whether a result and its formula agree, and a likely reason if not."""
        if self.ratio is None:
            return "nothing published" if self.published is None else "the paper has no formula"
        if not self.disagrees:
            return f"result and formula agree within {NEAR:.0%}"
        side = "above" if self.ratio > 1 else "below"
        return f"the result is {abs(self.ratio - 1):.0%} {side} its own formula{self._why()}"

    def _why(self) -> str:
        paper = self.regime.name.split("-")[0]
        assert self.ratio is not None
        why = _WHY.get((paper, self.preset, self.ratio > 1))
        return why(self.regime) if why else ""


def _fsd_above(regime: Regime) -> str:
    best = _speedup(regime, formulas.fsd_time(*_times(regime), cache_miss=0.0))
    return (
        f": table 4's formula needs a cache that never misses to give {best:.2f}; "
        f"the paper reports {1 - regime.exit_hit:.0%} misses"
    )


def _fsd_below(_: Regime) -> str:
    return ": T_r, the synchronizing after a hit, is not printed and counts as 0 in the formula"


def _pico_above(regime: Regime) -> str:
    return f", although that counts a bonus token{_without_bonus(regime)}"


def _pico_below(regime: Regime) -> str:
    return f", which counts a bonus token{_without_bonus(regime)}"


def _without_bonus(regime: Regime) -> str:
    tokens = formulas.streamed_tokens(regime.alpha, regime.gamma)
    time = formulas.picospec_time(*_times(regime), acceptance=regime.alpha)
    return (
        " (eq. 5) that a streamed draft cannot have, since the next draft already stands in its "
        f"place; without it: {tokens * regime.ar_ms / time:.2f}"
    )


def _vanilla_below(_: Regime) -> str:
    return (
        ": presumably its vanilla sends whole rows of Q (tables 2 and 3, w/o Split-rej), which "
        "the regime's link does not count"
    )


_WHY: dict[tuple[str, str, bool], Callable[[Regime], str]] = {
    ("fsd", "fsd", True): _fsd_above,
    ("fsd", "fsd", False): _fsd_below,
    ("pico", "picospec", True): _pico_above,
    ("pico", "picospec", False): _pico_below,
    ("pico", "dsd", False): _vanilla_below,
}


def _times(regime: Regime) -> tuple[int, float, float, float]:
    return regime.gamma, regime.draft_ms, regime.rtt_ms, regime.verify_ms


def _speedup(regime: Regime, time: float) -> float:
    return formulas.speedup(
        formulas.expected_tokens(regime.alpha, regime.gamma), time, regime.ar_ms
    )
