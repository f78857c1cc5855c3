"""Robot and cloud in one process: both state machines over the codec, without link or clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING

from edge_cloud_spec.cloud.session.events import Commit, DuePass, Propose, Scored
from edge_cloud_spec.cloud.session.session import CloudSession
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.decoding.processors import LogitsProcessors, adjustment_after
from edge_cloud_spec.decoding.random_source import RandomSource
from edge_cloud_spec.decoding.target_rows import LogitRows
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.events import (
    Drafted,
    Emit,
    Event,
    Finish,
    Prefilled,
    Prepare,
    PromptReady,
    Work,
)
from edge_cloud_spec.edge.runner import opening_of
from edge_cloud_spec.models.draft_model import DraftModel
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec.wire.codec import decode_client, decode_server, encode_client, encode_server
from edge_cloud_spec.wire.messages import (
    ClientMessage,
    Open,
    Opened,
    RowMessage,
    ServerMessage,
    Verdict,
    base_digest,
)

if TYPE_CHECKING:
    from edge_cloud_spec.models.session import Session

LOOPBACK_SPEC = b"face to face"
NO_LIMIT = 2**31  # tokens; no answer is that long
VERIFY_S, QUEUE_S = 0.1, 0.01  # times that verdicts carry, in bytes that count

REQUEST = CLAUSES.request("find", b"")

Wire = Callable[[ClientMessage | ServerMessage], tuple[ClientMessage | ServerMessage, int]]


def over_the_codec(
    message: ClientMessage | ServerMessage,
) -> tuple[ClientMessage | ServerMessage, int]:
    """A message after encoding and decoding, and its size in bytes."""
    if isinstance(message, ServerMessage):
        sent = encode_server(message)
        return decode_server(sent), len(sent)
    data = encode_client(message)
    return decode_client(data), len(data)


# The draft model is a session that no cloud compares with its own.
UNNAMED = SimpleNamespace(identity="", tokenizer_digest=b"")


class LoopbackPair:
    """One decode with two model sessions, round by round, under a preset that drafts on the
    robot."""

    def __init__(
        self,
        preset: Preset,
        rule: str,
        policy: SamplingPolicy,
        sessions: tuple[Session, Session],
        vocabulary: int,
        *,
        random_source: RandomSource | None = None,
        wire: Wire = over_the_codec,
        processors: LogitsProcessors | None = None,
    ) -> None:
        """sessions: the draft model's, then the target's. random_source: for both sides."""
        draft_session, self._target = sessions
        self._wire = wire
        self._drafter = DraftModel(
            draft_session,
            preset.proposal(rule, policy),
            (),
            random_source,
            processors=processors,
        )
        settings = DecodeSettings(preset, rule, policy)
        opening = opening_of(REQUEST, settings, 1, UNNAMED, LOOPBACK_SPEC)
        base = base_digest(opening, b"prompt", opening.spec_digest)
        self.robot = EdgeDecoder(opening, preset, random_source=random_source)
        self.cloud = CloudSession(
            "pair",
            opening,
            base,
            end_tokens=(),
            max_tokens=NO_LIMIT,
            vocabulary=vocabulary,
            random_source=random_source,
            processors=processors,
        )
        self.up_bytes = self.down_bytes = 0  # of all messages so far
        self.row_bytes = 0  # of those down, dense rows that the robot requested
        self.draft: Draft | None = None  # of the last round
        self.verdict: Verdict | None = None
        self.emitted: tuple[int, ...] = ()
        self._arriving: deque[ServerMessage] = deque()
        self._work: Work | None = None
        self.robot.start(0.0, LOOPBACK_SPEC)
        self.robot.handle(Opened("pair", b"", base), 0.0)
        self._handle(PromptReady(b"prompt", opening.spec_digest, (), NO_LIMIT))
        self._handle(Prefilled())

    def round(self) -> None:
        """Make one draft, and exchange messages until its verdict is applied."""
        assert self._work is not None
        branch, self._work = self._work.branches[0], None
        finished = self._drafter.finished(branch)
        self.draft = finished.draft
        self._handle(Drafted(branch, finished.draft.tokens, finished))
        while self._arriving:
            message, size = self._wire(self._arriving.popleft())
            self.down_bytes += size
            assert isinstance(message, ServerMessage)
            if isinstance(message, RowMessage):
                self.row_bytes += size
            if isinstance(message, Verdict):
                self.verdict = message
            self._handle(message)

    def _handle(self, event: Event) -> None:
        for effect in self.robot.handle(event, 0.0):
            match effect:
                case Work():  # for the next round
                    self._work = effect
                case Emit(_, tokens):
                    self.emitted += tokens
                case Prepare() | Finish():
                    pass
                case _:
                    self._send(effect)

    def _send(self, message: ClientMessage) -> None:
        """Send a message; the cloud handles it at once, including its pass."""
        arrived, size = self._wire(message)
        self.up_bytes += size
        assert not isinstance(arrived, ServerMessage | Open)
        effects = self.cloud.handle(arrived)
        while effects:
            effect = effects.pop(0)
            match effect:
                case DuePass(draft):
                    logits = self._target.forward(draft.tokens, draft.parents)
                    adjusted = adjustment_after(self.cloud.processors, self.cloud.tokens, draft)
                    rows = LogitRows(logits, adjusted)
                    effects += self.cloud.handle(Scored(rows, VERIFY_S, QUEUE_S))
                case Commit(path, tokens):
                    self._target.commit(path)
                    self._target.extend(tokens)
                case Propose():
                    pass
                case _:
                    self._arriving.append(effect)
