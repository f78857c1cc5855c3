"""Which series and labels a PromQL query reads, compared with those of a scrape."""

from __future__ import annotations

import re
from typing import Any

import promql_parser
from prometheus_client.parser import text_string_to_metric_families

Scrape = dict[str, set[str]]  # the labels of each series' name


def read_scrape(text: str) -> Scrape:
    """The series of a scrape and their labels, by Prometheus' own reader of the format."""
    found: Scrape = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def missing(query: str, scrape: Scrape) -> list[str]:
    """What this query reads and the scrape has not; raises ValueError where it is no PromQL."""
    plain = re.sub(r"\$__\w+", "5m", query).replace("$preset", ".*")
    lacking: list[str] = []
    _labels(promql_parser.parse(plain), scrape, lacking)
    return lacking


def _labels(expr: Any, scrape: Scrape, lacking: list[str]) -> set[str]:
    """The labels of what this expression gives."""
    match type(expr).__name__:
        case "VectorSelector":
            return _selected(expr, scrape, lacking)
        case "MatrixSelector":
            return _selected(expr.vector_selector, scrape, lacking)
        case "AggregateExpr":
            inner = _labels(expr.expr, scrape, lacking)
            named = set(expr.modifier.labels) if expr.modifier else set()
            lacking += [f"label {name} of {expr}" for name in named - inner]
            return named
        case "Call":
            given = [_labels(argument, scrape, lacking) for argument in expr.args]
            labels = set().union(*given)
            if expr.func.name == "histogram_quantile" and "le" not in labels:
                lacking.append(f"label le of {expr}")
            return labels - ({"le"} if expr.func.name == "histogram_quantile" else set())
        case "BinaryExpr":
            return _labels(expr.lhs, scrape, lacking) | _labels(expr.rhs, scrape, lacking)
        case "ParenExpr" | "UnaryExpr" | "SubqueryExpr":
            return _labels(expr.expr, scrape, lacking)
        case "NumberLiteral" | "StringLiteral":
            return set()
    raise ValueError(f"an expression of a kind that this test does not know: {expr}")


def _selected(selector: Any, scrape: Scrape, lacking: list[str]) -> set[str]:
    labels = scrape.get(selector.name)
    if labels is None:
        lacking.append(f"series {selector.name}")
        return set()
    named = {matcher.name for matcher in selector.matchers.matchers}
    lacking += [f"label {name} of {selector.name}" for name in named - labels]
    return labels
