"""Early exits of any target: collects hidden states of its answers, and trains adapters on them.

The code that loads exits for inference is in ``models``.
"""
