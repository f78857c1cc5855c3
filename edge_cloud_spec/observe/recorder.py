"""The recorder node: all topics of a running graph into a bag; it disturbs nothing.

``python -m edge_cloud_spec.observe.recorder --ros-args -p folder:=DIR``, the launch argument
``record:=DIR``, or ``edge-cloud-spec record``.
"""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

from rclpy.clock import Clock, ClockType
from rclpy.context import Context
from rclpy.node import Node

from ..nodes.health.health import Health, Level
from ..nodes.runtime.diagnostics import Diagnostics
from ..nodes.runtime.parameters import Parameters
from ..nodes.runtime.run import spin
from .recorder_settings import RecorderSettings
from .topic_bag import RAW_CAMERA, TopicBag, subscribe

COMPRESSED_CAMERA = "camera/image_raw/compressed"
LOOK_S = 1.0  # between two looks for a camera that is raw only


class RecorderNode(Node):
    """Records until it is closed, or until its disk is full; then it says so, and stays.

    Raises UserError where no bag can be begun.
    """

    def __init__(
        self, folder: Path | None = None, context: Context | None = None, namespace: str = ""
    ) -> None:
        super().__init__("recorder", context=context, namespace=namespace or None)
        settings = Parameters(self, RecorderSettings()).value
        self.bag = TopicBag(self, folder or bag_folder(settings.folder))
        self._reported = False
        self._raw = False
        subscribe(self, self._take)
        Diagnostics(self).report(self.health)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(LOOK_S, self._look, clock=steady)
        self.get_logger().info(f"recording to {self.bag.folder}")

    def _take(self, topic: str, cdr: bytes, stamp: int) -> None:
        self.bag.write(topic, cdr, stamp)
        if self.bag.problem and not self._reported:
            self._reported = True
            self.get_logger().error(self.bag.problem)

    def _look(self) -> None:
        """A raw camera is recorded only where it is the only one: it is thirty times as large."""
        wanted = self.count_publishers(RAW_CAMERA) and not self.count_publishers(COMPRESSED_CAMERA)
        if wanted and not self._raw:
            self._raw = True
            subscribe(self, self._take, (RAW_CAMERA,))

    def health(self) -> Health:
        """How the recording is."""
        if self.bag.problem:
            return Health(Level.ERROR, self.bag.problem)
        return Health(Level.OK, f"recording to {self.bag.folder}: {self.bag.text}")

    def close(self) -> None:
        """End the bag."""
        self.bag.close()
        if self.bag.problem and not self._reported:
            self.get_logger().error(self.bag.problem)


def bag_folder(given: str = "") -> Path:
    """The folder to record to: this one, or one named for the time."""
    return Path(given) if given else Path("bags") / datetime.now().strftime("%Y%m%d-%H%M%S")


def main() -> int:
    """Run the node until a signal."""
    return spin(RecorderNode)


if __name__ == "__main__":
    sys.exit(main())
