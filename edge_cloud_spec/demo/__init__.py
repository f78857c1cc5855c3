"""The demo and the replay: starting the node graph, watching its topics, and telling what happened.

Nothing here decides or moves; all that is told was heard on topics.
"""

from __future__ import annotations

from .command import add_demo_arguments, run_demo

__all__ = ["add_demo_arguments", "run_demo"]
