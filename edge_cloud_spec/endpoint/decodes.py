"""Decodes chat requests one at a time, with the robot's one drafter; others wait in a queue."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ..decoding.mean import Mean
from ..edge.decode_options import DecodeOptions, DecodeSettings
from ..edge.events import Abort, Cut, Emit, Inbox
from ..edge.picture_decoder import Decoder
from ..edge.runner import OUT_OF_REACH, Outcome, decode_text, ids_per_token, score
from ..errors import UserError
from ..models.byte_drafter import BYTES_DIGEST
from ..models.processor import TOO_LONG
from ..models.tokenizer import TextStream
from ..presets import load_preset
from ..request import Request
from ..wire.messages import ANSWER, CUT, END, NONE, Code
from .api_error import ApiError, Unserved
from .chat import ChatRequest
from .decisions import LEAST_LOG_PROB, Decisions
from .stop_texts import StopTexts
from .tools import CALL_BEGINS, FirstCall, plain_messages, renderer

log = logging.getLogger(__name__)

# What becomes of a request whose verifier is out of reach.
WHEN_LOST = ("refuse", "upstream", "local")
LOWEST_RETRY_S = 1.0
REQUESTS_AT_ONCE = 8  # to be scored for one client; a verifier has 16 sessions for a robot
FIRST_DECODE_S = 2.0  # how long a decode is taken to last before one was measured


@dataclass(frozen=True)
class Piece:
    """More of an answer. verified: as the target's own; else they are the robot's model's.
    logprobs: of its tokens, in the API's form."""

    text: str = ""
    verified: bool = True
    logprobs: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Finished(Piece):
    """The end of an answer, in the API's words. usage: its numbers of tokens."""

    finish_reason: str
    usage: Mapping[str, object]


class TokenLogProbs:
    """The log probabilities of a growing answer's tokens, in the API's form. Each is told with the
    words that its token begins, so that none is of a token behind a stop text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self._text = tokenizer, TextStream(tokenizer)
        self._held = deque[tuple[int, dict[str, Any]]]()  # where its text begins

    def add(self, emit: Emit) -> None:
        """Hold those of these tokens, but for tokens without a text, such as end tokens."""
        for token, log_prob in zip(emit.tokens, emit.log_probs, strict=False):  # none, or all
            text, begin = self._tokenizer.decode([token], skip_special_tokens=True), self._text.text
            whole = list(text.encode()) if "\N{REPLACEMENT CHARACTER}" not in text else None
            each = {"token": text, "logprob": max(log_prob, LEAST_LOG_PROB), "bytes": whole}
            self._text.add((token,))
            if text:
                self._held.append((len(begin), {**each, "top_logprobs": []}))

    def told(self, end: float) -> tuple[dict[str, Any], ...]:
        """Those that begin before this place of the text, and were not told yet."""
        count = sum(begin < end for begin, _ in self._held)
        return tuple(self._held.popleft()[1] for _ in range(count))


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

    def may_be_unserved(self, asked: ChatRequest | Decisions) -> bool:
        """Whether ``stream`` or ``score`` may raise Unserved, before the first words."""
        if isinstance(asked, Decisions):
            return True
        return bool(asked.tools) or asked.logprobs or self._lost is Unserved

    async def close(self) -> None:
        """Wait for the last decode, which nobody reads any more, and end the thread."""
        await self._turn.acquire()
        self._pool.shutdown()

    async def stream(self, chat: ChatRequest) -> AsyncGenerator[Piece, None]:
        """Yield words as they are verified, and the end last; ApiError: there is none.

        To close the iterator ends the decode.
        """
        if chat.tools and self._decoder.runner.draft_model.tokenizer_digest == BYTES_DIGEST:
            raise Unserved("tools are not supported with --drafter bytes", "tools")
        await self._take_turn()
        loop, arrived = asyncio.get_running_loop(), asyncio.Queue[Piece | None]()
        inbox, kept, said = Inbox(), 0, 0
        log_probs = TokenLogProbs(self._decoder.runner.draft_model.tokenizer)
        stops = (FirstCall if chat.one_call else StopTexts)(chat.stops)
        verified = True

        def on_text(emit: Emit, more: str, answer: str, reason: str) -> None:
            nonlocal kept, said
            if not stops.found:
                kept = emit.position + len(emit.tokens)
                words = stops.add(more, ended=bool(reason))
                said += len(words)
                log_probs.add(emit)
                told = log_probs.told(math.inf if reason and not stops.found else said)
                piece = Piece(words, emit.verified, told)
                loop.call_soon_threadsafe(arrived.put_nowait, piece)
                if stops.found:
                    inbox.put(Cut())

        def decode() -> Outcome:
            request = self._request_of(chat)
            settings = replace(
                self._decoder.settings,
                rule="coupled" if chat.policy.temperature else "greedy",
                policy=chat.policy,
                max_tokens=chat.max_tokens,
                log_probs=ANSWER if chat.logprobs else NONE,
            )
            outcome = decode_by(request, settings)
            if outcome.out_of_reach:
                log.warning("%s", outcome.text or outcome.reason)
            is_final = kept or chat.logprobs or not outcome.out_of_reach
            if self._alone is None or is_final:
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
                if words.text or words.logprobs:
                    yield words
            is_call = CALL_BEGINS in chat.policy.grammar
            about = {"the grammar": "tool_choice" if is_call else "response_format"}
            about[TOO_LONG] = "messages"
            end = self._finished(under_way.result(), kept, stops.found, about)
            yield replace(end, verified=verified)
        finally:
            inbox.put(Abort("nobody reads it"))

    async def score(self, requests: Sequence[Request]) -> tuple[Sequence[Sequence[float]], bool]:
        """The log probabilities of each request's candidates, and whether they are the target's,
        else the robot's model's; ApiError: there are none. To cancel it ends the decodes.

        The first request goes ahead, so that the verifier has read what the others begin with.
        """
        await self._take_turn()
        inboxes, wanted = [Inbox() for _ in requests], True
        errors, later = list[ApiError](), list[int]()
        runner, connect = self._decoder.runner, self._decoder.client.connect
        timeout = self._decoder.settings.reply_timeout

        def ask(at: int, *, alone: bool = False) -> tuple[float, ...]:
            inbox = inboxes[at] = Inbox()
            if errors or not wanted:
                return ()
            nonce = secrets.randbits(64)
            outcome, told = score(runner, requests[at], timeout, nonce, connect, inbox)
            if outcome.reason == Code.OVERLOADED and not alone:
                later.append(at)
                return ()
            try:
                self._check(outcome, 0, dict.fromkeys(("the candidates", TOO_LONG), "questions"))
            except ApiError as error:
                errors.append(error)
            return told

        def decode() -> tuple[Sequence[Sequence[float]], bool]:
            started = runner.clock()
            told = [ask(0, alone=True)]
            with ThreadPoolExecutor(REQUESTS_AT_ONCE, "score") as others:
                told += others.map(ask, range(1, len(requests)))
            for at in later:  # there was no room for several
                told[at] = ask(at, alone=True)
            verified = not errors
            is_lost = bool(errors) and errors[0].code in OUT_OF_REACH
            if is_lost:
                log.warning("%s", errors[0])
            if self._alone is not None and is_lost:
                with suppress(UserError):  # of a drafter that has no logits, it stays an error
                    told = [runner.score_alone(each, lambda: wanted) for each in requests if wanted]
                    errors.clear()
            if errors:
                raise errors[0]
            self._seconds.observe(runner.clock() - started)
            return told, verified

        def ended(future: asyncio.Future[Any]) -> None:
            self._turn.release()
            future.exception()  # which may concern nobody any more

        under_way = asyncio.get_running_loop().run_in_executor(self._pool, decode)
        under_way.add_done_callback(ended)
        try:
            return await asyncio.shield(under_way)
        finally:
            wanted = False
            for inbox in inboxes:
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
        if self._waiting >= self._queue + (not self._turn.locked()):
            seconds = math.ceil(max(LOWEST_RETRY_S, self._seconds.value * self._waiting))
            text = f"{self._waiting} requests wait already: try again in {seconds} s"
            raise ApiError(text, status=429, code="rate_limit_exceeded", retry_s=seconds)
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1

    def _finished(
        self, outcome: Outcome, kept: int, stopped: bool, about: Mapping[str, str]
    ) -> Finished:
        """The end of a decode's answer, of which the first ``kept`` tokens count; stopped: by a
        stop text. ApiError: there is no answer; Unserved: another server may give one."""
        self._check(outcome, kept, about)
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
        return Finished(finish_reason="stop" if is_whole else "length", usage=usage)

    def _check(self, outcome: Outcome, kept: int, about: Mapping[str, str]) -> None:
        """Raise ApiError for a decode without an answer, of which ``kept`` tokens are out. about:
        the fields that a refusal is about, by the words that it begins with."""
        for caution in outcome.cautions:
            log.warning("%s", caution)
        if not outcome.completed:
            is_wrong = outcome.reason in (Code.BAD_REQUEST, Code.TOO_LARGE, Code.UNSUPPORTED)
            text = outcome.text or outcome.reason
            error = self._lost if outcome.out_of_reach and not kept else ApiError
            error = Unserved if outcome.reason == Code.UNSUPPORTED and not kept else error
            params = (param for words, param in about.items() if text.startswith(words))
            # by whose name clients know it, and shorten their chat
            code = "context_length_exceeded" if text.startswith(TOO_LONG) else outcome.reason
            raise error(
                text,
                next(params, "") if is_wrong else "",
                status=400 if is_wrong else 503,
                retry_s=outcome.retry_after_s,
                code=code,
            )
