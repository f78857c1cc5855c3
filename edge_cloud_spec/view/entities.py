"""The messages of a run as the entities that the viewer shows. No ROS is imported here.

Camera and words, a log of tokens, the time line of both sides, the map, the link, and a log of what
nodes and people said.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import rerun as rr
from PIL import Image

from ..errors import UserError
from ..nav.status import Status
from ..nodes.drafting.camera import encode_frame
from ..observe.annotated_picture import COLOURS, GREY, NAMES, DecisionCaption, draw_caption
from ..observe.decision import (
    DecisionFinished,
    ProblemReported,
    RoundSettled,
    RunEvent,
    joined,
    words_of_decision,
    words_of_round,
)
from ..observe.run_log import RunLog
from .entity import Entity
from .floor import Floor
from .lanes import Lanes

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
    *("nav_command", "nav_status", "instruction_status"),
}
TOPICS = {  # all that is shown, as the graph names them
    *(*LOGGED, "camera/image_raw/compressed", "camera/image_raw", "instruction", "e_stop"),
    *("link_state", "prediction", "odom", "cmd_vel", "markers", "/diagnostics"),
}
CAPTIONED = {*LOGGED, "instruction", "link_state"}
DECISIONS = 4  # that are remembered
CAMERA_PERIOD = 0.1  # s between two pictures
SHARP = 2  # how many times larger than in RViz the words are drawn
LEVELS = ("INFO", "WARN", "ERROR", "WARN")  # of OK, WARN, ERROR, STALE in /diagnostics
BAD_STATES = {"failed": "ERROR", "not_found": "WARN", "blocked": "WARN", "given_up": "WARN"}


class Entities:
    """Call ``on_message`` with each message in the order of time."""

    def __init__(self) -> None:
        self._run_log, self._lanes, self._floor = RunLog(DECISIONS), Lanes(), Floor()
        self._instruction = self._status = self._link = ""
        self._caption: DecisionCaption | None = None
        self._to_caption = False
        self._next_picture, self._compressed = -math.inf, False
        self._said: dict[str, tuple[str, str]] = {}
        self._handlers: dict[str, Callable[[Any, float], Iterator[Entity]]] = {
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

    def begin(self) -> Iterator[Entity]:
        """What is true at all times: the names and colours of the plots' lines."""
        for path, (name, colour) in SERIES.items():
            yield Entity(path, rr.SeriesLines(names=[name], colors=[colour], widths=[2.0]), None)

    def on_message(self, topic: str, message: Any, now: float) -> Iterator[Entity]:
        """The entities that a message of ``topic`` changes, at ``now`` seconds of the run."""
        if topic in LOGGED:
            for event in self._run_log.on_message(topic, message, now):
                yield from self._on_event(event, now)
        yield from self._lanes.on_message(topic, message, now)
        yield from self._floor.on_message(topic, message, now)
        if topic in self._handlers:
            yield from self._handlers[topic](message, now)
        self._to_caption |= topic in CAPTIONED

    # Words

    def caption(self, now: float) -> Iterator[Entity]:
        """The words as a picture, where they changed. It takes ten times as long as a message."""
        if not self._to_caption:
            return
        self._to_caption = False
        decision = next(reversed(self._run_log.decisions.values()), None)
        words = tuple(words_of_decision(decision)) if decision is not None else ()
        caption = DecisionCaption(self._instruction, words, self._status, self._link)
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
        try:
            status = Status.parse(message.data)
        except ValueError:
            return
        self._status = status.text
        if status.state == "stopped":
            yield from self._told("navigator", status.text, "WARN", now)

    def _on_command(self, message: Any, now: float) -> Iterator[Entity]:
        yield _line(f"{LOG}/navigator", message.text, now, "INFO" if message.verified else "WARN")

    def _on_link(self, message: Any, now: float) -> Iterator[Entity]:
        self._link = message.data
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
