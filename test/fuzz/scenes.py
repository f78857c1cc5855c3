"""Decoders that wait for a frame of the cloud, and the frame, from a real verification."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from fuzz.drafts import MAX_TOKENS, VOCABULARY
from fuzz.target import END, Target

from edge_cloud_spec.cloud.session import events as cloud_events
from edge_cloud_spec.cloud.session.events import DuePass, Propose, Proposed, Scored
from edge_cloud_spec.cloud.session.session import CloudSession
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.decoding.shape import Branch
from edge_cloud_spec.decoding.target_rows import LogitRows
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.events import Drafted, Effect, PromptReady, Received, Send
from edge_cloud_spec.lab.harness.scripted.model import ScriptedSession
from edge_cloud_spec.models.draft_model import DraftModel
from edge_cloud_spec.wire.codec import (
    decode_client,
    decode_server,
    encode_client,
    encode_server,
)
from edge_cloud_spec.wire.messages import (
    DraftMessage,
    Generate,
    Open,
    Opened,
    RowRequest,
    Verdict,
    base_digest,
    spec_digest,
)

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


# The scenes, each with the real verifier's own answer


def _session(draft_noise: float, seed: int) -> ScriptedSession:
    return ScriptedSession(Target(draft_noise), (seed,))


def opening_of(preset: Preset, rule: str, policy: SamplingPolicy) -> Open:
    return Open(
        7,
        "find",
        b"",
        "action first",
        policy,
        rule,
        payload=preset.payload_of(rule),
        spec_digest=spec_digest(SPEC),
        draft_length=preset.draft_length,
        split=preset.split_of(rule),
        replacement=preset.replacement,
    )


class _Talk:
    """A robot and a verification, up to the moment when something is due."""

    def __init__(self, preset: Preset, rule: str, policy: SamplingPolicy, seed: int) -> None:
        self._preset, self._opening = preset, opening_of(preset, rule, policy)
        self._base = base_digest(self._opening, b"prompt", spec_digest(SPEC))
        self.cloud = CloudSession(
            "s",
            self._opening,
            self._base,
            end_tokens=(END,),
            max_tokens=MAX_TOKENS,
            vocabulary=VOCABULARY,
        )
        self._target = _session(0.0, seed)
        proposal = preset.proposal(rule, policy)
        drafter = DraftModel(_session(1.0, seed), proposal, (END,))  # type: ignore[arg-type]
        self._finished = drafter.finished(Branch((), preset.shape))

    def robot(self) -> EdgeDecoder:
        """A decoder whose first draft, or wish, is on its way."""
        return self._begin()[0]

    def _begin(self) -> tuple[EdgeDecoder, list[Effect]]:
        robot = EdgeDecoder(self._opening, self._preset)
        robot.start(0.0, SPEC)
        said = robot.handle(Received(Opened("s", b"", self._base)), 0.0)
        if self._preset.drafts_on_robot:
            robot.handle(PROMPT, 0.0)
            said = robot.handle(self._drafted(), 0.0)
        return robot, said

    def _drafted(self) -> Drafted:
        branch = Branch((), self._preset.shape)
        return Drafted(branch, self._finished.draft.tokens, self._finished)

    def verdict(self) -> bytes:
        """What the verification says to it."""
        (effect,) = self.cloud.handle(self._sent())
        if isinstance(effect, Propose):
            (effect,) = self.cloud.handle(Proposed(self._finished.draft))
        assert isinstance(effect, DuePass)
        logits = self._target.forward(effect.draft.tokens, effect.draft.parents)
        first = self.cloud.handle(Scored(LogitRows(logits)))[0]
        assert isinstance(first, cloud_events.Reply)
        return encode_server(first.message)

    def row(self) -> bytes:
        (said,) = self.cloud.handle(RowRequest(self._base))
        assert isinstance(said, cloud_events.Reply)
        return encode_server(said.message)

    def _sent(self) -> DraftMessage | Generate:
        effect = self._begin()[1][0]
        assert isinstance(effect, Send)
        message = decode_client(encode_client(effect.message))
        assert isinstance(message, DraftMessage | Generate)
        return message


def _told(preset: Preset) -> Iterator[tuple[_Talk, bytes]]:
    """Talks in which a draft is rejected and the robot resamples, and what it is told."""
    for seed in range(1000):
        talk = _Talk(preset, "rejection", SOME, seed)
        frame = talk.verdict()
        message = decode_server(frame)
        if isinstance(message, Verdict) and message.residual is not None:
            yield talk, frame


def _told_robot(talk: _Talk, frame: bytes) -> EdgeDecoder:
    robot = talk.robot()
    robot.handle(Received(decode_server(frame)), 0.0)
    return robot


def _waits_for_a_row() -> Scene:
    """It has drawn the tail."""
    for talk, frame in _told(split("sparse", 1, 0)):
        robot = partial(_told_robot, talk, frame)
        if robot().stats.fallbacks:
            return Scene("row", robot, talk.row())
    raise AssertionError("the tail was never chosen")


def scenes() -> list[Scene]:
    """All of them."""
    found = []
    for name, preset, rule, policy in (
        ("chain", CHAIN, "greedy", GREEDY),
        ("tree", TREE, "coupled", SOME),
        ("rows", CHAIN, "rejection", SOME),
        ("rows of a tree", TREE, "rejection", SOME),
        ("alone", ALONE, "greedy", GREEDY),
    ):
        talk = _Talk(preset, rule, policy, 1)
        found.append(Scene(name, talk.robot, talk.verdict()))
    for residual in ("dense", "top_k", "sparse"):
        talk, frame = next(_told(split(residual)))
        found.append(Scene(residual, talk.robot, frame))
    return [*found, _waits_for_a_row()]
