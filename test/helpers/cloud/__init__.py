"""Verifiers and robots over gRPC, or at the worker without a network."""
