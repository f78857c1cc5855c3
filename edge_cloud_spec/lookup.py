"""Lookup drafts, for robot and cloud: continuations from earlier verified answers, without a model.

Every credential has its own index; no text crosses credentials.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from .decoding.draft import Draft
from .decoding.suffix_index import MAX_TOKEN, SuffixIndex
from .lru_cache import LruCache
from .request import MOST_CANDIDATES, Request
from .wire.messages import Open

RECENT = 0.1  # weight of the last pass, in how often each node was right
RETRY = 0.0005  # of the first place, where it was not tried: so that it is tried again
MAX_BEGINNINGS = 96  # nodes of a pass for what a request says that its answer may begin with
MOST_ASKED = 2048  # characters of what is asked, from its end, that are looked at
PRIOR = 0.8  # how often a node is taken to be right where the one before it is, before it was tried


class NodeBudget:
    """Chooses how many lookup nodes to add to a pass, from how often they were accepted.

    Nodes are sorted by likelihood, so a smaller budget keeps the first ones. The acceptance rate at
    each rank is the gain of one more node; its cost is the pass's time (``PassEstimator.seconds``).
    """

    def __init__(self, most: int) -> None:
        """most: the largest number of nodes; 0: none."""
        self._gains = [PRIOR ** (1 + place) for place in range(most)]
        self._tried = [1] * most  # passes; what is taken for granted counts as one
        self._others = 1.0  # tokens of a pass that are not due to looked-up nodes

    def nodes(self, rows: int, seconds: Callable[[int], float]) -> int:
        """The best number of nodes beside ``rows`` other tokens; seconds: a pass's time by its
        tokens."""
        tokens, best = self._others, 0
        best_rate = tokens / max(seconds(rows), 1e-9)
        for nodes, gain in enumerate(self._gains, start=1):
            tokens += gain
            rate = tokens / max(seconds(rows + nodes), 1e-9)
            if rate > best_rate:
                best, best_rate = nodes, rate
        return best

    def report(self, nodes: int, accepted: tuple[int, ...], tokens: int) -> None:
        """Record a pass over ``nodes`` lookup nodes: the ranks accepted, and the tokens it
        added."""
        self._others += RECENT * (tokens - len(accepted) - self._others)
        before = 1.0
        for place, gain in enumerate(self._gains):
            if place < nodes:
                self._tried[place] += 1
                recent = max(RECENT, 1 / self._tried[place])
                self._gains[place] += recent * ((place in accepted) - gain)
            else:  # a place behind one that gains nothing is not worth a try
                recent = RECENT if place else RETRY
                self._gains[place] += recent * (PRIOR * before - gain)
            before = self._gains[place]


def with_looked_up(draft: Draft, looked_up: Draft, nodes: int, open_at: int | None = None) -> Draft:
    """Merge a draft with a lookup's draft for the same prefix, at most ``nodes`` nodes in all.

    The lookup's nodes that are not in the draft are appended; the draft's nodes keep their indices.
    Nodes that no rule could accept are left out: after the leaf ``open_at``, whose verdict is open,
    and beside a token sent with its probability only, as the robot resamples when that is rejected
    (DSSD).
    """
    tokens = list(draft.tokens)
    parents = list(draft.all_parents)
    found: dict[tuple[int, int], int] = {}
    for node, token in enumerate(tokens):
        found.setdefault((parents[node], token), node)
    closed = {open_at} if draft.values is None else {open_at, *draft.inner}
    places: dict[int, int | None] = {-1: -1}
    for node, token in enumerate(looked_up.tokens):
        parent = places[looked_up.parent(node)]
        place = None if parent is None else found.get((parent, token))
        if place is None and parent is not None and parent not in closed and len(tokens) < nodes:
            place = found[parent, token] = len(tokens)
            tokens.append(token)
            parents.append(parent)
        places[node] = place
    added = len(tokens) - len(draft)
    return replace(
        draft,
        tokens=tuple(tokens),
        parents=tuple(parents),
        looked_up=draft.looked_up + added,
    )


def tree_of(sequences: Iterable[Sequence[int]]) -> Draft:
    """The smallest tree that contains each of these token sequences as a path."""
    places: dict[tuple[int, int], int] = {}  # by parent and token
    for sequence in sequences:
        node = -1
        for token in sequence:
            node = places.setdefault((node, token), len(places))
    return Draft(tuple(token for _, token in places), tuple(parent for parent, _ in places))


@dataclass(frozen=True, eq=False)
class VerifiedAnswers:
    """A credential's verified answers, and the recent gains of drafts from them.

    ``by_itself``: gains in passes without another draft; ``beside``: as further branches of one.
    ``candidates``: tokens of candidates that its requests had, which are mostly the same.
    """

    index: SuffixIndex
    by_itself: NodeBudget
    beside: NodeBudget
    candidates: LruCache[str, Sequence[int]]


class AnswerLookup:
    """Lookup drafts for one answer. Belongs to the model's thread."""

    def __init__(
        self,
        answers: VerifiedAnswers,
        pattern: str,
        words: Sequence[int],
        most: int,
        seconds: Callable[[int], float],
        beginnings: Sequence[Sequence[int]] = (),
    ) -> None:
        """pattern, words: of what is asked; words are its tokens. most: the most nodes of a pass.
        seconds: of a pass, by its tokens. beginnings: token sequences, one of which the answer
        should begin with."""
        self._answers, self._pattern, self._words = answers, pattern, words
        self._most, self._seconds, self._beginnings = most, seconds, beginnings
        self._found = 0  # nodes of the last draft that its budget is for

    def draft(self, tokens: Sequence[int], depth: int, rows: int = 1) -> Draft:
        """A draft of at most ``depth`` levels with what followed similar text; empty if it would
        not pay.

        For the first token it offers all beginnings: the last answers do not say what the robot
        decides next. rows: the pass's tokens without the draft.
        """
        nodes = self._answers.by_itself.nodes(rows, self._seconds)
        found = self._answers.index.look_up(self._pattern, tokens, nodes, depth, self._words)
        self._found = len(found)
        if tokens or not nodes:
            return found
        all_of_them = tree_of(beginning[:depth] for beginning in self._beginnings)
        most = min(len(all_of_them), MAX_BEGINNINGS)
        return with_looked_up(found, all_of_them, len(found) + most)

    def beside(
        self, draft: Draft, tokens: Sequence[int], depth: int, open_at: int | None = None
    ) -> Draft:
        """A draft after these tokens, extended by lookup branches that pay."""
        nodes = self._answers.beside.nodes(1 + len(draft), self._seconds)
        if not nodes:
            return draft
        found = self._answers.index.look_up(self._pattern, tokens, self._most, depth, self._words)
        return with_looked_up(draft, found, len(draft) + nodes, open_at)

    def report(self, end: int, given: int, path: tuple[int, ...], tokens: int) -> None:
        """Record a verdict: its path, and the tokens it added. The nodes from ``given`` to ``end``
        are from the lookup."""
        budget = self._answers.beside if given else self._answers.by_itself
        accepted = tuple(node - given for node in path if given <= node < end)
        nodes = end - given
        budget.report(nodes if given else min(nodes, self._found), accepted, tokens)

    def learn(self, tokens: Sequence[int]) -> None:
        """Add a verified answer, or its beginning, to the index."""
        if tokens:
            self._answers.index.add(self._pattern, tokens, self._words)


MAX_CREDENTIALS = 64  # that have an index; the one that was used the longest ago gives way


class Lookups:
    """One index per credential; all robots without credentials share one.

    Memory is bounded by ``MAX_CREDENTIALS`` indexes of a fixed size. Belongs to the model's thread.
    """

    def __init__(
        self,
        suffixes: int,
        nodes: int,
        instructions: re.Pattern[str] | None,
        seconds: Callable[[int], float],
        vocabulary: int = MAX_TOKEN + 1,
        tokens_of: Callable[[str], Sequence[int]] = lambda text: (),
        end: Sequence[int] | None = None,
    ) -> None:
        """suffixes: kept in each index; 0: no lookups. nodes: the most lookup nodes in a pass,
        besides the beginnings. instructions: the pattern that the target was trained on, if known;
        answers to all of these begin alike. seconds: of a pass, by its tokens. vocabulary: the
        common one; texts with other tokens are not used. tokens_of: a text's tokens. end: the token
        that follows a whole answer; None: the candidates of a request are not used. ValueError: a
        negative number."""
        if suffixes < 0 or nodes < 0:
            raise ValueError(
                f"suffixes and nodes are 0 (nothing is looked up) or more, not {suffixes}, {nodes}"
            )
        self._suffixes, self._most = suffixes, nodes
        self._instructions, self._seconds = instructions, seconds
        self._vocabulary, self._tokens_of, self._end = vocabulary, tokens_of, end
        self._answers: LruCache[str, VerifiedAnswers] = LruCache(MAX_CREDENTIALS)

    def of(self, credential: str, opening: Open) -> AnswerLookup | None:
        """The lookup for an answer to this request; None if its robot did not ask for one."""
        if not (opening.lookup and self._suffixes):
            return None
        answers = self._answers.get_or_make(
            credential,
            lambda: VerifiedAnswers(
                SuffixIndex(self._suffixes),
                NodeBudget(self._most),
                NodeBudget(self._most),
                LruCache(MOST_CANDIDATES),
            ),
        )
        pattern, words = pattern_of(opening.request.text, self._instructions)
        beginnings = (
            [] if self._end is None else self._beginnings(answers, opening.request, self._end)
        )
        return AnswerLookup(
            answers, pattern, self._tokens(words), self._most, self._seconds, beginnings
        )

    def _beginnings(
        self, answers: VerifiedAnswers, request: Request, end: Sequence[int]
    ) -> list[Sequence[int]]:
        """The tokens of each candidate, with the end token after a whole answer."""
        written = (
            answers.candidates.get_or_make(text, partial(self._tokens, text))
            for text in request.candidates
        )
        return [(*each, *(end if request.whole else ())) for each in written if each]

    def _tokens(self, text: str) -> Sequence[int]:
        """The text's tokens; none where one is not of the common vocabulary."""
        tokens = self._tokens_of(text)
        return tokens if all(token < self._vocabulary for token in tokens) else ()


def pattern_of(text: str, known: re.Pattern[str] | None) -> tuple[str, str]:
    """The key of answers with similar beginnings, and the words that they may repeat: what is
    asked; of an instruction that matches a known pattern the pattern, and the instruction.

    known: the pattern of instructions that the target was trained on.
    """
    text = text[-MOST_ASKED:]
    found = None if known is None else known.search(text)
    if known is None or found is None or not found[0]:
        return text, text
    return f"{text[: found.start()]}{known.pattern}{text[found.end() :]}", found[0]
