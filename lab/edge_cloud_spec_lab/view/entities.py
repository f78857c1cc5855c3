"""Reads a bag's messages, and converts a run's to Rerun's archetypes. Needs no ROS."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import rerun as rr
from PIL import Image

from edge_cloud_spec.edge.link.state import LinkQuality
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.nav.pose import yaw_of
from edge_cloud_spec.nodes.drafting.camera import TYPES as CAMERAS
from edge_cloud_spec.nodes.drafting.camera import encode_frame
from edge_cloud_spec.observe.annotated_picture import (
    CAPTION_GREY,
    FATE_COLOURS,
    FATE_NAMES,
    caption_of,
    draw_caption,
)
from edge_cloud_spec.observe.bag_writer import PACKAGE
from edge_cloud_spec.observe.decision import joined, words_of_round
from edge_cloud_spec.observe.word_log import seconds_of

from ..bags.bag import Bag
from ..bags.topics import robot_topics
from ..running.run_log import DecisionFinished, ProblemReported, RoundSettled, RunEvent, RunLog


class Entity(NamedTuple):
    """A Rerun archetype at a path. ``at``: seconds since the run began; None: at all times."""

    path: str
    shown: Any
    at: float | None


CAMERA_PATH, CAPTION_PATH, TOKENS_PATH, LOG_PATH, MAP_PATH, TIMELINE_PATH = (
    "camera",
    "words",
    "tokens",
    "log",
    "map",
    "timeline",
)
# In the order in which the viewer shows them.
DECISION_LANE, DRAFTING_LANE, VERIFYING_LANE, MOTION_LANE, LINK_LANE = (
    f"{TIMELINE_PATH}/{number}_{name}"
    for number, name in enumerate(
        ("decision", "robot_drafts", "cloud_verifies", "robot_moves", "link_state"), 1
    )
)
ROBOT_PATH, TRAIL_PATH, GOAL_PATH = f"{MAP_PATH}/robot", f"{MAP_PATH}/path", f"{MAP_PATH}/goal"
WAY_PATH = f"{MAP_PATH}/way"  # around something
COMMAND_PATH = f"{ROBOT_PATH}/cmd_vel"
ROUND_TRIP_PLOT, VERIFY_PLOT = "link/time/round_trip", "link/time/verify"
UP_PLOT, DOWN_PLOT = "link/bytes/up", "link/bytes/down"
YELLOW, CYAN, RED = (250, 204, 90), (90, 200, 250), (214, 61, 41)
SERIES = {  # names and colours of the plots' lines
    ROUND_TRIP_PLOT: ("round trip, ms", YELLOW),
    VERIFY_PLOT: ("of it the target's pass, ms", (90, 160, 250)),
    UP_PLOT: ("up, bytes a decision", YELLOW),
    DOWN_PLOT: ("down, bytes a decision", (90, 160, 250)),
}

SHOWN_TOPICS = {  # all that is shown, as the graph names them, with their types
    "decode_request": f"{PACKAGE}/msg/DecodeRequest",
    "draft": f"{PACKAGE}/msg/Draft",
    "verdict": f"{PACKAGE}/msg/Verdict",
    "verified_tokens": f"{PACKAGE}/msg/VerifiedTokens",
    "decode_stats": f"{PACKAGE}/msg/DecodeStats",
    "nav_command": f"{PACKAGE}/msg/NavCommand",
    "nav_status": f"{PACKAGE}/msg/NavStatus",
    "instruction_status": f"{PACKAGE}/msg/InstructionStatus",
    "link_state": f"{PACKAGE}/msg/LinkState",
    "instruction": "std_msgs/msg/String",
    "e_stop": "std_msgs/msg/Bool",
    **CAMERAS,
    "odom": "nav_msgs/msg/Odometry",
    "cmd_vel": "",  # a Twist or a TwistStamped
    "markers": "visualization_msgs/msg/MarkerArray",
    "/diagnostics": "diagnostic_msgs/msg/DiagnosticArray",
}
SHOWN_DECISIONS = 4  # that are remembered
SHOWN_EVERY_S = 0.1  # s between two pictures, captions or poses
CAPTION_SCALE = 2  # how many times larger than in RViz the words are drawn
MAX_LETTERS = 40  # of a state of the time line
# Between two points of the path, and how many of the newest are shown.
SHOWN_TRAIL_STEP_M, SHOWN_TRAIL_POINTS = 0.1, 2000
ROBOT_OUTLINE_M = (
    (0.35, 0.0),
    (0.2, 0.15),
    (-0.35, 0.15),
    (-0.35, -0.15),
    (0.2, -0.15),
    (0.35, 0.0),
)
TURN_ARROW_M, LEAST_ARROW_M = 0.6, 0.01  # m; m and rad that are shown
NAV_IDLE, NAV_STOPPED = 1, 4  # states of NavStatus
MOVE_VERB = "move"  # the verb of a NavAction
CUBE, LINE_STRIP = 1, 4  # types of Marker
WAY_NS = "way"  # of markers: a way around something, and its strip
LEVELS = ("INFO", "WARN", "ERROR", "WARN")  # of OK, WARN, ERROR, STALE in /diagnostics
LINK_LEVELS = {
    LinkQuality.CLOUD: "INFO",
    LinkQuality.DEGRADED: "WARN",
    LinkQuality.LOST: "ERROR",
}
BAD_STATES = {"failed": "ERROR", "not_found": "WARN", "blocked": "WARN", "given_up": "WARN"}


Timed = tuple[float, str, Any]  # seconds since the first, topic, message


def bag_messages(path: Path, namespace: str = "") -> Iterator[Timed]:
    """A bag's messages under the graph's topic names, in the order of time. Raises UserError.

    ``namespace``: the robot's, if the bag has several.
    """
    bag = Bag(path)
    topics = robot_topics(bag.topics, SHOWN_TOPICS, namespace)
    if not topics:
        raise UserError(f"{path} has none of the graph's topics to show")
    topics["/diagnostics"] = "/diagnostics"  # of all robots
    begun = None
    for stamp, name, message in bag.read(topics):
        begun = stamp if begun is None else begun
        yield (stamp - begun) / 1e9, name, message


class Entities:
    """Converts messages to entities; call ``on_message`` with each message in the order of time."""

    def __init__(self) -> None:
        self._run_log = RunLog(SHOWN_DECISIONS)
        self._instruction = ""
        self._compressed = False
        self._pose, self._path = rr.Transform3D(), [(0.0, 0.0, 0.0)]
        self._due: dict[str, float] = {}  # by path, when it may be shown again
        self._last: dict[str, object] = {}  # by path, what it showed last
        self._handlers: dict[str, Callable[[Any, float], Iterator[Entity]]] = {
            "camera/image_raw/compressed": self._on_compressed,
            "camera/image_raw": self._on_raw,
            "instruction": self._on_instruction,
            "instruction_status": self._on_instruction_status,
            "e_stop": self._on_e_stop,
            "draft": self._on_draft,
            "nav_status": self._on_nav_status,
            "nav_command": self._on_command,
            "link_state": self._on_link,
            "odom": self._on_odometry,
            "cmd_vel": self._on_velocity,
            "markers": self._on_markers,
            "/diagnostics": self._on_diagnostics,
        }

    def begin(self) -> Iterator[Entity]:
        """Entities that are valid at all times: the plots' lines, and the robot's outline."""
        for path, (name, colour) in SERIES.items():
            yield Entity(path, rr.SeriesLines(names=[name], colors=[colour], widths=[2.0]), None)
        outline = [(x, y, 0.0) for x, y in ROBOT_OUTLINE_M]
        yield Entity(ROBOT_PATH, rr.LineStrips3D([outline], colors=[CYAN], radii=[0.03]), None)

    def on_message(self, topic: str, message: Any, now: float) -> Iterator[Entity]:
        """The entities that a message of ``topic`` changes, at ``now`` seconds of the run."""
        if self._is_due(CAPTION_PATH, now):
            yield from self.caption(now)
        for event in self._run_log.on_message(topic, message, now):
            yield from self._on_event(event, now)
        newest = next(reversed(self._run_log.decisions.values()), None)
        if newest is not None:
            text = f"decision {newest.number}" if math.isnan(newest.ended) else ""
            yield from self._state(DECISION_LANE, text, now)
        if topic in self._handlers:
            yield from self._handlers[topic](message, now)

    def _is_due(self, path: str, now: float) -> bool:
        due = now >= self._due.get(path, -math.inf)
        if due:
            self._due[path] = now + SHOWN_EVERY_S
        return due

    def _changed(self, path: str, value: object) -> bool:
        before, self._last[path] = self._last.get(path), value
        return before != value

    # Words

    def caption(self, now: float) -> Iterator[Entity]:
        """The decision's words as a picture, if they changed; ten times as slow as a message."""
        caption = caption_of(self._run_log, self._instruction)
        if self._changed(CAPTION_PATH, caption):
            data = io.BytesIO()
            Image.fromarray(draw_caption(caption, CAPTION_SCALE)).save(
                data, "PNG", compress_level=1
            )
            sheet = rr.EncodedImage(contents=data.getvalue(), media_type="image/png")
            yield Entity(CAPTION_PATH, sheet, now)

    def _on_draft(self, message: Any, now: float) -> Iterator[Entity]:
        text = joined(message.words) or "(no text)"
        yield _line(TOKENS_PATH, text, now, FATE_NAMES["drafted"], FATE_COLOURS["drafted"])
        yield from self._state(DRAFTING_LANE, text, now - seconds_of(message.draft_time))
        yield from self._state(DRAFTING_LANE, "", now)

    def _on_event(self, event: RunEvent, now: float) -> Iterator[Entity]:
        match event:
            case RoundSettled(decision, round_):
                for words in words_of_round(round_, decision.verified):
                    yield _line(
                        TOKENS_PATH,
                        words.text,
                        now,
                        FATE_NAMES[words.fate],
                        FATE_COLOURS[words.fate],
                    )
                trip = round_.answered - round_.draft.sent  # NaN where its draft was not received
                if trip > 0:
                    yield Entity(ROUND_TRIP_PLOT, rr.Scalars(1e3 * trip), now)
                if round_.verify:
                    yield Entity(VERIFY_PLOT, rr.Scalars(1e3 * round_.verify), now)
                    way_back = (trip - round_.verify) / 2 if trip > round_.verify else 0.0
                    ended = round_.answered - way_back
                    accepts = f"accepts {round_.accepted}"
                    yield from self._state(VERIFYING_LANE, accepts, ended - round_.verify)
                    yield from self._state(VERIFYING_LANE, "", ended)
            case DecisionFinished(decision):
                text = f"decision {decision.number}: {decision.answer}"
                yield _line(TOKENS_PATH, text, now, "answer", CAPTION_GREY)
                yield Entity(UP_PLOT, rr.Scalars(float(decision.stats["up_bytes"])), now)
                yield Entity(DOWN_PLOT, rr.Scalars(float(decision.stats["down_bytes"])), now)
            case ProblemReported(text):
                yield _line(f"{LOG_PATH}/problem", text, now, "ERROR")

    # Camera

    def _on_compressed(self, message: Any, now: float) -> Iterator[Entity]:
        self._compressed = True
        kind = "image/png" if "png" in message.format else "image/jpeg"
        if self._is_due(CAMERA_PATH, now):
            yield Entity(
                CAMERA_PATH, rr.EncodedImage(contents=bytes(message.data), media_type=kind), now
            )

    def _on_raw(self, message: Any, now: float) -> Iterator[Entity]:
        """Show a raw picture, unless there are compressed ones."""
        if not self._compressed and self._is_due(CAMERA_PATH, now):
            with contextlib.suppress(UserError):  # an encoding that is none of ours
                jpeg = encode_frame(message)
                yield Entity(
                    CAMERA_PATH, rr.EncodedImage(contents=jpeg, media_type="image/jpeg"), now
                )

    # Time line and log

    def _state(self, lane: str, text: str, at: float) -> Iterator[Entity]:
        """A text entity; none for an empty ``text``."""
        if self._changed(lane, text):
            yield Entity(lane, rr.StateChange(state=text[:MAX_LETTERS]), at)

    def _logged(self, path: str, text: str, level: str, now: float) -> Iterator[Entity]:
        """A log entity, if the text has changed."""
        if self._changed(f"{LOG_PATH}/{path}", (text, level)):
            yield _line(f"{LOG_PATH}/{path}", text, now, level)

    def _on_instruction(self, message: Any, now: float) -> Iterator[Entity]:
        self._instruction = message.data
        yield _line(f"{LOG_PATH}/operator", f"instruction: {message.data}", now, "INFO")

    def _on_e_stop(self, message: Any, now: float) -> Iterator[Entity]:
        text = "e_stop" if message.data else "e_stop is released"
        yield from self._logged("operator", text, "WARN" if message.data else "INFO", now)

    def _on_instruction_status(self, message: Any, now: float) -> Iterator[Entity]:
        status = self._run_log.instruction_status
        if status is not None:
            self._instruction = status.instruction or self._instruction
            level = BAD_STATES.get(status.state, "INFO")
            yield from self._logged("instruction", str(status), level, now)

    def _on_nav_status(self, message: Any, now: float) -> Iterator[Entity]:
        if message.state == NAV_STOPPED:
            yield from self._logged("navigator", f"stopped {message.detail}".rstrip(), "WARN", now)
        if message.state in (NAV_IDLE, NAV_STOPPED):
            yield from self._state(
                MOTION_LANE, "stopped" if message.state == NAV_STOPPED else "", now
            )
            for shown in (GOAL_PATH, COMMAND_PATH, WAY_PATH):
                yield Entity(shown, rr.Clear(recursive=True), now)

    def _on_link(self, message: Any, now: float) -> Iterator[Entity]:
        report = self._run_log.link_state
        if report is None:
            return
        state = str(report.quality)
        if state != self._last.get(LINK_LANE):
            yield _line(f"{LOG_PATH}/link", str(report), now, LINK_LEVELS[report.quality])
        yield from self._state(LINK_LANE, state, now)

    def _on_diagnostics(self, message: Any, now: float) -> Iterator[Entity]:
        for status in message.status:
            number = status.level[0] if isinstance(status.level, bytes) else int(status.level)
            level = LEVELS[min(number, len(LEVELS) - 1)]
            name = status.name.strip("/").replace(" ", "_") or "unnamed"
            if self._changed(name, level):
                text = f"{status.name}: {status.message}"
                yield _line(f"{LOG_PATH}/diagnostics/{name}", text, now, level)

    # Map, in metres: odometry's frame, seen from above

    def _on_odometry(self, message: Any, now: float) -> Iterator[Entity]:
        if not self._is_due(ROBOT_PATH, now):
            return
        pose = message.pose.pose
        here, yaw = (pose.position.x, pose.position.y, 0.0), yaw_of(pose.orientation)
        turned = rr.RotationAxisAngle(axis=(0, 0, 1), radians=yaw)
        self._pose = rr.Transform3D(translation=here, rotation=turned)
        yield Entity(ROBOT_PATH, self._pose, now)
        if math.dist(here, self._path[-1]) > SHOWN_TRAIL_STEP_M:
            self._path = [*self._path[-SHOWN_TRAIL_POINTS:], here]
            yield Entity(TRAIL_PATH, rr.LineStrips3D([self._path], colors=[RED], radii=[0.02]), now)

    def _on_velocity(self, message: Any, now: float) -> Iterator[Entity]:
        """Show where the commanded velocity leads in a second."""
        twist = getattr(message, "twist", message)
        arrow = _arrow(twist.linear.x, twist.linear.y, twist.angular.z, YELLOW)
        yield Entity(COMMAND_PATH, arrow, now)

    def _on_command(self, message: Any, now: float) -> Iterator[Entity]:
        text = message.text if message.verified else f"{message.text} (not verified)"
        yield _line(f"{LOG_PATH}/navigator", text, now, "INFO" if message.verified else "WARN")
        yield from self._state(MOTION_LANE, text, now)
        if not hasattr(message.action, "verb"):  # an earlier version's, in its bag
            return
        colour = FATE_COLOURS["accepted" if message.verified else "unverified"]
        yield Entity(GOAL_PATH, self._pose, now)
        far, moves = message.magnitude, message.action.verb == MOVE_VERB
        ahead, turn = (far, 0.0) if moves else (0.0, far)
        yield Entity(GOAL_PATH, _arrow(ahead, 0.0, turn, colour, text), now)

    def _on_markers(self, message: Any, now: float) -> Iterator[Entity]:
        """Show walls, things, names and a way around something; actions come from nav_command, the
        path from odometry."""
        for way in [m for m in message.markers if m.ns == WAY_NS]:
            line = [(point.x, point.y, 0.0) for point in way.points]
            colour = FATE_COLOURS["accepted"] + (round(255 * way.color.a),)
            yield Entity(f"{WAY_PATH}/{way.id}", self._pose, now)
            shape = rr.LineStrips3D([line], colors=[colour], radii=[way.scale.x / 2])
            yield Entity(f"{WAY_PATH}/{way.id}", shape, now)
        markers = [m for m in message.markers if m.ns in ("walls", "room", "names")]
        where = [(m.pose.position.x, m.pose.position.y, m.pose.position.z) for m in markers]
        if markers and self._changed(f"{MAP_PATH}/room", where):
            for marker, at in zip(markers, where, strict=True):
                yield Entity(f"{MAP_PATH}/room/{marker.ns}/{marker.id}", _shape(marker, at), now)


def _arrow(
    ahead: float, left: float, turn: float, colour: tuple[int, int, int], text: str = ""
) -> Any:
    """An arrow along a way in the robot's frame, m; for a turn on the spot (rad), in the direction
    after it; for neither, what removes an arrow."""
    if not math.hypot(ahead, left) > LEAST_ARROW_M:  # NaN, too
        if not abs(turn) > LEAST_ARROW_M:
            return rr.Clear(recursive=False)
        ahead, left = TURN_ARROW_M * math.cos(turn), TURN_ARROW_M * math.sin(turn)
    labels = [text] if text else None
    return rr.Arrows3D(vectors=[(ahead, left, 0.0)], colors=[colour], radii=[0.04], labels=labels)


def _shape(marker: Any, at: tuple[float, float, float]) -> Any:
    size, colour = marker.scale, (marker.color.r, marker.color.g, marker.color.b)
    if marker.type == LINE_STRIP:
        return rr.LineStrips3D([[(p.x, p.y, p.z) for p in marker.points]], colors=[colour])
    if marker.text:
        return rr.Points3D([at], labels=[marker.text], radii=[0.02], show_labels=True)
    if marker.type == CUBE:
        turned = rr.RotationAxisAngle(axis=(0, 0, 1), radians=yaw_of(marker.pose.orientation))
        sizes = [(size.x, size.y, size.z)]
        return rr.Boxes3D(centers=[at], sizes=sizes, rotation_axis_angles=[turned], colors=[colour])
    return rr.Points3D([at], radii=[max(size.x, size.y) / 2], colors=[colour])


def _line(
    path: str, text: str, now: float, level: str, colour: tuple[int, int, int] | None = None
) -> Entity:
    return Entity(path, rr.TextLog(text, level=level, color=colour), now)
