"""The verified answers of every credential, each in an index of its own."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence

from ..decoding.suffix_index import MAX_TOKEN, SuffixIndex
from ..wire.messages import Open
from .answer_lookup import AnswerLookup, SaidBefore
from .node_budget import NodeBudget

MAX_CREDENTIALS = 64  # that have an index; the one that was used the longest ago gives way


class Lookups:
    """One index for each credential; all robots without one share another.

    Memory is bounded by ``MAX_CREDENTIALS`` indexes of so many suffixes, whatever is asked.
    Belongs to the model's thread.
    """

    def __init__(
        self,
        suffixes: int,
        nodes: int,
        instructions: re.Pattern[str] | None,
        seconds: Callable[[int], float],
        vocabulary: int = MAX_TOKEN + 1,
    ) -> None:
        """suffixes: of each index; 0: nothing is looked up. nodes: of a pass, at the most.
        instructions: that the target was trained on, if it says so; answers to all of these begin
        alike. seconds: of a pass, by its rows. vocabulary: of both models; an instruction with
        other tokens is not looked into. ValueError: fewer than none."""
        if suffixes < 0 or nodes < 0:
            raise ValueError(
                f"suffixes and nodes are 0 (nothing is looked up) or more, not {suffixes}, {nodes}"
            )
        self._suffixes, self._most = suffixes, nodes
        self._instructions, self._seconds = instructions, seconds
        self._vocabulary = vocabulary
        self._said: OrderedDict[str, SaidBefore] = OrderedDict()

    def __len__(self) -> int:
        return len(self._said)

    def of(self, credential: str, opening: Open, words: Sequence[int] = ()) -> AnswerLookup | None:
        """What an answer to this request looks up; None where its robot does not ask for that.

        words: the instruction's tokens.
        """
        if not (opening.lookup and self._suffixes):
            return None
        said = self._said.pop(credential, None)
        if said is None:
            budgets = NodeBudget(self._most), NodeBudget(self._most)
            said = SaidBefore(SuffixIndex(self._suffixes), *budgets)
        self._said[credential] = said
        while len(self._said) > MAX_CREDENTIALS:
            self._said.popitem(last=False)
        if any(word >= self._vocabulary for word in words):
            words = ()
        pattern = pattern_of(opening.order, opening.instruction, self._instructions)
        return AnswerLookup(said, pattern, words, self._most, self._seconds)


def pattern_of(order: str, instruction: str, known: re.Pattern[str] | None) -> str:
    """What answers begin alike after: instructions of one pattern, answered in one order.

    known: instructions that the target was trained on.
    """
    matches = known is not None and known.fullmatch(instruction) is not None
    return f"{order}: {known.pattern if known and matches else instruction}"
