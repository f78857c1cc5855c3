"""A worker without threads whose models are functions of the prefix, and robots at it."""

from __future__ import annotations

from typing import Any

from helpers.cloud.grpc_robot import OWN, opening

from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.cloud.model_thread.sessions import RobotStream
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.wire.codec import decode_server, encode_client
from edge_cloud_spec.wire.frames import ClientFrame, ServerFrame
from edge_cloud_spec.wire.messages import (
    ClientMessage,
    DraftMessage,
    Opened,
    ServerMessage,
    Verdict,
)
from edge_cloud_spec_lab.harness.toy import ToyVlm, spec_of


class Costly(ToyVlm):
    """A model whose passes take a second and one more for each row, on its own clock."""

    now = 0.0

    def spend(self, rows: int) -> None:
        self.now += 1.0 + rows


def cloud(**limits: Any) -> Worker:
    model = Costly(1)
    drafter = ToyVlm(1, 0.5)
    return Worker(
        model,  # type: ignore[arg-type]
        spec_of(60),
        drafter,  # type: ignore[arg-type]
        WorkerLimits(**limits),
        clock=lambda: model.now,
    )


def do_all(worker: Worker) -> None:
    while worker.pending:
        worker.run_one()


class Robot:
    """A stream, and what was heard there."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.heard, self.ended = worker, [], False  # type: ignore[var-annotated]
        self.connect()
        self.base = PrefixDigest(0, 0)
        self.at = 0  # tokens of the answer that were sent as drafts

    def connect(self) -> None:
        """From now on only this new stream is heard."""

        def receive(frame: ServerFrame | None) -> None:
            if frame is None:
                self.ended = True
            elif stream is self.stream:
                self.hear(decode_server(frame))

        self.stream = stream = RobotStream(receive)

    def hear(self, message: ServerMessage) -> None:
        self.heard.append(message)

    def say(self, message: ClientMessage | ClientFrame) -> None:
        frame = message if isinstance(message, ClientFrame) else encode_client(message)
        self.worker.receive(self.stream, frame)

    def leave(self) -> None:
        self.worker.leave(self.stream)

    def open(self, nonce: int, **changes: Any) -> Robot:
        self.ask(opening(nonce, **changes))
        self.base = self.last(Opened).base
        return self

    def draft(self, depth: int) -> None:
        """The next tokens of the answer: all are right, and the bonus is the one after."""
        tokens = OWN[self.at : self.at + depth]
        self.say(DraftMessage(self.base.extend(OWN[: self.at]), Draft(tokens), 0))
        self.at += depth + 1

    def ask(self, message: ClientMessage | ClientFrame) -> Any:
        """Say this; what is heard last once all is done."""
        self.say(message)
        do_all(self.worker)
        return self.heard[-1] if self.heard else None

    def settle(self, depth: int) -> Any:
        """Draft so many tokens; what is heard last once all is done, which is their verdict."""
        self.draft(depth)
        do_all(self.worker)
        return self.heard[-1]

    @property
    def said(self) -> tuple[int, ...]:
        """The tokens of all verdicts that were heard, where these carry their tokens."""
        verdicts = [message for message in self.heard if isinstance(message, Verdict)]
        tokens = (token for verdict in verdicts for token in (*verdict.tokens, verdict.token))
        return tuple(token for token in tokens if token is not None)

    def last(self, kind: type) -> Any:
        return next(m for m in reversed(self.heard) if isinstance(m, kind))

    def count(self, kind: type) -> int:
        return sum(isinstance(message, kind) for message in self.heard)
