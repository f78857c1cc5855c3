"""Plays a recording to live nodes and compares what they decide."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from ..decoding.noise import seed_and_number
from ..errors import UserError
from ..nav.status import NOBODY, Status
from ..nodes.qos import LATCHED, SENSOR_DATA
from .observer import Observer
from .recording import CAMERA, RecordedFrame, Recording
from .run_log import Decision

BLIND = 0.5  # s before a decision's frame in which no other is played: none may be mistaken for it
SETTLE = 0.15  # s from "idle" to that frame
AGAIN = 1.5  # s after which a frame that nobody took (best effort) is played again
TRIES = 6
PATIENCE = 30.0  # s for an answer
MATCHING = 10.0  # s for the nodes to be found


@dataclass(frozen=True)
class Compared:
    """A recorded answer to the frame of ``stamp`` and today's; None with a ``problem``."""

    stamp: int
    recorded: str
    replayed: str | None
    equal: bool
    problem: str = ""


class Player:
    """Takes the place of camera, operator and navigator; used once.

    The navigator's part is to say ``moving`` until the recorded run came to its next decision, and
    ``idle`` then. Where the nodes are slower than they were, the recording waits for them.
    """

    def __init__(self, observer: Observer, recording: Recording) -> None:
        self._observer, self._recording = observer, recording
        node = observer.node
        self._camera = node.create_publisher(CompressedImage, CAMERA, SENSOR_DATA)
        self._status = node.create_publisher(String, "nav_status", LATCHED)
        self._instruction = node.create_publisher(String, "instruction", 10)
        self._parameters = node.create_client(SetParameters, "drafter/set_parameters")
        self._request, self._instructed = NOBODY, ""
        self._begun, self._held = 0.0, 0.0

    def play(self) -> Iterator[Compared]:
        """Play everything; each recorded decision gives one comparison. Raises UserError."""
        self._meet()
        recording = self._recording
        decided = {decision.stamp: decision for decision in recording.decisions}
        times = [frame.at for frame in recording.frames if frame.stamp in decided]
        first = min(at for at, _ in recording.instructions) - BLIND
        events: list[tuple[float, str | RecordedFrame]] = [*recording.instructions]
        events += [
            (frame.at, frame)
            for frame in recording.frames
            if frame.stamp in decided
            or (frame.at > first and not any(0 <= at - frame.at < BLIND for at in times))
        ]
        self._say("moving")
        self._begun = time.monotonic() - min(at for at, _ in events)
        for at, event in sorted(events, key=lambda pair: pair[0]):
            if isinstance(event, str):
                self._sleep_until(at)
                self._instructed = event
                self._instruction.publish(String(data=event))
            elif event.stamp in decided:
                self._sleep_until(at - SETTLE)
                yield self._decide(event, decided.pop(event.stamp))
            else:
                self._sleep_until(at)
                self._camera.publish(event.cdr)

    def _meet(self) -> None:
        node = self._observer.listeners
        found = self._until(
            lambda: "drafter" in node(CAMERA) & node("instruction") & node("nav_status"), MATCHING
        )
        if not found:
            raise UserError("no drafter listens in this ROS domain; start the nodes first")
        time.sleep(2 * SETTLE)  # the publishers are new

    def _decide(self, frame: RecordedFrame, recorded: Decision) -> Compared:
        begun = time.monotonic()
        answer = self._decision_on(frame, recorded.seed)
        self._held += max(0.0, time.monotonic() - begun - SETTLE)
        self._say("moving")
        if answer is None or answer.finish != recorded.finish:
            ended = f"it ended with: {answer.finish or 'nothing'}" if answer else ""
            problem = ended or "no decision was made"
            return Compared(frame.stamp, recorded.answer, None, False, problem)
        equal = answer.tokens == recorded.tokens
        return Compared(frame.stamp, recorded.answer, answer.answer, equal)

    def _decision_on(self, frame: RecordedFrame, seed: int) -> Decision | None:
        """The nodes' decision on this frame with this seed, come to its end; None: they make none.

        On a busy machine a node may see a frame of before only now and decide on that one; then it
        is asked again.
        """
        for _ in range(TRIES):
            known = self._count()
            self._set_seed(seed)
            self._say("idle")
            time.sleep(SETTLE)
            self._camera.publish(frame.cdr)
            if not self._until(partial(self._knows_more_than, known), AGAIN):
                continue
            self._until(lambda: self._latest().finish, PATIENCE)
            answer = self._latest()
            self._request = answer.request
            if answer.stamp == frame.stamp:
                return answer
            self._instruct_again()
        return None

    def _set_seed(self, seed: int) -> None:
        """Make it the drafter's next decision's; decisions that were not recorded had numbers, too.

        Raises UserError.
        """
        values = zip(("seed", "first_decision"), seed_and_number(seed), strict=True)
        parameters = [Parameter(name, value=value).to_parameter_msg() for name, value in values]
        asked = self._parameters.call_async(SetParameters.Request(parameters=parameters))
        if not self._until(asked.done, MATCHING):
            raise UserError("the drafter does not answer to ros2 param set; is it ours?")
        refused = [result.reason for result in asked.result().results if not result.successful]
        if refused:
            raise UserError(f"the drafter does not take the recorded seed: {refused[0]}")

    def _instruct_again(self) -> None:
        """A decision to stop ends the instruction; one that was never recorded must not."""
        if self._observer.heard(lambda story: story.instruction_status).startswith("following"):
            return
        self._instruction.publish(String(data=self._instructed))
        time.sleep(SETTLE)

    def _count(self) -> int:
        return self._observer.heard(lambda story: len(story.decisions))

    def _knows_more_than(self, known: int) -> bool:
        return self._count() > known

    def _latest(self) -> Decision:
        return self._observer.heard(lambda story: next(reversed(story.decisions.values())))

    def _say(self, state: str) -> None:
        self._status.publish(String(data=str(Status(state, self._request, "replay"))))

    def _sleep_until(self, at: float) -> None:
        time.sleep(max(0.0, self._begun + self._held + at - time.monotonic()))

    def _until(self, condition: Callable[[], object], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True
