"""Decode messages, or a picture, against a verifier from Python, without ROS and without a robot.

from edge_cloud_spec import Decoder, Message, Picture, PictureDecoder

with Decoder("127.0.0.1:50151") as decoder:
    for words in decoder.stream([Message("user", ("What is on ", Picture.of(jpeg), "?"))]):
        print(words, end="", flush=True)

with PictureDecoder("127.0.0.1:50151") as decoder:
    for words in decoder.stream(jpeg, "find the blue box"):
        print(words, end="", flush=True)
    print(decoder.answer.action)
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING

from ..errors import UserError
from ..instruction import check_instruction, known_instructions
from ..models.load_drafter import DraftModelSettings, load_drafter
from ..request import Message, Part, Request
from ..wire.channel import DEFAULT_ADDRESS
from ..wire.messages import END
from .client import VerifierClient
from .decode_options import MAX_ANSWER_TOKENS, DecodeKeywords, DecodeOptions
from .events import Abort, Emit, Inbox
from .link.route import ClientSettings
from .runner import DecodeRunner, Outcome, decode_text, score

if TYPE_CHECKING:
    from typing_extensions import Unpack

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """The result of one decode.

    outcome: tokens, seconds and figures. action: of a picture's, as parsed by the dialect, such as
    ``move forward small``; empty if there is none.
    """

    text: str
    outcome: Outcome
    action: str = ""


class Decoder(AbstractContextManager["Decoder"]):
    """Decodes lists of messages, one after another, with a drafter here and the verifier at
    ``cloud``.

    cloud: HOST:PORT, or ``ClientSettings`` for TLS or a token. drafter: a directory, a hub name, or
    a GGUF file (empty: the embedded drafter), or ``DraftModelSettings``, which also say how to load
    it. options: preset, rule, temperature, top_k, top_p, seed, grammar, dialect, order, max_tokens,
    reply_timeout (s) and planner, as the options of ``edge-cloud-spec decode``
    (``DecodeOptions``). report: gets a sentence where a decode is not quite what was asked for,
    such as by a verifier that gives shorter answers. A context manager that closes the connection.
    Raises UserError for invalid arguments.
    """

    def __init__(
        self,
        cloud: str | ClientSettings = DEFAULT_ADDRESS,
        drafter: str | DraftModelSettings = "",
        *,
        report: Callable[[str], object] = _log.warning,
        **options: Unpack[DecodeKeywords],
    ) -> None:
        self.options = DecodeOptions.of(options)
        self.settings = self.options.settings
        drafter = DraftModelSettings(path=drafter) if isinstance(drafter, str) else drafter
        self.known = known_instructions(drafter.source)
        cloud = ClientSettings(cloud) if isinstance(cloud, str) else cloud
        cloud.check()  # before the model is loaded, so that a wrong file costs no time
        model = load_drafter(drafter)
        self.runner = DecodeRunner(model, model.spec(MAX_ANSWER_TOKENS))
        self.runner.fitted(self.settings.preset)
        self.client = VerifierClient(cloud)
        self._report = report
        self.answer: Answer | None = None  # of the last complete decode

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def decode(self, messages: Sequence[Message] | Request) -> Answer:
        """The whole answer; raises UserError if there is none, for example because the link is
        lost."""
        return self._decode(_request_of(messages), lambda _: None, Inbox())

    def stream(self, messages: Sequence[Message] | Request) -> Iterator[str]:
        """Yield words as they are verified; none is taken back.

        To stop iterating cancels the decode. Afterwards ``answer`` has the result. Raises UserError
        after the last verified words.
        """
        words: SimpleQueue[str | None] = SimpleQueue()
        inbox = Inbox()
        with ThreadPoolExecutor(1, "decode") as pool:
            decode = pool.submit(self._decode, _request_of(messages), words.put, inbox)
            decode.add_done_callback(lambda _: words.put(None))
            try:
                yield from iter(words.get, None)
                decode.result()
            finally:
                inbox.put(Abort("nobody reads it"))

    def score(
        self,
        messages: Sequence[Message] | Request,
        candidates: Sequence[str],
        *,
        whole: bool = True,
    ) -> tuple[float, ...]:
        """The log probability of each candidate: that the target's answer is it, or begins with it
        if not ``whole``.

        All are scored in one pass with the prompt. P is as in ``wire.messages.LOG_PROBS``, and a
        candidate's tokens are those of its text alone. Raises UserError, for example where two
        candidates have the same tokens.
        """
        request = replace(_request_of(messages), candidates=tuple(candidates), whole=whole)
        nonce, timeout = secrets.randbits(64), self.settings.reply_timeout
        outcome, told = score(self.runner, request, timeout, nonce, self.client.connect, Inbox())
        if not outcome.completed:
            raise UserError(outcome.text or outcome.reason)
        return told

    def action_of(self, text: str, ended: bool) -> str:
        """What an answer says to do."""
        return ""

    def _decode(self, request: Request, on_words: Callable[[str], object], inbox: Inbox) -> Answer:
        self.answer, text = None, ""

        def on_text(emit: Emit, more: str, answer: str, reason: str) -> None:
            nonlocal text
            text = answer
            on_words(more)

        nonce = secrets.randbits(64)  # random, so that no two decodes share prefix digests
        outcome = decode_text(
            self.runner, request, self.settings, nonce, self.client.connect, on_text, inbox
        )
        for caution in outcome.cautions:
            self._report(caution)
        if not outcome.completed:
            raise UserError(outcome.text or outcome.reason)
        self.answer = Answer(text, outcome, self.action_of(text, outcome.reason == END))
        return self.answer


def _request_of(messages: Sequence[Message] | Request) -> Request:
    """The request; of plain messages one that a later list may go on from."""
    if isinstance(messages, Request):
        return messages
    given = tuple(messages) if isinstance(messages, Iterable) else ()
    if not given or not all(map(_is_message, given)):
        raise UserError(
            "messages are a list of Message, each with a tuple of texts and pictures, as in "
            "[Message('user', (Picture.of(jpeg), 'what is ahead?'))]"
        )
    return Request(given, continues=True)


def _is_message(given: object) -> bool:
    parts = given.parts if isinstance(given, Message) else None
    return isinstance(parts, tuple) and all(isinstance(part, Part) for part in parts)


class PictureDecoder(Decoder):
    """Decodes JPEG pictures, one after another: a picture and an instruction are messages, and the
    answer has an action, as the dialect says.
    """

    def __enter__(self) -> PictureDecoder:
        return self

    def decode(self, jpeg: bytes, instruction: str) -> Answer:  # type: ignore[override]
        """The whole answer; raises UserError if there is none."""
        return super().decode(self._asked(jpeg, instruction))

    def stream(self, jpeg: bytes, instruction: str) -> Iterator[str]:  # type: ignore[override]
        """Yield words as they are verified, as ``Decoder.stream``."""
        yield from super().stream(self._asked(jpeg, instruction))

    def action_of(self, text: str, ended: bool) -> str:
        return str(self.options.loaded_dialect.action_of(text, ended) or "")

    def _asked(self, jpeg: bytes, instruction: str) -> Request:
        asked = check_instruction(instruction, self.known)
        return self.options.loaded_dialect.request(asked, jpeg, self.options.order)
