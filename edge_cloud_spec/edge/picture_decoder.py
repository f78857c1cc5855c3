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

import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from ..decoding.policy import SamplingPolicy, temperature_of
from ..dialects import load_dialect
from ..errors import UserError
from ..instruction import check_instruction, known_instructions
from ..models.load_drafter import DraftModelSettings, load_drafter
from ..models.tokenizer import TextStream
from ..nav.answer import ACTION_FIRST, CLAUSES_FORM
from ..nav.events import ENDED
from ..presets import load_preset
from ..request import Message, Request
from ..wire.channel import DEFAULT_ADDRESS
from .client import ClientSettings, VerifierClient
from .draft_planner import DEFAULTS, PlannerSettings
from .events import Abort, Emit, Inbox
from .runner import DecodeRunner, DecodeSettings, Outcome

MAX_TOKENS, LONGEST = 128, 65_536  # of an answer: the default, and what may be asked for
TEMPERATURE = 0.8  # the default for sampling


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
    it. preset: a name, or the path of a YAML file. rule, temperature, seed: as the options of
    ``edge-cloud-spec decode``. grammar: its text; empty: none. max_tokens: the longest answer, if
    the verifier's limit is not lower. A context manager that closes the connection. Raises
    UserError for invalid arguments.
    """

    def __init__(
        self,
        cloud: str | ClientSettings = DEFAULT_ADDRESS,
        drafter: str | DraftModelSettings = "",
        *,
        preset: str = "auto",
        rule: str = "greedy",
        temperature: float | None = None,
        seed: int = 0,
        grammar: str = "",
        planner: PlannerSettings = DEFAULTS,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        if not 1 <= max_tokens <= LONGEST:
            raise UserError(f"max_tokens must be 1 to {LONGEST}, not {max_tokens}")
        if temperature is None:
            temperature = temperature_of(rule, TEMPERATURE)
        try:
            policy = SamplingPolicy(temperature, seed=seed, grammar=grammar)
        except ValueError as error:
            raise UserError(str(error)) from None
        self.settings = DecodeSettings(
            load_preset(preset), rule, policy, max_tokens, planner=planner
        )
        drafter = DraftModelSettings(path=drafter) if isinstance(drafter, str) else drafter
        self.known = known_instructions(drafter.source)
        cloud = ClientSettings(cloud) if isinstance(cloud, str) else cloud
        cloud.check()  # before the model is loaded, so that a wrong file costs no time
        model = load_drafter(drafter)
        self.runner = DecodeRunner(model, model.spec(max_tokens))
        self.runner.fitted(self.settings.preset)
        self.client = VerifierClient(cloud)
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

    def action_of(self, text: str, ended: bool) -> str:
        """What an answer says to do."""
        return ""

    def _decode(self, request: Request, on_words: Callable[[str], object], inbox: Inbox) -> Answer:
        self.answer = None
        text = TextStream(self.runner.draft_model.tokenizer)

        def on_emit(emit: Emit) -> None:
            on_words(text.add(emit.tokens))

        nonce = secrets.randbits(64)  # random, so that no two decodes share prefix digests
        outcome = self.runner.run(
            request, self.settings, nonce, self.client.connect, on_emit, inbox
        )
        if not outcome.completed:
            raise UserError(outcome.text or outcome.reason)
        ended = outcome.reason == ENDED
        on_words(text.add((), ended=ended))
        self.answer = Answer(text.text, outcome, self.action_of(text.text, ended))
        return self.answer


def _request_of(messages: Sequence[Message] | Request) -> Request:
    """The request; of plain messages one that a later list may go on from."""
    if isinstance(messages, Request):
        return messages
    return Request(tuple(messages), continues=True)


class PictureDecoder(Decoder):
    """Decodes JPEG pictures, one after another: a picture and an instruction are messages, and the
    answer has an action, as the dialect says.

    grammar, dialect, order: as the options of ``edge-cloud-spec decode``. The rest is as in
    ``Decoder``.
    """

    def __init__(
        self,
        cloud: str | ClientSettings = DEFAULT_ADDRESS,
        drafter: str | DraftModelSettings = "",
        *,
        grammar: str = "none",
        dialect: str = CLAUSES_FORM,
        order: str = ACTION_FIRST,
        **others: Any,
    ) -> None:
        self.dialect, self.order = load_dialect(dialect), order
        super().__init__(cloud, drafter, grammar=self.dialect.grammar(grammar, order), **others)

    def __enter__(self) -> PictureDecoder:
        return self

    def decode(self, jpeg: bytes, instruction: str) -> Answer:  # type: ignore[override]
        """The whole answer; raises UserError if there is none."""
        return super().decode(self._asked(jpeg, instruction))

    def stream(self, jpeg: bytes, instruction: str) -> Iterator[str]:  # type: ignore[override]
        """Yield words as they are verified, as ``Decoder.stream``."""
        yield from super().stream(self._asked(jpeg, instruction))

    def action_of(self, text: str, ended: bool) -> str:
        return str(self.dialect.action_of(text, ended) or "")

    def _asked(self, jpeg: bytes, instruction: str) -> Request:
        return self.dialect.request(check_instruction(instruction, self.known), jpeg, self.order)
