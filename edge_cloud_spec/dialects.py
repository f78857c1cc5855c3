"""Reading dialects: ``config/dialects/NAME.yaml``, or another file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from .decoding.policy import MAX_GRAMMAR
from .errors import UserError, one_line
from .nav.answer import ACTION, AMOUNT, CLAUSES_FORM, DELIMITER, Dialect, parse_action, pattern_of
from .share import rules_text, share

MOST = 32  # actions of an answer
INSTRUCTION, IMAGE = "{instruction}", "{image}"  # their places in a user's text
USER_TEXT = INSTRUCTION + "\n{order}"  # of our own dialect
_TEXTS = ("summary", "source", "form", "separator", "thinks_until", "system_text", "user_text")
_KINDS: dict[str, tuple[type, str]] = {
    **dict.fromkeys(_TEXTS, (str, "a text, in quotes")),
    "most": (int, "a whole number"),
    "several_frames": (bool, "true or false"),
    **dict.fromkeys(("actions", "examples"), (dict, "a mapping of texts, in quotes")),
}


def dialect_names() -> tuple[str, ...]:
    """The names of the packaged dialects, sorted."""
    return tuple(sorted(path.stem for path in (share() / "config/dialects").glob("*.yaml")))


def load_dialect(name: str) -> Dialect:
    """Read a dialect by its name, or from the path of a YAML file; raises UserError.

    It is held to its own examples.
    """
    path = Path(name) if name.endswith(".yaml") else share() / f"config/dialects/{name}.yaml"
    if not path.is_file():
        raise UserError(
            f"there is no dialect {name!r}; choose one of {', '.join(dialect_names())}, or give "
            "the path of a .yaml file"
        )
    try:
        chosen = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"dialect {path} cannot be read: {one_line(error)}") from None
    if not isinstance(chosen, dict):
        raise UserError(f"dialect {path}: a mapping of fields is expected")
    if wrong := next(_wrong_fields(chosen), ""):
        raise UserError(f"dialect {path}: {wrong}")
    dialect = _made(path.stem, chosen)
    if wrong := next(_mistakes(dialect, chosen["examples"]), ""):
        raise UserError(f"dialect {path}: {wrong}")
    return dialect


def _wrong_fields(chosen: Mapping[Any, Any]) -> Iterator[str]:
    """Why these are not the fields of a dialect."""
    if unknown := set(chosen) - set(_KINDS):
        yield f"unknown field {', '.join(sorted(map(str, unknown)))}"
    for name, value in chosen.items():
        kind, wanted = _KINDS[name]
        texts = [*value, *value.values()] if type(value) is dict else []
        others = (None,) if name == "examples" else ()  # that mean nothing
        if type(value) is not kind or not all(type(t) is str or t in others for t in texts):
            yield f"{name} must be {wanted}, not {str(value)[:80]!r}"
    for name in ("summary", "actions", "examples"):
        if not chosen.get(name, name == "actions"):
            yield f"it needs the field {name}"


def _made(name: str, chosen: Mapping[str, Any]) -> Dialect:
    ours = chosen.get("form", CLAUSES_FORM) == CLAUSES_FORM
    asked = {"system_text": rules_text() if ours else ""}
    asked["user_text"] = USER_TEXT if ours else INSTRUCTION
    given = {key: value for key, value in chosen.items() if key not in ("summary", "source")}
    given["examples"] = tuple(text for text, meaning in chosen["examples"].items() if meaning)
    if "actions" in given:
        given["actions"] = tuple(given["actions"].items())
    return Dialect(name, **(asked | given))


def _mistakes(dialect: Dialect, examples: Mapping[str, str | None]) -> Iterator[str]:
    """Why its answers cannot be read, or in two ways; which example means something else."""
    said = [phrase for phrase, _ in dialect.actions]
    in_clauses = dialect.form == CLAUSES_FORM
    for text in (dialect.form, dialect.separator, dialect.thinks_until, *said):
        if not text.isprintable():
            yield f"{text!r} is not plain text on one line"
    if dialect.form.count(ACTION) != 1 and not in_clauses:
        yield f"form must be {CLAUSES_FORM}, or a sentence with one {ACTION}, not {dialect.form!r}"
    if in_clauses and (dialect.most > 1 or DELIMITER in "".join(said)):
        yield f"a clause holds one action, and no {DELIMITER!r}"
    if dialect.thinks_until and dialect.form[0].isspace():
        yield "form must not begin with a blank where a thought comes before it"
    if not 1 <= dialect.most <= MOST:
        yield f"most must be 1 to {MOST}, not {dialect.most}"
    if dialect.user_text.count(INSTRUCTION) != 1 or dialect.user_text.count(IMAGE) > 1:
        yield f"user_text must hold {INSTRUCTION} once, and {IMAGE} once or never"
    if len(dialect.grammar("action", "action first")) > MAX_GRAMMAR:
        yield f"its grammar is longer than {MAX_GRAMMAR} characters: give it fewer actions"
    for phrase, meaning in dialect.actions:
        yield from _wrong_action(dialect, phrase, meaning)
    for text, wanted in examples.items():
        found = dialect.action_of(text, ended=True) or ""
        if str(found) != (str(parse_action(wanted)) if wanted else ""):
            yield f"the example {text!r} means {found or 'nothing'}, not {wanted or 'nothing'}"


def _wrong_action(dialect: Dialect, phrase: str, meaning: str) -> Iterator[str]:
    """Why this line of the table is none, or is not the only one for its words."""
    means = (phrase.count(AMOUNT), meaning.count(AMOUNT)) in ((0, 0), (1, 1)) and all(
        parse_action(meaning.replace(AMOUNT, number)) for number in ("0.01", "9999.99")
    )
    if not means or not phrase or phrase != phrase.strip():
        yield (
            f"{phrase!r} cannot mean {meaning!r}: give an action, such as turn left {AMOUNT} "
            f"degrees, move forward 25 cm or stop, with {AMOUNT} in both or in neither"
        )
    said, apart = [phrase for phrase, _ in dialect.actions], dialect.separator
    one = phrase.replace(AMOUNT, "1")
    alike = [each for each in said if re.fullmatch(pattern_of(each), one)]
    if dialect.most > 1 and apart and apart in phrase.replace(AMOUNT, "0123456789."):
        alike.append(apart)
    if dialect.most > 1 and not apart:
        alike = [each for each in said if each.startswith(phrase)] + [AMOUNT] * (AMOUNT in phrase)
    if len(alike) > 1:
        yield f"{one!r} can be read in more than one way: {', '.join(map(repr, alike))}"
