"""Requests for decisions: typed questions, answered by the probabilities of their options.

``/v1/decisions`` is OpenAI's: a list of questions, whose options the target would answer with as
they are written. ``/v1/systemone`` is TypeSafe's, as ``transformers serve`` answers it: a map of
questions, whose options have labels: a letter, Yes or No.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..decoding.policy import softmax
from ..request import (
    ASSISTANT,
    LONGEST_CANDIDATE,
    MOST_CANDIDATES,
    MOST_MESSAGES,
    MOST_PARTS,
    MOST_TEXT,
    SYSTEM,
    USER,
    Message,
    Messages,
    Part,
    Picture,
    Request,
)
from .api_error import ApiError, Unserved
from .body import (
    check_fields,
    check_keys,
    check_model,
    check_pictures,
    json_of,
    json_text,
    list_of,
    object_of,
    picture_of,
    text_of,
)

PREDICATE, NOUL, CHOICE, SCORE = "predicate", "noul", "choice", "score"
MOST_LISTED, MOST_MAPPED = 400, 64  # questions of the one form and of the other
MOST_ASSETS, LONGEST_NAME = 4, 64  # characters
YES_NO = ("Yes", "No")
INPUT_ROLES = {USER: USER, "developer": SYSTEM, SYSTEM: SYSTEM, ASSISTANT: ASSISTANT}
LEAST_LOG_PROB = -9999.0  # as which less is counted; JSON has no infinity


@dataclass(frozen=True)
class Question:
    """A question. values: what an answer calls the options. request: with the options as
    candidates, in the same order."""

    kind: str
    name: str | None
    values: tuple[Any, ...]
    request: Request


@dataclass(frozen=True)
class Chances:
    """The probabilities of a question's options among themselves. doubt: the probability that the
    target answers with none of them. The figures are those of transformers' pipeline."""

    probabilities: tuple[float, ...]
    doubt: float

    @classmethod
    def of(cls, log_probs: Sequence[float]) -> Chances:
        """By the log probabilities of the options."""
        logs = np.maximum(np.array(log_probs, np.float64), LEAST_LOG_PROB)
        return cls(tuple(softmax(logs).tolist()), max(0.0, 1.0 - float(np.exp(logs).sum())))

    @property
    def best(self) -> int:
        """The likeliest option."""
        return self.probabilities.index(max(self.probabilities))

    @property
    def confidence(self) -> float:
        """How far the likeliest option is above chance; 0 to 1."""
        chance = 1 / len(self.probabilities)
        return max(0.0, (max(self.probabilities) - chance) / (1 - chance)) if chance < 1 else 1.0

    @property
    def score(self) -> float:
        """The mean level; levels count from 0."""
        return sum(level * each for level, each in enumerate(self.probabilities))

    @property
    def score_confidence(self) -> float:
        """How close the levels are to the likeliest, beside what is as close by chance; 0 to 1."""
        levels = range(count := len(self.probabilities))
        by_chance = sum(abs(level - (count - 1) / 2) for level in levels) / count
        away = sum(self.probabilities[level] * abs(level - self.best) for level in levels)
        return max(0.0, 1 - away / by_chance) if by_chance else 1.0


Write = Callable[["Decisions", Sequence[Chances]], dict[str, Any]]


@dataclass(frozen=True)
class Decisions:
    """What a request asks for. write: makes the body of the answer."""

    model: str
    questions: tuple[Question, ...]
    write: Write

    def answer(self, log_probs: Sequence[Sequence[float]]) -> dict[str, Any]:
        """The body of the answer, by the log probabilities of the options of each question."""
        return self.write(self, [Chances.of(each) for each in log_probs])


def _asking(messages: Messages, kind: str, candidates: Sequence[str], *, whole: bool) -> Request:
    """The request of one question. A later one repeats what it begins with."""
    check_pictures([picture for message in messages for picture in message.pictures])
    if len(candidates) > MOST_CANDIDATES or max(map(len, candidates)) > LONGEST_CANDIDATE:
        raise Unserved(
            f"a {kind} question has at most {MOST_CANDIDATES} options of {LONGEST_CANDIDATE} "
            "characters: give fewer or shorter ones",
            "questions",
        )
    if len({*candidates}) < len(candidates):
        raise ApiError(f"two options of a {kind} question have the same text", "questions")
    return Request(messages, tuple(candidates), whole, continues=True)


# OpenAI's form


def read_decisions(data: bytes, models: Sequence[str]) -> Decisions:
    """The request in the body of a ``POST /v1/decisions``; raises ApiError."""
    body = json_of(data)
    without_effect = ("prompt_cache_key", "prompt_cache_options", "safety_identifier")
    check_fields(body, ("model", "input", "questions", *without_effect))
    model, messages = check_model(body, models), _messages(body.get("input"))
    given = list_of(body.get("questions"), "questions", 1, MOST_LISTED)
    asked = (_listed(each, f"questions[{at}]", messages) for at, each in enumerate(given))
    return Decisions(model, tuple(asked), _write_list)


def _messages(given: Any) -> Messages:
    items = [{"role": USER, "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not 0 < len(items) < MOST_MESSAGES:
        raise ApiError(f"input must be a text, or a list of 1 to {MOST_MESSAGES - 1}", "input")
    return tuple(_message(each, f"input[{at}]") for at, each in enumerate(items))


def _message(given: Any, where: str) -> Message:
    message = object_of(given, where)
    role = message.get("role")
    if message.get("type", "message") != "message" or role not in (*INPUT_ROLES,):
        raise Unserved(f"{where} must be a message of role {', '.join(INPUT_ROLES)}", where)
    check_keys(message, where, ("type", "role", "content", "phase"))
    parts = _parts(message.get("content"), f"{where}.content")
    if role != USER and not all(isinstance(part, str) for part in parts):
        raise ApiError(f"{where}: pictures are the user's, not of role {role}", where)
    return Message(INPUT_ROLES[role], parts)


def _parts(given: Any, where: str) -> tuple[Part, ...]:
    """The parts of a message or of instructions: a text, or a list of texts, pictures and JSON."""
    if not isinstance(given, list):
        return (text_of(given, where, "a text or a list of parts"),)
    if len(given) > MOST_PARTS // 2:
        raise ApiError(f"{where} has more than {MOST_PARTS // 2} parts", where)
    return tuple(_part(each, f"{where}[{at}]") for at, each in enumerate(given))


def _part(given: Any, where: str) -> Part:
    part = object_of(given, where)
    kind = part.get("type")
    said = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
    if kind in (*said,):
        check_keys(part, where, ("type", said[kind], "prompt_cache_breakpoint"))
        return text_of(part.get(said[kind]), f"{where}.{said[kind]}")
    if kind == "input_json":
        check_keys(part, where, ("type", "data"))
        return json_text(part.get("data"), f"{where}.data")
    if kind != "input_image":
        raise Unserved(
            f"{where} is of type {kind!r:.80}: only input_text, input_image and input_json are "
            "read",
            where,
        )
    check_keys(part, where, ("type", "image_url", "detail", "prompt_cache_breakpoint"))
    return picture_of(part.get("image_url"), part.get("detail") == "low", f"{where}.image_url")


def _listed(given: Any, where: str, messages: Messages) -> Question:
    """A question about the input: what it says is added to the last message, if that is a
    user's."""
    question = object_of(given, where)
    kind, name = question.get("type"), question.get("name")
    own = {PREDICATE: (), CHOICE: ("choices",), SCORE: ("levels",)}
    if kind not in (*own,):
        raise Unserved(f"{where}.type must be {', '.join(own)}, not {kind!r:.80}", where)
    check_keys(question, where, ("type", "name", "instructions", *own[kind]))
    values: tuple[Any, ...] = (True, False)
    candidates: tuple[str, ...] = YES_NO
    lines = ["Is this true?"]
    if kind != PREDICATE:
        called = "value" if kind == CHOICE else "label"
        some = _some(question, own[kind][0], where)
        options = [
            _option(each, called, f"{where}.{own[kind][0]}[{at}]") for at, each in enumerate(some)
        ]
        values = tuple(value for value, _ in options)
        candidates = tuple(each if isinstance(each, str) else str(each).lower() for each in values)
        lines = [
            f"- {text}: {more}" if more else f"- {text}"
            for text, (_, more) in zip(candidates, options, strict=True)
        ]
    ask = f"Answer with {'one of these' if kind != PREDICATE else ' or '.join(YES_NO)} only."
    instructions = _parts(question.get("instructions"), f"{where}.instructions")
    *before, last = messages if messages[-1].role == USER else (*messages, Message(USER, ()))
    begins = (*last.parts, "\n\n") if last.parts else ()
    asked = Message(USER, (*begins, *instructions, "\n".join(["", *lines, ask])))
    request = _asking((*before, asked), kind, candidates, whole=True)
    return Question(kind, None if name is None else text_of(name, f"{where}.name"), values, request)


def _some(question: Mapping[str, Any], name: str, where: str) -> list[Any]:
    given = question.get(name)
    if not isinstance(given, list) or len(given) < 2:
        raise ApiError(f"{where}.{name} must be a list of 2 or more", where)
    return given


def _option(given: Any, called: str, where: str) -> tuple[str | bool, str]:
    """What an answer calls an option, and its description."""
    option = object_of(given, where)
    check_keys(option, where, (called, "description"))
    more = text_of(option.get("description") or "", f"{where}.description")
    if called == "value" and isinstance(value := option.get(called), bool):
        return value, more
    if not (text := text_of(option.get(called), f"{where}.{called}")):
        raise ApiError(f"{where}.{called} is empty", where)
    return text, more


def _write_list(asked: Decisions, chances: Sequence[Chances]) -> dict[str, Any]:
    answers = [_listed_answer(*each) for each in zip(asked.questions, chances, strict=True)]
    usage = {
        "input_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 0,
    }
    return {"model": asked.model, "answers": answers, "usage": usage}


def _listed_answer(question: Question, chances: Chances) -> dict[str, Any]:
    told = {"type": question.kind, "name": question.name, "doubt": chances.doubt}
    each = list(zip(question.values, chances.probabilities, strict=True))
    if question.kind == PREDICATE:
        return told | {"probability": chances.probabilities[0]}
    if question.kind == CHOICE:
        return told | {
            "choice": question.values[chances.best],
            "confidence": chances.confidence,
            "probabilities": [{"value": value, "probability": p} for value, p in each],
        }
    return told | {
        "score": chances.score,
        "confidence": chances.score_confidence,
        "probabilities": [
            {"label": label, "value": level, "probability": p}
            for level, (label, p) in enumerate(each)
        ],
    }


# TypeSafe's form, with the prompt of transformers' decision pipeline


def read_systemone(data: bytes, models: Sequence[str]) -> Decisions:
    """The request in the body of a ``POST /v1/systemone``; raises ApiError."""
    body = json_of(data)
    check_fields(body, ("model", "state", "questions", "assets"))
    model, state = check_model(body, models), _content(body.get("state"), "state")
    if len(state) > MOST_TEXT:  # each question repeats it
        raise ApiError(f"state has at most {MOST_TEXT} characters", "state")
    assets = {
        text_of(name, "assets"): _asset(given, f"assets[{name!r:.80}]")
        for name, given in object_of(body.get("assets", {}), "assets").items()
    }
    if len(assets) > MOST_ASSETS or not all(0 < len(name) <= LONGEST_NAME for name in assets):
        text = f"assets must be at most {MOST_ASSETS}, by the texts that stand for them, of at most"
        raise ApiError(f"{text} {LONGEST_NAME} characters", "assets")
    given = object_of(body.get("questions"), "questions")
    if not 0 < len(given) <= MOST_MAPPED:
        raise ApiError(f"questions must be 1 to {MOST_MAPPED}, by their names", "questions")
    asked = tuple(_mapped(name, each, state, assets) for name, each in given.items())
    _check_shown(assets, asked)
    return Decisions(model, asked, _write_map)


def _check_shown(assets: Mapping[str, Picture], asked: Sequence[Question]) -> None:
    """Raise ApiError for a picture that no question shows; transformers says nothing of it."""
    messages = (message for question in asked for message in question.request.messages)
    shown = {picture for message in messages for picture in message.pictures}
    for name, picture in assets.items():
        if picture not in shown:
            raise ApiError(
                f"assets[{name!r:.80}] stands nowhere: write {name!r:.80} in state or in a "
                "question, where its picture belongs",
                "assets",
            )


def _content(given: Any, where: str) -> str:
    """A text, or the JSON of an object or a list."""
    if isinstance(given, dict | list):
        return json_text(given, where)
    return text_of(given, where, "a text or JSON")


def _asset(given: Any, where: str) -> Picture:
    if not isinstance(given, dict):
        raise ApiError(
            f'{where} must be an object with the picture: {{"data_base64": "..."}}', "assets"
        )
    check_keys(given, where, ("type", "format", "data_base64"))
    if given.get("type", "image") != "image":
        raise Unserved(f"{where} is of type {given['type']!r:.80}: only an image is read", "assets")
    data = text_of(given.get("data_base64"), f"{where}.data_base64")
    return picture_of(f"data:;base64,{data}", False, f"{where}.data_base64")


def _mapped(name: str, given: Any, state: str, assets: Mapping[str, Picture]) -> Question:
    where = f"questions[{text_of(name, 'questions')!r:.80}]"
    question = object_of(given, where)
    check_keys(question, where, ("type", "instructions", "criteria"))
    kind, criteria = question.get("type"), question.get("criteria")
    if kind == NOUL:
        of_both = object_of({} if criteria is None else criteria, f"{where}.criteria")
        check_keys(of_both, f"{where}.criteria", ("true", "false"))
        options = [(value, of_both.get(value)) for value in ("true", "false")]
    elif kind == CHOICE:
        options = [*object_of(criteria, f"{where}.criteria").items()]
    elif kind == SCORE and isinstance(criteria, list) and None not in criteria:
        options = [(level, level) for level in criteria]
    else:
        raise ApiError(
            f"{where} must be of type {NOUL}, {CHOICE} or {SCORE}, this with a list of criteria",
            "questions",
        )
    labels = YES_NO if kind == NOUL else tuple(string.ascii_uppercase[: len(options)])
    if not 0 < len(options) == len(labels):
        raise ApiError(f"{where}.criteria must be 1 to {len(string.ascii_uppercase)}", "questions")
    instructions = question.get("instructions")
    lines = ["" if instructions is None else _content(instructions, f"{where}.instructions")]
    for label, (option, about) in zip(labels, options, strict=True):
        more = "" if about is None else _content(about, f"{where}.criteria")
        if kind == NOUL:
            lines += [f"{label}: {more}"] if more else []
        elif kind == CHOICE:
            lines.append(f"{label}. {option}: {more}" if more else f"{label}. {option}")
        else:
            lines.append(f"{label}. {more}")
    what = "option" if kind == CHOICE else "level"
    how = f"with the letter of the {what} that fits best ({labels[0]} to {labels[-1]})"
    how = " or ".join(YES_NO) if kind == NOUL else how
    listed = "\n".join(filter(None, lines))
    text = text_of(f"{state}\n\n{listed}\nAnswer {how} only.", where)
    if len(text) > MOST_TEXT:
        raise ApiError(f"{where} has more than {MOST_TEXT} characters", "questions")
    message = Message(USER, _with_pictures(text, assets))
    values = tuple(value for value, _ in options)
    return Question(kind, name, values, _asking((message,), kind, labels, whole=False))


def _with_pictures(text: str, assets: Mapping[str, Picture]) -> tuple[Part, ...]:
    """The text with the pictures in place of the texts that stand for them."""
    if not assets:
        return (text,)
    longest_first = sorted(assets, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
    if len(parts) > MOST_PARTS:
        raise ApiError(f"assets stand at more than {MOST_PARTS // 2} places", "assets")
    return tuple(assets[part] if at % 2 else part for at, part in enumerate(parts))


def _write_map(asked: Decisions, chances: Sequence[Chances]) -> dict[str, Any]:
    answers = {
        str(question.name): _mapped_answer(question, each)
        for question, each in zip(asked.questions, chances, strict=True)
    }
    usage = {"input_tokens": 0, "output_tokens": 0}
    return {"model": asked.model, "answers": answers, "usage": usage}


def _mapped_answer(question: Question, chances: Chances) -> dict[str, Any]:
    told = {"type": question.kind, "doubt": chances.doubt}
    if question.kind == NOUL:
        return told | {"noul": chances.probabilities[0]}
    if question.kind == CHOICE:
        return told | {
            "choice": question.values[chances.best],
            "confidence": chances.confidence,
            "probabilities": dict(zip(question.values, chances.probabilities, strict=True)),
        }
    levels = [str(level) for level in range(len(question.values))]
    return told | {
        "score": chances.score,
        "confidence": chances.score_confidence,
        "legend": dict(zip(levels, question.values, strict=True)),
        "probabilities": dict(zip(levels, chances.probabilities, strict=True)),
    }
