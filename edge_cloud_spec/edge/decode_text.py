"""A decode whose answer is text: for a robot's decisions, and for Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..models.tokenizer import TextStream
from ..request import Request
from ..wire.messages import END, FAILED
from .decode_options import DecodeSettings
from .events import Connect, Emit, Inbox
from .runner import DecodeRunner, Outcome


@dataclass(frozen=True)
class Piece:
    """More of an answer: new tokens and their text, and ``answer``, all text so far.

    ``reason``: of the decode's end, in the last piece; else empty.
    """

    tokens: tuple[int, ...]
    text: str
    answer: str
    verified: bool
    reason: str = ""


def decode_text(
    runner: DecodeRunner,
    request: Request,
    settings: DecodeSettings,
    nonce: int,
    connect: Connect,
    on_piece: Callable[[Piece], None],
    inbox: Inbox,
) -> Outcome:
    """``DecodeRunner.run`` with the answer as text: ``on_piece`` is called as soon as there is more
    of it, and once at the end, however that comes."""
    stream, verified, reason = TextStream(runner.draft_model.tokenizer), True, FAILED

    def add(tokens: tuple[int, ...], reason: str = "") -> None:
        text = stream.add(tokens, ended=reason == END)
        on_piece(Piece(tokens, text, stream.text, verified, reason))

    def on_emit(emit: Emit) -> None:
        nonlocal verified
        verified = emit.verified
        add(emit.tokens)

    try:
        outcome = runner.run(request, settings, nonce, connect, on_emit, inbox)
        reason = outcome.reason
    finally:
        add((), reason)
    return outcome
