"""Early exits of any target: rows of its own answers, and adapters that learn from them.

The exits themselves, as inference loads them, are in ``models``.
"""
