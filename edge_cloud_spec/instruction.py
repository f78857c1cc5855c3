"""Checks an operator's instruction before any model or motor receives it."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .errors import UserError

MAX_LENGTH = 500  # characters
_LIKE_CONTROL = re.compile(r"<\|.*?\|>|</?\w+>")  # <|im_end|>, </s>, <image>


@dataclass(frozen=True)
class KnownInstructions:
    """The instructions that a model was trained on.

    pattern: matches all of them; phrases: their forms, such as ``find the {}``; names: the objects
    in them.
    """

    pattern: re.Pattern[str]
    phrases: tuple[str, ...]
    names: tuple[str, ...]

    def includes(self, text: str) -> bool:
        """Whether the text is one of these instructions, ignoring case."""
        flags = self.pattern.flags | re.IGNORECASE
        return re.fullmatch(self.pattern.pattern, text, flags) is not None

    def __str__(self) -> str:
        """A description for people."""
        asked = ", ".join(phrase.format("...") for phrase in self.phrases)
        return f"{', '.join(self.names)} ({asked})"


def is_stop(text: str) -> bool:
    """Whether an instruction is the word ``stop``, ignoring case, blanks and a final mark."""
    return text.strip().rstrip(".!").casefold() == "stop"


def normalized(text: str) -> str:
    """The instruction without surrounding blanks, as all nodes compare it."""
    return text.strip()


def check_instruction(
    text: str, known: KnownInstructions | None = None, control: Iterable[str] = ()
) -> str:
    """Check an instruction and return it ``normalized``.

    ``known``: the instructions that the model was trained on; None: any. ``control``: tokens that
    steer a model and must not be in an instruction; nor may text that a server, whose tokens are
    unknown here, could take for one. Raises UserError if it is empty, longer than 500 characters,
    contains non-text characters or a control token, or is not known.
    """
    if len(text) > MAX_LENGTH:
        raise UserError(
            f"the instruction has {len(text)} characters; give one of at most {MAX_LENGTH}"
        )
    text = normalized(text)
    if not text:
        raise UserError("the instruction is empty; say what to find")
    if any(_is_no_text(character) for character in text):
        raise UserError(
            f"the instruction {ascii(text)[:80]} has control characters or is not UTF-8; "
            "send plain text"
        )
    for token in (*control, *_LIKE_CONTROL.findall(text)):
        if token in text:
            raise UserError(f"the instruction contains {token!r}, a control token: leave it out")
    if known is not None and not known.includes(text):
        raise UserError(
            f"the model does not understand the instruction {text[:80]!r}; it knows: {known}"
        )
    return text


def _is_no_text(character: str) -> bool:
    # Cc control, Cs surrogate, Co private, Cn unassigned; U+FFFD is what undecodable bytes become.
    return character == "\ufffd" or unicodedata.category(character) in (
        "Cc",
        "Cs",
        "Co",
        "Cn",
    )


FILE = "edge_cloud_spec.json"


def known_instructions(directory: str | Path) -> KnownInstructions | None:
    """The instructions that a checkpoint (a directory, or a file in it) understands; None if
    unknown.

    Raises UserError if the file is damaged.
    """
    path = Path(directory)
    path = (path.parent if path.is_file() else path) / FILE
    if not path.is_file():
        return None
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        pattern = re.compile(said["instructions"])
        return KnownInstructions(pattern, tuple(said["phrases"]), tuple(said["names"]))
    except (OSError, ValueError, KeyError, TypeError, re.error) as error:
        raise UserError(f"{path} cannot be read ({error}): copy it anew from the model") from None


def instruction_pattern(directory: str | Path) -> re.Pattern[str] | None:
    """The pattern of the instructions that the checkpoint understands; None for any."""
    known = known_instructions(directory)
    return None if known is None else known.pattern
