"""Random event sequences to the navigator: ``python -m fuzz.navigator`` with ``test`` on the path."""
