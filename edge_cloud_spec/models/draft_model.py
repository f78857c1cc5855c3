"""The draft model's work: several drafts after predicted prefixes, which grow a level a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..decoding.accept import follow
from ..decoding.digest import common_prefix
from ..decoding.draft import Draft
from ..decoding.grammar import Allowed, Grammar, forced_token, masked
from ..decoding.propose import FinishedDraft, Growth, ProposalConfig, candidates
from ..decoding.random_source import RandomSource, SeededRandomSource
from ..decoding.shape import Branch

if TYPE_CHECKING:
    from ..lookup import AnswerLookup
    from .drafter import DraftSession, OnLayer


Path = tuple[int, ...]  # tokens after the verified prefix


class ScoredPaths:
    """Finds a session's nodes by the token paths that lead to them."""

    def __init__(self, session: DraftSession) -> None:
        self._session = session
        self.verified: tuple[int, ...] = ()
        self._nodes: dict[Path, int] = {(): -1}

    def follow(self, prefix: Sequence[int]) -> None:
        """Make these verified tokens the prefix; what is computed of and after them is kept."""
        verified = tuple(prefix)
        before = self._session.tokens
        shared = common_prefix(before, verified)
        after: dict[Path, int] = {}
        if shared < len(before):
            self._session.truncate(shared)
        else:
            fresh = verified[shared:]
            ends = (self._nodes.get(fresh[: end + 1]) for end in range(len(fresh)))
            path = [
                node for node in takewhile(lambda node: node is not None, ends) if node is not None
            ]
            shared += len(path)
            if shared == len(verified):
                size = len(fresh)
                after = {
                    tokens[size:]: node
                    for tokens, node in self._nodes.items()
                    if tokens[:size] == fresh and len(tokens) > size
                }
            self._session.commit(path, sorted(after.values()))
        if shared < len(verified):
            self._session.extend(verified[shared:])
        order = {node: place for place, node in enumerate(sorted(after.values()))}
        self.verified = verified
        self._nodes = {(): -1, **{tokens: order[node] for tokens, node in after.items()}}

    def rows_due(self, paths: Sequence[Path]) -> int:
        """How many tokens a pass must compute to know the logits after these paths; 0: none."""
        missing = len(self._missing(paths))
        return missing + (self._session.pending_rows if missing or () in paths else 0)

    def score(self, paths: Sequence[Path], on_layer: OnLayer | None = None) -> None:
        """Compute what is not known along these paths, in one pass."""
        missing = self._missing(paths)
        if not missing:
            if () in paths:
                self._session.logits_after(-1, on_layer)
            return
        first = len(self._nodes) - 1  # the prefix itself is in there, too
        places = {path: first + number for number, path in enumerate(missing)}
        known = self._nodes | places
        parents = [known[path[:-1]] for path in missing]
        self._session.grow([path[-1] for path in missing], parents, on_layer)
        self._nodes = known

    def row(self, path: Path) -> NDArray[np.float32]:
        """The logits [V] after a path that is scored."""
        return self._session.logits_after(self._nodes[path])

    def _missing(self, paths: Sequence[Path]) -> list[Path]:
        """The nodes along these paths that are not computed, each after its parent."""
        ends = (path[:end] for path in paths for end in range(1, len(path) + 1))
        return [path for path in dict.fromkeys(ends) if path not in self._nodes]


MAX_LOOKED_UP = 16  # nodes after one path in one pass


@dataclass(frozen=True, eq=False)
class Drafted:
    """The tokens that a pass adds to a branch, its draft so far, and whether it is ``done``.

    ``seconds`` is what the pass took over ``nodes`` nodes (0 where another branch carries it).
    """

    branch: Branch
    tokens: tuple[int, ...]
    finished: FinishedDraft
    done: bool = True
    seconds: float = 0.0
    nodes: int = 1


@dataclass(frozen=True, eq=False)
class _LookedUp:
    """A draft from earlier answers that may follow a path, and the path to each of its nodes."""

    after: Path
    draft: Draft
    paths: tuple[Path, ...]


class DraftModel:
    """A draft session that follows the verified prefix; predicted tokens after it are its nodes.

    Every branch's draft is a function of its prefix alone, whatever else is drafted beside it, and
    whatever is looked up: the same pass computes what was said before after the first chain's end,
    so that the chain costs fewer passes where the model says it again.
    """

    def __init__(
        self,
        session: DraftSession,
        proposal: ProposalConfig,
        end_tokens: Sequence[int] = (),
        random_source: RandomSource | None = None,
        with_likelihoods: bool = False,
        grammar: Grammar | None = None,
        lookup: AnswerLookup | None = None,
    ) -> None:
        """Nothing is drafted after ``end_tokens``. with_likelihoods: as in ``Growth``.

        grammar: what is drafted is in it; tokens that it forces cost no pass. lookup: finds tokens
        of the model's vocabulary, or end tokens.
        """
        self.rows = 0  # that the last step's pass computed; 0: it needed none
        self._with_likelihoods = with_likelihoods
        self._grammar, self._lookup = grammar, lookup
        self._scored = ScoredPaths(session)
        self._proposal = proposal
        self._ends = tuple(end_tokens)
        self._random_source = random_source or SeededRandomSource(proposal.policy.seed)
        self._wanted: tuple[Branch, ...] = ()
        self._growing: dict[Branch, Growth] = {}

    def follow(self, prefix: Sequence[int]) -> None:
        """Make these verified tokens the prefix; what is computed of and after them is kept."""
        self._scored.follow(prefix)

    def want(self, branches: Sequence[Branch]) -> None:
        """Draft these branches from now on, in this order; other unfinished ones are dropped."""
        self._wanted = tuple(branches)
        self._growing = {
            branch: self._growing.get(branch) or self._begin(branch) for branch in branches
        }

    @property
    def idle(self) -> bool:
        """Whether there is nothing to draft."""
        return not self._wanted

    def next(self, width: int) -> list[Branch]:
        """The branches of the next pass: at least one, and no more nodes than ``width``."""
        chosen: list[Branch] = []
        nodes = 0
        for branch in self._wanted:
            nodes += len(self._growing[branch].frontier)
            if chosen and nodes > width:
                break
            chosen.append(branch)
        return chosen

    def step(self, width: int = 1, on_layer: OnLayer | None = None) -> list[Drafted]:
        """At most one pass: more of the first branches, ``width`` nodes of them together.

        Each grows by a level, and on as far as the rows are known. on_layer: called after each
        layer. What it raises ends the pass and changes nothing. UserError: a branch's prefix is
        against the grammar.
        """
        chosen = self.next(width)
        paths = [path for branch in chosen for path in self._unforced(branch)]
        found = self._look_up(chosen, self._scored.rows_due(paths))
        if found is not None:
            paths += filter(self._has_row, found.paths)
        self.rows = self._scored.rows_due(paths)
        self._scored.score(paths, on_layer)
        if found is not None:
            self._judge(found)
        grown = [self._grow(branch) for branch in chosen]
        done = {one.branch for one in grown if one.done}
        self._wanted = tuple(branch for branch in self._wanted if branch not in done)
        for branch in done:  # wanted again, it begins again
            del self._growing[branch]
        return grown

    def finished(self, branch: Branch) -> FinishedDraft:
        """The finished draft of a branch whose prefix is verified."""
        self.follow(branch.prefix)
        self.want([branch])
        while True:
            (grown,) = self.step()
            if grown.done:
                return grown.finished

    def _begin(self, branch: Branch) -> Growth:
        return Growth(
            branch.shape,
            self._proposal,
            len(branch.prefix),
            self._ends,
            self._random_source,
            self._with_likelihoods,
        )

    def _grow(self, branch: Branch) -> Drafted:
        growth = self._growing[branch]
        tokens: tuple[int, ...] = ()
        while not (growth.done or self._scored.rows_due(self._unforced(branch))):
            tokens += growth.grow(np.stack([self._row(*each) for each in self._frontier(branch)]))
        return Drafted(branch, tokens, growth.finished(), growth.done)

    def _frontier(self, branch: Branch) -> list[tuple[Path, Allowed | None]]:
        """The paths whose logits the branch needs next, and what the grammar allows after each."""
        growth, grammar = self._growing[branch], self._grammar
        predicted = branch.prefix[len(self._scored.verified) :]
        paths = [predicted + path for path in growth.frontier]
        if grammar is None:
            return [(path, None) for path in paths]
        if not growth.allowed:
            growth.allowed = [grammar.allowed(branch.prefix + path) for path in growth.frontier]
        return list(zip(paths, growth.allowed, strict=True))

    def _unforced(self, branch: Branch) -> list[Path]:
        """The paths of the frontier after which the model has a choice."""
        return [
            path
            for path, allowed in self._frontier(branch)
            if allowed is None or forced_token(allowed) is None
        ]

    def _row(self, path: Path, allowed: Allowed | None) -> NDArray[np.float32]:
        """The logits [V] after a path, of allowed tokens."""
        if allowed is None:
            return self._scored.row(path)
        known = allowed.astype(np.float32)  # any finite logit: there is no other token
        if forced_token(allowed) is not None:
            return masked(known, allowed)
        row = masked(self._scored.row(path), allowed)
        # A model that knows one token only may know none that is allowed: then all are alike.
        return masked(known, allowed) if row.max() == -np.inf else row

    # What was said before

    def _look_up(self, branches: Sequence[Branch], rows: int) -> _LookedUp | None:
        """Tokens from earlier answers to compute in the same pass, after the first chain due.

        Later chains are less likely to be wanted.
        """
        if self._lookup is None or not rows:
            return None
        ends = (self._unforced(branch) for branch in branches if branch.shape.is_chain)
        after = next((end for (end,) in filter(None, ends) if self._scored.rows_due([end])), None)
        if after is None:
            return None
        prefix = self._scored.verified + after
        draft = self._lookup.draft(prefix, MAX_LOOKED_UP, rows)
        paths = tuple(after + draft.tokens_to(node) for node in range(len(draft)))
        return _LookedUp(after, draft, paths)

    def _has_row(self, path: Path) -> bool:
        """Whether a token may follow this path; none follows an end token."""
        return not any(token in self._ends for token in path)

    def _judge(self, found: _LookedUp) -> None:
        """Tell the lookup how far the model agrees with its draft."""

        def chosen(node: int) -> int:
            path = found.after + found.draft.tokens_to(node)
            return self._next_token(path) if self._has_row(path) else -1

        path = follow(found.draft, chosen).path
        assert self._lookup is not None
        self._lookup.judged(found.draft, 0, path, 1 + len(path))

    def _next_token(self, path: Path) -> int:
        """The token of a chain after a path that is scored."""
        prefix = self._scored.verified + path
        allowed = None if self._grammar is None else self._grammar.allowed(prefix)
        row = self._row(path, allowed)
        (token,), _ = candidates(row, self._proposal, len(prefix), 1, self._random_source)
        return token
