"""How weights are made: the embedded tiny pair, and early exits of any target.

Inference never imports this; what it loads lies in ``models``.
"""
