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
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..decoding.grammar import Grammar
from ..decoding.processors import UNPROCESSED, LogitsProcessing, LogitsProcessors
from ..errors import UserError, library_errors, refuse
from ..request import (
    ASSISTANT,
    MOST_MESSAGES,
    MOST_PICTURES,
    MOST_TEXT,
    ROLES,
    SYSTEM,
    USER,
    Message,
    Part,
    Picture,
    Request,
)
from .image import Grid, ImageSpec

NESTED = 8  # times that control tokens are taken out of an answer; more are an attack


@dataclass(frozen=True)
class PromptSpec:
    """The form of prompts, and what a request must keep to, as the target's side defines it; sent
    to the robot as bytes.

    ``logits``: what the target's checkpoint does to its logits. ``system_text``: with which a
    request begins; empty: with none; None: as it likes. ``pictures``: the most of a request.
    """

    chat_template: str
    image: ImageSpec
    end_ids: tuple[int, ...]
    max_tokens: int
    target: str  # the target model's identity
    vocabulary: int  # size of the common vocabulary
    logits: LogitsProcessing = UNPROCESSED
    system_text: str | None = None
    pictures: int = MOST_PICTURES

    def __post_init__(self) -> None:
        refuse(
            (not self.chat_template, "a prompt needs a chat template"),
            (not isinstance(self.system_text, str | None), f"system_text {self.system_text!r}"),
            (
                self.max_tokens < 1 or self.vocabulary < 2 or not self.end_ids,
                f"max_tokens {self.max_tokens}, tokens {self.vocabulary}, end ids {self.end_ids}",
            ),
            error=ValueError,
        )

    @property
    def imposed(self) -> tuple[Message, ...]:
        """The messages that a request begins with."""
        return (Message(SYSTEM, (self.system_text,)),) if self.system_text else ()

    def request(self, *parts: Part) -> Request:
        """A request of one message of the user, after what a request begins with."""
        return Request((*self.imposed, Message(USER, parts)))

    def to_bytes(self) -> bytes:
        """Serialize to JSON for ``from_bytes``; leaves out fields with the usual values."""
        usual = {"logits": UNPROCESSED, "system_text": None, "pictures": MOST_PICTURES}
        left_out = {name for name, value in usual.items() if getattr(self, name) == value}
        fields = {k: v for k, v in dataclasses.asdict(self).items() if k not in left_out}
        return json.dumps(fields, ensure_ascii=False, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> PromptSpec:
        """The inverse of ``to_bytes``; raises UserError if it is no specification of this
        version."""
        try:
            fields = json.loads(data)
            fields["image"] = ImageSpec(**fields["image"])
            fields["logits"] = LogitsProcessing(**fields.get("logits", {}))
            fields["end_ids"] = tuple(int(index) for index in fields["end_ids"])
            for name, least in {"max_tokens": 1, "vocabulary": 1, "pictures": 0}.items():
                if not isinstance(number := fields.get(name, least), int) or number < least:
                    raise ValueError(f"{name} is {number!r}")
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
    grows: a later prompt may begin with this one and its answer.
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


def text_tokens(model: object, text: str) -> tuple[int, ...]:
    """A text's tokens alone; empty for a model without a tokenizer, such as a scripted one."""
    tokenizer: Any = getattr(model, "tokenizer", None)
    if tokenizer is None:
        return ()
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def prompt_digest(ids: np.ndarray, pictures: Iterable[tuple[Grid, bytes]]) -> bytes:
    """A 16-byte hash of the ids [n], and of each whole picture's grid and digest."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(np.asarray(ids, "<i8").tobytes())
    for grid, image_digest in pictures:
        digest.update(np.asarray(grid, "<i8").tobytes())
        digest.update(image_digest)
    return digest.digest()


def check_request(request: Request, spec: PromptSpec) -> None:
    """Raise UserError for a request that no chat template is for, or that does not keep to the
    specification."""
    messages, pictures = request.messages, request.pictures
    roles, sizes = [message.role for message in messages], [each.size for each in pictures]
    pixels, own = spec.image.max_frame_pixels, spec.system_text
    begins = messages[:1] == spec.imposed if own else SYSTEM not in roles[:1]
    what = f"that begin with its own system text ({own[:40]!r} ...)" if own else "of no system text"
    refuse(
        (
            not messages or roles[-1] != USER,
            "a request ends with a message of the user: add one",
        ),
        (
            not {*roles} <= {*ROLES} or SYSTEM in roles[1:],
            f"a message is of {', '.join(ROLES)}, and of the {SYSTEM} the first one at most",
        ),
        (
            any(not each.contents for each in messages if each.role != ASSISTANT),
            "a message of the request is empty: leave it out",
        ),
        (
            own is not None and not begins,
            f"this verifier answers requests {what}: give robot and verifier the same dialect "
            "(dialect:=, --dialect), or serve with --dialect any",
        ),
        (
            len(messages) > MOST_MESSAGES or sum(len(each.text) for each in messages) > MOST_TEXT,
            f"a request has at most {MOST_MESSAGES} messages and {MOST_TEXT} characters of text",
        ),
        (
            len(pictures) > spec.pictures,
            f"this verifier answers requests of at most {spec.pictures} pictures, not "
            f"{len(pictures)}: show fewer"
            + (", or serve with --pictures" if spec.pictures else ", or serve a model that sees"),
        ),
        (
            any(min(size) < 1 or size[0] * size[1] > pixels for size in sizes if any(size)),
            f"a picture is stretched to 1 to {pixels} pixels: give another size",
        ),
    )


def chat_of(request: Request, spec: PromptSpec, control: re.Pattern[str]) -> list[dict[str, Any]]:
    """The request as chat messages, with a placeholder for each picture.

    A message without pictures has a text as its content, which the templates of text models want.
    control: matches what steers a model. Answers lose it; UserError: a text of the user has it.
    """
    check_request(request, spec)

    def plain(text: str, message: Message) -> str:
        for _ in range(NESTED if message.role == ASSISTANT else 0):
            text = control.sub("", text)  # removing one may form another
        if message not in spec.imposed and (found := control.search(text)):
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
    request: Request,
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
        ", or a dialect without system_text (--dialect) if it refuses one"
        if messages[0]["role"] == SYSTEM
        else ""
    )
    with library_errors("the chat template cannot be rendered", remedy):
        text = tokenizer.apply_chat_template(
            messages,
            chat_template=spec.chat_template,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,  # for templates that ask; the answer must begin at once
        )
    refuse(
        (not text, "the chat template renders nothing: take that of the model it was tuned from"),
        (
            text.rstrip().endswith("<think>"),
            "the chat template begins a thought, which is no action: take the Instruct checkpoint, "
            "or serve this one behind an API (docs/openai_target.md)",
        ),
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
