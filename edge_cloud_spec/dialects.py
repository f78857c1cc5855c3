"""Reads dialects: ``config/dialects/NAME.yaml``, or another file."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from .decoding.policy import MAX_GRAMMAR
from .errors import UserError, one_line
from .nav.answer import (
    ACTION_PLACE,
    AMOUNT_PLACE,
    AROUND_PLACE,
    CLAUSES_FORM,
    DELIMITER,
    FREE_SPACE_PLACE,
    HISTORY_PLACE,
    IMAGE_PLACE,
    INSTRUCTION_PLACE,
    NUMBER,
    PATH_PLACE,
    SEEN_GROUPS,
    SEEN_PLACE,
    TRIED_PLACE,
    USER_TEXT,
    WAYS_PLACE,
    Dialect,
    parse_action,
    pattern_of,
)
from .nav.history import HistorySpec
from .share import read_config, rules_text

MOST_ACTIONS = 32  # actions of an answer
_TEXTS = (
    *("summary", "source", "form", "separator", "thinks_until", "system_text", "user_text"),
    *("free_space", "seen"),
)
_TELLS = {WAYS_PLACE, AROUND_PLACE, SEEN_PLACE, TRIED_PLACE, PATH_PLACE}
_KINDS: dict[str, tuple[type, str]] = {
    **dict.fromkeys(_TEXTS, (str, "a text, in quotes")),
    "most": (int, "a whole number"),
    "several_frames": (bool, "true or false"),
    "history": (dict, "a mapping of frames, choose, text and size"),
    **dict.fromkeys(("actions", "examples"), (dict, "a mapping of texts, in quotes")),
}


@cache
def ours() -> Dialect:
    """The default dialect, with our system text."""
    return load_dialect(CLAUSES_FORM)


def load_dialect(name: str) -> Dialect:
    """Read a dialect by its name, or from the path of a YAML file; raises UserError.

    It must parse its own examples.
    """
    path, chosen = read_config("dialect", name, _KINDS, ("summary", "examples"))
    if not (wrong := next(_wrong_fields(chosen), "")):
        try:
            dialect = _made(path.stem, chosen)
            wrong = next(_mistakes(dialect, chosen["examples"]), "")
        except (TypeError, ValueError) as error:  # of its history
            wrong = str(error).replace("HistorySpec.__init__() got an", "history has an")
    if wrong:
        raise UserError(f"dialect {path}: {one_line(wrong)}")
    return dialect


def _wrong_fields(chosen: Mapping[Any, Any]) -> Iterator[str]:
    """What is wrong with the fields of a dialect; empty if nothing is."""
    for name, value in chosen.items():
        kind, wanted = _KINDS[name]
        no_action = (None,) if name == "examples" else ()
        texts: list[Any] = []
        if type(value) is dict and name != "history":
            texts = [*value, *(each for each in value.values() if each not in no_action)]
        if type(value) is not kind or not all(type(text) is str for text in texts):
            yield f"{name} must be {wanted}, not {reprlib.repr(value)}"
    if not chosen.get("actions", True):
        yield "it needs the field actions"


def _made(name: str, chosen: Mapping[str, Any]) -> Dialect:
    ours = chosen.get("form", CLAUSES_FORM) == CLAUSES_FORM
    asked = {
        "system_text": rules_text() if ours else "",
        "user_text": USER_TEXT if ours else INSTRUCTION_PLACE,
    }
    given = {key: value for key, value in chosen.items() if key not in ("summary", "source")}
    given["examples"] = tuple(text for text, meaning in chosen["examples"].items() if meaning)
    if "history" in given:
        given["history"] = HistorySpec(**given["history"])
    if "actions" in given:
        given["actions"] = tuple(given["actions"].items())
    return Dialect(name, **(asked | given))


def _mistakes(dialect: Dialect, examples: Mapping[str, str | None]) -> Iterator[str]:
    """Yield why answers cannot be parsed, or are ambiguous; and which examples do not match."""
    said = [phrase for phrase, _ in dialect.actions]
    in_clauses = dialect.form == CLAUSES_FORM
    texts = (dialect.form, dialect.separator, dialect.thinks_until, *said)
    unprintable = next((repr(text) for text in texts if not text.isprintable()), "")
    places = dialect.user_text.count(INSTRUCTION_PLACE), dialect.user_text.count(IMAGE_PLACE)
    seldom = HISTORY_PLACE, FREE_SPACE_PLACE
    for wrong, why in (
        (unprintable, f"{unprintable} is not plain text on one line"),
        (
            dialect.form.count(ACTION_PLACE) != 1 and not in_clauses,
            f"form must be {CLAUSES_FORM}, or a sentence with one {ACTION_PLACE}, not "
            f"{dialect.form!r}",
        ),
        (
            in_clauses and (dialect.most > 1 or DELIMITER in "".join(said)),
            f"a clause holds one action, and no {DELIMITER!r}",
        ),
        (
            dialect.thinks_until and dialect.form[:1].isspace(),
            "form must not begin with a blank where a thought comes before it",
        ),
        (
            not 1 <= dialect.most <= MOST_ACTIONS,
            f"most must be 1 to {MOST_ACTIONS}, not {dialect.most}",
        ),
        (
            places not in ((1, 0), (1, 1)) or max(map(dialect.user_text.count, seldom)) > 1,
            f"user_text must hold {INSTRUCTION_PLACE} once, {IMAGE_PLACE}, {' and '.join(seldom)} "
            "once or never",
        ),
    ):
        if wrong:
            yield why
    yield from _wrong_telling(dialect)
    if len(dialect.grammar("action", "action first")) > MAX_GRAMMAR:
        yield f"its grammar is longer than {MAX_GRAMMAR} characters: give it fewer actions"
    for phrase, meaning in dialect.actions:
        yield from _wrong_action(dialect, phrase, meaning)
    for text, wanted in examples.items():
        found = dialect.action_of(text, ended=True) or ""
        if str(found) != (str(parse_action(wanted)) if wanted else ""):
            yield f"the example {text!r} means {found or 'nothing'}, not {wanted or 'nothing'}"


def _wrong_telling(dialect: Dialect) -> Iterator[str]:
    """What is wrong with how the free space is told, and the thing found that was seen."""
    places = set(re.findall(r"\{.*?\}", dialect.free_space))
    groups = ", ".join(f"(?P<{name}>...)" for name in SEEN_GROUPS)
    try:
        found = re.compile(dialect.seen).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        yield f"seen is no regular expression: {error}"
        return
    if not places or not places <= _TELLS or not dialect.free_space.isprintable():
        yield f"free_space is one line with some of {', '.join(sorted(_TELLS))}, and no other place"
    elif dialect.seen and not set(SEEN_GROUPS) <= set(found):
        yield f"seen needs the groups {groups}"
    elif (SEEN_PLACE in places) != bool(dialect.seen):
        yield f"seen finds what {SEEN_PLACE} in free_space tells: give both, or none"
    elif not dialect.tells_free_space and dialect.free_space != WAYS_PLACE:
        yield f"free_space is told at {FREE_SPACE_PLACE} of user_text, which has none"


def _wrong_action(dialect: Dialect, phrase: str, meaning: str) -> Iterator[str]:
    """Why this entry of the action table is invalid or ambiguous; empty if it is not."""
    means = (phrase.count(AMOUNT_PLACE), meaning.count(AMOUNT_PLACE)) in ((0, 0), (1, 1)) and all(
        parse_action(meaning.replace(AMOUNT_PLACE, number)) for number in ("0.01", "9999.99")
    )
    if not means or not phrase or phrase != phrase.strip():
        yield (
            f"{phrase!r} cannot mean {meaning!r}: give an action, such as turn left {AMOUNT_PLACE} "
            f"degrees, move forward 25 cm or stop, with {AMOUNT_PLACE} in both or in neither"
        )
    said, apart = [phrase for phrase, _ in dialect.actions], dialect.separator
    if re.search(r"[0-9.]\{amount\}|\{amount\}[0-9.]", f"{apart}{phrase}{apart}"):
        yield f"{phrase!r} has a digit or a point beside {AMOUNT_PLACE}"
    # An amount of one phrase may stand where another has a number of its own.
    found = dict.fromkeys(re.findall("[0-9.]+", f"1 {said}") if AMOUNT_PLACE in phrase else ("1",))
    some = [phrase.replace(AMOUNT_PLACE, each) for each in found if re.fullmatch(NUMBER, each)]
    equal, measured = set(some), [each for each in said if AMOUNT_PLACE in each]
    alike = [each for each in said if each in equal] + [
        each for each in measured if any(re.fullmatch(pattern_of(each), one) for one in some)
    ]
    if dialect.most > 1 and not apart:
        alike = [each for each in said if each.startswith(phrase)] + [AMOUNT_PLACE] * (
            AMOUNT_PLACE in phrase
        )
    elif dialect.most > 1:
        in_numbers = AMOUNT_PLACE in phrase and not apart.strip("0123456789.")
        begins_in_it = (phrase + apart).index(apart) < len(phrase)
        alike += [apart] * (in_numbers or begins_in_it)
    if len(alike) > 1:
        yield f"{some[0]!r} can be read in more than one way: {', '.join(map(repr, alike))}"
