"""The papers' formulas give their printed digits; where print differs, tests say what is right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec_lab.bench.formulas import (
    expected_tokens,
    fsd_time,
    picospec_time,
    rejection_probability,
    stop_and_wait_time,
)

SHARES = st.floats(0, 1)
LENGTHS = st.integers(1, 12)
TIMES = st.floats(1e-4, 10)


def speedup(tokens: float, round_time: float, target: float) -> float:
    """Throughput over that of the target alone (DSSD eqs. 14 and 15, TSLT eq. 10).

    TSLT eq. 28 charges ``target`` for each token instead of each round, so it never reaches 1, and
    eq. 9 has a bracket too few around its denominator; eq. 10 is right.
    """
    return tokens * target / round_time


# Tokens of a round


@given(st.floats(0, 0.99), st.integers(0, 40))
def test_expected_tokens_is_the_closed_form(acceptance: float, length: int) -> None:
    closed = (1 - acceptance ** (length + 1)) / (1 - acceptance)
    assert expected_tokens(acceptance, length) == pytest.approx(closed)
    assert expected_tokens(1, length) == length + 1


# DSSD


DSSD_ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.99)


@pytest.mark.parametrize(
    ("length", "printed"),
    [
        (2, "0.75 26.00 0.64 25.12 0.51 24.08 0.36 22.88 0.19 21.52 0.02 20.16"),
        (4, "0.94 27.50 0.87 26.96 0.76 26.08 0.59 24.72 0.34 22.75 0.04 20.32"),
        (6, "0.98 27.88 0.95 27.63 0.88 27.06 0.74 25.90 0.47 23.75 0.06 20.47"),
        (8, "1.00 27.97 0.98 27.87 0.94 27.54 0.83 26.66 0.57 24.56 0.08 20.62"),
    ],
)
def test_dssd_table_1(length: int, printed: str) -> None:
    """A row down after a rejection, on average (eq. 9), with 20 ms beside it."""
    rejected = [rejection_probability(alpha, length) for alpha in DSSD_ALPHAS]
    row_ms = 50_000 * 16 / 100e3  # tokens, bits each, at 100 Mbit/s (eq. 4)
    assert " ".join(f"{share:.2f} {share * row_ms + 20:.2f}" for share in rejected) == printed


# FSD

FSD = {  # tables 5, 6 and 8: drafting of 4 tokens, verify, one way in ms; cache miss; tau
    "go2": (288, 620, 120, 0.5563, 2.92),
    "vicuna7b-jetson": (334, 497, 95, 0.6561, 2.15),
    "vicuna7b-rtx": (102, 442, 42, 0.1959, 2.10),
    "vicuna13b-jetson": (1596, 616, 91, 0.6205, 2.25),
    "vicuna13b-rtx": (555, 618, 46, 0.2795, 2.40),
    "llama7b-jetson": (301, 522, 96, 0.3994, 4.03),
    "llama7b-rtx": (99, 467, 47, 0.0963, 3.54),
}


@pytest.mark.parametrize(
    ("name", "per_token", "published", "formula"),
    [  # ms per token of SD and FSD; then the speed-ups AR to SD and SD to FSD
        ("go2", "393.2 349.4", "0.90 1.34", "1.58 1.13"),
        ("vicuna7b-jetson", "474.9 421.5", "0.69 1.04", "1.05 1.13"),
        ("vicuna7b-rtx", "299.0 260.0", "1.20 1.06", "1.48 1.15"),
        ("vicuna13b-jetson", "1064.0 794.8", "0.42 1.05", "0.58 1.34"),
        ("vicuna13b-rtx", "527.1 360.5", "0.94 1.10", "1.17 1.46"),
        ("llama7b-jetson", "251.9 207.0", "1.35 1.11", "2.08 1.22"),
        ("llama7b-rtx", "186.4 161.2", "1.94 1.06", "2.51 1.16"),
    ],
)
def test_fsd_speedups_are_not_those_of_its_own_table_4(
    name: str, per_token: str, published: str, formula: str
) -> None:
    """Table 4 gives ``formula``; tables 6 and 8 print ``published``.

    AR to SD comes out lower in print because the verify time holds the exits, which the target
    alone does without. SD to FSD comes out lower too, but for the robot.
    """
    drafting, verify, one_way, miss, tau = FSD[name]
    sd = stop_and_wait_time(4, drafting / 4, 2 * one_way, verify)
    fsd = fsd_time(4, drafting / 4, 2 * one_way, verify, miss)
    ar = verify + 2 * one_way / 200  # a round trip for an answer of 200 tokens
    assert f"{sd / tau:.1f} {fsd / tau:.1f}" == per_token
    assert f"{speedup(tau, sd, ar):.2f} {sd / fsd:.2f}" == formula != published


@given(LENGTHS, TIMES, TIMES, TIMES, SHARES)
def test_fsd_waits_for_its_draft_only_on_a_miss(
    length: int, draft: float, link: float, verify: float, miss: float
) -> None:
    serial = stop_and_wait_time(length, draft, link, verify)
    assert fsd_time(length, draft, link, verify, 1) == pytest.approx(serial)
    assert fsd_time(length, draft, link, verify, 0) == pytest.approx(link + verify)
    assert fsd_time(length, draft, link, verify, miss) <= serial * (1 + 1e-9)


# PicoSpec

# Tables 1 to 3 in ms: drafting and rtt + verify, first where serial; the target alone; and the
# acceptance that gives the accepted length printed.
PICOSPEC = {
    "qwen-gsm8k": ((123.91, 119.81), (97.46, 87.35), 72.0, 0.644),
    "qwen-humaneval": ((124.08, 119.03), (97.17, 78.04), 70.5, 0.482),
    "llama-gsm8k": ((190.56, 194.68), (171.05, 166.46), 145.6, 0.923),
    "llama-humaneval": ((189.68, 186.60), (172.41, 182.96), 145.8, 0.985),
}


@pytest.mark.parametrize(
    ("name", "published", "formula", "streamed"),
    [
        ("qwen-gsm8k", "0.58 1.45", "0.74 1.06", "0.99"),
        ("qwen-humaneval", "0.44 1.13", "0.55 0.78", "0.75"),
        ("llama-gsm8k", "1.35 2.51", "1.62 2.88", "2.39"),
        ("llama-humaneval", "1.45 2.90", "1.88 3.66", "2.95"),
    ],
)
def test_picospec_speedups_are_not_those_of_its_own_formulas(
    name: str, published: str, formula: str, streamed: str
) -> None:
    """Vanilla SD and PicoSpec by eqs. 5 to 9 from the paper's own times and accepted lengths.

    ``streamed`` leaves out the bonus token that a streamed draft cannot have.
    """
    (alone, answer), (drafting, verify), ar, alpha = PICOSPEC[name]
    serial = stop_and_wait_time(1, alone, 0, answer)
    round_time = picospec_time(4, drafting / 4, 0, verify, alpha)
    tokens = expected_tokens(alpha, 4)
    ours = f"{speedup(tokens, serial, ar):.2f} {speedup(tokens, round_time, ar):.2f}"
    assert ours == formula != published
    assert f"{speedup(expected_tokens(alpha, 3), round_time, ar):.2f}" == streamed


@given(LENGTHS, TIMES, TIMES, TIMES, SHARES, SHARES)
def test_picospec_lies_between_the_longer_side_and_the_serial_round(
    length: int, draft: float, rtt: float, verify: float, one: float, other: float
) -> None:
    low, high = sorted((one, other))

    def at(acceptance: float) -> float:
        return picospec_time(length, draft, rtt, verify, acceptance)

    serial = stop_and_wait_time(length, draft, rtt, verify)
    assert at(0) == pytest.approx(serial)
    assert at(1) == pytest.approx(max(length * draft, rtt + verify))
    assert at(high) <= at(low) * (1 + 1e-9)
    assert serial <= 2 * at(1) * (1 + 1e-9)  # eq. 10: overlapping two things gains twofold at most
