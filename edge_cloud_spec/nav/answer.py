"""The language of decisions: actions, and the dialects in which models are asked for them.

In the default dialect an answer is a sequence of clauses ``key: text;`` with the keys ``action``
and ``reason``. Its action is known as soon as the ``;`` of the ``action`` clause is verified,
whatever follows. An answer in another dialect is read only when it has ended.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any

from ..errors import UserError
from ..instruction import check_instruction
from ..request import (
    ASSISTANT,
    LONGEST_CANDIDATE,
    MOST_CANDIDATES,
    SYSTEM,
    USER,
    Message,
    Part,
    Picture,
    Request,
)
from .history import CONVERSATION, FRAMES_PLACE, NO_HISTORY, HistorySpec, Turn

STEP_SIZES = ("small", "medium", "large")

_DIRECTIONS = {"move": ("forward", "backward"), "turn": ("left", "right")}
_UNITS = {"cm": ("move", 0.01), "m": ("move", 1.0), "degrees": ("turn", 1.0)}
NUMBER = r"((?:[1-9][0-9]{0,3}(?:\.[0-9]{1,2})?)|(?:0\.(?:[1-9][0-9]?|0[1-9])))"  # 0.01 to 9999.99
_AMOUNT = re.compile(rf"(move|turn) ([a-z]+) {NUMBER} (cm|m|degrees)")


@dataclass(frozen=True)
class Action:
    """One action. ``verb`` is move, turn, search or stop; search and stop have no other fields.

    A move or a turn has a ``size``, or an ``amount``: metres of a move, degrees of a turn.
    """

    verb: str
    direction: str = ""
    size: str = ""
    amount: float = 0.0

    def __str__(self) -> str:
        unit = "m" if self.verb == "move" else "degrees"
        amount = f"{self.amount:g} {unit}" if self.amount else ""
        return " ".join(word for word in (self.verb, self.direction, self.size, amount) if word)

    @classmethod
    def read(cls, message: Any) -> Action | None:
        """Read a NavAction message; None if it holds none. Raises ValueError for an invalid one."""
        action = cls(message.verb, message.direction, message.size, message.amount)
        if action == NO_ACTION:
            return None
        measured = not action.size and 0.0 < action.amount < math.inf
        if measured and action.direction in _DIRECTIONS.get(action.verb, ()):
            return action
        if action not in every_action():
            raise ValueError(f"{_shortened(str(action))} is no action")
        return action


NO_ACTION = Action("")  # as a message without an action has it
SEARCH_ACTION, STOP_ACTION = Action("search"), Action("stop")


def every_action() -> tuple[Action, ...]:
    """All actions of the default dialect."""
    sized = tuple(
        Action(verb, direction, size)
        for verb, directions in _DIRECTIONS.items()
        for direction in directions
        for size in STEP_SIZES
    )
    return (*sized, SEARCH_ACTION, STOP_ACTION)


_BY_WORDS = {str(action): action for action in every_action()}


def parse_action(text: str) -> Action | None:
    """Parse a text that is exactly one action; None for anything else.

    It is a sized action, or one with an amount: ``move forward 75 cm``, ``turn left 30 degrees``. A
    text that merely contains an action ("cannot move forward small") is not one.
    """
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return _BY_WORDS.get(text)
    verb, direction, amount, unit = match.groups()
    measured, scale = _UNITS[unit]
    if verb != measured or direction not in _DIRECTIONS[verb]:
        return None
    return Action(verb, direction, amount=scale * float(amount))


class NotAnAction(ValueError):
    """The text cannot become an answer with an action; nothing may move."""


@dataclass(frozen=True)
class Reading:
    """What an answer says, as far as its words are known.

    ``action`` is None until it is complete, and never changes then. ``end``: how many characters
    of the answer belong to it and what comes before; without an action, all. ``problem``: why no
    action can follow any more; empty if one can, or is there.
    """

    action: Action | None = None
    end: int = 0
    problem: str = ""

    @property
    def settled(self) -> bool:
        """Whether further words change nothing."""
        return self.action is not None or bool(self.problem)


NOTHING_READ = Reading()


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


GRAMMARS = ("none", "action")
DELIMITER = ";"
REASON_TOKENS = 32  # of a reason, which bounds the wait for an action after it
CLAUSES_FORM = "clauses"
# Placeholders in a form, and in a phrase and its meaning.
ACTION_PLACE, AMOUNT_PLACE = "{action}", "{amount}"

_CLAUSE = re.compile(r"\s*(action|reason): (\S[^;]*)")
ORDERS = ACTION_FIRST, REASON_FIRST = "action first", "reason first"
_CLAUSES = {ACTION_FIRST: 'action (" " reason)?', REASON_FIRST: 'reason " " action'}
# Their places in a user's text.
INSTRUCTION_PLACE, ORDER_PLACE, IMAGE_PLACE, HISTORY_PLACE, FREE_SPACE_PLACE = (
    "{instruction}",
    "{order}",
    "{image}",
    "{history}",
    "{free_space}",
)
NOT_SEEN = "not seen"  # of free space
# What the free space is said with.
WAYS_PLACE, AROUND_PLACE, SEEN_PLACE = "{ways}", "{around}", "{seen}"
TRIED_PLACE, PATH_PLACE = "{tried}", "{path}"
SEEN_GROUPS = ("metres", "side", "degrees")  # of the pattern that finds a place in an answer
FARTHEST_SEEN_M = 100.0
_SIGNS = {"left": 1.0, "ahead": 0.0, "right": -1.0}  # ahead: to which side is not said
USER_TEXT = f"{INSTRUCTION_PLACE}\n{ORDER_PLACE}"


def _literal(text: str) -> str:
    """A regular expression, for Python and llguidance, that matches exactly this text."""
    return re.sub(r"[\\/.^$*+?{}()|\[\]]", r"\\\g<0>", text)


@dataclass(frozen=True)
class Dialect:
    """How a model is asked for an action, and how its answer is parsed. Dialects that parse alike
    compare equal.

    ``form`` is ``clauses``, or the sentence around ``{action}``. ``actions`` pairs each phrase for
    ``{action}`` with its meaning (see ``parse_action``); ``{amount}`` in both is a number above 0.
    Up to ``most`` phrases may follow each other, separated by ``separator``: the first ones in the
    same direction form one action with the sum of their amounts; the rest is left for the next
    decision. A thought, up to the marker ``thinks_until``, is skipped.

    ``examples`` are answers with an action. ``system_text`` and ``user_text`` are asked with; the
    latter has places for instruction, order, picture, without which the picture comes first, and
    for the free space that lidars show.
    ``free_space`` is what stands in the place for the free space: ``{ways}``, the metres
    ``{around}``, what was ``{tried}`` here, the ``{path}`` over what the mission has seen, and
    where the thing is that was ``{seen}``, as an answer told it: ``seen`` is a regular expression
    that finds it there, with the groups of ``SEEN_GROUPS``; empty: none tells.
    ``several_frames``: the model was trained on earlier pictures, too. ``history``: what a prompt
    remembers of its mission.
    """

    name: str = field(default=CLAUSES_FORM, compare=False)
    form: str = CLAUSES_FORM
    actions: tuple[tuple[str, str], ...] = tuple((words, words) for words in _BY_WORDS)
    separator: str = ""
    most: int = 1
    thinks_until: str = ""
    examples: tuple[str, ...] = field(default=(), compare=False)
    system_text: str = field(default="", compare=False)
    user_text: str = field(default=USER_TEXT, compare=False)
    free_space: str = field(default=WAYS_PLACE, compare=False)
    seen: str = field(default="", compare=False)
    several_frames: bool = field(default=False, compare=False)
    history: HistorySpec = field(default=NO_HISTORY, compare=False)

    # Asking

    @property
    def tells_free_space(self) -> bool:
        """Whether its prompts say what the robot's lidars show."""
        return FREE_SPACE_PLACE in self.user_text

    @property
    def tells_path(self) -> bool:
        """Whether they say the path over what the mission has seen."""
        return self.tells_free_space and PATH_PLACE in self.free_space

    @property
    def without_lidar(self) -> str:
        """What is wrong with it where no lidar is promised; it is to be said what to do."""
        return f"the dialect {self.name} tells {FREE_SPACE_PLACE}, and no lidar looks"

    def request(
        self,
        instruction: str,
        jpeg: bytes,
        order: str = ACTION_FIRST,
        turns: Sequence[Turn] = (),
        free_space: str = NOT_SEEN,
    ) -> Request:
        """The messages that ask for a decision on this frame. UserError: no instruction or order.

        turns: the earlier ones of the mission, the oldest first. A conversation begins with the
        instruction and its first frame; then each answer is an assistant message, and each later
        frame a user message. Other histories are pictures at the user text's ``{history}``.
        free_space: what ``FreeSpace.say`` says of when the frame was taken, for such a dialect: in
        a conversation, with each frame.
        """
        instruction = check_instruction(instruction)
        if order not in ORDERS:
            raise UserError(f"the order {order!r} is unknown: use one of {', '.join(ORDERS)}")
        shown = [turn.picture for turn in turns] + [Picture.of(jpeg)]
        size, talks = self.history.stretched or (0, 0), self.history.choose == CONVERSATION
        *earlier, newest = (replace(picture, size=size) for picture in shown)
        first, *later = [*earlier, newest] if talks else [newest]
        text = self.user_text if IMAGE_PLACE in self.user_text else IMAGE_PLACE + self.user_text
        if not talks and HISTORY_PLACE not in text:
            text = HISTORY_PLACE + text
        around = "" if talks or not earlier else self.history.text
        spaces = [turn.free_space for turn in turns if talks] + [free_space]
        text = text.replace(HISTORY_PLACE, around).replace(ORDER_PLACE, order)
        text = text.replace(FREE_SPACE_PLACE, spaces[0])
        places: dict[str, Sequence[Part]] = {IMAGE_PLACE: [first], FRAMES_PLACE: earlier}
        parts: list[Part] = []
        for part in re.split(f"({re.escape(IMAGE_PLACE)}|{re.escape(FRAMES_PLACE)})", text):
            parts += places.get(
                part, [part.replace(INSTRUCTION_PLACE, instruction)] if part else []
            )
        messages = [Message(SYSTEM, (self.system_text,))] if self.system_text else []
        messages.append(Message(USER, tuple(parts)))
        for turn, picture, space in zip(turns, later, spaces[1:], strict=False):
            frame = (picture, space) if self.tells_free_space else (picture,)
            messages += [Message(ASSISTANT, (turn.answer,)), Message(USER, frame)]
        return Request(
            tuple(messages),
            self.candidates if order == ACTION_FIRST else (),
            self.form != CLAUSES_FORM,
            continues=self.history.frames > 0,
        )

    # Parsing

    def place(self, text: str) -> tuple[float, float] | None:
        """Where an answer says that the thing is: rad to the left, and m; None: it does not."""
        found = re.search(self.seen, text) if self.seen else None
        if found is None or found["side"] not in _SIGNS:
            return None
        try:
            degrees, metres = float(found["degrees"]), float(found["metres"])
        except (TypeError, ValueError):  # a group that is no number, or did not match
            return None
        if not 0.0 <= degrees <= 180.0 or not 0.0 <= metres <= FARTHEST_SEEN_M:
            return None
        return math.radians(_SIGNS[found["side"]] * degrees), metres

    def read(self, text: str, ended: bool = False) -> Reading:
        """What ``text``, the verified words so far, says; call it where words are verified.

        ``ended``: the model ended the answer there. Everything up to the action must match, so that
        an error message that contains an action has none. In other dialects than ours an answer is
        parsed once it has ended, and never if it was cut off.
        """
        try:
            return Reading(*self._find(text, ended))
        except NotAnAction as problem:
            return Reading(None, len(text), str(problem))

    def action_of(self, text: str, ended: bool = False) -> Action | None:
        """The action of a complete answer; None if it has none."""
        return self.read(text, ended).action

    def _find(self, text: str, ended: bool = False) -> tuple[Action | None, int]:
        """The action, and the length of the text up to its end; else None, and the whole length."""
        end = 0
        if self.thinks_until:
            _, marker, rest = text.partition(self.thinks_until)
            if not marker:
                return None, len(text)
            end = len(text) - len(rest.lstrip(" \n"))
        if self.form != CLAUSES_FORM:
            return self._read_whole(text[end:]) if ended else None, len(text)
        for clause in text[end:].split(DELIMITER)[:-1]:
            end += len(clause) + len(DELIMITER)
            match = _CLAUSE.fullmatch(clause)
            if match is None:
                raise NotAnAction(f"{_shortened(clause)} is not a clause of an answer")
            if match[1] == "action":
                return self._meaning(match[2]), end
        return None, len(text)

    def _read_whole(self, text: str) -> Action:
        if not re.fullmatch(self.pattern, text):
            raise NotAnAction(f"{_shortened(text)} is no answer in the dialect {self.name}")
        before, after = map(len, self.form.split(ACTION_PLACE))
        phrases = text[before : len(text) - after]
        words = [phrases]
        if self.most > 1:
            apart = re.findall(self._any_phrase, phrases)
            words = phrases.split(self.separator) if self.separator else apart
        first, *others = map(self._meaning, words)
        run = [first, *takewhile(lambda each: replace(each, amount=first.amount) == first, others)]
        return replace(first, amount=sum(each.amount for each in run))

    def _meaning(self, words: str) -> Action:
        for phrase, meaning in self.actions:
            if match := re.fullmatch(pattern_of(phrase), words):
                action = parse_action(meaning.replace(AMOUNT_PLACE, "".join(match.groups())))
                if action is not None:
                    return action
        raise NotAnAction(f"{_shortened(words)} is not an action")

    # The same as a grammar

    @cached_property
    def _any_phrase(self) -> str:
        return f"(?:{'|'.join(pattern_of(phrase) for phrase, _ in self.actions)})"

    @cached_property
    def pattern(self) -> str:
        """A regular expression, for Python and llguidance, that matches exactly the whole
        answers."""
        before, after = map(_literal, self.form.split(ACTION_PLACE))
        others = f"(?:{_literal(self.separator)}{self._any_phrase}){{0,{self.most - 1}}}"
        return before + self._any_phrase + (others if self.most > 1 else "") + after

    def grammar(self, name: str, order: str) -> str:
        """The text of the grammar ``name`` for ``SamplingPolicy``; empty for ``none``.

        ``action``: the answers that ``read`` can parse, with clauses in the given order. A reason
        is printable ASCII, and may be missing at the end. Raises UserError.
        """
        if name not in GRAMMARS:
            raise UserError(f"the grammar {name!r} is unknown: use one of {', '.join(GRAMMARS)}")
        if name == "none":
            return ""
        if order not in _CLAUSES:
            raise UserError(f"the order {order!r} is unknown: use one of {', '.join(_CLAUSES)}")
        if self.form == CLAUSES_FORM:
            answer = _CLAUSES[order]
            rules = [
                f'action: "action: " ACTION "{DELIMITER}"',
                f'reason: "reason: " text "{DELIMITER}"',
                f"ACTION: /{'|'.join(pattern_of(phrase) for phrase, _ in self.actions)}/",
                f"text[max_tokens={REASON_TOKENS}]: /[!-:<-~][ -:<-~]*/",
            ]
        else:
            answer, rules = "ANSWER", [f"ANSWER: /{self.pattern}/"]
        if self.thinks_until:
            answer = f"thought GAP {answer}"
            rules += [f"thought[lazy]: /(?s:.*){_literal(self.thinks_until)}/", "GAP: /[ \\n]*/"]
        return "\n".join([f"start: {answer}", *rules])

    @cached_property
    def candidates(self) -> tuple[str, ...]:
        """The beginnings of answers, with the examples' amounts; empty in a dialect with
        thoughts."""
        if self.thinks_until:
            return ()
        plain = [phrase for phrase, _ in self.actions if AMOUNT_PLACE not in phrase]
        begins = (
            [f"action: {phrase}{DELIMITER}" for phrase in plain]
            if self.form == CLAUSES_FORM
            else [*(self.form.replace(ACTION_PLACE, phrase) for phrase in plain), *self.examples]
        )
        return tuple(dict.fromkeys(each for each in begins if len(each) <= LONGEST_CANDIDATE))[
            :MOST_CANDIDATES
        ]


@lru_cache(maxsize=4096)
def pattern_of(phrase: str) -> str:
    """The regular expression of a phrase, with a group for its amount."""
    return NUMBER.join(map(_literal, phrase.split(AMOUNT_PLACE)))


CLAUSES = Dialect()
action_of, answer_grammar = CLAUSES.action_of, CLAUSES.grammar
"""The same in our own dialect."""
