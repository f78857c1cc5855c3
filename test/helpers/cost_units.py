"""Units of the papers' tables, and the ranges from which the cost formulas' inputs are drawn."""

from __future__ import annotations

from hypothesis import strategies as st

MBIT = 1e6 / 8  # bytes
MS = 1e-3  # seconds
SHARES = st.floats(0, 1)
LENGTHS = st.integers(1, 12)
TIMES = st.floats(1e-4, 10)
