"""``bench passes`` finds fixed passes' rows equal, and sees one bit that is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge_cloud_spec.lab.bench import passes
from edge_cloud_spec.lab.bench.passes import SHAPES, RandomTarget


def test_rows_of_twelve_sessions_are_equal_and_one_changed_bit_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = RandomTarget(SHAPES["tiny"], "cpu", "float32")
    target.take_over("fixed")
    assert passes.compared_bits(target, 12, 300)["differ"] == 0
    together = passes.forward_together

    def changed(*given: Any) -> Any:
        first, *rest = together(*given)
        first = np.array(first)
        first[1, 7] = np.nextafter(first[1, 7], np.float32(9))
        return [first, *rest]

    monkeypatch.setattr(passes, "forward_together", changed)
    assert passes.compared_bits(target, 12, 300)["differ"] == 1
