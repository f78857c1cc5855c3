"""What one session looks up: in the verified answers of its own credential."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..decoding.draft import Draft
from ..decoding.looked_up import with_looked_up
from ..decoding.suffix_index import SuffixIndex
from .node_budget import NodeBudget


@dataclass(frozen=True, eq=False)
class SaidBefore:
    """A credential's verified answers, and what looked-up nodes gained it lately.

    ``alone``: of passes without another draft; ``beside``: as further branches of one.
    """

    index: SuffixIndex
    alone: NodeBudget
    beside: NodeBudget


class AnswerLookup:
    """Drafts for one answer. Belongs to the model's thread."""

    def __init__(
        self,
        said: SaidBefore,
        pattern: str,
        words: Sequence[int],
        most: int,
        seconds: Callable[[int], float],
    ) -> None:
        """pattern, words: of the instruction, the words as tokens. most: nodes of a pass. seconds:
        of a pass, by its rows."""
        self._said, self._pattern, self._words = said, pattern, words
        self._most, self._seconds = most, seconds

    def draft(self, tokens: Sequence[int], depth: int, rows: int = 1) -> Draft:
        """What followed text like this, at most so deep; empty where it is known not to pay.

        rows: of the pass without it.
        """
        nodes = self._said.alone.nodes(rows, self._seconds)
        return self._said.index.look_up(self._pattern, tokens, nodes, depth, self._words)

    def beside(
        self, draft: Draft, tokens: Sequence[int], depth: int, open_at: int | None = None
    ) -> Draft:
        """A draft after these tokens, with further branches that pay."""
        nodes = self._said.beside.nodes(1 + len(draft), self._seconds)
        if not nodes:
            return draft
        found = self._said.index.look_up(self._pattern, tokens, self._most, depth, self._words)
        return with_looked_up(draft, found, len(draft) + nodes, open_at)

    def judged(self, draft: Draft, given: int, path: tuple[int, ...], tokens: int) -> None:
        """The path was accepted, and so many tokens settled; its first ``given`` nodes were not
        looked up."""
        budget = self._said.beside if given else self._said.alone
        accepted = tuple(node - given for node in path if node >= given)
        budget.judged(len(draft) - given, accepted, tokens)

    def learn(self, tokens: Sequence[int]) -> None:
        """This is a verified answer, or its beginning."""
        if tokens:
            self._said.index.add(self._pattern, tokens, self._words)
