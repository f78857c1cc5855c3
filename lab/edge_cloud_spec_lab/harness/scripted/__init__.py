"""Models with given answers, acceptance and times, for benchmarks and tests."""
