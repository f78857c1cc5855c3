"""Training of weights: the embedded tiny pair, and early exits of any target.

Inference never imports this; the weights it loads are in ``models``.
"""
