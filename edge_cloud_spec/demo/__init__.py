"""The demo: a robot follows an instruction in a simulated room, live and in a report.

Nothing here decides or moves; all that is reported was received on topics.
"""

from __future__ import annotations

from .command import add_demo_arguments, run_demo

__all__ = ["add_demo_arguments", "run_demo"]
