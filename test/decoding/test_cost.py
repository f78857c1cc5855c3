"""The cost formulas give the papers' printed digits; where they do not, it says what they give."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_cloud_spec.bench.formulas import (
    Price,
    acceptance_rate,
    autoregressive_time,
    best_draft_length,
    cloud_ar_dollars,
    cloud_sd_dollars,
    dense_row_bytes,
    dsd_communication,
    dssd_communication,
    edge_cloud_sd_dollars,
    expected_accepted,
    expected_tokens,
    expected_tokens_by_depth,
    fsd_speedup,
    fsd_time,
    layer_split_time,
    picospec_time,
    rejection_probability,
    sparse_row_bytes,
    speedup,
    stop_and_wait_time,
    streamed_tokens,
    tokens_per_dollar,
    tree_rows,
)
from edge_cloud_spec.decoding.cost_model import specedge_depth

MBIT = 1e6 / 8  # bytes
MS = 1e-3  # seconds
SHARES = st.floats(0, 1)
LENGTHS = st.integers(1, 12)
TIMES = st.floats(1e-4, 10)


def truncated(number: float, digits: int) -> str:
    """A number printed with its further digits cut off."""
    return f"{math.floor(number * 10**digits) / 10**digits:.{digits}f}"


# -- tokens of a round


@given(st.lists(SHARES, max_size=6))
def test_expected_accepted_is_the_mean_over_every_outcome(acceptances: list[float]) -> None:
    mean = 0.0
    for outcome in product((True, False), repeat=len(acceptances)):
        chance = math.prod(
            a if kept else 1 - a for a, kept in zip(acceptances, outcome, strict=True)
        )
        mean += chance * (*outcome, False).index(False)
    assert expected_accepted(acceptances) == pytest.approx(mean)
    assert expected_tokens_by_depth(acceptances) == expected_accepted(acceptances) + 1


@given(st.floats(0, 0.99), st.integers(0, 40))
def test_expected_tokens_is_the_closed_form(acceptance: float, length: int) -> None:
    closed = (1 - acceptance ** (length + 1)) / (1 - acceptance)
    assert expected_tokens(acceptance, length) == pytest.approx(closed)


@given(SHARES, SHARES, LENGTHS)
def test_expected_tokens_grow_with_the_acceptance_up_to_the_bonus(
    one: float, other: float, length: int
) -> None:
    low, high = sorted((one, other))
    fewer, more = expected_tokens(low, length), expected_tokens(high, length)
    assert 1 <= fewer <= more <= length + 1
    assert expected_tokens(0, length) == 1
    assert expected_tokens(1, length) == length + 1
    assert expected_tokens(1 - 1e-15, length) == pytest.approx(length + 1)


@given(SHARES, LENGTHS)
def test_a_streamed_round_is_the_round_without_its_bonus(acceptance: float, length: int) -> None:
    bonus = acceptance**length
    assert streamed_tokens(acceptance, length) == pytest.approx(
        expected_tokens(acceptance, length) - bonus
    )


@pytest.mark.parametrize("acceptances", [[1.1], [0.5, -0.1], [math.nan]])
def test_what_is_no_probability_is_refused(acceptances: list[float]) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        expected_accepted(acceptances)


# -- DSSD

DSSD_ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.99)
DSSD_TABLE_1 = {
    2: "0.75 26.00 0.64 25.12 0.51 24.08 0.36 22.88 0.19 21.52 0.02 20.16",
    4: "0.94 27.50 0.87 26.96 0.76 26.08 0.59 24.72 0.34 22.75 0.04 20.32",
    6: "0.98 27.88 0.95 27.63 0.88 27.06 0.74 25.90 0.47 23.75 0.06 20.47",
    8: "1.00 27.97 0.98 27.87 0.94 27.54 0.83 26.66 0.57 24.56 0.08 20.62",
}


@pytest.mark.parametrize("length", DSSD_TABLE_1)
def test_dssd_table_1(length: int) -> None:
    row = dense_row_bytes(50_000, 16)
    cells = [
        f"{rejection_probability(alpha, length):.2f} "
        f"{dssd_communication(alpha, length, row, 100 * MBIT, 20 * MS) / MS:.2f}"
        for alpha in DSSD_ALPHAS
    ]
    assert " ".join(cells) == DSSD_TABLE_1[length]


OPT_ROW = dense_row_bytes(50_265, 32)  # OPT's vocabulary; full precision, unlike table 1
DSSD_TABLE_2 = [  # NTT ms, rate Mbit/s, gamma, rounds (DSSD's time / NTT), DSD's time in s
    (20, 100, 8, 31, "4.60"),
    (50, 10, 8, 31, "41.44"),
    (20, 50, 8, 31, "8.59"),
    (50, 50, 8, 31, "9.52"),
    (50, 10, 6, 8, "8.12"),
]


@pytest.mark.parametrize(("ntt", "rate", "length", "rounds", "printed"), DSSD_TABLE_2)
def test_dssd_table_2_time_of_dsd(
    ntt: int, rate: int, length: int, rounds: int, printed: str
) -> None:
    """The paper cuts digits off here, and its rounds follow from DSSD's column: 0.62 s / 20 ms."""
    each = dsd_communication(length, OPT_ROW, rate * MBIT, ntt * MS)
    assert truncated(rounds * each, 2) == printed


def test_dssd_figures_that_its_formulas_do_not_give() -> None:
    # Table 2 without NTT at 100 Mbit/s prints 3.91 s, where the other rows' formula gives 3.98.
    assert truncated(31 * dsd_communication(8, OPT_ROW, 100 * MBIT), 2) == "3.98"
    # Table 2 gives DSSD 0.62 s, which is 31 times NTT alone: the rows sent down are left out.
    assert f"{31 * dssd_communication(0.61, 8, OPT_ROW, 100 * MBIT, 20 * MS):.2f}" == "1.11"
    # 128 tokens in 31 rounds are more than the acceptance 0.61 gives, and in 8 rounds of 6 drafted
    # tokens more than any acceptance can.
    assert round(128 / expected_tokens(0.61, 8)) == 51
    assert 8 * expected_tokens(1, 6) == 56
    # Section 4.1 prints 61,269 bytes up per round of DSD; one 16-bit row is more than that.
    assert dense_row_bytes(50_265, 16) == 100_530


def test_dssd_sends_less_than_50_bytes_up() -> None:
    """Section 4.1: eight ids, each with its probability."""
    assert sparse_row_bytes(8, 50_265, 32) == 48


@pytest.mark.parametrize(("acceptance", "ratio"), [(0.61, 0.1), (0.53, 0.05)])
def test_dssd_drafts_six_tokens_where_only_ntt_counts(acceptance: float, ratio: float) -> None:
    """Section 4.2: six is best of four, six and eight (20 ms, 100 Mbit/s, OPT-6.7B and 13B).

    Its own eq. 13 says four, because a longer draft sends a row down more often; without the rows,
    as in its table 2, it says six. A pass of 9 ms is assumed: the paper gives only the ratio.
    """
    verify = 9 * MS

    def best(row_bytes: float, fixed: float) -> int:
        def round_time(length: int) -> float:
            link = dssd_communication(acceptance, length, row_bytes, 100 * MBIT, fixed)
            return stop_and_wait_time(length, ratio * verify, link, verify)

        return best_draft_length(lambda n: expected_tokens(acceptance, n), round_time, (4, 6, 8))

    assert best(dense_row_bytes(50_265, 16), 20 * MS) == 4
    assert best(0, 20 * MS) == 6
    assert best(0, 0) == 4


@given(SHARES, LENGTHS, TIMES)
def test_dssd_communication_lies_between_none_and_one_row(
    acceptance: float, length: int, ntt: float
) -> None:
    """Corollary 3.1; and DSD is never quicker."""
    link = (1e5, 100 * MBIT, ntt)
    mean = dssd_communication(acceptance, length, *link)
    assert ntt <= mean <= dsd_communication(1, *link) <= dsd_communication(length, *link)


# -- TSLT


def test_tslt_payload() -> None:
    assert tree_rows((2, 2, 2)) == 7
    assert tree_rows((1,) * 5) == 5  # a chain has a row for each token
    # Section 5 prints 0.5 Mbit a row; with the indices of eq. 3 it would be 1.0.
    assert f"{dense_row_bytes(32_000, 16) / MBIT:.1f}" == "0.5"
    assert f"{sparse_row_bytes(32_000, 32_000, 16) / MBIT:.1f}" == "1.0"
    assert sparse_row_bytes(320, 32_000, 16) == 1240  # 31 bits each
    assert sparse_row_bytes(1, 2**15, 16) == 31 / 8  # 15 bits are enough
    assert sparse_row_bytes(1, 2**15 + 1, 16) == 32 / 8


def tslt_round(row_bytes: float) -> float:
    """Eq. 26 for <2, 2, 2> at 100 Mbit/s, 1 ms per drafted layer and 25 ms per pass."""
    rows = dsd_communication(tree_rows((2, 2, 2)), row_bytes, 100 * MBIT)
    return stop_and_wait_time(3, 1 * MS, rows, 25 * MS)


def test_tslt_time_and_speedup_of_a_tree() -> None:
    dense, sparse = dense_row_bytes(32_000, 16), sparse_row_bytes(320, 32_000, 16)
    assert tslt_round(dense) == pytest.approx((3 + 7 * 5.12 + 25) * MS)
    assert tslt_round(sparse) == pytest.approx((3 + 7 * 0.0992 + 25) * MS)
    tokens = expected_tokens(0.8, 3)
    assert f"{speedup(tokens, tslt_round(dense), 25 * MS):.2f}" == "1.16"
    assert f"{speedup(tokens, tslt_round(sparse), 25 * MS):.2f}" == "2.57"
    # Eq. 28 as printed has the target's time for each token: not even the sparse rows gain.
    judged = 3 * 0.8 + 1
    printed = 1 / ((tslt_round(sparse) - 25 * MS) / (judged * 25 * MS) + 1)
    assert f"{printed:.2f}" == "0.96"


@st.composite
def rows(draw: st.DrawFn) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """P and Q [V], and a K from 1 to V."""
    size = draw(st.integers(2, 40))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.floats(0.05, 5))
    target, draft = random.dirichlet(np.full(size, 1 / spread), 2)
    return target, draft, draw(st.integers(1, size))


def top_k(row: NDArray[np.float64], kept: int) -> NDArray[np.float64]:
    """Its ``kept`` largest probabilities, not renormalized."""
    cut = np.zeros_like(row)
    best = np.argsort(-row)[:kept]
    cut[best] = row[best]
    return cut


def total_variation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(np.abs(one - other).sum() / 2)


@given(rows())
def test_truncation_moves_the_acceptance_by_the_lost_mass_at_most(
    drawn: tuple[NDArray[np.float64], NDArray[np.float64], int],
) -> None:
    """TSLT theorem 3.2 and eq. 21."""
    target, draft, kept = drawn
    cut = top_k(draft, kept)
    lost = 1 - cut.sum()
    sparse = cut / cut.sum()
    moved = acceptance_rate(target, sparse) - acceptance_rate(target, draft)
    assert abs(moved) <= lost + 1e-9
    assert total_variation(sparse, draft) == pytest.approx(lost, abs=1e-9)
    assert acceptance_rate(target, draft) == pytest.approx(1 - total_variation(target, draft))
    # Not renormalized, it would be half of that.
    assert total_variation(cut, draft) == pytest.approx(lost / 2, abs=1e-9)


def test_the_bound_on_the_acceptance_is_reached() -> None:
    target, draft = np.array([0.0, 1.0]), np.array([0.6, 0.4])
    sparse = np.array([1.0, 0.0])
    assert acceptance_rate(target, draft) - acceptance_rate(target, sparse) == 0.4


# -- FSD


@pytest.mark.parametrize(
    ("draft", "target", "published"),
    [
        (Price(0.10e-6, 0.10e-6), Price(0.90e-6, 0.90e-6), "540 360 270"),  # Qwen1.5 0.5B, 72B
        (Price(0.02e-6, 0.05e-6), Price(0.90e-6, 0.90e-6), "540 312 270"),  # Llama 3.1 8B, 405B
        (Price(0.05e-6, 0.08e-6), Price(0.59e-6, 0.79e-6), "454 286 217"),  # Llama 3 8B, 70B
        (Price(0.20e-6, 0.20e-6), Price(0.70e-6, 0.70e-6), "420 390 210"),  # Qwen2-VL 7B, 72B
    ],
)
def test_fsd_table_1(draft: Price, target: Price, published: str) -> None:
    request = (100, 500)
    dollars = (
        cloud_ar_dollars(target, *request),
        cloud_sd_dollars(target, draft, *request, 2.5, 4),
        edge_cloud_sd_dollars(target, *request, 2.5),
    )
    assert " ".join(f"{each * 1e6:.0f}" for each in dollars) == published


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
    ar = autoregressive_time(verify, 2 * one_way, 200)
    assert f"{sd / tau:.1f} {fsd / tau:.1f}" == per_token
    assert f"{speedup(tau, sd, ar):.2f} {sd / fsd:.2f}" == formula != published


def test_fsd_on_the_robot_gains_more_than_a_cache_that_never_misses() -> None:
    drafting, verify, one_way, miss, _ = FSD["go2"]
    serial = stop_and_wait_time(4, drafting / 4, 2 * one_way, verify)
    assert f"{serial / fsd_time(4, drafting / 4, 2 * one_way, verify, 0):.2f}" == "1.33"  # not 1.34
    assert f"{fsd_speedup(4, drafting / 4 / verify, miss):.2f}" == "1.16"  # a free link


def test_fsd_appendix_b() -> None:
    # For a ratio of 0.3 it asks for misses below 10, 25 and 35 %; it has rounded to 5 %.
    for length, published, exact in ((4, 0.10, 0.083), (7, 0.25, 0.262), (10, 0.35, 0.333)):
        assert fsd_speedup(length, 0.3, exact) == pytest.approx(2, abs=0.01)
        assert round(exact * 20) / 20 == pytest.approx(published)
    # It promises over 5x above a ratio of 0.5 and below 10 % misses: not for any of its lengths.
    assert [f"{fsd_speedup(n, 0.5, 0.1):.1f}" for n in (4, 7, 10)] == ["2.5", "3.3", "4.0"]


@given(LENGTHS, TIMES, TIMES, SHARES)
def test_fsd_eq_9_is_table_4_with_a_free_link(
    length: int, draft: float, verify: float, miss: float
) -> None:
    serial = stop_and_wait_time(length, draft, 0, verify)
    ratio = serial / fsd_time(length, draft, 0, verify, miss)
    assert fsd_speedup(length, draft / verify, miss) == pytest.approx(ratio)


@given(LENGTHS, TIMES, TIMES, TIMES, SHARES)
def test_fsd_waits_for_its_draft_only_on_a_miss(
    length: int, draft: float, link: float, verify: float, miss: float
) -> None:
    serial = stop_and_wait_time(length, draft, link, verify)
    assert fsd_time(length, draft, link, verify, 1) == pytest.approx(serial)
    assert fsd_time(length, draft, link, verify, 0) == pytest.approx(link + verify)
    assert fsd_time(length, draft, link, verify, miss) <= serial * (1 + 1e-9)
    assert fsd_time(length, draft, link, verify, 0, draft) == pytest.approx(link + verify + draft)


# -- PicoSpec

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


# -- SpecEdge


@pytest.mark.parametrize(("rtt", "depth"), [(15, 7), (40, 5), (50, 4)])
def test_specedge_depth(rtt: int, depth: int) -> None:
    assert specedge_depth(11 * MS, rtt * MS, 94.2 * MS) == depth


@given(TIMES, TIMES, TIMES)
def test_specedge_depth_fills_the_verify_time_to_half_a_pass(
    draft: float, rtt: float, verify: float
) -> None:
    depth = specedge_depth(draft, rtt, verify)
    if depth > 1:
        assert abs(depth * draft + rtt - verify) <= draft / 2 * (1 + 1e-6)
    else:
        assert depth == 1
        assert verify - rtt <= 1.5 * draft * (1 + 1e-6)


@pytest.mark.parametrize(
    ("throughput", "dollars", "printed"),
    [
        (31.78, 4.05, "28.25"),
        (29.70, 4.05, "26.40"),
        (33.45, 4.05, "29.73"),
        (24.33, 5.05, "17.34"),
    ],
)
def test_specedge_table_1_cost_efficiency_of_the_server(
    throughput: float, dollars: float, printed: str
) -> None:
    assert f"{tokens_per_dollar(throughput, dollars) / 1000:.2f}" == printed


@pytest.mark.parametrize(
    ("throughput", "dollars", "published", "formula"),
    [
        (66.54, 4.05, "50.60", "50.43"),
        (64.04, 4.05, "48.78", "48.54"),
        (56.47, 5.05, "35.38", "35.36"),
    ],
)
def test_specedge_table_1_cost_efficiency_with_two_edge_gpus(
    throughput: float, dollars: float, published: str, formula: str
) -> None:
    """Two at $0.35 an hour (sec. 5) give a little less than what is printed."""
    ours = tokens_per_dollar(throughput, dollars + 2 * 0.35) / 1000
    assert f"{ours:.2f}" == formula != published
    assert ours == pytest.approx(float(published), rel=0.006)


# -- splitting the layers


def test_layer_split_pays_a_round_trip_for_each_token() -> None:
    """SpecEdge 5.3: 99.63 ms at 15 ms RTT; at 50 ms that gives 134.63, and 134.90 is printed."""
    computed = 99.63 - 15
    at_50 = layer_split_time(0.25, computed * MS, computed * MS, 50 * MS) / MS
    assert f"{at_50:.2f}" == "134.63"
    assert at_50 == pytest.approx(134.90, abs=0.3)


@given(SHARES, TIMES, TIMES, TIMES)
def test_layer_split_lies_between_its_ends(
    share: float, edge: float, cloud: float, rtt: float
) -> None:
    assert layer_split_time(0, edge, cloud, rtt) == pytest.approx(rtt + cloud)
    assert layer_split_time(1, edge, cloud, rtt) == pytest.approx(rtt + edge)
    computed = layer_split_time(share, edge, cloud, 0)
    assert min(edge, cloud) * (1 - 1e-9) <= computed <= max(edge, cloud) * (1 + 1e-9)


# -- draft length


@given(st.floats(0.01, 0.99), TIMES, TIMES, TIMES, TIMES)
def test_a_slower_link_never_asks_for_a_shorter_draft(
    acceptance: float, draft: float, verify: float, one: float, other: float
) -> None:

    def best(link: float) -> int:
        return best_draft_length(
            lambda n: expected_tokens(acceptance, n),
            lambda n: stop_and_wait_time(n, draft, link, verify),
            range(1, 20),
        )

    quick, slow = sorted((one, other))
    assert best(quick) <= best(slow)


def test_best_draft_length_at_its_limits() -> None:
    def best(acceptance: float, draft: float) -> int:
        return best_draft_length(
            lambda n: expected_tokens(acceptance, n),
            lambda n: stop_and_wait_time(n, draft, 0.02, 0.05),
            range(9),
        )

    assert best(0.0, 0.01) == 0  # nothing is ever accepted
    assert best(0.5, 0.0) == 8  # drafting is free
    assert best(0.0, 0.0) == 0  # all are equal: the first
    assert 0 < best(0.7, 0.01) < 8
    with pytest.raises(ValueError):
        best_draft_length(float, float, ())
