"""Robot and cloud face to face: both state machines over the codec, without a link or a clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..cloud import events as cloud_events
from ..cloud.events import Commit, Extend, Score, Scored
from ..cloud.verification import Verification
from ..decoding.draft import Draft
from ..decoding.policy import SamplingPolicy
from ..decoding.preset import Preset
from ..decoding.random_source import RandomSource
from ..edge.decoder import EdgeDecoder
from ..edge.events import Action, Drafted, Emit, PromptReady, Received, Send, Work
from ..models.drafter import Drafter
from ..wire.codec import decode_client, decode_server, encode_client, encode_server
from ..wire.messages import (
    ClientMessage,
    Open,
    Opened,
    RowMessage,
    ServerMessage,
    Verdict,
    base_digest,
    spec_digest,
)

if TYPE_CHECKING:
    from ..models.session import Session

SPEC = b"face to face"
LONGEST = 2**31  # tokens; no answer is cut

Wire = Callable[[ClientMessage | ServerMessage], tuple[ClientMessage | ServerMessage, int]]


def over_the_codec(
    message: ClientMessage | ServerMessage,
) -> tuple[ClientMessage | ServerMessage, int]:
    """A message as it arrives, and its bytes."""
    if isinstance(message, ServerMessage):
        said = encode_server(message)
        return decode_server(said), len(said)
    data = encode_client(message)
    return decode_client(data), len(data)


class LoopbackPair:
    """One decode of two model sessions, round by round; a preset that drafts on the robot."""

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
        end_tokens: tuple[int, ...] = (),
        max_tokens: int = LONGEST,
        verify_s: float = 0.0,
        queue_s: float = 0.0,
    ) -> None:
        """sessions: the draft model's, then the target's. chooser: of all three that draw.

        verify_s, queue_s: what verdicts say that a pass and the waiting for it took, in seconds.
        """
        draft_session, self._target = sessions
        self._wire = wire
        self._verify_s, self._queue_s = verify_s, queue_s
        self._drafter = Drafter(
            draft_session, preset.proposal(rule, policy), end_tokens, random_source
        )
        opening = Open(
            1,
            "find",
            b"",
            "action first",
            policy,
            rule,
            preset.payload_of(rule),
            spec_digest=spec_digest(SPEC),
            split=preset.split_of(rule),
            replacement=preset.replacement,
        )
        base = base_digest(opening, b"prompt", opening.spec_digest)
        self.robot = EdgeDecoder(opening, preset, random_source=random_source)
        self.cloud = Verification(
            "pair",
            opening,
            base,
            end_tokens=end_tokens,
            max_tokens=max_tokens,
            vocabulary=vocabulary,
            random_source=random_source,
        )
        self.up_bytes = self.down_bytes = 0  # of all messages so far
        self.row_bytes = 0  # of those down, dense rows that the robot had to ask for
        self.draft: Draft | None = None  # of the last round
        self.verdict: Verdict | None = None
        self.emitted: tuple[int, ...] = ()
        self.robot.start(0.0, SPEC)
        self.robot.handle(Received(Opened("pair", b"", base)), 0.0)
        ready = PromptReady(b"prompt", opening.spec_digest, end_tokens, max_tokens)
        self._due = self.robot.handle(ready, 0.0)

    @property
    def finished(self) -> bool:
        """Whether the answer has ended."""
        return self.robot.finished

    def round(self) -> None:
        """Draft once, and settle it with whatever the two have to say to each other."""
        work = [action for action in self._due if isinstance(action, Work)][-1]
        whole = self._drafter.whole(work.branches[0])
        self.draft = whole.draft
        actions = self.robot.handle(Drafted(work.branches[0], whole.draft.tokens, whole), 0.0)
        self._due = []
        while actions:
            self._due += actions
            self.emitted += tuple(t for a in actions if isinstance(a, Emit) for t in a.tokens)
            actions = [done for answer in self._answers(actions) for done in self._hear(answer)]

    def _answers(self, actions: list[Action]) -> list[ServerMessage]:
        answers: list[ServerMessage] = []
        for action in actions:
            if isinstance(action, Send):
                message, size = self._wire(action.message)
                self.up_bytes += size
                assert not isinstance(message, ServerMessage)
                answers += self._ask(message)
        return answers

    def _hear(self, answer: ServerMessage) -> list[Action]:
        message, size = self._wire(answer)
        self.down_bytes += size
        assert isinstance(message, ServerMessage)
        if isinstance(message, RowMessage):
            self.row_bytes += size
        if isinstance(message, Verdict):
            self.verdict = message
        return self.robot.handle(Received(message), 0.0)

    def _ask(self, message: ClientMessage) -> list[ServerMessage]:
        """What the cloud says to this, after the pass that it takes."""
        said: list[ServerMessage] = []
        actions = self.cloud.handle(message)
        while actions:
            action = actions.pop(0)
            match action:
                case cloud_events.Send():
                    said.append(action.message)
                case Score(draft):
                    logits = self._target.forward(draft.tokens, draft.parents)
                    actions += self.cloud.handle(Scored(logits, self._verify_s, self._queue_s))
                case Commit(path, tokens):
                    self._target.commit(path)
                    self._target.extend(tokens)
                case Extend(tokens):
                    self._target.extend(tokens)
        return said
