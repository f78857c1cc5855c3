"""A drafter behind an OpenAI-compatible server on the robot: its text, as tokens.

The server continues the text of the answer. Its next token gets all the probability in the logits,
so that its continuation is verified as a deterministic chain.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decoding.digest import common_prefix
from ..decoding.token_tree import TokenTree
from ..errors import UserError
from ..request import Request
from . import OPENAI
from .checkpoint import CheckpointFiles, checkpoint_directory, checkpoint_files
from .drafter import OnLayer
from .openai_server import OpenAiReply, OpenAiServer, Unavailable, chat_messages, deltas_in
from .processor import Processor, first_request
from .prompt import Prompt, PromptSpec

log = logging.getLogger(__name__)

TOKENS_PER_REQUEST = 16  # tokens per request; more would be wasted if the target disagrees
MAX_CONTINUATION_CHARS = 1000  # characters of one continuation
TOKEN_POLL_S = 0.005  # between two checks for messages while waiting for a token
ANSWER_S = 10.0  # until a request counts as failed
# Ways to ask a server to continue the last message: vLLM, SGLang and llama-server use
# transformers' field names; Ollama, older llama-server and some chat templates continue by default;
# some servers refuse unknown fields.
CONTINUATION_FIELDS: tuple[Mapping[str, bool], ...] = (
    {"continue_final_message": True, "add_generation_prompt": False},
    {},
)
FINISH_REASONS = ("stop", "length", "", None)  # finish reasons; "" and None: not finished
QUESTION = "Count from one to twenty, in words."
PROBED_TOKENS = 3  # tokens that must agree in the probe
CUT_OFF = "\N{REPLACEMENT CHARACTER}"  # the decoding of an incomplete UTF-8 sequence

Path = tuple[int, ...]  # tokens after the prompt


@dataclass(frozen=True, eq=False, kw_only=True)
class ChatPrompt(Prompt):
    """A prompt, also as chat messages. ``end``: the token that ends an answer."""

    messages: Sequence[dict[str, Any]]
    end: int


def text_of(tokenizer: Any, path: Path) -> str:
    """The text of tokens, without a last character whose UTF-8 is incomplete."""
    text: str = tokenizer.decode(path, skip_special_tokens=True)
    return text.rstrip(CUT_OFF)


class Continuation:
    """The server's streamed continuation of a prefix; ``path`` is both together, and grows.

    ``over``: why the server stopped (``stop``: the answer ends there); empty while it generates.
    """

    def __init__(
        self, tokenizer: Any, start: Path, reply: OpenAiReply, news: threading.Event
    ) -> None:
        """news: an event set when something arrives."""
        self.path = self._start = start
        self.over = self._text = ""
        self.reply, self._tokenizer, self._news = reply, tokenizer, news

    def leads(self, path: Path) -> bool:
        """Whether it has the token after ``path``, or may still receive it."""
        same = common_prefix(path, self.path)
        if same < len(self.path):
            return len(self._start) <= len(path) == same
        return not self.over or (self.over == "stop" and len(path) == same)

    def wait(self, on_layer: OnLayer | None) -> None:
        """Read what has arrived, or wait a moment for it; raises UserError as ``read`` does."""
        if not self.read():
            self._news.wait(TOKEN_POLL_S)
            self._news.clear()
        if on_layer is not None:
            on_layer(0, None)

    def read(self) -> bool:
        """Take in what has arrived; True if anything did. UserError: the server failed or sent
        nonsense."""
        chunks = self.reply.take()
        try:
            for text, ends, _ in (delta for chunk in chunks for delta in deltas_in(chunk)):
                self._text = (self._text + text.decode())[:MAX_CONTINUATION_CHARS]
                self.over = self.over or (
                    ends or "" if ends in FINISH_REASONS else "for another reason"
                )
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            kind = type(error).__name__
            raise UserError(f"the drafter's server sends no text ({kind}): check it") from None
        if len(self._text) == MAX_CONTINUATION_CHARS:  # more than the tokens of a request can have
            self.over = "length"
        if chunks:
            self.path = self._tokens(self._text.rstrip(CUT_OFF))
        elif self.reply.done:
            self.over = self.over or "it broke off"
        if self.over not in ("", "stop") and self.path == self._start:
            raise UserError(f"the drafter's server says nothing ({self.over}): see its log")
        return bool(chunks)

    def _tokens(self, text: str) -> Path:
        """The tokens of start and text together, if the tokenizer keeps the start's tokens."""
        before = text_of(self._tokenizer, self._start)
        whole = tuple(self._tokenizer(before + text, add_special_tokens=False)["input_ids"])
        if whole[: len(self._start)] == self._start:
            return whole
        return self._start + tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])


class ContinuedSession:
    """A ``DraftSession`` over a server's continuations, and its ``DraftPrefill``.

    The prompt is read once the first token arrives. A pass waits for one token after each path.
    """

    def __init__(
        self, ask: Callable[[Path, OnLayer | None], Continuation], end: int, vocabulary: int
    ) -> None:
        """ask: requests the continuation of a path."""
        self._ask, self._end, self._vocabulary = ask, end, vocabulary
        self.tokens: Path = ()
        self.nodes = TokenTree()
        self._next: dict[Path, int] = {}  # known next tokens, by path
        self._continuations: list[Continuation] = []

    @property
    def session(self) -> ContinuedSession:
        """Returns itself once the prompt is read; ValueError before."""
        if () not in self._next:
            raise ValueError("the prompt is not read yet")
        return self

    def step(self, rows: int, on_layer: OnLayer | None = None) -> bool:
        """Wait for the first token, and return True. UserError: the server has failed."""
        self.logits_after(-1, on_layer)
        return True

    @property
    def pending_rows(self) -> int:
        """1 if the token after the prefix is unknown, else 0."""
        return int(self.tokens not in self._next)

    def truncate(self, length: int) -> None:
        """Roll the prefix back to ``length`` tokens after the prompt."""
        self._follow(self.tokens[:length])

    def commit(self, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Append the nodes of ``path`` to the prefix; see ``DraftSession``."""
        tokens, kept = self.nodes.commit(path, keep)
        self._follow(self.tokens + tokens)
        self.nodes = kept

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the prefix."""
        self._follow((*self.tokens, *tokens))

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], on_layer: OnLayer | None = None
    ) -> NDArray[np.float32]:
        """Add n nodes; returns the logits [n, V] after them. UserError: the server has failed."""
        nodes = self.nodes.extend(tokens, parents)
        new = range(len(self.nodes), len(nodes))
        grown = [self.tokens + nodes.tokens_to(node) for node in new]
        for path in grown:  # all are requested first, then awaited
            if path not in self._next:
                self._leading(path, on_layer)
        rows = np.stack([self._row(path, on_layer) for path in grown])
        self.nodes = nodes
        return rows

    def logits_after(self, node: int, on_layer: OnLayer | None = None) -> NDArray[np.float32]:
        """The logits [V] after a node, or the prefix (-1). UserError: the server has failed."""
        return self._row(self.tokens + self.nodes.tokens_to(node), on_layer)

    def close(self) -> None:
        """Cancel all requests, so that the server stops generating."""
        while self._continuations:
            self._continuations.pop().reply.cancel()

    def _follow(self, prefix: Path) -> None:
        self.tokens, self.nodes = prefix, TokenTree()
        for each in [each for each in self._continuations if not each.leads(prefix)]:
            each.reply.cancel()
            self._continuations.remove(each)

    def _leading(self, path: Path, on_layer: OnLayer | None) -> Continuation:
        """The continuation that covers the path; requests a new one if there is none."""
        found = next((each for each in self._continuations if each.leads(path)), None)
        if found is None:
            found = self._ask(path, on_layer)
            self._continuations.append(found)
        return found

    def _row(self, path: Path, on_layer: OnLayer | None) -> NDArray[np.float32]:
        while path not in self._next:
            continuation = self._leading(path, on_layer)
            if len(continuation.path) > len(path):
                self._next[path] = continuation.path[len(path)]
            elif continuation.over:
                self._next[path] = self._end
            else:
                continuation.wait(on_layer)
        row = np.full(self._vocabulary, -np.inf, np.float32)
        try:
            row[self._next[path]] = 0.0
        except IndexError:
            raise UserError(
                f"the drafter's server says token {self._next[path]}, which the target lacks: "
                "give it a model of the target's family"
            ) from None
        return row


class OpenAiDrafter(Processor):
    """A ``Drafter`` with a checkpoint's tokenizer and processor, and a server's continuations."""

    chains_only = True

    def __init__(self, files: CheckpointFiles, server: OpenAiServer) -> None:
        """UserError: the server is unusable, or cannot continue texts. A server that is away now is
        tried again at the next decode."""
        super().__init__(files, f"{OPENAI}{server.model}")
        self._server = server
        self._session: ContinuedSession | None = None
        self._way: Mapping[str, bool] | None = None
        try:
            self._way = self._probe()
        except Unavailable as error:
            log.warning("%s", error)

    def prompt(self, request: Request, spec: PromptSpec) -> ChatPrompt:
        """The prompt of this specification; UserError."""
        prompt, messages = super().prompt(request, spec), chat_messages(request, spec)
        return ChatPrompt(**vars(prompt), messages=messages, end=spec.end_ids[0])

    def prefill(self, prompt: Prompt) -> ContinuedSession:
        """Begin to read a prompt made by this drafter; closes the previous session."""
        assert isinstance(prompt, ChatPrompt)
        if self._session is not None:
            self._session.close()

        def ask(path: Path, on_layer: OnLayer | None) -> Continuation:
            if self._way is None:
                self._way = self._probe(on_layer)
            return self._continued(prompt, self._way, path)

        self._session = ContinuedSession(ask, prompt.end, self.vocabulary)
        return self._session

    def _continued(self, prompt: ChatPrompt, way: Mapping[str, bool], path: Path) -> Continuation:
        """Request the continuation of an answer that begins with this path."""
        text, news = text_of(self.tokenizer, path), threading.Event()
        answer = [{"role": "assistant", "content": text}] if text else []
        reply = self._server.begin(
            lambda: self._server.complete(
                messages=[*prompt.messages, *answer],
                max_tokens=TOKENS_PER_REQUEST,
                temperature=0,
                **(way if text else {}),
            ),
            news.set,
        )
        return Continuation(self.tokenizer, path, reply, news)

    def _probe(self, on_layer: OnLayer | None = None) -> Mapping[str, bool]:
        """Find out how to ask the server for continuations: given the first half of one of its
        answers, it must return the second half. UserError: it does not."""
        spec, why = self.spec(TOKENS_PER_REQUEST), ""
        prompt = self.prompt(first_request(spec, QUESTION), spec)
        answer = self._whole(prompt, (), CONTINUATION_FIELDS[-1], on_layer).path
        half = (len(answer) + 1) // 2
        end = min(half + PROBED_TOKENS, len(answer))
        for way in CONTINUATION_FIELDS:
            try:
                rest = self._whole(prompt, answer[:half], way, on_layer)
            except UserError as error:
                why = str(error)
                continue
            if rest.path[:end] == answer[:end] and (end > half or rest.path == answer):
                return way
            why = "it says something else after the beginning of its own answer"
        raise UserError(
            f"{self._server.url} does not continue an unfinished answer ({why}): take vLLM, "
            "SGLang, llama-server or Ollama, or a chat template that leaves the last message open"
        )

    def _whole(
        self, prompt: ChatPrompt, path: Path, way: Mapping[str, bool], on_layer: OnLayer | None
    ) -> Continuation:
        """The whole continuation of a path, from one request."""
        continuation = self._continued(prompt, way, path)
        while not continuation.over:
            continuation.wait(on_layer)
        return continuation


def served_drafter(name: str, tokenizer: str, model: str, key_file: str = "") -> OpenAiDrafter:
    """The drafter for ``openai:URL``, with this checkpoint's tokenizer; raises UserError."""
    if not tokenizer:
        raise UserError(
            f"the drafter {name} needs the directory of a checkpoint of the target's family, for "
            "its tokenizer and chat template: give it as model.tokenizer, or --tokenizer"
        )
    files = checkpoint_files(checkpoint_directory(tokenizer))
    url = name.removeprefix(OPENAI)
    return OpenAiDrafter(files, OpenAiServer(url, model, key_file, timeout_s=ANSWER_S))
