"""Bench suites run as a user runs them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from edge_cloud_spec.cli import main
from edge_cloud_spec_lab.bench.command import add_bench_arguments


def rows(suite: str, folder: Path, *options: str, seed: int = 3) -> list[dict[str, Any]]:
    """What a suite writes, on data of this seed; it must pass."""
    path = folder / "rows.json"
    assert main(["bench", suite, "--json", str(path), "--seed", str(seed), *options]) == 0
    content = json.loads(path.read_text())
    assert content["suite"] == suite and content["seed"] == seed and content["versions"]["torch"]
    found: list[dict[str, Any]] = content["rows"]
    return found


def arguments(suite: str, *argv: str) -> argparse.Namespace:
    """What a suite's ``run`` receives from ``edge-cloud-spec bench SUITE``."""
    parser = argparse.ArgumentParser()
    add_bench_arguments(parser, [suite])
    return parser.parse_args([suite, *argv])
