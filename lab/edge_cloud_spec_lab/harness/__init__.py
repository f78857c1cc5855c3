"""Emulated links, clocks and models for benchmarks and tests.

No robot runs any of it. The suites that measure with it are in ``bench``.
"""
