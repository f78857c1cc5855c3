"""The drafter's health, from what its callbacks and its model's thread tell."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from rclpy.node import Node

from edge_cloud_spec.msg import DecodeStats

from ...nav.clock_offset import clock_sentence
from ...nav.status import Status
from ..health import Health, Level, RecentProblem, worst_of
from .camera import CameraTopics, CameraWatch

COMPRESSED, RAW = "camera/image_raw/compressed", "camera/image_raw"
TYPES = {COMPRESSED: "sensor_msgs/msg/CompressedImage", RAW: "sensor_msgs/msg/Image"}
PROBLEM_S = 30.0  # that a problem is told, unless a decision works before
CLOCKS_APART_S = 0.5  # of the camera's stamps, or its latency


class DrafterHealth:
    """Told by any thread; asked by one, once a second."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._camera = CameraWatch(time.monotonic())
        self._problem = RecentProblem(PROBLEM_S)
        self._last: dict[str, object] = {}
        self._moving = False

    def begin(self) -> None:
        """The camera is listened to from now on."""
        self._camera = CameraWatch(time.monotonic())

    def on_frame(self, stamp: int, jpeg: bytes) -> None:
        """A frame came, encoded or not (empty); ``stamp`` in ns."""
        self._camera.on_frame(stamp, jpeg, time.monotonic())

    def on_status(self, status: Status) -> None:
        """The navigator's."""
        self._moving = status.state in ("moving", "ready")

    def on_problem(self, problem: str) -> None:
        """A decision failed, or a message could not be used."""
        self._problem.report(problem, time.monotonic())

    def forget_problem(self) -> None:
        """What went wrong before is over."""
        self._problem.clear()

    def decided(self, stats: DecodeStats, completed: bool) -> None:
        """A decision has ended; if it is complete, no earlier problem counts any more."""
        if not completed:
            return
        self.forget_problem()
        took = stats.total_ms
        self._last = {
            "decision_tokens": stats.tokens,
            "decision_acceptance": round(stats.accepted / max(1, stats.drafted), 3),
            "decision_ms": round(float(took), 1),
        }

    def camera(self, clock_offset: float | None) -> Health:
        """The camera's part; ``clock_offset``: s by which its stamps are ahead, None: unknown."""
        now = time.monotonic()
        topics = self._topics(self._camera.missing(now))
        health = self._camera.health(topics, self._moving, now)
        known = "unknown" if clock_offset is None else round(clock_offset, 3)
        values = {**health.values, "camera_clock_offset_s": known}
        if health.level == Level.OK and abs(clock_offset or 0.0) > CLOCKS_APART_S:
            said = clock_sentence("the camera's", clock_offset or 0.0)
            advice = "synchronize the clocks (chrony), or say its latency (camera_lag)"
            return Health(Level.WARN, said, advice, values)
        return replace(health, values=values)

    def health(self, instruction: str, note: str, camera: Health, alive: bool) -> Health:
        """All of it; ``note``: how it is followed, ``alive``: whether the model's thread is."""
        problem = self._problem.text(time.monotonic())
        return drafter_health(instruction, camera, note, alive, problem, self._last)

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


def blindness(camera: Health) -> str:
    """Why there is no picture to decide on; empty where there is one."""
    return "" if camera.level in (Level.OK, Level.WARN) else str(camera)


def drafter_health(
    instruction: str,
    camera: Health,
    note: str = "",
    alive: bool = True,
    problem: str = "",
    last: Mapping[str, object] | None = None,
) -> Health:
    """The worst of the model's thread, the camera and the last decision; else what is followed.

    ``note``: how the instruction is followed. ``alive``: whether the model's thread is.
    ``problem``: the last one, while it is recent. ``last``: figures of the last decision.
    """
    what = f"following {instruction!r}" if instruction else "no instruction"
    found = [Health(Level.OK, what + note, values=last or {}), replace(camera, check="camera")]
    if not alive:
        said = "the model's thread has ended"
        advice = "see the drafter's log and restart it"
        found.append(Health(Level.ERROR, said, advice, check="model"))
    if problem:
        found.append(Health(Level.ERROR, problem, values={"last problem": problem}))
    return worst_of(found)
