"""Benchmarks: a suite a file or folder, figures as flat rows, ratios taken within one run.

Suites measure the parts as they ship (processes, gRPC, rclpy); nothing here is imported elsewhere.
"""

from .command import add_bench_arguments, run_bench

__all__ = ["add_bench_arguments", "run_bench"]
