"""PicoSpec's speed-ups by its own formulas, which are not those that it prints."""

from __future__ import annotations

import pytest
from helpers.cost_units import LENGTHS, SHARES, TIMES
from hypothesis import given

from edge_cloud_spec.lab.bench.formulas import (
    expected_tokens,
    picospec_time,
    speedup,
    stop_and_wait_time,
    streamed_tokens,
)

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
    assert f"{speedup(streamed_tokens(alpha, 4), round_time, ar):.2f}" == streamed


def test_picospec_prints_more_tokens_per_round_than_four_drafted_tokens_can_give() -> None:
    """Its tables: llama-humaneval, 19.88 tokens/s at 272.93 ms a round; accepted length 4.90."""
    assert 19.88 * 0.27293 > expected_tokens(1, 4) == 5
    assert streamed_tokens(1, 4) == 4 < 4.90


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
