"""Random events to the navigator: ``python -m fuzz.navigator`` with ``test`` on the path."""
