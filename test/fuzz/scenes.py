"""Decoders that wait for a frame of the cloud, and the frame, from a real verification."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from fuzz.drafts import MAX_TOKENS, VOCABULARY
from fuzz.target import END, Target

from edge_cloud_spec.cloud.session.events import Propose, Proposed, Scored
from edge_cloud_spec.cloud.session.session import CloudSession
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.decoding.shape import Branch
from edge_cloud_spec.decoding.target_rows import LogitRows
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.events import Drafted, Prefilled, PromptReady
from edge_cloud_spec.models.draft_model import DraftModel
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec.wire.codec import (
    decode_client,
    decode_server,
    encode_client,
    encode_server,
    read_server,
)
from edge_cloud_spec.wire.messages import (
    Open,
    Opened,
    RowRequest,
    Verdict,
    base_digest,
    spec_digest,
)
from edge_cloud_spec_lab.harness.scripted.model import ScriptedSession

SPEC = b"the cloud's specification"
PROMPT = PromptReady(b"prompt", spec_digest(SPEC), (END,), MAX_TOKENS, VOCABULARY)
SOME = SamplingPolicy(0.8, seed=3)
WHOLE = ("end", "length")


def split(residual: str, top_k: int = 4, tail: int = 4) -> Preset:
    """A preset whose robot resamples from this kind of residual."""
    return Preset(
        "fuzz",
        "",
        "edge",
        2,
        payload="probabilities",
        resample="robot",
        residual=residual,
        residual_top_k=top_k,
        residual_tail=tail,
        exact=residual != "top_k",
    )


CHAIN = Preset("fuzz", "", "edge", 3)
TREE = Preset("fuzz", "", "edge", expansion=(2, 2))
ALONE = Preset("fuzz", "", "cloud", 3)


@dataclass(frozen=True)
class Scene:
    """A decoder that waits for one frame, made again for each trial, and that frame."""

    name: str
    robot: Callable[[], EdgeDecoder]
    due: bytes


def opening_of(preset: Preset, rule: str, policy: SamplingPolicy) -> Open:
    return Open(
        7,
        CLAUSES.request("find", b""),
        policy,
        rule,
        payload=preset.payload_of(rule),
        spec_digest=spec_digest(SPEC),
        draft_length=preset.draft_length,
        split=preset.split_of(rule),
        replacement=preset.replacement,
    )


def _met(
    preset: Preset, rule: str, policy: SamplingPolicy, seed: int = 1
) -> tuple[Callable[[], EdgeDecoder], CloudSession, bytes]:
    """A robot whose first draft, or wish, is on its way, and the verifier that has judged it."""
    opening, end = opening_of(preset, rule, policy), {"end_tokens": (END,)}
    base = base_digest(opening, b"prompt", spec_digest(SPEC))
    cloud = CloudSession("s", opening, base, max_tokens=MAX_TOKENS, vocabulary=VOCABULARY, **end)
    target, drafter = (ScriptedSession(Target(noise), (seed,)) for noise in (0.0, 1.0))
    branch = Branch((), preset.shape)
    finished = DraftModel(drafter, preset.proposal(rule, policy), (END,)).finished(branch)
    said: list[Any] = []

    def robot() -> EdgeDecoder:
        robot = EdgeDecoder(opening, preset)
        robot.start(0.0, SPEC)
        said[:] = robot.handle(Opened("s", b"", base), 0.0)
        if preset.drafts_on_robot:
            robot.handle(PROMPT, 0.0)
            robot.handle(Prefilled(), 0.0)
            said[:] = robot.handle(Drafted(branch, finished.draft.tokens, finished), 0.0)
        return robot

    robot()
    (due,) = cloud.handle(decode_client(encode_client(said[0])))
    if isinstance(due, Propose):
        (due,) = cloud.handle(Proposed(finished.draft))
    logits = target.forward(due.draft.tokens, due.draft.parents)
    verdict = cloud.handle(Scored(LogitRows(logits)))[0]
    return robot, cloud, encode_server(verdict).data


def _told(preset: Preset) -> Iterator[tuple[Callable[[], EdgeDecoder], CloudSession, bytes]]:
    """Those of which a draft is rejected and the robot resamples."""
    for seed in range(1000):
        robot, cloud, frame = _met(preset, "rejection", SOME, seed)
        if decode_server(read_server(frame)).residual is not None:
            yield robot, cloud, frame


def _told_robot(robot: Callable[[], EdgeDecoder], verdict: Verdict) -> EdgeDecoder:
    told = robot()
    told.handle(verdict, 0.0)
    return told


def _waits_for_a_row() -> Scene:
    """It has drawn the tail."""
    for robot, cloud, frame in _told(split("sparse", 1, 0)):
        told = partial(_told_robot, robot, decode_server(read_server(frame)))
        if told().stats.fallbacks:
            (said,) = cloud.handle(RowRequest(decode_server(read_server(frame)).base))
            return Scene("row", told, encode_server(said).data)
    raise AssertionError("the tail was never chosen")


def scenes() -> list[Scene]:
    """All of them, each with the real verifier's own answer."""
    found = []
    for name, preset, rule, policy in (
        ("chain", CHAIN, "greedy", GREEDY),
        ("tree", TREE, "coupled", SOME),
        ("rows", CHAIN, "rejection", SOME),
        ("rows of a tree", TREE, "rejection", SOME),
        ("alone", ALONE, "greedy", GREEDY),
    ):
        robot, _, frame = _met(preset, rule, policy)
        found.append(Scene(name, robot, frame))
    for residual in ("dense", "top_k", "sparse"):
        robot, _, frame = next(_told(split(residual)))
        found.append(Scene(residual, robot, frame))
    return [*found, _waits_for_a_row()]
