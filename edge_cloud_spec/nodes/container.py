"""The process of the nodes that need none of their own: instruction server and monitor.

``python -m edge_cloud_spec.nodes.container --ros-args ...``. Neither commands the base nor computes
for long. A process for each takes 65 MB more; either can still be run alone.
"""

from __future__ import annotations

from functools import partial

from .instruction_server import InstructionServer
from .monitor import MonitorNode
from .runtime.run import spin

main = partial(spin, InstructionServer, MonitorNode)  # runs both until a signal

if __name__ == "__main__":
    main()
