"""What a suite's ``run`` receives from the command line."""

from __future__ import annotations

import argparse

from edge_cloud_spec.lab.bench.command import add_bench_arguments


def arguments(suite: str, *argv: str) -> argparse.Namespace:
    """The options of ``edge-cloud-spec bench SUITE``, parsed."""
    parser = argparse.ArgumentParser()
    add_bench_arguments(parser, [suite])
    return parser.parse_args([suite, *argv])
