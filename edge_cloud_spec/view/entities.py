"""One thing to show at one time."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import rerun as rr
from PIL import Image

from ..errors import UserError
from ..nav.pose import yaw_of
from ..nodes.drafting.camera import encode_frame
from ..observe.annotated_picture import (
    BAD,
    COLOURS,
    DOUBTFUL,
    GOOD,
    GREY,
    NAMES,
    DecisionCaption,
    caption_of,
    draw_caption,
)
from ..observe.decision import (
    DecisionFinished,
    ProblemReported,
    RoundSettled,
    RunEvent,
    joined,
    words_of_round,
)
from ..observe.run_log import RunLog, seconds_of


class Entity(NamedTuple):
    """A Rerun archetype at a path. ``at``: seconds since the run began; None: at all times."""

    path: str
    shown: Any
    at: float | None


Handlers = dict[str, Callable[[Any, float], Iterator[Entity]]]  # by topic: message, seconds

TIMELINE = "timeline"
# In the order in which the viewer shows them.
DECISION, DRAFTING, FLIGHT, VERIFYING, PREDICTED, MOTION, LINK = (
    f"{TIMELINE}/{number}_{name}"
    for number, name in enumerate(
        (
            "decision",
            "robot_drafts",
            "on_the_link",
            "cloud_verifies",
            "cloud_predicts",
            "robot_moves",
            "link_state",
        ),
        1,
    )
)
BLUE, VIOLET, TEAL = COLOURS["drafted"], (190, 150, 250), (90, 200, 190)
MAX_TEXTS = 200  # of a lane that have its colour; the viewer chooses one for further texts
MAX_LETTERS = 40  # of a state's text
OPEN, VERDICT = 0, 0  # kinds of DecodeRequest, and of Verdict
IDLE, STOPPED = 1, 4  # states of NavStatus


class Lanes:
    """Messages to changes of state, by their topics in ``handlers``.

    A lane's colours are sent again with each new text."""

    def __init__(self) -> None:
        self._colours: dict[str, dict[str, tuple[int, int, int]]] = {}
        self._requests: dict[str, int] = {}  # their numbers
        self._sent: dict[int, float] = {}  # when the drafts after these prefixes were sent
        self._count = 0
        self.handlers: Handlers = {
            "decode_request": self._on_request,
            "draft": self._on_draft,
            "prediction": self._on_prediction,
            "verdict": self._on_verdict,
            "verified_tokens": self._on_words,
            "nav_command": self._on_command,
            "nav_status": self._on_status,
            "link_state": self._on_link,
        }

    def _state(
        self, lane: str, text: str, at: float, colour: tuple[int, int, int] = GREY
    ) -> Iterator[Entity]:
        """``text`` empty: nothing."""
        known = self._colours.setdefault(lane, {})
        text = text[:MAX_LETTERS]
        if text and text not in known and len(known) < MAX_TEXTS:
            known[text] = colour
            values, colours = list(known), list(known.values())
            yield Entity(lane, rr.StateConfiguration(values=values, colors=colours), None)
        yield Entity(lane, rr.StateChange(state=text), at)

    def _on_request(self, message: Any, now: float) -> Iterator[Entity]:
        if message.kind == OPEN and message.request_id not in self._requests:
            self._count += 1
            self._requests = {message.request_id: self._count}  # one at a time
            self._sent.clear()
            yield from self._state(DECISION, f"decision {self._count}", now, GREY)

    def _on_draft(self, message: Any, now: float) -> Iterator[Entity]:
        begun = now - seconds_of(message.draft_time)
        text = joined(message.words) or "(no text)"
        yield from self._state(DRAFTING, text, begun, BLUE)
        yield from self._state(DRAFTING, "", now)
        self._sent.setdefault(message.base_length, now)
        yield from self._in_flight(now)

    def _in_flight(self, now: float) -> Iterator[Entity]:
        count = len(self._sent)
        text = f"{count} draft{'s' * (count > 1)}" if count else ""
        yield from self._state(FLIGHT, text, now, DOUBTFUL)

    def _on_prediction(self, message: Any, now: float) -> Iterator[Entity]:
        sure = round(100 * message.confidence / 5) * 5
        yield from self._state(PREDICTED, f"{sure} % sure", now, VIOLET)

    def _on_verdict(self, message: Any, now: float) -> Iterator[Entity]:
        if message.kind != VERDICT:
            if message.text:  # a fault, or the link is lost
                self._sent.clear()
                yield from self._in_flight(now)
            return
        passed, base = seconds_of(message.verify_time), message.base_length
        sent = self._sent.get(base, now - passed)
        begun = max(sent, now - passed - max(0.0, (now - sent - passed) / 2))
        text = f"accepts {message.accepted}"
        colour = GOOD if message.accepted else DOUBTFUL
        yield from self._state(VERIFYING, text, begun, colour)
        yield from self._state(VERIFYING, "", min(now, begun + passed))
        yield from self._state(PREDICTED, "", now)
        self._sent = {other: at for other, at in self._sent.items() if other > base}
        yield from self._in_flight(now)

    def _on_words(self, message: Any, now: float) -> Iterator[Entity]:
        # The next decision's request may overtake the last words of this one: two topics.
        if message.finished and (not self._requests or message.request_id in self._requests):
            self._sent.clear()
            for lane in (DECISION, DRAFTING, FLIGHT, PREDICTED):
                yield from self._state(lane, "", now)

    def _on_command(self, message: Any, now: float) -> Iterator[Entity]:
        text = message.text if message.verified else f"{message.text} (not verified)"
        colour = TEAL if message.verified else COLOURS["unverified"]
        yield from self._state(MOTION, text, now, colour)

    def _on_status(self, message: Any, now: float) -> Iterator[Entity]:
        if message.state == STOPPED:
            yield from self._state(MOTION, "stopped", now, BAD)
        elif message.state == IDLE:
            yield from self._state(MOTION, "", now)

    def _on_link(self, message: Any, now: float) -> Iterator[Entity]:
        state = message.data.partition(" ")[0]
        colours = {"cloud": GOOD, "degraded": DOUBTFUL, "lost": BAD}
        yield from self._state(LINK, state, now, colours.get(state, GREY))


MAP = "map"
ROBOT, PATH, COMMAND, GOAL, ROOM = (
    f"{MAP}/{n}" for n in ("robot", "path", "cmd_vel", "goal", "room")
)
STEP, POINTS = 0.1, 2000  # m between two points of the path, and how many of the newest are shown
PERIOD = 0.1  # s between two poses
BODY = ((0.35, 0.0), (0.2, 0.15), (-0.35, 0.15), (-0.35, -0.15), (0.2, -0.15), (0.35, 0.0))  # m
TURN_ARROW = 0.6  # m
HORIZON = 1.0  # s that a velocity's arrow shows
MOVE, TURN, SEARCH = 1, 2, 3  # actions of NavCommand
CUBE, CYLINDER, SPHERE, LINE_STRIP, TEXT = 1, 3, 2, 4, 9  # types of Marker
YELLOW, CYAN, RED = (250, 204, 90), (90, 200, 250), (214, 61, 41)

Point = tuple[float, float]


class Floor:
    """Messages to shapes on the floor, in metres, by their topics in ``handlers``."""

    def __init__(self) -> None:
        self._x = self._y = self._yaw = 0.0
        self._path: list[Point] = []
        self._next = -math.inf
        self._room: dict[str, Any] = {}
        self.handlers: Handlers = {
            "odom": self._on_odometry,
            "cmd_vel": self._on_velocity,
            "nav_command": self._on_command,
            "nav_status": self._on_status,
            "markers": self._on_markers,
        }

    def _on_odometry(self, message: Any, now: float) -> Iterator[Entity]:
        place = message.pose.pose.position
        self._x, self._y = place.x, place.y
        self._yaw = yaw_of(message.pose.pose.orientation)
        if now < self._next:
            return
        self._next = now + PERIOD
        outline = [self._seen(*corner) for corner in BODY]
        yield Entity(ROBOT, rr.LineStrips2D([outline], colors=[CYAN], radii=[0.03]), now)
        here = _above(self._x, self._y)
        if not self._path or math.dist(here, self._path[-1]) > STEP:
            self._path = [*self._path[-POINTS:], here]
            if len(self._path) > 1:
                yield Entity(PATH, rr.LineStrips2D([self._path], colors=[RED], radii=[0.02]), now)

    def _on_velocity(self, message: Any, now: float) -> Iterator[Entity]:
        """Show the velocity command: the pose that it leads to in a second, and its turn."""
        twist = getattr(message, "twist", message)
        ahead, left, turn = twist.linear.x, twist.linear.y, twist.angular.z
        moving = math.hypot(ahead, left) > 0.01 or abs(turn) > 0.01
        if math.hypot(ahead, left) <= 0.01:
            ahead, left = TURN_ARROW * math.cos(turn), TURN_ARROW * math.sin(turn)
        yield from self._arrow(COMMAND, (HORIZON * ahead, HORIZON * left), "", YELLOW, now, moving)

    def _on_command(self, message: Any, now: float) -> Iterator[Entity]:
        angle = message.magnitude if message.action in (TURN, SEARCH) else 0.0
        reach = message.magnitude if message.action == MOVE else TURN_ARROW
        tip = (reach * math.cos(angle), reach * math.sin(angle))
        colour = COLOURS["accepted" if message.verified else "unverified"]
        moving = message.action in (MOVE, TURN, SEARCH)
        yield from self._arrow(GOAL, tip, message.text, colour, now, moving)

    def _on_status(self, message: Any, now: float) -> Iterator[Entity]:
        if message.state in (IDLE, STOPPED):
            yield Entity(GOAL, rr.Clear(recursive=False), now)
            yield Entity(COMMAND, rr.Clear(recursive=False), now)

    def _arrow(
        self,
        path: str,
        tip: Point,
        text: str,
        colour: tuple[int, int, int],
        now: float,
        moving: bool,
    ) -> Iterator[Entity]:
        if not moving:
            yield Entity(path, rr.Clear(recursive=False), now)
            return
        (x0, y0), (x1, y1) = self._seen(0.0, 0.0), self._seen(*tip)
        arrow = rr.Arrows2D(
            origins=[(x0, y0)],
            vectors=[(x1 - x0, y1 - y0)],
            colors=[colour],
            radii=[0.04],
            labels=[text] if text else None,
        )
        yield Entity(path, arrow, now)

    def _on_markers(self, message: Any, now: float) -> Iterator[Entity]:
        """Walls, things and names; actions are taken from nav_command, the path from odometry."""
        markers = [m for m in message.markers if m.ns in ("walls", "room", "names")]
        if not markers:
            return
        shapes = {
            "walls": _outlines(markers),
            "things": _discs(markers),
            "names": _names(markers),
        }
        for name, (key, shown) in shapes.items():
            if self._room.get(name) != key:
                self._room[name] = key
                yield Entity(f"{ROOM}/{name}", shown, now)

    def _seen(self, ahead: float, left: float) -> Point:
        """A point of the robot's own frame, in the picture."""
        cos, sin = math.cos(self._yaw), math.sin(self._yaw)
        return _above(self._x + cos * ahead - sin * left, self._y + sin * ahead + cos * left)


def _above(x: float, y: float) -> Point:
    """A point of odometry's frame (x ahead, y left) in the picture (x right, y down)."""
    return (-y, -x)


def _outlines(markers: Sequence[Any]) -> tuple[Any, Any]:
    strips, colours = [], []
    for marker in markers:
        if marker.type == LINE_STRIP:
            strips.append([_above(p.x, p.y) for p in marker.points])
        elif marker.type == CUBE:
            strips.append(_rectangle(marker))
        else:
            continue
        colours.append(_colour(marker))
    return (strips, colours), rr.LineStrips2D(strips, colors=colours, radii=[0.02])


def _rectangle(marker: Any) -> list[Point]:
    q, place, size = marker.pose.orientation, marker.pose.position, marker.scale
    yaw = 2 * math.atan2(q.z, q.w)
    corners = ((1, 1), (-1, 1), (-1, -1), (1, -1), (1, 1))
    cos, sin = math.cos(yaw), math.sin(yaw)
    points = []
    for a, b in corners:
        x, y = a * size.x / 2, b * size.y / 2
        points.append(_above(place.x + cos * x - sin * y, place.y + sin * x + cos * y))
    return points


def _discs(markers: Sequence[Any]) -> tuple[Any, Any]:
    round_ones = [m for m in markers if m.type in (CYLINDER, SPHERE)]
    places = [_above(m.pose.position.x, m.pose.position.y) for m in round_ones]
    radii = [max(m.scale.x, m.scale.y) / 2 for m in round_ones]
    colours = [_colour(m) for m in round_ones]
    return (places, radii, colours), rr.Points2D(places, radii=radii, colors=colours)


def _names(markers: Sequence[Any]) -> tuple[Any, Any]:
    texts = [m for m in markers if m.type == TEXT]
    places = [_above(m.pose.position.x, m.pose.position.y) for m in texts]
    names = [m.text for m in texts]
    colours = [_colour(m) if max(_colour(m)) > 150 else GREY for m in texts]
    shown = rr.Points2D(places, labels=names, colors=colours, radii=[0.02], show_labels=True)
    return (places, names, colours), shown


def _colour(marker: Any) -> tuple[int, int, int]:
    c = marker.color
    return (round(255 * c.r), round(255 * c.g), round(255 * c.b))


CAMERA, CAPTION, TOKENS, LOG = "camera", "words", "tokens", "log"
ROUND_TRIP, VERIFY = "link/time/round_trip", "link/time/verify"
UP, DOWN = "link/bytes/up", "link/bytes/down"
SERIES = {  # names and colours of the plots' lines
    ROUND_TRIP: ("round trip, ms", (250, 204, 90)),
    VERIFY: ("of it the target's pass, ms", (90, 160, 250)),
    UP: ("up, bytes a decision", (250, 204, 90)),
    DOWN: ("down, bytes a decision", (90, 160, 250)),
}
LOGGED = {  # topics that the run log takes, but the pictures
    *("decode_request", "draft", "verdict", "verified_tokens", "decode_stats"),
    *("nav_command", "nav_status", "instruction_status", "link_state"),
}
TOPICS = {  # all that is shown, as the graph names them
    *(*LOGGED, "camera/image_raw/compressed", "camera/image_raw", "instruction", "e_stop"),
    *("prediction", "odom", "cmd_vel", "markers", "/diagnostics"),
}
CAPTIONED = {*LOGGED, "instruction"}
DECISIONS = 4  # that are remembered
CAMERA_PERIOD = 0.1  # s between two pictures
SHARP = 2  # how many times larger than in RViz the words are drawn
LEVELS = ("INFO", "WARN", "ERROR", "WARN")  # of OK, WARN, ERROR, STALE in /diagnostics
BAD_STATES = {"failed": "ERROR", "not_found": "WARN", "blocked": "WARN", "given_up": "WARN"}


class Entities:
    """Call ``on_message`` with each message in the order of time."""

    def __init__(self) -> None:
        self._run_log = RunLog(DECISIONS)
        self._instruction = ""
        self._caption: DecisionCaption | None = None
        self._to_caption = False
        self._next_picture, self._compressed = -math.inf, False
        self._said: dict[str, tuple[str, str]] = {}
        own: Handlers = {
            "camera/image_raw/compressed": self._on_compressed,
            "camera/image_raw": self._on_raw,
            "instruction": self._on_instruction,
            "instruction_status": self._on_instruction_status,
            "e_stop": self._on_e_stop,
            "nav_status": self._on_nav_status,
            "nav_command": self._on_command,
            "link_state": self._on_link,
            "draft": self._on_draft,
            "/diagnostics": self._on_diagnostics,
        }
        self._handlers = (Lanes().handlers, Floor().handlers, own)

    def begin(self) -> Iterator[Entity]:
        """What is true at all times: the names and colours of the plots' lines."""
        for path, (name, colour) in SERIES.items():
            yield Entity(path, rr.SeriesLines(names=[name], colors=[colour], widths=[2.0]), None)

    def on_message(self, topic: str, message: Any, now: float) -> Iterator[Entity]:
        """The entities that a message of ``topic`` changes, at ``now`` seconds of the run."""
        if topic in LOGGED:
            for event in self._run_log.on_message(topic, message, now):
                yield from self._on_event(event, now)
        for handlers in self._handlers:
            if topic in handlers:
                yield from handlers[topic](message, now)
        self._to_caption |= topic in CAPTIONED

    # Words

    def caption(self, now: float) -> Iterator[Entity]:
        """The words as a picture, where they changed. It takes ten times as long as a message."""
        if not self._to_caption:
            return
        self._to_caption = False
        caption = caption_of(self._run_log, self._instruction)
        if caption != self._caption:
            self._caption, data = caption, io.BytesIO()
            Image.fromarray(draw_caption(caption, SHARP)).save(data, "PNG", compress_level=1)
            sheet = rr.EncodedImage(contents=data.getvalue(), media_type="image/png")
            yield Entity(CAPTION, sheet, now)

    def _on_draft(self, message: Any, now: float) -> Iterator[Entity]:
        text = joined(message.words) or "(no text)"
        yield _line(TOKENS, text, now, NAMES["drafted"], COLOURS["drafted"])

    def _on_event(self, event: RunEvent, now: float) -> Iterator[Entity]:
        if isinstance(event, RoundSettled):
            round_ = event.round
            for words in words_of_round(round_, event.decision.verified):
                yield _line(TOKENS, words.text, now, NAMES[words.fate], COLOURS[words.fate])
            if round_.answered > round_.sent:
                trip = 1e3 * (round_.answered - round_.sent)
                yield Entity(ROUND_TRIP, rr.Scalars(trip), now)
            if round_.verify:
                yield Entity(VERIFY, rr.Scalars(1e3 * round_.verify), now)
        elif isinstance(event, DecisionFinished):
            decision = event.decision
            text = f"decision {decision.number}: {decision.answer}"
            yield _line(TOKENS, text, now, "answer", GREY)
            yield Entity(UP, rr.Scalars(float(decision.stats["up_bytes"])), now)
            yield Entity(DOWN, rr.Scalars(float(decision.stats["down_bytes"])), now)
        elif isinstance(event, ProblemReported):
            yield _line(f"{LOG}/problem", event.text, now, "ERROR")

    def missed(self, text: str, now: float) -> Iterator[Entity]:
        """What the viewer says of messages that it could not take."""
        yield _line(f"{LOG}/viewer", text, now, "ERROR")

    # Camera

    def _on_compressed(self, message: Any, now: float) -> Iterator[Entity]:
        self._compressed = True
        kind = "image/png" if "png" in message.format else "image/jpeg"
        yield from self._picture(lambda: bytes(message.data), kind, now)

    def _on_raw(self, message: Any, now: float) -> Iterator[Entity]:
        """Shown where there is no compressed picture."""
        if not self._compressed:
            with contextlib.suppress(UserError):  # an encoding that is none of ours
                yield from self._picture(lambda: encode_frame(message), "image/jpeg", now)

    def _picture(self, data: Callable[[], bytes], kind: str, now: float) -> Iterator[Entity]:
        if now >= self._next_picture:
            self._next_picture = now + CAMERA_PERIOD
            yield Entity(CAMERA, rr.EncodedImage(contents=data(), media_type=kind), now)

    # Log

    def _on_instruction(self, message: Any, now: float) -> Iterator[Entity]:
        self._instruction = message.data
        yield _line(f"{LOG}/operator", f"instruction: {message.data}", now, "INFO")

    def _on_e_stop(self, message: Any, now: float) -> Iterator[Entity]:
        text = "e_stop" if message.data else "e_stop is released"
        yield from self._told("operator", text, "WARN" if message.data else "INFO", now)

    def _on_instruction_status(self, message: Any, now: float) -> Iterator[Entity]:
        state, _, detail = message.data.partition(" ")
        if state == "following":
            self._instruction = detail
        yield from self._told("instruction", message.data, BAD_STATES.get(state, "INFO"), now)

    def _on_nav_status(self, message: Any, now: float) -> Iterator[Entity]:
        if message.state == STOPPED:
            yield from self._told("navigator", f"stopped {message.detail}".rstrip(), "WARN", now)

    def _on_command(self, message: Any, now: float) -> Iterator[Entity]:
        yield _line(f"{LOG}/navigator", message.text, now, "INFO" if message.verified else "WARN")

    def _on_link(self, message: Any, now: float) -> Iterator[Entity]:
        state = message.data.partition(" ")[0]
        level = {"cloud": "INFO", "lost": "ERROR"}.get(state, "WARN")
        yield from self._told("link", message.data, level, now, state)

    def _on_diagnostics(self, message: Any, now: float) -> Iterator[Entity]:
        for status in message.status:
            number = status.level[0] if isinstance(status.level, bytes) else int(status.level)
            level = LEVELS[min(number, len(LEVELS) - 1)]
            if _sums_up(status, message.status):
                continue
            name = status.name.strip("/").replace(" ", "_") or "unnamed"
            about = status.name.rpartition(": ")[2]  # of "/monitor: /drafter" the second
            named = about in status.message
            text = status.message if named else f"{status.name}: {status.message}"
            yield from self._told(f"diagnostics/{name}", text, level, now, level)

    def _told(
        self, path: str, text: str, level: str, now: float, about: str = ""
    ) -> Iterator[Entity]:
        """Logged when ``about`` (else the text) or the level is another than before."""
        if self._said.get(path) != (about or text, level):
            self._said[path] = (about or text, level)
            yield _line(f"{LOG}/{path}", text, now, level)


def _sums_up(status: Any, statuses: Sequence[Any]) -> bool:
    """Whether its parts, beside it, say all of what it says: the monitor's are on their own."""
    parts = {s.message for s in statuses if s.name.startswith(f"{status.name}: ")}
    return bool(parts) and parts.issuperset(status.message.split(" | "))


def _line(
    path: str, text: str, now: float, level: str, colour: tuple[int, int, int] | None = None
) -> Entity:
    return Entity(path, rr.TextLog(text, level=level, color=colour), now)
