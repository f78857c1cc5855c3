"""The cost model's depth of a draft tree, against SpecEdge's printed depths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.decoding.cost_model import specedge_depth

MS = 1e-3  # seconds
TIMES = st.floats(1e-4, 10)


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
