"""A run read from its bag: its frames, its instructions and its decisions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..bringup.graph import Value
from ..decoding.noise import seed_and_number
from ..errors import UserError
from ..models.prompt import PromptSpec
from ..observe.bag import read_bag
from ..observe.decision import Decision
from ..observe.run_log import RunLog
from ..wire.codec import decode_client, decode_server
from ..wire.messages import COMPLETE, Open, Opened, WireError

CAMERA = "camera/image_raw/compressed"
DECODE_TOPICS = (
    "instruction",
    "decode_request",
    "draft",
    "verdict",
    "verified_tokens",
    "decode_stats",
)


@dataclass(frozen=True)
class RecordedFrame:
    """A camera frame, published ``at`` (s); ``stamp`` is its header's (ns)."""

    at: float
    stamp: int
    cdr: bytes


@dataclass(frozen=True)
class Recording:
    """Times are seconds since the bag's first message.

    ``decisions`` are the finished ones whose frame is in the bag; ``parameters`` are the drafter's,
    as far as the bag has them, ``target`` the identity of the target model, empty where unknown.
    """

    frames: tuple[RecordedFrame, ...]
    instructions: tuple[tuple[float, str], ...]
    decisions: tuple[Decision, ...]
    preset: str
    rule: str
    parameters: dict[str, Value]
    target: str


def read_recording(folder: Path) -> Recording:
    """Read a bag of a demo, or of a robot that ran these nodes; raises UserError."""
    run_log, frames, instructions = RunLog(), [], []
    opening: Open | None = None
    zero = None
    for stamp, topic, cdr, message in read_bag(folder, (CAMERA, *DECODE_TOPICS)):
        zero = stamp if zero is None else zero
        at = (stamp - zero) / 1e9
        if topic == CAMERA:
            header_stamp = message.header.stamp
            frames.append(RecordedFrame(at, header_stamp.sec * 10**9 + header_stamp.nanosec, cdr))
            continue
        run_log.on_message(topic, message, at)
        if topic == "instruction":
            instructions.append((at, message.data))
        elif topic == "decode_request" and opening is None:
            opening = _opening(message.payload.tobytes())
    shown = {frame.stamp for frame in frames}
    ended = [d for d in run_log.decisions.values() if d.finish in COMPLETE]
    decisions = tuple(d for d in ended if d.stamp in shown)
    for needed, what in ((frames, CAMERA), (instructions, "instruction"), (decisions, "decisions")):
        if not needed:
            raise UserError(f"{folder} has no {what} to replay; give the bag of a whole run")
    seed, _ = seed_and_number(decisions[0].seed)
    stats = next((d.stats for d in decisions if d.stats), {"preset": "dsd", "rule": "greedy"})
    return Recording(
        tuple(frames),
        tuple(instructions),
        decisions,
        stats["preset"],
        stats["rule"],
        {"rule": stats["rule"], "seed": seed, **(_parameters(opening) if opening else {})},
        target_of(run_log),
    )


def target_of(run_log: RunLog) -> str:
    """The identity of the target model that a run was verified by; empty where unknown."""
    for payload in run_log.opened:
        try:
            message = decode_server(payload)
        except WireError:
            continue
        if isinstance(message, Opened) and message.spec:
            return PromptSpec.from_bytes(message.spec).target
    return ""


def _opening(payload: bytes) -> Open | None:
    try:
        message = decode_client(payload)
    except WireError:
        return None
    return message if isinstance(message, Open) else None


def _parameters(opening: Open) -> dict[str, Value]:
    policy = opening.policy
    parameters: dict[str, Value] = {
        "order": opening.order,
        "top_k": policy.top_k,
        "top_p": policy.top_p,
    }
    if policy.temperature:
        parameters["temperature"] = policy.temperature
    if opening.max_tokens:
        parameters["max_tokens"] = opening.max_tokens
    return parameters
