"""The cost model of ``auto``: tokens per second of a shape and a pipeline under measured costs.

A draft model with calibrated probabilities grows the same tree every time. So growing one tree,
with the measured acceptance of first and second choices as probabilities, gives a round's expected
tokens and the probability of each of its ends. The round's duration depends on when the next draft
reaches the cloud: before the current pass ends (the cloud continues at once), or after it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from .policy import GREEDY
from .preset import Speculation
from .propose import Growth, ProposalConfig
from .random_source import SeededRandomSource
from .shape import Shape

Share = tuple[float, bool]  # probability of a round's end, and whether its bonus token is missing

EXIT_DEPTH = 0.3  # share of a pass at which an exit has predicted the verdict; assumed
STEPS = 40  # probabilities are rounded to 1 / STEPS
CHAIN_STEPS = 24  # steps after which the Markov chain of rounds counts as stationary
INSTANT = 1e-9  # seconds
TIME_STEP = 0.1  # relative change of a time that matters
_VOCABULARY = 12  # tokens of the logits that a profile is grown over


@dataclass(frozen=True)
class Costs:
    """Measured times in seconds and probabilities, 0 to 1.

    ``draft``: a pass of the draft model over this many nodes. ``verify``: a pass of the target over
    this many drafted tokens; ``generate``: over none. ``one_way``: the link. ``acceptance``: how
    often a first choice is right; ``runner_up``: how often a second choice is, if the first is
    wrong. ``exits``: how often an early exit predicts a round's verdict. ``verify_without_exits``:
    ``verify`` without exits; None if equal.
    """

    draft: Callable[[int], float]
    verify: Callable[[int], float]
    generate: float
    one_way: float
    acceptance: float
    runner_up: float
    exits: float = 0.0
    verify_without_exits: Callable[[int], float] | None = None


@dataclass(frozen=True)
class DraftProfile:
    """A shape under an acceptance: ``rows`` of each draft pass, ``nodes`` and expected ``tokens``
    of a round, and the probabilities of its ends."""

    rows: tuple[int, ...]  # nodes whose logits each pass needs
    nodes: int
    tokens: float
    leaves: tuple[float, ...]  # probability that the verdict ends in each leaf
    recoveries: tuple[float, ...]  # probability of each recovered token outside the draft


@lru_cache(maxsize=4096)
def profile(shape: Shape, acceptance: float, runner_up: float) -> DraftProfile:
    """The profile of a shape, grown with these probabilities of first and second choices."""
    rest = max(1e-6, (1 - acceptance) * (1 - runner_up)) / (_VOCABULARY - 2)
    beliefs = [
        max(1e-6, acceptance),
        max(1e-6, (1 - acceptance) * runner_up),
        *[rest] * (_VOCABULARY - 2),
    ]
    row = np.log(np.array(beliefs)).astype(np.float32)
    growth = Growth(
        shape, ProposalConfig("greedy", GREEDY), 0, (), SeededRandomSource(0), with_likelihoods=True
    )
    rows = []
    while not growth.done:
        rows.append(len(growth.frontier))
        growth.grow(np.tile(row, (len(growth.frontier), 1)))
    finished = growth.finished()
    reached = growth.likelihoods()
    return DraftProfile(
        tuple(rows),
        len(finished.draft),
        1 + sum(reached),
        tuple(likelihood for _, likelihood in finished.leaves),
        tuple(likelihood for _, likelihood in finished.recoveries),
    )


def rate(shape: Shape, speculation: Speculation, costs: Costs) -> float:
    """The expected tokens per second of this shape and pipeline.

    If the cloud would wait for a draft, it is sent at ``speculation.cut`` levels, so rounds differ
    in depth: they form a Markov chain whose state is the depth of the verified draft.
    """
    if costs.verify_without_exits is not None and not speculation.exits:
        costs = replace(costs, verify=costs.verify_without_exits)
    if not speculation.predicts:
        drafted = _profile_at(shape, shape.depth, costs)
        drafting = sum(costs.draft(rows) for rows in drafted.rows)
        return drafted.tokens / (costs.verify(drafted.nodes) + 2 * costs.one_way + drafting)
    least = min(speculation.cut or shape.depth, shape.depth)
    depths = range(least, shape.depth + 1)
    profiles = [_profile_at(shape, depth, costs) for depth in depths]
    rounds = [_round(each, profiles[-1], depths, speculation, costs) for each in profiles]
    shares = _stationary([[after[depth] for depth in depths] for _, after in rounds])
    # an open verdict brings no bonus token
    tokens = [each.tokens - speculation.open * each.leaves[0] for each in profiles]
    seconds = [mean for mean, _ in rounds]
    return float(np.dot(shares, tokens) / np.dot(shares, seconds))


def _profile_at(shape: Shape, depth: int, costs: Costs) -> DraftProfile:
    return profile(shape.within(depth), _coarse(costs.acceptance), _coarse(costs.runner_up))


def _round(
    drafted: DraftProfile,
    deepest: DraftProfile,
    depths: range,
    speculation: Speculation,
    costs: Costs,
) -> tuple[float, dict[int, float]]:
    """The mean duration (s) of a round with this draft, and the probabilities of the next one's
    ``depths``. ``deepest``: a draft that is not cut.

    Drafting for the next round begins when this draft is sent, one way before its pass. The next
    draft is due when that pass ends, or a round trip later if it is not pushed. Time saved by
    cutting a draft early goes to the draft after it, if that is for a predicted verdict: it gets as
    many more levels, on average, as fit into the time.
    """
    least = depths[0]
    verify, there = costs.verify(drafted.nodes), costs.one_way
    received = verify + 2 * there
    due = verify if speculation.push else received
    # with few drafts ahead, a verdict must arrive before the next draft begins
    begun = max(0.0, 2 * there - (speculation.ahead - 1) * verify) if speculation.push else 0.0
    missed = received + sum(costs.draft(rows) for rows in deepest.rows[:least])
    predictions = _predicted(drafted, speculation, costs)
    at_once = max(1, min(speculation.width // max(deepest.rows), len(predictions)))
    levels = list(accumulate(costs.draft(at_once * rows) for rows in deepest.rows))
    seek = costs.draft(at_once)
    exits = costs.exits if speculation.exits else 0.0
    predicted = EXIT_DEPTH * verify + 2 * there + seek / 2  # on average half of a pass has passed
    left = 1 - sum(share for share, _ in predictions)
    begins = [(left * exits, predicted), (left * (1 - exits), received)]
    for place, (share, bonus) in enumerate(predictions):
        begin = begun + bonus * seek + place // at_once * levels[-1]
        begins += [(share * exits, min(begin, predicted)), (share * (1 - exits), begin)]
    mean, after = 0.0, dict.fromkeys(depths, 0.0)
    for share, begin in begins:
        time = min(max(due, begin + levels[least - 1]), missed)
        mean += share * time
        window = time - begin
        done = max(least, bisect_right(levels, window + INSTANT))
        after[done] += share
        if done < len(levels) and window > levels[done - 1]:
            level = levels[done] - levels[done - 1]
            more = share * (1 - left) * (window - levels[done - 1]) / level
            after[done] -= more
            after[done + 1] += more
    return mean, after


def _predicted(drafted: DraftProfile, speculation: Speculation, costs: Costs) -> tuple[Share, ...]:
    plain = replace(speculation, width=1, cut=0)  # neither changes the ends
    return _likely(drafted, plain, _coarse(costs.acceptance), _coarse(costs.runner_up))


@lru_cache(maxsize=4096)
def _likely(
    drafted: DraftProfile, speculation: Speculation, acceptance: float, runner_up: float
) -> tuple[Share, ...]:
    """The predicted ends of a round, most likely first."""
    found: list[Share] = []
    if speculation.open:
        found.append((drafted.leaves[0], False))
    elif speculation.all_accepted:
        for share in drafted.leaves if speculation.runners_up else drafted.leaves[:1]:
            found.append((share * acceptance, True))
            if speculation.runners_up:
                found.append((share * (1 - acceptance) * runner_up, True))
    if speculation.runners_up:
        found += [(share, False) for share in drafted.recoveries]
    return tuple(sorted((one for one in found if one[0] >= speculation.least), reverse=True))


def _stationary(steps: list[list[float]]) -> NDArray[np.float64]:
    """The stationary distribution [n] of a Markov chain; steps[i][j]: probability from i to j."""
    shares = np.linalg.matrix_power(np.array(steps), CHAIN_STEPS).mean(0)  # from any state
    stationary: NDArray[np.float64] = shares / shares.sum()
    return stationary


def signature(costs: Costs) -> tuple[int, ...]:
    """A key that is equal for costs under which all plans have about the same rates."""
    sizes = (1, 4, 16)
    without = costs.verify_without_exits or costs.verify
    passes = [*map(costs.draft, sizes), *map(costs.verify, sizes), *map(without, sizes)]
    times = (costs.generate, costs.one_way, *passes)
    shares = (costs.acceptance, costs.runner_up, costs.exits)
    return (
        *(round(math.log(max(time, INSTANT)) / TIME_STEP) for time in times),
        *(round(share * STEPS) for share in shares),
    )


def _coarse(share: float) -> float:
    """A probability rounded to STEPS, so that profiles can be cached."""
    return round(share * STEPS) / STEPS


def specedge_depth(draft: float, rtt: float, verify: float) -> int:
    """The draft depth at which verify = drafting + rtt, at least 1 (SpecEdge sec. 4.3); in seconds.

    ``draft``: one pass of the draft model, which makes one level.
    """
    return max(1, round((verify - rtt) / draft))
