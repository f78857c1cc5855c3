"""The time line of both sides: what the robot, the link and the cloud were doing, lane by lane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import rerun as rr

from ..observe.annotated_picture import BAD, COLOURS, DOUBTFUL, GOOD, GREY
from ..observe.decision import joined
from .entity import Entity

ROOT = "timeline"
# In the order in which the viewer shows them.
DECISION, DRAFTING, FLIGHT, VERIFYING, PREDICTED, MOTION, LINK = (
    f"{ROOT}/{number}_{name}"
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


class Lanes:
    """Messages to changes of state. A lane's colours are told again with each new text."""

    def __init__(self) -> None:
        self._colours: dict[str, dict[str, tuple[int, int, int]]] = {}
        self._requests: dict[str, int] = {}  # their numbers
        self._sent: dict[int, float] = {}  # when the drafts after these prefixes were sent
        self._count = 0
        self._handlers = {
            "decode_request": self._on_request,
            "draft": self._on_draft,
            "prediction": self._on_prediction,
            "verdict": self._on_verdict,
            "verified_tokens": self._on_words,
            "nav_command": self._on_command,
            "nav_status": self._on_status,
            "link_state": self._on_link,
        }

    def on_message(self, topic: str, message: Any, now: float) -> Iterator[Entity]:
        """The changes that a message tells; of topics that tell none there are none."""
        handler = self._handlers.get(topic)
        if handler is not None:
            yield from handler(message, now)

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
        begun = now - _seconds(message.draft_time)
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
        passed, base = _seconds(message.verify_time), message.base_length
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
        state = message.data.partition(" ")[0]
        if state == "stopped":
            yield from self._state(MOTION, "stopped", now, BAD)
        elif state == "idle":
            yield from self._state(MOTION, "", now)

    def _on_link(self, message: Any, now: float) -> Iterator[Entity]:
        state = message.data.partition(" ")[0]
        colours = {"cloud": GOOD, "degraded": DOUBTFUL, "lost": BAD}
        yield from self._state(LINK, state, now, colours.get(state, GREY))


def _seconds(duration: Any) -> float:
    return float(duration.sec + duration.nanosec * 1e-9)
