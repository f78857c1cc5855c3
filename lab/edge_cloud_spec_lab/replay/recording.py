"""Reads a bag as tasks: decisions to make, each on one picture and for one instruction."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edge_cloud_spec.bringup.graph import Value
from edge_cloud_spec.decoding.noise import seed_and_number
from edge_cloud_spec.edge.events import ANSWERED
from edge_cloud_spec.edge.runner import ids_per_token
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.instruction import is_stop, normalized
from edge_cloud_spec.models.image import decode_image
from edge_cloud_spec.models.prompt import PromptSpec
from edge_cloud_spec.nav.answer import ORDERS
from edge_cloud_spec.nav.free_space import NOTHING_SEEN, FreeSpace
from edge_cloud_spec.nodes.drafting.camera import TYPES as CAMERAS
from edge_cloud_spec.nodes.drafting.camera import encode_frame
from edge_cloud_spec.request import USER
from edge_cloud_spec.wire.codec import decode_client, decode_server, read_client, read_server
from edge_cloud_spec.wire.messages import PROTOCOL, Open, Opened, WireError

from ..bags.bag import Bag
from ..bags.topics import robot_topics, topic_of
from ..running.run_log import Decision, RunLog

RUN_TOPICS = {
    "instruction": "std_msgs/msg/String",
    "decode_request": "edge_cloud_spec/msg/DecodeRequest",
    "draft": "edge_cloud_spec/msg/Draft",
    "verdict": "edge_cloud_spec/msg/Verdict",
    "verified_tokens": "edge_cloud_spec/msg/VerifiedTokens",
    "decode_stats": "edge_cloud_spec/msg/DecodeStats",
    "run_info": "std_msgs/msg/String",
    "e_stop": "std_msgs/msg/Bool",
}
"""What is read of a run beside its pictures."""
BAG_CAMERA = "camera"


def choose_topics(types: Mapping[str, str], choice: Choice) -> dict[str, str]:
    """Full topic names in the bag by the graph's names, including ``BAG_CAMERA``.

    They are chosen by the user, by the robot's namespace or, for a camera, because there is only
    one. Raises UserError.
    """
    # A camera that is named says nothing of whose run it is.
    topics = robot_topics(
        types, RUN_TOPICS if choice.camera else RUN_TOPICS | CAMERAS, choice.namespace
    )
    ours = [topics.pop(name) for name in CAMERAS if name in topics]
    cameras = {topic: kind for topic, kind in types.items() if "annotated" not in topic}
    named = choice.camera or next(iter(ours), "")
    topics[BAG_CAMERA] = topic_of(cameras, named, CAMERAS.values(), "--camera")
    if choice.instruction:
        text = topic_of(types, choice.instruction, [RUN_TOPICS["instruction"]], "--instruction")
        topics["instruction"] = text
    return {name: full for name, full in topics.items() if full}


@dataclass(frozen=True)
class Choice:
    """How to read a bag: topics by name, another instruction (``say``), seconds between decisions.

    ``every`` is used only if no recorded decisions are played again; ``namespace``: the robot's.
    """

    camera: str = ""
    instruction: str = ""
    say: str = ""
    every: float = 1.0
    namespace: str = ""


@dataclass(frozen=True)
class ReplayTask:
    """One decision to make: on which picture, for which instruction, with which parameters.

    ``at``: seconds since the bag's first message. ``frame``: the picture's number in the camera's
    topic, from 1; 0 if only the decision itself contains it. ``stamp`` in ns. ``begins``: the
    decision was a mission's first, where prompts remember a mission.
    """

    at: float
    frame: int
    stamp: int
    instruction: str
    jpeg: bytes
    parameters: Mapping[str, Value]
    recorded: Decision | None = None
    begins: bool = False

    @property
    def free_space(self) -> FreeSpace:
        """What lidars showed when the picture was taken, by the picture's clock."""
        space = NOTHING_SEEN if self.recorded is None else self.recorded.free_space
        return replace(space, at=self.stamp, base_clock=None)


@dataclass(frozen=True)
class Recording:
    """A bag's tasks in order, and the log of its run (empty if it has no topics of ours).

    ``problem``: the first picture that was passed over, and why.
    """

    tasks: tuple[ReplayTask, ...]
    frames: int
    run_log: RunLog
    problem: str = ""

    @property
    def compares(self) -> bool:
        """Whether there are recorded decisions to compare with."""
        return any(task.recorded is not None for task in self.tasks)


def read_recording(path: Path, choice: Choice = Choice()) -> Recording:
    """Read a bag: ours, or any with a camera and an instruction. Raises UserError."""
    bag = Bag(path)
    topics = choose_topics(bag.topics, choice)
    reading = _Reading(path, topics, choice, choice.say, bag.topics)
    for stamp, name, message in bag.read(topics):
        reading.take(stamp, name, message)
    has_decisions = {"decode_request", "verified_tokens"} <= topics.keys()
    tasks = reading.recorded_tasks() if has_decisions and not choice.say else ()
    if not tasks:
        tasks = reading.new_tasks()
    return Recording(tasks, reading.frames, reading.run_log, reading.problem)


@dataclass
class _Reading:
    """The state of reading a bag."""

    path: Path
    topics: Mapping[str, str]
    choice: Choice
    instruction: str
    there: Mapping[str, str]  # types of the bag's topics by their names
    run_log: RunLog = field(default_factory=RunLog)
    problem: str = ""
    frames: int = 0
    zero: int | None = None
    instructions: int = 0
    last: float = -1e9
    chosen: list[ReplayTask] = field(default_factory=list)
    seen: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)

    def take(self, stamp: int, topic: str, message: Any) -> None:
        """One message, received at ``stamp`` (ns)."""
        self.zero = stamp if self.zero is None else self.zero
        at = (stamp - self.zero) / 1e9
        if topic == BAG_CAMERA:
            self._frame(at, stamp, message)
        elif topic == "instruction":
            self.instructions += 1
            if not self.choice.say:
                self.instruction = "" if is_stop(message.data) else normalized(message.data)
                self.last = -1e9  # the next picture is decided on
        elif topic == "e_stop":
            if message.data and not self.choice.say:
                self.instruction = ""
        else:
            try:
                self.run_log.on_message(topic, message, at)
            except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
                raise UserError(f"{self.path} has a damaged message on {topic}: {error}") from None

    def _frame(self, at: float, received: int, message: Any) -> None:
        self.frames += 1
        header = message.header.stamp
        stamp = header.sec * 10**9 + header.nanosec
        digest = b"" if _is_raw(message) else _digest(message.data.tobytes())
        self.seen.setdefault(stamp, []).append((self.frames, digest))
        if not self.instruction or at - self.last < self.choice.every:
            return
        try:
            jpeg = encode_frame(message)
            check_picture(jpeg)
        except UserError as error:  # a live camera's would be passed over, too
            self.problem = self.problem or (
                f"{self.path}: picture {self.frames} of {self.topics[BAG_CAMERA]} cannot be used: "
                f"{error}"
            )
            return
        self.last = at
        if len(self.seen[stamp]) > 1 or not stamp:
            stamp = received  # stamps that stand still name no picture
        task = ReplayTask(at, self.frames, stamp, self.instruction, jpeg, {})
        self.chosen.append(task)

    def recorded_tasks(self) -> tuple[ReplayTask, ...]:
        """What the cloud was asked for, where it came to an end and no word of it was missed."""
        ended = (
            d for d in self.run_log.decisions.values() if d.finish in ANSWERED and not d.missed
        )
        return tuple(task for task in map(self._recorded, ended) if task is not None)

    def _recorded(self, decision: Decision) -> ReplayTask | None:
        """The task of a recorded decision; None if it did not use the cloud."""
        opening, shown = opening_of(decision), self.seen.get(decision.stamp, [])
        if opening is None or not opening.request.pictures:
            return None
        jpeg = opening.request.pictures[-1].data  # which a robot always sends whole
        digest = _digest(jpeg)
        frame = next((number for number, d in shown if d in (b"", digest)), 0)
        if shown and not frame:
            raise UserError(
                f"{self.path} is damaged: decision {decision.number} was made on another "
                f"picture than picture {shown[0][0]} of {self.topics[BAG_CAMERA]} of the same stamp"
            )
        return ReplayTask(
            decision.begun,
            frame,
            decision.stamp,
            decision.instruction,
            jpeg,
            parameters_of(decision, opening, spec_of(self.run_log)),
            decision,
            opening.request.continues and not decision.remembered,
        )

    def new_tasks(self) -> tuple[ReplayTask, ...]:
        """Decisions on pictures of the bag, for the instruction that was followed then."""
        if BAG_CAMERA not in self.topics:
            raise UserError(
                f"{self.path} has no camera to replay: it needs sensor_msgs/CompressedImage or "
                "sensor_msgs/Image; it has "
                + (", ".join(map(" of ".join, [*self.there.items()][:8])) or "no messages")
            )
        if not self.instructions and not self.choice.say:
            raise UserError(
                f'{self.path} has no instruction: give one, as in --say "find the silver bottle", '
                "or name its topic with --instruction"
            )
        if not self.chosen:
            raise UserError(
                self.problem
                or f"{self.path} has no picture while an instruction was followed; "
                "give one for all of them with --say"
            )
        return tuple(self.chosen)


def opening_of(decision: Decision) -> Open | None:
    """The request that the decision sent to the cloud; None if there was none. Raises UserError."""
    try:
        opening = decode_client(read_client(decision.opening)) if decision.opening else None
    except WireError as error:
        raise UserError(
            f"the request of decision {decision.number} cannot be read: {error}"
        ) from None
    if not isinstance(opening, Open):
        return None
    if opening.protocol != PROTOCOL:
        raise UserError(
            f"decision {decision.number} was recorded with protocol {opening.protocol}, this is "
            f"{PROTOCOL}: replay it with the edge_cloud_spec that made it"
        )
    return opening


def spec_of(run_log: RunLog) -> PromptSpec | None:
    """The last prompt specification that the run's cloud sent; None if not recorded."""
    for payload in reversed(run_log.opened):
        try:
            message = decode_server(read_server(payload))
            if isinstance(message, Opened) and message.spec:
                return PromptSpec.from_bytes(message.spec)
        except (WireError, UserError):
            continue
    return None


def longest_answer(opening: Open, spec: PromptSpec | None) -> int:
    """The most ids that robot and verifier allowed in an answer; 0: unknown."""
    return min(opening.max_tokens, spec.max_tokens) if spec else opening.max_tokens


def parameters_of(
    decision: Decision, opening: Open, spec: PromptSpec | None = None
) -> dict[str, Value]:
    """The drafter's parameters with which this decision was made, with the verifier's ``spec``."""
    seed, number = seed_and_number(decision.seed)
    parameters: dict[str, Value] = {"seed": seed, "first_decision": number}
    if decision.preset:
        parameters["preset"] = decision.preset
    policy = opening.policy
    parameters["rule"] = opening.rule
    asked = " ".join(each.text for each in decision.messages if each.role == USER)
    if order := next((order for order in ORDERS if order in asked), ""):
        parameters["order"] = order
    parameters |= {"top_k": policy.top_k, "top_p": policy.top_p}
    if policy.grammar:
        parameters["grammar"] = policy.grammar
    if policy.temperature:
        parameters["temperature"] = policy.temperature
    if longest := longest_answer(opening, spec):
        parameters["max_tokens"] = max(1, longest // ids_per_token(opening.tokenizer_digest))
    return parameters


def check_picture(jpeg: bytes) -> None:
    """Raise UserError for a picture that the models cannot be given, as of a live camera."""
    decode_image(jpeg)


def _is_raw(picture: Any) -> bool:
    return not hasattr(picture, "format")


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()
