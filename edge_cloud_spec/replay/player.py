"""Plays a recording to running nodes and compares their decisions with the recorded ones."""

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
from ..nodes.runtime.qos import LATCHED, SENSOR_DATA
from ..observe.decision import Decision
from ..observe.observer import Observer
from .recording import CAMERA, RecordedFrame, Recording

QUIET = 0.5  # s before a decision's frame without another, which could be taken in its place
SETTLE = 0.15  # s from "idle" to that frame
RETRY_AFTER = 1.5  # s after which a lost frame (best-effort QoS) is played again
TRIES = 6
ANSWER_TIMEOUT = 30.0  # s
DISCOVERY_TIMEOUT = 10.0  # s


@dataclass(frozen=True)
class DecisionComparison:
    """The recorded and the replayed answer to the frame of ``stamp``; None with a ``problem``."""

    stamp: int
    recorded: str
    replayed: str | None
    equal: bool
    problem: str = ""


class Player:
    """Takes the place of camera, operator and navigator; used once.

    As the navigator it publishes ``moving`` until the recorded run made its next decision, then
    ``idle``. Where the nodes are slower than in the recorded run, the recording waits for them.
    """

    def __init__(self, observer: Observer, recording: Recording) -> None:
        self._observer, self._recording = observer, recording
        node = observer.node
        self._camera = node.create_publisher(CompressedImage, CAMERA, SENSOR_DATA)
        self._status = node.create_publisher(String, "nav_status", LATCHED)
        self._instruction = node.create_publisher(String, "instruction", 10)
        self._parameters = node.create_client(SetParameters, "drafter/set_parameters")
        self._request, self._last_instruction = NOBODY, ""
        self._begun, self._delay = 0.0, 0.0  # s; delay: how far the replay is behind

    def play(self) -> Iterator[DecisionComparison]:
        """Play everything; each recorded decision gives one comparison. Raises UserError."""
        self._wait_for_drafter()
        recording = self._recording
        decided = {decision.stamp: decision for decision in recording.decisions}
        times = [frame.at for frame in recording.frames if frame.stamp in decided]
        first = min(at for at, _ in recording.instructions) - QUIET
        events: list[tuple[float, str | RecordedFrame]] = [*recording.instructions]
        events += [
            (frame.at, frame)
            for frame in recording.frames
            if frame.stamp in decided
            or (frame.at > first and not any(0 <= at - frame.at < QUIET for at in times))
        ]
        self._publish_status("moving")
        self._begun = time.monotonic() - min(at for at, _ in events)
        for at, event in sorted(events, key=lambda pair: pair[0]):
            if isinstance(event, str):
                self._sleep_until(at)
                self._last_instruction = event
                self._instruction.publish(String(data=event))
            elif event.stamp in decided:
                self._sleep_until(at - SETTLE)
                yield self._compare(event, decided.pop(event.stamp))
            else:
                self._sleep_until(at)
                self._camera.publish(event.cdr)

    def _wait_for_drafter(self) -> None:
        subscribers = self._observer.subscribers
        found = self._wait_for(
            lambda: (
                "drafter"
                in subscribers(CAMERA) & subscribers("instruction") & subscribers("nav_status")
            ),
            DISCOVERY_TIMEOUT,
        )
        if not found:
            raise UserError("no drafter is running in this ROS domain; start the nodes first")
        time.sleep(2 * SETTLE)  # the publishers are new

    def _compare(self, frame: RecordedFrame, recorded: Decision) -> DecisionComparison:
        begun = time.monotonic()
        answer = self._decision_on(frame, recorded.seed)
        self._delay += max(0.0, time.monotonic() - begun - SETTLE)
        self._publish_status("moving")
        if answer is None or answer.finish != recorded.finish:
            ended = f"it ended with: {answer.finish or 'nothing'}" if answer else ""
            problem = ended or "no decision was made"
            return DecisionComparison(frame.stamp, recorded.answer, None, False, problem)
        equal = answer.tokens == recorded.tokens
        return DecisionComparison(frame.stamp, recorded.answer, answer.answer, equal)

    def _decision_on(self, frame: RecordedFrame, seed: int) -> Decision | None:
        """The nodes' finished decision on this frame with this seed; None: they make none.

        On a busy machine the drafter may receive an earlier frame only now and decide on that one;
        then the frame is played again.
        """
        for _ in range(TRIES):
            count = self._count()
            self._set_seed(seed)
            self._publish_status("idle")
            time.sleep(SETTLE)
            self._camera.publish(frame.cdr)
            if not self._wait_for(partial(self._has_more_than, count), RETRY_AFTER):
                continue
            self._wait_for(lambda: self._latest().finish, ANSWER_TIMEOUT)
            answer = self._latest()
            self._request = answer.request
            if answer.stamp == frame.stamp:
                return answer
            self._instruct_again()
        return None

    def _set_seed(self, seed: int) -> None:
        """Make it the seed of the drafter's next decision; unrecorded decisions have numbers, too.

        Raises UserError.
        """
        values = zip(("seed", "first_decision"), seed_and_number(seed), strict=True)
        parameters = [Parameter(name, value=value).to_parameter_msg() for name, value in values]
        response = self._parameters.call_async(SetParameters.Request(parameters=parameters))
        if not self._wait_for(response.done, DISCOVERY_TIMEOUT):
            raise UserError("the drafter does not answer to ros2 param set; is it ours?")
        refused = [result.reason for result in response.result().results if not result.successful]
        if refused:
            raise UserError(f"the drafter does not take the recorded seed: {refused[0]}")

    def _instruct_again(self) -> None:
        """A decision to stop ends the instruction; an unrecorded one must not."""
        if self._observer.read(lambda run_log: run_log.instruction_status).startswith("following"):
            return
        self._instruction.publish(String(data=self._last_instruction))
        time.sleep(SETTLE)

    def _count(self) -> int:
        return self._observer.read(lambda run_log: len(run_log.decisions))

    def _has_more_than(self, count: int) -> bool:
        return self._count() > count

    def _latest(self) -> Decision:
        return self._observer.read(lambda run_log: next(reversed(run_log.decisions.values())))

    def _publish_status(self, state: str) -> None:
        self._status.publish(String(data=str(Status(state, self._request, "replay"))))

    def _sleep_until(self, at: float) -> None:
        time.sleep(max(0.0, self._begun + self._delay + at - time.monotonic()))

    def _wait_for(self, condition: Callable[[], object], timeout: float) -> bool:
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True
