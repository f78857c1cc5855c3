"""SpecEdge's cost efficiency in tokens per dollar."""

from __future__ import annotations

import pytest

from edge_cloud_spec.lab.bench.formulas import tokens_per_dollar


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
