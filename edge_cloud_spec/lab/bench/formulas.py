"""What a round costs and what it yields: the papers' formulas, without a model or a link.

Times are seconds, sizes bytes, rates bytes per second. ``acceptance`` is the probability that a
drafted token is accepted when all before it were, ``length`` the draft length (gamma; L in TSLT),
``draft`` the draft model's time per token, ``verify`` the target's per pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import numpy as np
from numpy.typing import NDArray

# -- tokens of a round


def acceptance_rate(target: NDArray[np.float64], draft: NDArray[np.float64]) -> float:
    """sum min(P, Q) = 1 - TV(P, Q) of two rows [V] (TSLT lemma 1; Leviathan et al. 2023)."""
    return float(np.minimum(target, draft).sum())


def expected_accepted(acceptances: Sequence[float]) -> float:
    """Accepted tokens of a draft whose acceptances are given by depth, the first token's first.

    Leviathan et al. 2023, eq. 1, less the token after them, with a rate for each depth.
    """
    if not all(0 <= acceptance <= 1 for acceptance in acceptances):
        raise ValueError(f"an acceptance lies between 0 and 1: {acceptances}")
    return float(sum(accumulate(acceptances, mul)))


def expected_tokens_by_depth(acceptances: Sequence[float]) -> float:
    """Tokens of a round: the accepted ones, then the recovered or the bonus token.

    Leviathan et al. 2023, eq. 1, with a rate for each depth.
    """
    return expected_accepted(acceptances) + 1


def expected_tokens(acceptance: float, length: int) -> float:
    """(1 - a^(length + 1)) / (1 - a), summed so that a = 1 needs no case of its own.

    TSLT eq. 8, PicoSpec eq. 5 (Leviathan et al. 2023, eq. 1). TSLT eq. 28 has length * a + 1
    instead, which would need every drafted token to be judged.
    """
    return expected_tokens_by_depth([acceptance] * length)


def streamed_tokens(acceptance: float, length: int) -> float:
    """Tokens of a round whose draft goes on as if all were accepted: there is no bonus token.

    PicoSpec (sec. 3.4) counts one, though the next draft already stands in its place.
    """
    return expected_tokens(acceptance, length - 1)


def rejection_probability(acceptance: float, length: int) -> float:
    """1 - a^length: something is rejected and DSSD sends a row down (sec. 3.1, table 1)."""
    return float(1 - acceptance**length)


# -- payloads and their time on the link


def dense_row_bytes(vocabulary: int, probability_bits: int = 16) -> float:
    """A whole distribution (DSSD eq. 4).

    TSLT eq. 3 adds an index to each value, which a dense row does without; the 0.5 Mbit of its
    section 5 has none.
    """
    return vocabulary * probability_bits / 8


def sparse_row_bytes(kept: int, vocabulary: int, probability_bits: int = 16) -> float:
    """``kept`` token ids of ceil(log2 V) bits, each with its probability (TSLT eq. 3, sec. 3.2)."""
    return kept * (probability_bits + (vocabulary - 1).bit_length()) / 8


def tree_rows(expansion: Sequence[int]) -> int:
    """|Q| of the tree <k1, ..., kL>, a row for each node that has children (TSLT eq. 27)."""
    return 1 + int(sum(accumulate(expansion[:-1], mul)))


def dsd_communication(rows: int, row_bytes: float, rate: float, fixed: float = 0.0) -> float:
    """A row per drafted token up, and the time that does not depend on the size.

    DSSD eq. 5 (``fixed`` is its NTT), TSLT eq. 4; for a tree ``rows`` is ``tree_rows``.
    """
    return rows * row_bytes / rate + fixed


def dssd_communication(
    acceptance: float, length: int, row_bytes: float, rate: float, fixed: float = 0.0
) -> float:
    """One row down, and only after a rejection, on average (DSSD eq. 9)."""
    return rejection_probability(acceptance, length) * row_bytes / rate + fixed


# -- time of a round, and of a token


def autoregressive_time(target: float, rtt: float, tokens: int) -> float:
    """Time per token of the target alone, asked once for an answer (FSD table 4, cloud AR)."""
    return target + rtt / tokens


def stop_and_wait_time(length: int, draft: float, communication: float, verify: float) -> float:
    """A round of vanilla speculative decoding: nothing overlaps.

    DSSD eqs. 6, 7 and 13, TSLT eqs. 5 and 26, FSD table 4 (SD), PicoSpec eqs. 1 and 6.
    """
    return length * draft + communication + verify


def fsd_time(
    length: int,
    draft: float,
    communication: float,
    verify: float,
    cache_miss: float,
    synchronize: float = 0.0,
) -> float:
    """A round in which a pre-draft is ready unless the cache missed (FSD table 4)."""
    drafting = cache_miss * length * draft + (1 - cache_miss) * synchronize
    return drafting + communication + verify


def fsd_speedup(length: int, latency_ratio: float, cache_miss: float) -> float:
    """SD to FSD where communication is free; ``latency_ratio`` is draft / verify (FSD eq. 9)."""
    drafting = length * latency_ratio
    return (drafting + 1) / (cache_miss * drafting + 1)


def picospec_time(length: int, draft: float, rtt: float, verify: float, acceptance: float) -> float:
    """Expected time of a round of parallel drafting (PicoSpec eqs. 8 and 9).

    All accepted, with probability a^length: drafting and rtt + verify overlap (eq. 2). Otherwise
    the next draft is thrown away and the round is a serial one.
    """
    hit = 1 - rejection_probability(acceptance, length)
    overlapped = max(length * draft, rtt + verify)
    return hit * overlapped + (1 - hit) * stop_and_wait_time(length, draft, rtt, verify)


def layer_split_time(edge_share: float, edge: float, cloud: float, rtt: float) -> float:
    """Time per token when the first ``edge_share`` of the target's layers run on the robot.

    ``edge`` and ``cloud`` are times per token of all layers there; every token crosses the link
    (the baseline of SpecEdge sec. 5.3 and PicoSpec sec. 4.2).
    """
    return edge_share * edge + rtt + (1 - edge_share) * cloud


def speedup(tokens: float, round_time: float, target: float) -> float:
    """Throughput over that of the target alone (DSSD eqs. 14 and 15, TSLT eq. 10).

    TSLT eq. 28 charges ``target`` for each token instead of each round, so it never reaches 1, and
    eq. 9 has a bracket too few around its denominator; eq. 10 is right.
    """
    return tokens * target / round_time


# -- choices


def best_draft_length(
    tokens: Callable[[int], float], round_time: Callable[[int], float], lengths: Iterable[int]
) -> int:
    """The length of most expected tokens per second, the first of equal ones (cf. DSSD sec. 4.2).

    Raises ValueError where there is no length to choose from.
    """
    return max(lengths, key=lambda length: tokens(length) / round_time(length))


# -- money


@dataclass(frozen=True)
class Price:
    """Dollars per token that an API charges for a model (FSD table 1)."""

    input: float
    output: float

    def dollars(self, tokens_in: float, tokens_out: float) -> float:
        """The cost of one request."""
        return self.input * tokens_in + self.output * tokens_out


def cloud_ar_dollars(target: Price, tokens_in: int, tokens_out: int) -> float:
    """One request to the target alone (FSD table 1)."""
    return target.dollars(tokens_in, tokens_out)


def edge_cloud_sd_dollars(target: Price, tokens_in: int, tokens_out: int, tokens: float) -> float:
    """One request when the robot drafts and a round yields ``tokens`` (FSD table 1).

    A verify pass is billed as one output token, and the drafted tokens that it reads as nothing:
    the paper's assumption. Its caption calls tau accepted tokens; the figures need all tokens.
    """
    return target.dollars(tokens_in, tokens_out / tokens)


def cloud_sd_dollars(
    target: Price, draft: Price, tokens_in: int, tokens_out: int, tokens: float, length: int
) -> float:
    """The same when the draft model is billed too (FSD table 1)."""
    drafting = draft.dollars(tokens_in, length * tokens_out / tokens)
    return edge_cloud_sd_dollars(target, tokens_in, tokens_out, tokens) + drafting


def tokens_per_dollar(tokens_per_second: float, dollars_per_hour: float) -> float:
    """Cost efficiency of machines rented by the hour (SpecEdge sec. 5)."""
    return tokens_per_second * 3600 / dollars_per_hour
