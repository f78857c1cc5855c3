"""Checks an operator's instruction before any model or motor receives it."""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from .errors import UserError, one_line
from .share import path_of, share

MAX_LENGTH = 500  # characters
LIKE_CONTROL = re.compile(r"<\|.{0,80}?\|>|</?\w+>")  # <|im_end|>, </s>, <image>


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


# Letters that people type for each other or that look alike (Cyrillic, Greek, small capitals, on
# black), katakana as hiragana; hands and signs that say stop.
_ALIKE = str.maketrans(
    {
        **dict(zip("ıłøىیکةʼ", "iloييكه ", strict=True)),
        **dict(zip("аеорсухкмтѕіјοαερκτιχ", "aeopcyxkmtsijoaepktix", strict=True)),
        **{chr(kana): chr(kana - 0x60) for kana in range(0x30A1, 0x30F7)},
        **dict(zip("ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ", "abcdefghijklmnoprstuvwyz", strict=True)),
        **{chr(first + at): chr(ord("a") + at) for first in (0x1F150, 0x1F170) for at in range(26)},
        **dict.fromkeys("ーـ", ""),
        **dict.fromkeys("🛑✋🤚🖐⛔🚫⏹⏸", " stop "),
    }
)
_LETTER_BY_LETTER = re.compile(
    r"(?<!\S)([^\s,\u0e00-\uffff])[ ,]+(?=[^\s,\u0e00-\uffff](?!\S))"
)  # s t o p, S.T.O.P.
_PARTED = re.compile(r"(?<=\w)(?<!['’]\w)[!-&(-/:-@\[-`{-~·•…‐-—]+(?=\w)")  # st.op, not don't.stop
# Thai, Lao, Burmese, jamo, Khmer, kana and Han, which many write without blanks.
_WITHOUT_BLANKS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u9fff]")
# What is not seen beside the format characters (Cf): fillers, joiners and variation selectors.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)


def is_stop(text: str) -> bool:
    """Whether an instruction tells the robot to stop, in the words of ``config/stop_words.yaml``.

    It does if it has at most 500 characters and consists of stop words and fillers, with at least
    one stop word: ``Please stop now!``, not ``stop at the chair``; and whatever is behind a threat:
    ``stop or I'll call``. Case, accents, marks, format characters and stretched letters do not
    matter. Raises UserError if the words cannot be read.
    """
    if len(text) > MAX_LENGTH:
        return False
    # Marks within words may be slips (st.op), dots also blanks (don't.move).
    plain = unicodedata.normalize("NFKC", text)
    return any(map(_stops, (text, _PARTED.sub("", plain), plain.replace(".", " "))))


def _stops(text: str) -> bool:
    stops, known, denies, threats, longest = _stop_words()
    words, at, heard, denied = _words(text), 0, False, frozenset[str]()
    while at < len(words):
        ends = range(min(len(words), at + longest), at, -1)
        phrases = ((" ".join(words[at:end]), end) for end in ends)
        # Before a stop, the words of a threat may be fillers.
        said = (one for one in phrases if one[0] in known and (heard or one[0] not in threats))
        phrase, at = next(said, ("", 0))
        if not phrase or phrase in denied or phrase in threats:
            return heard and phrase in threats
        heard = heard or phrase in stops
        denied = denies.get(phrase, denied)
    return heard


def _words(text: str) -> list[str]:
    """The words of a text as they are compared; a mark that ends a clause is the word ``,``."""
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    kept = []
    typed = re.sub(r"(?<=!)1+|(?<![\s\d])1+(?=!)", "", folded)  # stop!!!1
    for character in typed.translate(_ALIKE):
        kind = unicodedata.category(character)
        if kind[0] in "LN" or kind == "Mc":  # Mc: vowels of India
            kept.append(character)
        elif kind not in ("Mn", "Me", "Cf"):
            kept.append(" , " if kind == "Po" and character not in "'\"" else " ")
    said = _LETTER_BY_LETTER.sub(r"\1", "".join(kept))
    said = re.sub(r"(\S)\1{2,}", r"\1", said)  # stoppp, and where words stand without blanks
    said = re.sub(r"(\S)\1+", r"\1", _WITHOUT_BLANKS.sub(r" \g<0> ", said))  # stopp
    return re.sub(r"(?<!\S)(\S+?)\1+(?!\S)", r"\1", said).split()  # stopstop


def _phrases(listed: str) -> set[str]:
    """The phrases between commas, as ``_words`` has them; all at once, which is quicker."""
    words = " ".join(_words(listed.replace(",", " 10 ")))  # no phrase has a 10
    return {phrase.strip() for phrase in words.split("10")} - {""}


@cache
def _stop_words() -> tuple[set[str], set[str], dict[str, frozenset[str]], set[str], int]:
    """Of ``config/stop_words.yaml``, as ``_words`` has them: the phrases that stop; all phrases;
    by each negation, the stops that it denies until the next mark; the threats; the words of the
    longest."""
    path = share() / "config/stop_words.yaml"
    stops, known, threats, denies = set[str](), {","}, set[str](), {",": frozenset[str]()}
    try:
        # By the quick loader where there is one: nodes start often, and this file is our own.
        languages = yaml.load(path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        for language in languages.values():
            stop, filler, negation, threat = (
                _phrases(language.get(kind, ""))
                for kind in ("stop", "filler", "negation", "threat")
            )
            stops |= stop
            threats |= threat
            known |= stop | filler | negation | threat
            denies |= {word: denies.get(word, frozenset()) | stop for word in negation}
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read ({one_line(error)}): copy it anew") from None
    return stops, known, denies, threats, max(phrase.count(" ") + 1 for phrase in known)


def normalized(text: str) -> str:
    """The instruction as nodes compare it and models read it: composed (NFC), without invisible
    characters, and with single blanks."""
    composed = unicodedata.normalize("NFC", text)
    seen = "".join(c for c in composed if unicodedata.category(c) != "Cf")
    return " ".join(_INVISIBLE.sub("", seen).split())


def check_instruction(text: str, known: KnownInstructions | None = None) -> str:
    """Check an instruction and return it ``normalized``.

    ``known``: the instructions that the model was trained on; None: any. Raises UserError if it is
    empty, longer than 500 characters, contains non-text characters or what a model could take for a
    token that steers it, or is not known.
    """
    if len(text) > MAX_LENGTH:
        raise UserError(
            f"the instruction has {len(text)} characters; give one of at most {MAX_LENGTH}"
        )
    text = normalized(text)
    if not any(unicodedata.category(character)[0] in "LNSC" for character in text):
        raise UserError("the instruction is empty; say what to find")
    if any(_is_no_text(character) for character in text):
        raise UserError(
            f"the instruction {ascii(text)[:80]} has control characters or is not UTF-8; "
            "send plain text"
        )
    if token := LIKE_CONTROL.search(text):
        raise UserError(f"the instruction contains {token[0]!r}, a control token: leave it out")
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
    path = path_of(directory)
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
