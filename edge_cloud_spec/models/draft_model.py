"""Runs the draft model: several drafts grow together, one level of their trees in each pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..decoding.accept import follow
from ..decoding.digest import common_prefix
from ..decoding.draft import Draft
from ..decoding.grammar import masked
from ..decoding.processors import UNADJUSTED, Adjustment, LogitsProcessors
from ..decoding.propose import FinishedDraft, Growth, ProposalConfig, candidates
from ..decoding.random_source import RandomSource, SeededRandomSource
from ..decoding.shape import Branch

if TYPE_CHECKING:  # the robot's nodes without a model read this module, too
    from ..lookup import AnswerLookup
    from .drafter import DraftSession, OnLayer

Path = tuple[int, ...]  # tokens after the verified prefix


class ScoredPaths:
    """Names the nodes of a ``DraftSession`` by the tokens after its verified prefix."""

    def __init__(self, session: DraftSession) -> None:
        self._session = session

    @property
    def verified(self) -> tuple[int, ...]:
        """The prefix."""
        return self._session.tokens

    def follow(self, prefix: Sequence[int]) -> None:
        """Make these verified tokens the prefix; nodes that continue it are kept."""
        session, verified = self._session, tuple(prefix)
        shared = common_prefix(session.tokens, verified)
        if shared < len(session.tokens):
            session.truncate(shared)
        path = session.nodes.along(verified[shared:])
        rest = verified[shared + len(path) :]
        below = session.nodes.descendants(path[-1] if path else -1)
        session.commit(path, () if rest else below)
        if rest:
            session.extend(rest)

    def rows_due(self, paths: Sequence[Path]) -> int:
        """How many tokens a pass must compute for the logits after these paths; 0: all are
        known."""
        missing = len(self._missing(paths))
        return missing + (self._session.pending_rows if missing or () in paths else 0)

    def score(self, paths: Sequence[Path], on_layer: OnLayer | None = None) -> None:
        """Compute the missing logits along these paths, in one pass."""
        missing = self._missing(paths)
        if not missing:
            if () in paths:
                self._session.logits_after(-1, on_layer)
            return
        places = {path: node for node, path in enumerate(self._session.nodes.paths, -1)}
        places |= {path: node for node, path in enumerate(missing, len(places) - 1)}
        parents = [places[path[:-1]] for path in missing]
        self._session.grow([path[-1] for path in missing], parents, on_layer)

    def row(self, path: Path) -> NDArray[np.float32]:
        """The logits [V] after a scored path."""
        return self._session.logits_after(self._session.nodes.paths.index(path) - 1)

    def _missing(self, paths: Sequence[Path]) -> list[Path]:
        """The nodes along these paths that are not computed yet, each after its parent."""
        known = {*self._session.nodes.paths}
        ends = dict.fromkeys(path[:end] for path in paths for end in range(1, len(path) + 1))
        return [path for path in ends if path not in known]


MAX_LOOKED_UP = 16  # lookup nodes after one path in one pass


@dataclass(frozen=True, eq=False)
class Drafted:
    """The tokens that a pass adds to a branch, its draft so far, and whether it is complete
    (``done``).

    ``seconds`` is the time of the pass over ``nodes`` nodes; 0 if another branch of the same pass
    reports it.
    """

    branch: Branch
    tokens: tuple[int, ...]
    finished: FinishedDraft
    done: bool = True
    seconds: float = 0.0
    nodes: int = 1


class DraftModel:
    """Drafts for several branches: the verified prefix, and predicted continuations of it.

    A branch's draft depends on its prefix only, not on other branches or on lookup drafts. A pass
    also scores tokens that a lookup proposes after the first chain; if the model agrees with them,
    the chain needs fewer passes.
    """

    def __init__(
        self,
        session: DraftSession,
        proposal: ProposalConfig,
        end_tokens: Sequence[int] = (),
        random_source: RandomSource | None = None,
        with_likelihoods: bool = False,
        processors: LogitsProcessors | None = None,
        lookup: AnswerLookup | None = None,
    ) -> None:
        """Nothing is drafted after ``end_tokens``. with_likelihoods: as in ``Growth``.

        processors: as the target's; tokens that they force cost no pass. lookup: proposes tokens of
        the model's vocabulary, or end tokens.
        """
        self.rows = 0  # tokens computed by the last step's pass; 0: it needed none
        self._with_likelihoods = with_likelihoods
        self._processors, self._lookup = processors, lookup
        self._scored = ScoredPaths(session)
        self._proposal = proposal
        self._ends = tuple(end_tokens)
        self._random_source = random_source or SeededRandomSource(proposal.policy.seed)
        self._wanted: tuple[Branch, ...] = ()
        self._growing: dict[Branch, Growth] = {}

    def follow(self, prefix: Sequence[int]) -> None:
        """Make these verified tokens the prefix; nodes that continue it are kept."""
        self._scored.follow(prefix)

    def want(self, branches: Sequence[Branch]) -> None:
        """Draft these branches, in this order; other unfinished branches are dropped."""
        self._wanted = tuple(branches)
        self._growing = {
            branch: self._growing.get(branch) or self._begin(branch) for branch in branches
        }

    @property
    def idle(self) -> bool:
        """Whether there is nothing to draft."""
        return not self._wanted

    def next(self, width: int) -> list[Branch]:
        """The branches of the next pass: at least one; more while their nodes are at most
        ``width``."""
        chosen: list[Branch] = []
        nodes = 0
        for branch in self._wanted:
            nodes += len(self._growing[branch].frontier)
            if chosen and nodes > width:
                break
            chosen.append(branch)
        return chosen

    def step(self, width: int = 1, on_layer: OnLayer | None = None) -> list[Drafted]:
        """Run at most one pass for the first branches, of about ``width`` nodes; returns their new
        tokens.

        Each branch grows by a level, and further where logits are known. on_layer: called after
        each layer; if it raises, the pass ends without effect. UserError: a branch's prefix breaks
        the grammar.
        """
        chosen = self.next(width)
        paths = [path for branch in chosen for path in self._unforced(branch)]
        found = self._look_up(chosen, self._scored.rows_due(paths))
        if found is not None:
            after, draft = found
            looked_up = (after + draft.tokens_to(node) for node in range(len(draft)))
            paths += filter(self._has_row, looked_up)
        self.rows = self._scored.rows_due(paths)
        self._scored.score(paths, on_layer)
        if found is not None:
            self._report(*found)
        grown = [self._grow(branch) for branch in chosen]
        done = {one.branch for one in grown if one.done}
        self._wanted = tuple(branch for branch in self._wanted if branch not in done)
        for branch in done:  # a branch that is wanted again starts anew
            del self._growing[branch]
        return grown

    def finished(self, branch: Branch) -> FinishedDraft:
        """Draft a branch to its end; its prefix becomes the verified one."""
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

    def _frontier(self, branch: Branch) -> list[tuple[Path, Adjustment]]:
        """The paths whose logits the branch needs next, and how those change."""
        growth, processors = self._growing[branch], self._processors
        predicted = branch.prefix[len(self._scored.verified) :]
        paths = [predicted + path for path in growth.frontier]
        if processors is None:
            return [(path, UNADJUSTED) for path in paths]
        if not growth.adjustments:
            growth.adjustments = [
                processors.after(branch.prefix + path) for path in growth.frontier
            ]
        return list(zip(paths, growth.adjustments, strict=True))

    def _unforced(self, branch: Branch) -> list[Path]:
        """The paths of the frontier after which there is a choice."""
        return [path for path, adjustment in self._frontier(branch) if adjustment.forced is None]

    def _row(self, path: Path, adjustment: Adjustment) -> NDArray[np.float32]:
        """The logits [V] after a path, adjusted."""
        if adjustment.forced is None:
            row = adjustment.of(self._scored.row(path))
            # If the model excludes all allowed tokens, they get equal logits.
            if adjustment.allowed is None or row.max() > -np.inf:
                return row
        assert adjustment.allowed is not None
        return masked(adjustment.allowed.astype(np.float32), adjustment.allowed)

    # Lookup drafts

    def _look_up(self, branches: Sequence[Branch], rows: int) -> tuple[Path, Draft] | None:
        """The path of the first chain that is due, and a lookup's draft after it to score in the
        same pass.

        Later chains are less likely to be needed.
        """
        if self._lookup is None or not rows:
            return None
        ends = (self._unforced(branch) for branch in branches if branch.shape.is_chain)
        after = next((end for (end,) in filter(None, ends) if self._scored.rows_due([end])), None)
        if after is None:
            return None
        return after, self._lookup.draft(self._scored.verified + after, MAX_LOOKED_UP, rows)

    def _has_row(self, path: Path) -> bool:
        """Whether a token may follow this path; false after an end token."""
        return not any(token in self._ends for token in path)

    def _report(self, after: Path, draft: Draft) -> None:
        """Report to the lookup how much of its draft the model agrees with."""

        def chosen(node: int) -> int:
            path = after + draft.tokens_to(node)
            return self._next_token(path) if self._has_row(path) else -1

        path = follow(draft, chosen).path
        assert self._lookup is not None
        self._lookup.report(len(draft), 0, path, 1 + len(path))

    def _next_token(self, path: Path) -> int:
        """The next token of a chain, after a scored path."""
        prefix = self._scored.verified + path
        row = self._row(path, self._processors.after(prefix) if self._processors else UNADJUSTED)
        (token,), _ = candidates(row, self._proposal, len(prefix), 1, self._random_source)
        return token
