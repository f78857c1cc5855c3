"""Turns the messages of a request into the token ids that both models start from.

The cloud defines the form of a prompt (`PromptSpec`) and sends it to the robot. The robot renders
the prompt with its own tokenizer; equal digests prove that both have the same ids and picture.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..decoding.grammar import Grammar
from ..decoding.processors import UNPROCESSED, LogitsProcessing, LogitsProcessors
from ..errors import UserError, library_errors, refuse
from ..history import CONVERSATION, FRAMES, NO_HISTORY, HistorySpec, Turn, picture_digest
from ..instruction import check_instruction
from ..request import ASSISTANT, MOST_PICTURES, ROLES, SYSTEM, USER, Message, Part, Picture
from ..request import Request as MessagesRequest
from .image import Grid, ImageSpec

ORDERS = ("action first", "reason first")
# Their places in a user's text.
INSTRUCTION, ORDER, IMAGE, HISTORY = "{instruction}", "{order}", "{image}", "{history}"
USER_TEXT = f"{INSTRUCTION}\n{ORDER}"


@dataclass(frozen=True)
class Request:
    """An instruction and a camera frame. `jpeg`: the camera's bytes. `order`: what the answer
    begins with.

    ``history``: the mission's earlier turns in the prompt, the newest last. ``owner``: the robot's
    credential, where several robots share a model.
    """

    instruction: str
    jpeg: bytes
    order: str = "action first"
    history: tuple[Turn, ...] = ()
    owner: str = ""

    @cached_property
    def image_digest(self) -> bytes:
        """A 16-byte hash of the picture's bytes."""
        return picture_digest(self.jpeg)

    @property
    def pictures(self) -> tuple[Turn | Request, ...]:
        """All frames of the prompt, oldest first; each has ``jpeg`` and ``image_digest``."""
        return (*self.history, self)

    def under(self, spec: PromptSpec) -> Request:
        """The same with as many turns as this specification lets a prompt hold."""
        frames = spec.history.frames
        return replace(self, history=self.history[-frames:] if frames else ())

    def by(self, spec: PromptSpec) -> MessagesRequest:
        """The messages that ask this under a specification.

        A conversation begins with the instruction and its first frame; then each answer is an
        assistant message, and each later frame a user message. Other histories are pictures at the
        user text's ``{history}``.
        """
        asked, size = self.under(spec), spec.history.stretched or (0, 0)
        instruction = check_instruction(asked.instruction)
        if asked.order not in ORDERS:
            raise UserError(f"the order {asked.order!r} is unknown: use one of {', '.join(ORDERS)}")
        newest, *earlier = (Picture.of(each.jpeg, size) for each in reversed(asked.pictures))
        earlier.reverse()
        talks = spec.history.choose == CONVERSATION
        text = spec.user_text if IMAGE in spec.user_text else IMAGE + spec.user_text
        if not talks and HISTORY not in text:
            text = HISTORY + text
        before = "" if talks or not earlier else spec.history.text
        text = text.replace(HISTORY, before).replace(ORDER, asked.order)
        first = earlier[0] if talks and earlier else newest
        shown: dict[str, list[Part]] = {IMAGE: [first], FRAMES: [*earlier]}
        parts: list[Part] = []
        for part in re.split(f"({re.escape(IMAGE)}|{re.escape(FRAMES)})", text):
            parts += shown.get(part) or [part.replace(INSTRUCTION, instruction)]
        messages = [Message(USER, tuple(filter(None, parts)))]
        if spec.system_text:
            messages.insert(0, Message(SYSTEM, (spec.system_text,)))
        for turn, picture in zip(asked.history, [*earlier[1:], newest], strict=False):
            if talks:
                messages += [Message(ASSISTANT, (turn.answer,)), Message(USER, (picture,))]
        return MessagesRequest(tuple(messages), continues=spec.history.grows, owner=asked.owner)


Asked = MessagesRequest | Request


@dataclass(frozen=True)
class PromptSpec:
    """The form of a prompt, as the target's side defines it; sent to the robot as bytes.

    ``user_text`` has placeholders for instruction, order and picture; without one for the picture,
    the picture comes first. ``dialect`` names how the answer is read, its last word being a digest;
    empty: the dialect ``clauses``. ``logits``: what the target's checkpoint does to its logits.
    """

    chat_template: str
    system_text: str
    image: ImageSpec
    end_ids: tuple[int, ...]
    max_tokens: int
    target: str  # the target model's identity
    vocabulary: int  # size of the common vocabulary
    user_text: str = USER_TEXT
    dialect: str = ""
    history: HistorySpec = NO_HISTORY
    logits: LogitsProcessing = UNPROCESSED

    def __post_init__(self) -> None:
        if not self.chat_template:
            raise ValueError("a prompt needs a chat template")
        texts = isinstance(self.user_text, str) and isinstance(self.dialect, str)
        if not texts or self.user_text.count(INSTRUCTION) != 1:
            raise ValueError(f"user_text {self.user_text!r}, dialect {self.dialect!r}")
        if self.max_tokens < 1 or self.vocabulary < 2 or not self.end_ids:
            raise ValueError(
                f"max_tokens {self.max_tokens}, tokens {self.vocabulary}, end ids {self.end_ids}"
            )

    def request(self, *parts: Part) -> MessagesRequest:
        """A request of one message of the user, after the system text that this asks for."""
        own = (Message(SYSTEM, (self.system_text,)),) if self.system_text else ()
        return MessagesRequest((*own, Message(USER, parts)))

    def to_bytes(self) -> bytes:
        """Serialize to JSON for ``from_bytes``; leaves out fields with the default prompt's
        values."""
        ours = {
            "user_text": USER_TEXT,
            "dialect": "",
            "history": dataclasses.asdict(NO_HISTORY),
            "logits": dataclasses.asdict(UNPROCESSED),
        }
        said = dataclasses.asdict(self).items()
        fields = {name: value for name, value in said if value != ours.get(name)}
        return json.dumps(fields, ensure_ascii=False, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> PromptSpec:
        """The inverse of ``to_bytes``; raises UserError if it is no specification of this
        version."""
        try:
            fields = json.loads(data)
            fields["image"] = ImageSpec(**fields["image"])
            fields["history"] = HistorySpec(**fields.get("history", {}))
            fields["logits"] = LogitsProcessing(**fields.get("logits", {}))
            fields["end_ids"] = tuple(int(index) for index in fields["end_ids"])
            for name in ("max_tokens", "vocabulary"):
                if not isinstance(fields[name], int) or fields[name] < 1:
                    raise ValueError(f"{name} is {fields[name]!r}")
            return cls(**fields)
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise UserError(
                f"the cloud's prompt specification cannot be read ({error}): run the same version "
                "of edge_cloud_spec on robot and cloud"
            ) from error


@dataclass(frozen=True, eq=False)
class PromptImage:
    """A picture of a prompt. ``grid``: in patches. ``pixels``: makes the pixel values, float32
    [patches, values], which are large and not needed if the picture's rows are cached."""

    digest: bytes
    grid: Grid
    pixels: Callable[[], np.ndarray]


@dataclass(frozen=True, eq=False)
class Prompt:
    """The token ids and pictures that a session starts from.

    input_ids: int64 [n]. images: in the order of their ids; the last is the newest frame. digest:
    names the prompt, the same on robot and cloud, however closely the model on either side looks
    (``prompt_digest``). Where there are fewer image ids than a grid has tokens, those of the most
    diverse tokens are meant. owner: whose it is (a credential); what is computed of it is for
    nobody else, but of the first ``common`` ids, with which all prompts of the specification begin.
    grows: a later prompt of the mission begins with this one and its answer.
    """

    input_ids: np.ndarray
    images: tuple[PromptImage, ...]
    digest: bytes
    owner: str = ""
    grows: bool = False
    common: int = 0


def logits_processors(
    spec: PromptSpec, prompt: Prompt, grammar: Grammar | None
) -> LogitsProcessors | None:
    """The processors of a decode; None if logits stay as they are."""
    if spec.logits == UNPROCESSED:
        return None if grammar is None else LogitsProcessors(spec.vocabulary, grammar)
    return LogitsProcessors(spec.vocabulary, grammar, spec.logits, prompt.input_ids, spec.end_ids)


def instruction_tokens(model: object, instruction: str) -> tuple[int, ...]:
    """The instruction's tokens alone; empty for a model without a tokenizer, such as a scripted
    one."""
    tokenizer: Any = getattr(model, "tokenizer", None)
    if tokenizer is None:
        return ()
    return tuple(tokenizer(instruction, add_special_tokens=False)["input_ids"])


def prompt_digest(ids: np.ndarray, pictures: Iterable[tuple[Grid, bytes]]) -> bytes:
    """A 16-byte hash of the ids [n], and of each whole picture's grid and digest."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(np.asarray(ids, "<i8").tobytes())
    for grid, image_digest in pictures:
        digest.update(np.asarray(grid, "<i8").tobytes())
        digest.update(image_digest)
    return digest.digest()


def check_request(request: MessagesRequest, spec: PromptSpec) -> None:
    """Raise UserError for a request that no chat template is for, or that this specification does
    not admit."""
    messages, pictures = request.messages, request.pictures
    roles = [message.role for message in messages]
    own = spec.system_text
    begins = bool(messages) and messages[0] == Message(SYSTEM, (own,))
    pixels = max((width * height for width, height in (each.size for each in pictures)), default=0)
    refuse(
        (not messages or roles[-1] != USER, "a request ends with a message of the user: add one"),
        (
            not {*roles} <= {*ROLES} or SYSTEM in roles[1:],
            f"the roles of a request are {', '.join(ROLES)}, and only the first message may be of "
            f"the {SYSTEM}, not {roles}",
        ),
        (
            any(not message.contents for message in messages if message.role != ASSISTANT),
            "a message of the request is empty: leave it out",
        ),
        (
            own and not begins,
            f"this verifier answers requests that begin with its system text ({own[:40]!r} ...): "
            "choose its dialect on the robot (dialect:=, --dialect)",
        ),
        (
            len(pictures) > MOST_PICTURES,
            f"a request has at most {MOST_PICTURES} pictures, not {len(pictures)}",
        ),
        (
            pixels > spec.image.max_frame_pixels,
            f"a picture is stretched to at most {spec.image.max_frame_pixels} pixels, not {pixels}",
        ),
    )


def chat_of(
    request: MessagesRequest, spec: PromptSpec, control: re.Pattern[str]
) -> list[dict[str, Any]]:
    """The request as chat messages, with a placeholder for each picture.

    A message without pictures has a text as its content, which the templates of text models want.
    control: matches what steers a model. Answers lose it; UserError: a text of the user has it.
    """
    check_request(request, spec)

    def plain(text: str, message: Message) -> str:
        if message.role == ASSISTANT:
            while control.search(text):  # removing one may form another
                text = control.sub("", text)
        elif message.text != spec.system_text and (found := control.search(text)):
            raise UserError(f"the request has {found[0]!r}, a control token: leave it out")
        return text

    def written(message: Message) -> str | list[dict[str, str]]:
        parts = [
            {"type": "image"} if isinstance(part, Picture) else plain(part, message)
            for part in message.contents
        ]
        if not message.pictures:
            return "".join(part for part in parts if isinstance(part, str))
        return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]

    return [{"role": message.role, "content": written(message)} for message in request.messages]


def render(
    tokenizer: Any,
    request: MessagesRequest,
    spec: PromptSpec,
    grids: Sequence[Grid],
    image_token: str | None,
) -> np.ndarray:
    """Render the chat template with the request; returns token ids int64 [n] with the image tokens
    of pictures with these grids.

    image_token: None for a model of text. UserError: the request or the template cannot be used.
    """
    added = tokenizer.added_tokens_decoder.items()
    steers = {*spec.end_ids}
    if image_token is not None:
        steers.add(tokenizer.convert_tokens_to_ids(image_token))
    control = [token.content for index, token in added if token.special or index in steers]
    messages = chat_of(request, spec, either(control))
    remedy = "take that of the model that it was tuned from" + (
        ", or an empty file as --system-text if it refuses one" if spec.system_text else ""
    )
    with library_errors("the chat template cannot be rendered", remedy):
        text = tokenizer.apply_chat_template(
            messages,
            chat_template=spec.chat_template,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,  # for templates that ask; the answer must begin at once
        )
    if text.rstrip().endswith("<think>"):
        raise UserError(
            "the chat template begins a thought, which is no action: take the Instruct checkpoint, "
            "or serve this one behind an API (docs/openai_target.md)"
        )
    texts = [text] if image_token is None else text.split(image_token)
    if len(texts) != 1 + len(grids):
        due = "one image is" if len(grids) == 1 else f"{len(grids)} images are"
        raise UserError(
            f"the chat template renders {len(texts) - 1} times {image_token!r} where {due} due: "
            "use the template of a Qwen vision-language model"
        )
    counts = [grid[0] * grid[1] * grid[2] // spec.image.merge_size**2 for grid in grids]
    text = texts[0] + "".join(
        str(image_token) * count + after for count, after in zip(counts, texts[1:], strict=True)
    )
    return np.asarray(tokenizer(text, add_special_tokens=False)["input_ids"], np.int64)


def either(texts: Iterable[str]) -> re.Pattern[str]:
    """Matches each of these texts, and nothing where there are none."""
    return re.compile("|".join(map(re.escape, filter(None, texts))) or r"(?!)")
