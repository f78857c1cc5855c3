"""Turns an instruction and a camera frame into the token ids from which both models start.

The cloud owns the form of a prompt (`PromptSpec`) and sends it to the robot; the robot renders it
with its own tokenizer, and equal digests prove that both start from the same ids and picture.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import UserError
from ..instruction import check_instruction
from .image import Grid, ImageSpec

ORDERS = ("action first", "reason first")
INSTRUCTION, ORDER, IMAGE = "{instruction}", "{order}", "{image}"  # their places in a user's text
USER_TEXT = f"{INSTRUCTION}\n{ORDER}"


@dataclass(frozen=True)
class Request:
    """The instruction and the camera's frame: `jpeg` as it came from the camera."""

    instruction: str
    jpeg: bytes
    order: str = "action first"

    @cached_property
    def image_digest(self) -> bytes:
        """16 bytes that name the picture."""
        return hashlib.blake2b(self.jpeg, digest_size=16).digest()


@dataclass(frozen=True)
class PromptSpec:
    """The form of a prompt, as the target's side defines it; sent to the robot as bytes.

    ``user_text`` has the places of the instruction, of the order and of the picture; without one
    the picture comes first. ``dialect`` names how the answer is to be read, the last word by a
    digest; empty: as our clauses.
    """

    chat_template: str
    system_text: str
    image: ImageSpec
    end_ids: tuple[int, ...]
    max_tokens: int
    target: str  # identity of the target model
    vocabulary: int  # ids both sides may use: the common vocabulary
    user_text: str = USER_TEXT
    dialect: str = ""

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

    def to_bytes(self) -> bytes:
        """JSON, for ``from_bytes``; what is ours in the prompt is left out."""
        ours = {"user_text": USER_TEXT, "dialect": ""}
        said = dataclasses.asdict(self).items()
        fields = {name: value for name, value in said if value != ours.get(name)}
        return json.dumps(fields, ensure_ascii=False, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> PromptSpec:
        """The inverse of ``to_bytes``; UserError when it is no specification of this version."""
        try:
            fields = json.loads(data)
            fields["image"] = ImageSpec(**fields["image"])
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
class Prompt:
    """Token ids and picture that a session starts from.

    input_ids: int64 [n]; grid: in patches. ``pixels`` makes the pixel values: they are large, and
    not needed where the picture's rows are known. digest: names the prompt, the same on robot and
    cloud, however closely the model on either side looks (``prompt_digest``). Where there are fewer
    image ids than the grid has tokens, those of the most diverse tokens are meant.
    """

    input_ids: np.ndarray
    pixels: Callable[[], np.ndarray]
    image_grid_thw: Grid
    image_digest: bytes
    digest: bytes

    @property
    def pixel_values(self) -> np.ndarray:
        """float32 [patches, values]"""
        return self.pixels()


def instruction_tokens(model: object, instruction: str) -> tuple[int, ...]:
    """The instruction's own tokens; none for a model without a tokenizer, such as a script."""
    tokenizer: Any = getattr(model, "tokenizer", None)
    if tokenizer is None:
        return ()
    return tuple(tokenizer(instruction, add_special_tokens=False)["input_ids"])


def prompt_digest(ids: np.ndarray, grid: Grid, image_digest: bytes) -> bytes:
    """16 bytes over the ids [n] and grid of the whole picture, and the picture's bytes."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(np.asarray(ids, "<i8").tobytes())
    digest.update(np.asarray(grid, "<i8").tobytes())
    digest.update(image_digest)
    return digest.digest()


def messages_of(
    request: Request, spec: PromptSpec, control: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """The request as chat messages, the picture as a part without its data.

    Without a system text the chat template's own counts. control: tokens that no instruction may
    hold. UserError: instruction or order cannot be used.
    """
    instruction = check_instruction(request.instruction, control=control)
    if request.order not in ORDERS:
        raise UserError(f"the order {request.order!r} is unknown: use one of {', '.join(ORDERS)}")
    before, _, after = spec.user_text.replace(ORDER, request.order).rpartition(IMAGE)
    texts = [
        [{"type": "text", "text": part.replace(INSTRUCTION, instruction)}] if part else []
        for part in (before, after)
    ]
    system = [{"role": "system", "content": spec.system_text}] if spec.system_text else []
    return [*system, {"role": "user", "content": [*texts[0], {"type": "image"}, *texts[1]]}]


def render(
    tokenizer: Any, request: Request, spec: PromptSpec, grid: Grid, image_token: str
) -> np.ndarray:
    """Token ids int64 [n] of the spec's chat template around the request, image tokens included.

    UserError: the instruction, the order or the template cannot be used.
    """
    control = [token.content for token in tokenizer.added_tokens_decoder.values()]
    messages = messages_of(request, spec, control)
    text = tokenizer.apply_chat_template(
        messages,
        chat_template=spec.chat_template,
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=False,  # where the template asks: an action is wanted at once
    )
    if text.count(image_token) != 1:
        raise UserError(
            f"the chat template renders {text.count(image_token)} times {image_token!r} where one "
            "image is due: use the template of a Qwen vision-language model"
        )
    count = grid[0] * grid[1] * grid[2] // spec.image.merge_size**2
    text = text.replace(image_token, image_token * count)
    return np.asarray(tokenizer(text, add_special_tokens=False)["input_ids"], np.int64)
