"""The drafter's health, from what its callbacks and its model's thread tell."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rclpy.node import Node

from ..nav.status import Status
from .health.camera import CameraTopics, CameraWatch
from .health.drafter import DrafterFacts, drafter_health
from .health.health import Health, Level, RecentProblem

COMPRESSED, RAW = "camera/image_raw/compressed", "camera/image_raw"
TYPES = {COMPRESSED: "sensor_msgs/msg/CompressedImage", RAW: "sensor_msgs/msg/Image"}
PROBLEM_S = 30.0  # that a problem is told, unless a decision works before


class DrafterHealth:
    """Told by any thread; asked by one. ``alive`` and ``deciding`` are those of the model."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._camera = CameraWatch(time.monotonic())
        self._problem = RecentProblem(PROBLEM_S)
        self._went_on: float | None = None  # when the running decision did
        self._last: dict[str, object] = {}
        self._moving = False

    def on_frame(self, stamp: int, jpeg: bytes) -> None:
        """A frame came, encoded or not (empty); ``stamp`` in ns."""
        self._camera.on_frame(stamp, jpeg, time.monotonic())

    def on_status(self, status: Status) -> None:
        """The navigator's."""
        self._moving = status.state in ("moving", "ready")

    def on_problem(self, problem: str) -> None:
        """A decision failed, or a message could not be used."""
        self._problem.report(problem, time.monotonic())

    def went_on(self) -> None:
        """The running decision has begun, or got another token."""
        self._went_on = time.monotonic()

    def ended(self) -> None:
        """No decision runs."""
        self._went_on = None

    def decided(self, figures: Mapping[str, object]) -> None:
        """A decision is complete, with these figures."""
        self._last = {f"last decision's {name}": value for name, value in figures.items()}
        self._problem.clear()

    def camera(self) -> Health:
        """The camera's part; to be asked once a second."""
        now = time.monotonic()
        return self._camera.health(self._topics(self._camera.missing(now)), self._moving, now)

    def health(self, instruction: str, camera: Health, alive: bool, patience: float) -> Health:
        """All of it; ``alive``: whether the model's thread is."""
        now, went_on = time.monotonic(), self._went_on
        deciding = None if went_on is None else now - went_on
        problem = self._problem.text(now)
        return drafter_health(
            DrafterFacts(instruction, camera, alive, deciding, patience, problem, self._last)
        )

    def _topics(self, look: bool) -> CameraTopics:
        """What the graph knows of pictures; it is asked only where they are missing."""
        names = {self._node.resolve_topic_name(name): TYPES[name] for name in (COMPRESSED, RAW)}
        if not look:
            return CameraTopics(tuple(names))
        infos = {name: self._node.get_publishers_info_by_topic(name) for name in names}
        wrong = {i.topic_type for n, found in infos.items() for i in found} - set(TYPES.values())
        wrong |= {
            info.topic_type
            for name, kind in names.items()
            for info in infos[name]
            if info.topic_type != kind
        }
        others = [
            name
            for name, types in self._node.get_topic_names_and_types()
            if name not in names
            and set(types) & set(TYPES.values())
            and not name.endswith("image_annotated/compressed")
            and self._node.count_publishers(name)
        ]
        publishers = sum(len(found) for found in infos.values())
        return CameraTopics(tuple(names), publishers, tuple(sorted(wrong)), tuple(others))


def camera_trouble(camera: Health) -> str:
    """What people are to read beside the instruction; empty where the camera works."""
    return "" if camera.level in (Level.OK, Level.WARN) else str(camera)
