"""One decision of a run: its rounds of draft and verdict, and the fate of their words.

Times are seconds since the instruction was published.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..decoding.draft import Draft
from ..request import Messages

MAX_BRANCHES = 3  # of a rejected tree that are shown
_CLOSE = tuple(";:,.!?")
_SPECIAL = re.compile(r"<\|\w+\|>")  # tokens that are no text, as the Qwen family writes them


@dataclass(frozen=True)
class ShownDraft:
    """A draft as sent, and when: its words in the order of its nodes."""

    words: tuple[str, ...] = ()
    tree: Draft | None = None  # None: it could not be read, and is taken for a chain
    sent: float = math.nan


@dataclass
class ShownRound:
    """One draft and its verdict. ``accepted`` is None until the verdict arrives.

    ``draft`` has no words where it was not received. ``answered`` is when the verdict came;
    ``verify`` seconds of the waiting for it were the target's pass. ``settled`` is the text
    that the verdict added. ``generated``: the tokens of a pass that the server made over its own
    nodes; as many of the robot's drafted words as agree with them are shown as accepted.
    """

    number: int
    base: int
    hash: int | None = None  # of the prefix that its draft extends; None until the verdict arrived
    draft: ShownDraft = ShownDraft()
    path: tuple[int, ...] = ()  # the nodes that were accepted
    answered: float = math.nan
    verify: float = 0.0
    accepted: int | None = None
    settled: str | None = None
    generated: tuple[int, ...] | None = None
    missed: int = 0  # tokens after its prefix that were not received; then it has no words

    @property
    def complete(self) -> bool:
        """Whether both the verdict and its words have arrived."""
        return self.accepted is not None and self.settled is not None

    @property
    def kept(self) -> tuple[str, ...]:
        """The drafted words that the cloud accepted, if the draft was received."""
        return tuple(self.draft.words[n] for n in self.path if n < len(self.draft.words))

    @property
    def branches(self) -> tuple[tuple[str, ...], ...]:
        """The drafted words after the accepted ones: each most likely branch to its end; a chain
        has one."""
        words, tree = self.draft.words, self.draft.tree
        tree = Draft((0,) * len(words), tree.parents if tree else None)
        return tuple(
            tuple(words[node] for node in _first_of_each(tree, child))
            for child in list(tree.children(self.path[-1] if self.path else -1))[:MAX_BRANCHES]
        )

    @property
    def others(self) -> int:
        """How many drafted words are neither accepted nor in ``branches``."""
        return len(self.draft.words) - len(self.kept) - sum(map(len, self.branches))

    @property
    def own(self) -> str:
        """The words that the cloud added after the accepted ones."""
        return after(self.settled or "", self.kept)


@dataclass(kw_only=True)
class ShownDecision:
    """The words of a frame's answer."""

    missed: int = 0  # verified tokens that were not received
    messages: Messages = ()  # of its request, as far as they were seen
    tokens: list[int] = field(default_factory=list)  # that were received
    rounds: dict[int, ShownRound] = field(default_factory=dict)  # by their prefix's length
    drafts: dict[tuple[int, int], ShownDraft] = field(default_factory=dict)  # by length and hash
    verified: bool = True
    finish: str = ""

    @property
    def remembered(self) -> int:
        """Earlier frames of the mission in its prompt."""
        return max(0, sum(len(message.pictures) for message in self.messages) - 1)

    @property
    def length(self) -> int:
        """How many tokens are verified, received or not."""
        return len(self.tokens) + self.missed

    def miss(self, position: int) -> ShownRound:
        """Add a round that stands for the tokens up to ``position``, which were not received."""
        round_ = self.round_after(self.length)
        round_.missed = position - self.length
        round_.accepted, round_.settled = round_.accepted or 0, ""
        self.missed += round_.missed
        return round_

    def round_after(self, base: int) -> ShownRound:
        """The round after ``base`` verified tokens; created if missing."""
        return self.rounds.setdefault(base, ShownRound(len(self.rounds) + 1, base))

    def attach_draft(self, round_: ShownRound) -> None:
        """Attach the draft that the round's verdict judges, among all with this prefix."""
        draft = self.drafts.get((round_.base, -1 if round_.hash is None else round_.hash))
        if draft is None or (round_.generated is not None and draft.sent > round_.answered):
            return
        if round_.generated is not None:
            round_.path = (draft.tree or Draft()).along(round_.generated)
        round_.draft = draft


def _first_of_each(tree: Draft, node: int | None) -> Iterator[int]:
    """A node, its first child, that one's first child, and so on to the end."""
    while node is not None:
        yield node
        node = next(tree.children(node), None)


def joined(words: Sequence[str]) -> str:
    """Join words to a text; tokens of most tokenizers contain their blanks, of some they do not."""
    words = [word for word in words if not _SPECIAL.fullmatch(word.strip())]
    if any(word.startswith((" ", "\u2581")) for word in words):
        return " ".join("".join(words).replace("\u2581", " ").split())
    text = ""
    for word in words:
        text += word if not text or word.startswith(_CLOSE) else f" {word}"
    return " ".join(text.split())


def branched(branches: Iterable[Sequence[str]]) -> str:
    """Join the branches of a tree, separated by |."""
    return " | ".join(text for text in map(joined, branches) if text)


def after(text: str, words: Sequence[str]) -> str:
    """The rest of ``text`` after ``words``, whose blanks may differ from the text's."""
    rest = text.lstrip()
    words = [word for word in words if not _SPECIAL.fullmatch(word.strip())]
    for character in "".join("".join(words).replace("\u2581", " ").split()):
        if not rest.startswith(character):
            return ""  # the words are not the text's
        rest = rest[len(character) :].lstrip()
    return " ".join(rest.split())


Fate = Literal["drafted", "accepted", "rejected", "left", "own", "unverified", "missed"]


@dataclass(frozen=True)
class WordSpan:
    """Words with the same fate, in the order of the answer.

    ``drafted``: sent, without a verdict yet; ``own``: chosen by the cloud; ``left``: in branches
    off the accepted path, as their number; ``unverified``: decided without the cloud; ``missed``:
    verified but not received, as a sentence with their number.
    """

    text: str
    fate: Fate


def words_of_round(round_: ShownRound, verified: bool = True) -> Iterator[WordSpan]:
    """The words of a round with a verdict; a tree's branches are separated by |."""
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


def words_of_decision(decision: ShownDecision) -> list[WordSpan]:
    """All final words of a decision, then the latest draft without a verdict."""
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
            words += _words(branched(ShownRound(0, base, draft=draft).branches), "drafted")
            break
    return words


def _words(text: str, fate: Fate) -> Iterator[WordSpan]:
    if text:
        yield WordSpan(text, fate)
