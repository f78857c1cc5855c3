"""Mutated frames and hostile clients: ``python -m fuzz`` with ``test`` on the path."""
