"""Models whose answers, acceptance and times are given, for benchmarks and tests."""
