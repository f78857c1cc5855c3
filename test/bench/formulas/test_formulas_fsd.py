"""FSD's dollars and speed-ups; where print differs from its formulas, it says what they give."""

from __future__ import annotations

import pytest
from helpers.cost_units import LENGTHS, SHARES, TIMES
from hypothesis import given

from edge_cloud_spec.lab.bench.formulas import (
    Price,
    autoregressive_time,
    cloud_ar_dollars,
    cloud_sd_dollars,
    edge_cloud_sd_dollars,
    fsd_speedup,
    fsd_time,
    speedup,
    stop_and_wait_time,
)


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
