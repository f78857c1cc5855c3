"""A robot at a worker without threads; it drafts from the answer that it knows, partly wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_cloud_spec.cloud.model_thread.sessions import RobotStream
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.wire.codec import decode_server, encode_client
from edge_cloud_spec.wire.messages import (
    ClientMessage,
    DraftMessage,
    Fault,
    Generate,
    Generation,
    Open,
    Opened,
    Resume,
    Verdict,
)


@dataclass(eq=False)
class ReplayingRobot:
    """``pushes``: the draft after the one in flight goes with it, in case it is right."""

    worker: Worker
    opening: Open
    answer: Sequence[int]
    depth: int = 3
    pushes: bool = False
    generates: bool = False
    wrong: bool = False
    tokens: list[int] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    finished: str = ""

    def __post_init__(self) -> None:
        self._sent: dict[PrefixDigest, Draft] = {}
        self._opened: Opened | None = None
        self._connect()
        self.say(self.opening)

    def _connect(self) -> None:
        stream = RobotStream(lambda data: self._hear(stream, data))
        self.stream = stream

    def say(self, message: ClientMessage) -> None:
        self.worker.receive(self.stream, encode_client(message))

    def lose_the_link(self) -> None:
        """The stream is cut, and another one asked to go on."""
        if self._opened is not None and not self.finished:
            self.worker.leave(self.stream)
            self._connect()
            self.say(Resume(self._opened.session, self._here(), self.opening.secret))

    def vanish(self) -> None:
        self.worker.leave(self.stream)
        self.finished = "gone"

    def _here(self, after: Sequence[int] = ()) -> PrefixDigest:
        assert self._opened is not None
        return self._base.extend((*self.tokens, *after))

    def _hear(self, stream: RobotStream, data: bytes | None) -> None:
        if data is None or stream is not self.stream:
            return
        message: Any = decode_server(data)
        if isinstance(message, Opened):
            if self._opened is None:
                self._base = message.base
            self._opened = self._opened or message
            self._ask()
        elif isinstance(message, Verdict) and message.base == self._here():
            drafted = self._sent.get(message.base, Draft(())).tokens
            accepted = message.tokens or [drafted[node] for node in message.path]
            self.tokens += [*accepted, *(() if message.token is None else (message.token,))]
            self.finished = message.finish
            if not self.finished and not self.generates:
                self._ask()
        elif isinstance(message, Fault):
            self.faults.append(message)
            self.finished = self.finished or message.code

    def _ask(self) -> None:
        if self.generates:
            self.say(Generate(self._here(), Generation(False)))
            return
        first = self._draft(len(self.tokens))
        self._send((), first)
        after = (*first, *self.answer[len(self.tokens) + len(first) :][:1])
        if self.pushes and not self.wrong:
            self._send(after, self._draft(len(self.tokens) + len(after)))

    def _draft(self, at: int) -> tuple[int, ...]:
        tokens = list(self.answer[at : at + self.depth])
        if self.wrong and tokens:
            tokens[-1] = 1 + tokens[-1] % 5
        return tuple(tokens)

    def _send(self, after: Sequence[int], tokens: tuple[int, ...]) -> None:
        if not tokens:
            return
        base = self._here(after)
        self._sent[base] = Draft(tokens)
        self.say(DraftMessage(base, Draft(tokens), 0))
