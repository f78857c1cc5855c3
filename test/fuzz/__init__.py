"""Random input to what must bear it: ``python -m fuzz`` with ``test`` on the path."""


class Broken(AssertionError):
    """A promise was broken."""
