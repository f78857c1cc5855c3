"""Benchmarks, simulation and training; no part of it runs on a robot or its cloud."""
