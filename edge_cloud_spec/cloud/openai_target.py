"""A target behind an OpenAI-compatible API: a session is one streamed chat completion.

The server's text is the target's greedy answer, byte by byte, so sessions, verdicts and faults work
as with any target. Its logits are unknown: drafts for it cannot be scored, and its answers are only
as reproducible as the server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ..decoding.draft import MAX_DRAFTED, Draft
from ..decoding.target_rows import TargetRows, TokenRows
from ..errors import UserError, refuse
from ..lru_cache import LruCache
from ..models.byte_drafter import BYTES_A_TOKEN, BYTES_DIGEST, END_TOKEN, ByteDrafter
from ..models.image import decode_image
from ..models.openai_server import (
    SERVER_RETRY_S,
    OpenAiServer,
    Unavailable,
    chat_messages,
    deltas_in,
)
from ..models.prompt import Prompt, PromptSpec
from ..wire.messages import Open
from .model_thread.model_runner import ModelRunner, OnPredicted, refuse_log_probs
from .model_thread.sessions import HeldSession
from .model_thread.target_session import NotArrived, TargetSession

log = logging.getLogger(__name__)

HOUR_S = 3600.0
MAX_GRAMMARS = 64  # remembered refusals of a grammar
MAX_CHARGED_TOKENS = 2**20  # for one request, whatever the server reports
NO_ROWS = "a target behind an API gives no distributions: take rule greedy"
TOKEN_PIXELS = 750  # pixels per token, an estimate if the server reports no usage

LARK = "%llguidance {{}}\n{}"
# Fields of a grammar by option; ``auto`` sends all, and none once they are refused.
STRUCTURED: dict[str, Callable[[str], dict[str, Any]]] = {
    "auto": lambda text: {**STRUCTURED["vllm"](text), **STRUCTURED["llguidance"](text)},
    "vllm": lambda text: {"structured_outputs": {"grammar": text}},
    # For llama-server built with LLGuidance.
    "llguidance": lambda text: {"grammar": LARK.format(text)},
    "sglang": lambda text: {"ebnf": LARK.format(text)},
    "none": lambda text: {},
}


class Allowance:
    """Limits requests and tokens per hour; 0: no limit. Belongs to the model's thread."""

    def __init__(
        self, requests: int = 0, tokens: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._requests, self._tokens, self._clock = requests, tokens, clock
        self._asked: deque[list[float]] = deque()  # time (s) and tokens of each request
        self._closed, self._why = 0.0, ""  # until when the server asked to wait, and its message

    def check(self) -> None:
        """Raise Unavailable if another request is not allowed now."""
        now, asked = self._clock(), self._asked
        while asked and asked[0][0] <= now - HOUR_S:
            asked.popleft()
        if now < self._closed:
            raise Unavailable(self._why, self._closed - now)
        spent = int(sum(tokens for _, tokens in asked))
        for count, bound, what in (
            (len(asked), self._requests, "requests"),
            (spent, self._tokens, "tokens"),
        ):
            if bound and count >= bound:
                wait_s = asked[0][0] + HOUR_S - now
                raise Unavailable(
                    f"the verifier has spent {count} of {bound} {what} of this hour; it asks again "
                    f"in {wait_s:.0f} s, or serve with a larger --{what}-per-hour",
                    wait_s,
                )

    def spend(self, tokens: int) -> list[float]:
        """Count a request of at most ``tokens`` tokens; set item [1] of the result to the actual
        number later."""
        self._asked.append([self._clock(), tokens])
        return self._asked[-1]

    def close(self, error: Unavailable) -> None:
        """Block requests until the time of the server's ``Retry-After``."""
        if (until := self._clock() + error.retry_s) > self._closed:
            self._closed, self._why = until, str(error)


class Completion(TargetSession):
    """One streamed chat completion: tokens arrive, and are committed."""

    def __init__(self, models: OpenAiModels, opening: Open, cost: list[float]) -> None:
        """Sends the request. cost: returned by ``Allowance.spend``."""
        self.awaited_by: HeldSession | None = None
        self._models = models
        self._said: list[int] = []
        self._settled = 0
        self._ends = False  # the answer has ended; its usage may follow
        self._cost, self._asked = cost, cost[1]
        self._reply = models.server.begin(partial(models.create, opening), self._on_news)

    def _on_news(self) -> None:
        if self.awaited_by is not None:
            self._models.on_news(self.awaited_by)

    def commit(self, path: Sequence[int]) -> None:
        """Count these accepted nodes as verified."""
        self._settled += len(path)

    def extend(self, tokens: Sequence[int]) -> None:
        """Count these tokens as verified; the answer continues after them."""
        self._settled += len(tokens)

    def evict(self) -> None:
        """Cancel the request."""
        with suppress(UserError):  # the usage may have arrived
            self.more()
        self._reply.cancel()

    def more(self) -> tuple[int, ...]:
        """The tokens that arrived after the verified ones; raises UserError if no more will
        come."""
        done = self._reply.done  # read first, so that all chunks are taken
        try:
            while chunks := self._reply.take():
                for chunk in chunks:
                    self._read(chunk)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise self._failed(f"sent no chunk of an answer ({type(error).__name__})") from None
        if done and self._ends:
            self._said.append(END_TOKEN)
            self._ends = False
        elif done and len(self._said) == self._settled:
            raise self._failed("broke off in the midst of an answer")
        return tuple(self._said[self._settled :][: MAX_DRAFTED + 1])

    def _read(self, chunk: Any) -> None:
        """Add a chunk's text; raises UserError, or Python's errors for a malformed chunk."""
        for text, ends, delta in deltas_in(chunk):
            self._said += text
            if delta.get("tool_calls") or delta.get("refusal"):
                raise self._failed("wants a tool, or declines, instead of an answer")
            if ends == "stop":
                self._ends = True
            elif ends is not None:
                reason = self._models.server.quoted(ends)[:40]
                raise self._failed(f"ended the answer for {reason!r}, not at its end")
        usage = chunk.get("usage")
        known: Any = usage.get("total_tokens") if isinstance(usage, dict) else None
        estimate = self._asked + len(self._said) // BYTES_A_TOKEN
        is_told = isinstance(known, int) and 0 < known < MAX_CHARGED_TOKENS
        self._cost[1] = known if is_told else estimate

    def _failed(self, what: str) -> UserError:
        url = self._models.server.url
        return UserError(f"the model behind {url} {what}: see its log, its template and its limits")


class OpenAiModels(ModelRunner):
    """A ``ModelRunner`` for a target behind an API; it runs no model itself."""

    def __init__(
        self,
        server: OpenAiServer,
        spec: PromptSpec,
        allowance: Allowance,
        structured: str = "auto",
    ) -> None:
        """spec: a ``byte_spec``. structured: one of ``STRUCTURED``."""
        super().__init__(ByteDrafter(), spec)
        self.server, self.allowance, self._structured = server, allowance, STRUCTURED[structured]
        # Index of the accepted form, by owner and grammar; 0 by default.
        self._form: LruCache[tuple[str, str], int] = LruCache(MAX_GRAMMARS)

    def check(self, opening: Open) -> None:
        """Raise UserError for a request that needs a target with a checkpoint."""
        refuse_log_probs(opening, "behind an API")
        where = "this verifier's target is behind an API"
        refuse(
            (
                opening.tokenizer_digest not in (b"", BYTES_DIGEST),
                f"{where} and speaks bytes: set the robot's model.path (drafter:=, --drafter) to "
                "bytes",
            ),
            (
                opening.draft_identity or opening.draft_length or opening.lookup,
                f"{where} and judges no drafts: take preset cloud_ar, or a verifier with a "
                "checkpoint (serve --target DIRECTORY)",
            ),
            (
                opening.rule != "greedy",
                f"{where}, whose samples nobody can draw again: take rule greedy, or a verifier "
                "with a checkpoint",
            ),
        )
        super().check(opening)

    def open(self, opening: Open, prompt: Prompt) -> TargetSession:
        """Send the request at once."""
        if opening.verified:
            raise UserError(
                "a target behind an API cannot go on with an answer that another verifier, or an "
                "earlier session, began: start another decode"
            )
        self.allowance.check()
        request, pixels = opening.request, 0
        for picture in request.pictures:
            width, height = decode_image(picture.data, self.spec.image.max_frame_pixels).size
            pixels += width * height
        asked = sum(len(message.text) for message in request.messages) // BYTES_A_TOKEN
        cost = self.allowance.spend(asked + pixels // TOKEN_PIXELS)
        return Completion(self, opening, cost)

    def text_tokens(self, text: str) -> tuple[int, ...]:
        """Empty: an API's target scores nothing in advance."""
        return ()

    def forward(
        self, batch: Sequence[HeldSession], on_predicted: OnPredicted
    ) -> list[TargetRows | Exception]:
        """For each session the tokens received since its last verdict, or NotArrived."""
        return [self._forward(session) for session in batch]

    def _forward(self, session: HeldSession) -> TokenRows | Exception:
        completion = session.target
        assert isinstance(completion, Completion)
        # Set first, so that chunks arriving from now on are reported.
        completion.awaited_by = session
        try:
            said = completion.more()
        except UserError as error:
            # The server asked for it.
            if isinstance(error, Unavailable) and error.retry_s > SERVER_RETRY_S:
                self.allowance.close(error)
            return error
        if not said:
            return NotArrived()
        session.due.draft, session.due.source = Draft(said[:-1]), "target"
        return TokenRows(said, NO_ROWS)

    async def create(self, opening: Open) -> Any:
        """Start the streamed completion, without optional fields that the server refuses."""
        from openai import BadRequestError, UnprocessableEntityError

        messages = await asyncio.to_thread(chat_messages, opening.request, self.spec)
        room = min(opening.max_tokens or self.spec.max_tokens, self.spec.max_tokens)
        usual: dict[str, Any] = {
            "temperature": 0,
            "max_tokens": room,
            "stream_options": {"include_usage": True},
        }
        forms = [usual, {"max_completion_tokens": room}]
        if opening.policy.grammar:
            forms.insert(0, {**usual, **self._structured(opening.policy.grammar)})
        grammar = opening.request.owner, opening.policy.grammar
        first = self._form.get(grammar, 0)
        for number in range(first, len(forms)):
            try:
                stream = await self.server.complete(messages=messages, **forms[number])
                break
            except (BadRequestError, UnprocessableEntityError):
                if number == len(forms) - 1:
                    raise  # maybe for another reason, so nothing is remembered
        if number > first:
            left_out = ", ".join(sorted(forms[first].keys() - forms[number].keys()))
            log.warning("%s refuses %s: left out from now on", self.server.url, left_out)
            self._form[grammar] = number
        return stream
