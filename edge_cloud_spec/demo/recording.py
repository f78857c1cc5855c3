"""What a bag tells of a run: its pictures, its instructions, and the decisions that were made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..decoding.noise import seed_and_number
from ..errors import UserError
from ..models.prompt import PromptSpec
from ..nodes.graph import Value
from ..wire.codec import decode_client, decode_server
from ..wire.messages import Open, Opened, WireError
from .bag import read_bag
from .run_log import Decision, RunLog

CAMERA = "camera/image_raw/compressed"
HEARD = ("instruction", "decode_request", "draft", "verdict", "verified_tokens", "decode_stats")


@dataclass(frozen=True)
class RecordedFrame:
    """A picture as it was published ``at`` (s); ``stamp`` is its header's (ns)."""

    at: float
    stamp: int
    cdr: bytes


@dataclass(frozen=True)
class Recording:
    """Times are seconds since the bag's first message.

    ``decisions`` are those that came to an end and whose frame is there; ``parameters`` are the
    drafter's, as far as the bag tells, ``target`` the identity of the target model, where it does.
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
    story, frames, instructions = RunLog(), [], []
    opening: Open | None = None
    zero = None
    for stamp, topic, cdr, message in read_bag(folder, (CAMERA, *HEARD)):
        zero = stamp if zero is None else zero
        at = (stamp - zero) / 1e9
        if topic == CAMERA:
            taken = message.header.stamp
            frames.append(RecordedFrame(at, taken.sec * 10**9 + taken.nanosec, cdr))
            continue
        story.hear(topic, message, at)
        if topic == "instruction":
            instructions.append((at, message.data))
        elif topic == "decode_request" and opening is None:
            opening = _opening(message.payload.tobytes())
    shown = {frame.stamp for frame in frames}
    ended = [d for d in story.decisions.values() if d.finish in ("end", "length")]
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
        target_of(story),
    )


def target_of(story: RunLog) -> str:
    """The identity of the target model that a run was verified by; empty where nobody said it."""
    for payload in story.opened:
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
