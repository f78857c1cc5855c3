"""How well each node works, in words: pure functions and small watches, with the time given.

No ROS here; ``nodes/runtime/diagnostics.py`` publishes what these say on ``/diagnostics``.
"""
