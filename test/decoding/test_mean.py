"""The yield of passes, and how far its mean may be off."""

from __future__ import annotations

import pytest

from edge_cloud_spec.decoding.mean import PassYield


def test_what_few_uneven_passes_yield_may_be_more_and_what_even_ones_do_is_sure() -> None:
    even, few, many = PassYield(), PassYield(), PassYield()
    for _ in range(4):
        even.observe(2, 0.5)
    for passes, times in ((few, 2), (many, 50)):
        for _ in range(times):
            passes.observe(1, 0.5)
            passes.observe(3, 0.5)
    assert PassYield().upper_rate == 0.0
    assert even.upper_rate == even.rate == pytest.approx(4.0)
    assert few.rate == pytest.approx(4.0, rel=0.02)
    assert few.rate < many.upper_rate < few.upper_rate
    assert few.upper_rate == pytest.approx(4.0 + 2.0 / 2, rel=0.02)  # sd 1, four passes
