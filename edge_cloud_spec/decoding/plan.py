"""What a shape and a pipeline would yield under measured costs: the cost model of ``auto``.

A draft model whose beliefs are calibrated grows the same tree every time, so one growth over rows
that say how often its first and second choice are right tells the tokens of a round and how likely
each end of it is. A round's time follows from when the draft for the end that comes true reaches
the cloud: before the verdict is out (it goes straight on), or after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .choose import SeededChooser
from .policy import GREEDY
from .propose import Recipe
from .shape import Growth, Shape
from .speculation import Speculation

EXIT_DEPTH = 0.3  # share of a pass after which an exit has predicted its verdict; assumed
STEPS = 40  # of a share, in profiles
_WORDS = 12  # of the vocabulary that a profile is grown over


@dataclass(frozen=True)
class Costs:
    """Measured times in seconds and shares from 0 to 1.

    ``draft``: a pass of the draft model over so many nodes. ``verify``: a pass of the target over
    so many drafted tokens; ``alone``: over none. ``one_way``: the link. ``acceptance``: of the
    draft's first choice, ``runner_up``: of its second, where the first is wrong. ``exits``: share
    of rounds that an early exit predicts.
    """

    draft: Callable[[int], float]
    verify: Callable[[int], float]
    alone: float
    one_way: float
    acceptance: float
    runner_up: float
    exits: float = 0.0


@dataclass(frozen=True)
class Profile:
    """A shape under an acceptance: nodes of each pass, tokens of a round, its likely ends."""

    rows: tuple[int, ...]  # nodes whose logits each pass needs
    nodes: int
    tokens: float
    sure: float  # of the likeliest path
    guesses: tuple[float, ...]


@lru_cache(maxsize=4096)
def profile(shape: Shape, acceptance: float, runner_up: float) -> Profile:
    """Grow the shape over calibrated beliefs."""
    rest = max(1e-6, (1 - acceptance) * (1 - runner_up)) / (_WORDS - 2)
    beliefs = [acceptance, max(1e-6, (1 - acceptance) * runner_up), *[rest] * (_WORDS - 2)]
    row = np.log(np.array(beliefs)).astype(np.float32)
    growth = Growth(shape, Recipe("greedy", GREEDY), 0, (), SeededChooser(0), guesses=True)
    rows = []
    while not growth.done:
        rows.append(len(growth.frontier))
        growth.grow(np.tile(row, (len(growth.frontier), 1)))
    whole = growth.whole()
    reached = growth.likelihoods()
    return Profile(
        tuple(rows),
        len(whole.draft),
        1 + sum(reached),
        whole.sure,
        tuple(likelihood for _, likelihood in whole.guesses),
    )


def rate(shape: Shape, speculation: Speculation, costs: Costs) -> float:
    """Tokens per second that this shape and pipeline promise."""
    told = profile(shape, _coarse(costs.acceptance), _coarse(costs.runner_up))
    verify, there = costs.verify(told.nodes), costs.one_way
    alone = sum(costs.draft(rows) for rows in told.rows)
    missed = verify + 2 * there + alone
    if not speculation.guesses:
        return told.tokens / missed
    ends = _ends(told, speculation, costs)
    predicted = EXIT_DEPTH * verify + there + alone if speculation.exits else missed
    shares = costs.exits if speculation.exits else 0.0

    def time(done: float, start: float) -> float:
        """From one pass of the target to the next, when the right draft takes this long."""
        by_guess = min(missed, max(verify, start + done + there))
        by_exit = min(by_guess, max(verify, predicted + there))
        return (1 - shares) * by_guess + shares * by_exit

    left = 1 - sum(share for share, _ in ends)
    # After a hit the robot hears of it one way later than after a miss, where it just has sent.
    times, hits = [], []
    for start in (-there, there):
        times.append(sum(s * time(done, start) for s, done in ends) + left * time(missed, start))
        hits.append(sum(s for s, done in ends if start + done <= verify))
    after_hit = hits[0] / max(1e-9, 1 - hits[1] + hits[0])
    return told.tokens / ((1 - after_hit) * times[0] + after_hit * times[1])


def _coarse(share: float) -> float:
    """In steps that hardly matter, so that profiles are found again."""
    return round(share * STEPS) / STEPS


def _ends(told: Profile, speculation: Speculation, costs: Costs) -> list[tuple[float, float]]:
    """The guessed ends of a round: share, and seconds of drafting until its draft is whole.

    That all is accepted takes a pass more, for the token that would follow.
    """
    bonus = costs.draft(1) if speculation.all_accepted and not speculation.open else 0.0
    sure = told.sure if speculation.open else told.sure * costs.acceptance
    guessed = [(sure, bonus)] if speculation.all_accepted else []
    if speculation.runners_up:
        guessed += [(share, 0.0) for share in told.guesses]
        if bonus:
            guessed.append((told.sure * (1 - costs.acceptance) * costs.runner_up, bonus))
    guessed = sorted((g for g in guessed if g[0] >= speculation.least), reverse=True)
    at_once = max(1, speculation.width // max(told.rows))
    ends = []
    spent = 0.0
    for start in range(0, len(guessed), at_once):
        group = guessed[start : start + at_once]
        spent += max(extra for _, extra in group)
        spent += sum(costs.draft(len(group) * rows) for rows in told.rows)
        ends += [(share, spent) for share, _ in group]
    return ends
