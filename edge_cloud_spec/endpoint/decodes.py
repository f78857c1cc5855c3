"""Decodes chat requests one at a time, with the robot's one drafter; others wait in a queue."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from ..decoding.mean import Mean
from ..edge.decode_options import DecodeOptions, DecodeSettings
from ..edge.events import Abort, Cut, Emit, Inbox
from ..edge.picture_decoder import Decoder
from ..edge.runner import Outcome, decode_text, ids_per_token
from ..errors import UserError
from ..models.byte_drafter import BYTES_DIGEST
from ..presets import load_preset
from ..request import Request
from ..wire.messages import CUT, END, Code
from .api_error import ApiError, Unserved
from .chat import ChatRequest
from .stop_texts import StopTexts
from .tools import FirstCall, plain_messages, renderer

log = logging.getLogger(__name__)

# What becomes of a request whose verifier is out of reach.
WHEN_LOST = ("refuse", "upstream", "local")
LOWEST_RETRY_S = 1.0
FIRST_DECODE_S = 2.0  # how long a decode is taken to last before one was measured


@dataclass(frozen=True)
class Piece:
    """More of an answer. verified: as the target's own; else they are the robot's model's."""

    text: str
    verified: bool = True


@dataclass(frozen=True)
class Finished:
    """The end of an answer, in the API's words. usage: its numbers of tokens. verified: as in
    ``Piece``, also of an answer without words."""

    finish_reason: str
    usage: dict[str, object]
    verified: bool = True


class Decodes:
    """A decoder for many clients; belongs to one asyncio loop."""

    def __init__(self, decoder: Decoder, queue: int, when_lost: str = WHEN_LOST[0]) -> None:
        """queue: the most requests that wait. when_lost: one of ``WHEN_LOST``. Raises UserError for
        a drafter that cannot answer alone."""
        self._decoder, self._queue = decoder, queue
        self._lost = Unserved if when_lost == "upstream" else ApiError
        self._alone = load_preset("edge_only") if when_lost == "local" else None
        if self._alone and decoder.runner.draft_model.tokenizer_digest == BYTES_DIGEST:
            raise UserError("--when-lost local needs a drafter with a model")
        self._pool = ThreadPoolExecutor(1, "decode")
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._seconds = Mean(FIRST_DECODE_S, 1.0, decay=0.8)  # of a decode

    def fingerprint(self, verified: bool) -> str:
        """Whose words they are: the identity of the verifier's target, or of the robot's model."""
        runner = self._decoder.runner
        return runner.target if verified else f"unverified {runner.draft_model.identity}"

    def may_be_unserved(self, chat: ChatRequest) -> bool:
        """Whether ``stream`` may raise Unserved, before its first words."""
        return bool(chat.tools) or self._lost is Unserved

    async def close(self) -> None:
        """Wait for the last decode, which nobody reads any more, and end the thread."""
        await self._turn.acquire()
        self._pool.shutdown()

    async def stream(self, chat: ChatRequest) -> AsyncGenerator[Piece | Finished, None]:
        """Yield words as they are verified, and the end last; ApiError: there is none.

        To close the iterator ends the decode.
        """
        if chat.tools and self._decoder.runner.draft_model.tokenizer_digest == BYTES_DIGEST:
            raise Unserved("tools are not supported with --drafter bytes", "tools")
        await self._take_turn()
        loop, arrived = asyncio.get_running_loop(), asyncio.Queue[Piece | None]()
        inbox, kept = Inbox(), 0
        stops = (FirstCall if chat.one_call else StopTexts)(chat.stops)
        verified = True

        def on_text(emit: Emit, more: str, answer: str, reason: str) -> None:
            nonlocal kept
            if not stops.found:
                kept = emit.position + len(emit.tokens)
                words = Piece(stops.add(more, ended=bool(reason)), emit.verified)
                loop.call_soon_threadsafe(arrived.put_nowait, words)
                if stops.found:
                    inbox.put(Cut())

        def decode() -> Outcome:
            request = self._request_of(chat)
            settings = replace(
                self._decoder.settings,
                rule="coupled" if chat.policy.temperature else "greedy",
                policy=chat.policy,
                max_tokens=chat.max_tokens,
            )
            outcome = decode_by(request, settings)
            if self._alone is None or kept or not outcome.out_of_reach:
                return outcome
            most = chat.max_tokens or DecodeOptions.max_tokens
            return decode_by(request, replace(settings, preset=self._alone, max_tokens=most))

        def decode_by(request: Request, settings: DecodeSettings) -> Outcome:
            nonlocal verified
            verified = settings.preset.verified
            nonce, connect = secrets.randbits(64), self._decoder.client.connect
            runner = self._decoder.runner
            return decode_text(runner, request, settings, nonce, connect, on_text, inbox)

        under_way = loop.run_in_executor(self._pool, decode)
        under_way.add_done_callback(lambda _: self._turn.release())
        under_way.add_done_callback(lambda _: arrived.put_nowait(None))
        try:
            while (words := await arrived.get()) is not None:
                if words.text:
                    yield words
            end = self._finished(under_way.result(), kept, stops.found)
            yield replace(end, verified=verified)
        finally:
            inbox.put(Abort("nobody reads it"))

    def _request_of(self, chat: ChatRequest) -> Request:
        """The request in plain messages; raises Unserved."""
        if not chat.tools:
            return chat.request
        runner = self._decoder.runner
        # The drafter's template is that of its family, and so the target's.
        render = renderer(runner.draft_model.tokenizer, runner.spec_of(b"").chat_template)
        return replace(
            chat.request, messages=plain_messages(chat.request.messages, chat.tools, render)
        )

    async def _take_turn(self) -> None:
        if self._turn.locked() and self._waiting >= self._queue:
            seconds = max(LOWEST_RETRY_S, self._seconds.value * self._waiting)
            text = f"{self._waiting} requests wait already: try again in {seconds:.0f} s"
            raise ApiError(text, status=429, code="rate_limit_exceeded", retry_s=seconds)
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1

    def _finished(self, outcome: Outcome, kept: int, stopped: bool) -> Finished:
        """The end of a decode's answer, of which the first ``kept`` tokens count; stopped: by a
        stop text. ApiError: there is no answer; Unserved: another server may give one."""
        for caution in outcome.cautions:
            log.warning("%s", caution)
        if not outcome.completed:
            is_wrong = outcome.reason in (Code.BAD_REQUEST, Code.TOO_LARGE)
            text = outcome.text or outcome.reason
            error = self._lost if outcome.out_of_reach and not kept else ApiError
            raise error(
                text,
                status=400 if is_wrong else 503,
                retry_s=outcome.retry_after_s,
                code=outcome.reason,
            )
        self._seconds.observe(outcome.seconds)
        a_token = ids_per_token(self._decoder.runner.draft_model.tokenizer_digest)
        stats, rejected = outcome.stats, outcome.stats.tested - outcome.stats.accepted
        said, accepted, rejected = (-(-ids // a_token) for ids in (kept, stats.accepted, rejected))
        usage = {
            "prompt_tokens": stats.prompt_tokens,
            "completion_tokens": said,
            "total_tokens": stats.prompt_tokens + said,
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": rejected,
            },
        }
        is_whole = stopped or outcome.reason in (END, CUT)
        return Finished("stop" if is_whole else "length", usage)
