"""Benchmarks, simulation and training; no part of it runs on a robot or its cloud."""

__version__ = "0.2.0"  # edge_cloud_spec's, which takes no other
