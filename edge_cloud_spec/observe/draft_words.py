"""What became of the words of a decision: drafted, accepted, rejected, or the cloud's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .decision import Decision, ShownRound
from .draft_text import after, branched, joined

Fate = Literal["drafted", "accepted", "rejected", "left", "own", "unverified", "missed"]


@dataclass(frozen=True)
class WordSpan:
    """Words of one fate, in the order of the answer.

    ``drafted`` ones are with the cloud; ``own`` ones the cloud chose itself; ``left`` are those of
    a tree's branches that were left before, as their number; ``unverified`` ones have no verdict;
    ``missed`` ones were settled, but not received: a sentence with their number.
    """

    text: str
    fate: Fate


def words_of_round(round_: ShownRound, verified: bool = True) -> Iterator[WordSpan]:
    """A round whose verdict is known; a tree's branches are separated by |."""
    if round_.missed:
        yield from _words(f"[{round_.missed} tokens not received]", "missed")
        return
    if not verified:
        yield from _words(after(round_.settled or "", ()), "unverified")
        return
    yield from _words(joined(round_.kept), "accepted")
    yield from _words(branched(round_.branches), "rejected")
    yield from _words(f"{round_.others}" if round_.others else "", "left")
    yield from _words(round_.own, "own")


def words_of_decision(decision: Decision) -> list[WordSpan]:
    """All settled words of a decision, and the draft after them that has no verdict yet."""
    words: list[WordSpan] = []
    begin = 0
    for round_ in sorted(decision.rounds.values(), key=lambda r: r.base):
        if round_.base < begin:
            continue  # its words are among those that were not received
        begin = round_.base + round_.missed
        if not round_.complete:
            break
        words += words_of_round(round_, decision.verified)
    for (base, _), draft in reversed(decision.drafts.items()):
        if base == decision.length and not decision.finish:
            waiting = ShownRound(0, base, drafted=draft.words, parents=draft.parents)
            words += _words(branched(waiting.branches), "drafted")
            break
    return words


def _words(text: str, fate: Fate) -> Iterator[WordSpan]:
    if text:
        yield WordSpan(text, fate)
