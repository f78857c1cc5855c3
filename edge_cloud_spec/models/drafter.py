"""The draft model's work: several drafts after predicted prefixes, which grow a level a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from ..decoding.growth import FinishedDraft, Growth, TreeLevel
from ..decoding.propose import ProposalConfig
from ..decoding.random_source import RandomSource, SeededRandomSource
from ..decoding.shape import Branch

if TYPE_CHECKING:
    from .session import Session
    from .transformer import OnLayer


@dataclass(frozen=True, eq=False)
class Grown:
    """What a pass adds to a branch: a level, the draft so far, and whether it is ``done``."""

    branch: Branch
    level: TreeLevel
    finished: FinishedDraft
    done: bool


@dataclass(eq=False)
class _Growing:
    growth: Growth
    paths: list[tuple[int, ...]] = field(default_factory=list)  # of each node, after the prefix


class Drafter:
    """A draft session that follows the verified prefix; predicted tokens after it are its nodes.

    Every branch's draft is a function of its prefix alone, whatever else is drafted beside it.
    """

    def __init__(
        self,
        session: Session,
        proposal: ProposalConfig,
        end_tokens: Sequence[int] = (),
        random_source: RandomSource | None = None,
        with_likelihoods: bool = False,
    ) -> None:
        """Nothing is drafted after ``end_tokens``. with_likelihoods: as in ``Growth``."""
        self._with_likelihoods = with_likelihoods
        self._session = session
        self._proposal = proposal
        self._ends = tuple(end_tokens)
        self._random_source = random_source or SeededRandomSource(proposal.policy.seed)
        self._verified: tuple[int, ...] = ()
        self._nodes: dict[tuple[int, ...], int] = {(): -1}  # by the tokens of their paths
        self._wanted: tuple[Branch, ...] = ()
        self._growing: dict[Branch, _Growing] = {}

    def follow(self, prefix: Sequence[int]) -> None:
        """Make these verified tokens the prefix; what is computed of and after them is kept."""
        verified = tuple(prefix)
        before = self._session.tokens
        pairs = zip(before, verified, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        after: dict[tuple[int, ...], int] = {}
        if shared < len(before):
            self._session.truncate(shared)
        else:
            fresh = verified[shared:]
            path = self._path(fresh)
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
        self._verified = verified
        self._nodes = {(): -1, **{tokens: order[node] for tokens, node in after.items()}}

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

    def cost(self, width: int) -> int:
        """The rows that ``step`` would compute now."""
        paths = [path for branch in self.next(width) for path in self._frontier(branch)]
        return max(1, len(self._missing(paths)))

    def next(self, width: int) -> list[Branch]:
        """The branches of the next pass: at least one, and no more nodes than ``width``."""
        chosen: list[Branch] = []
        nodes = 0
        for branch in self._wanted:
            nodes += len(self._growing[branch].growth.frontier)
            if chosen and nodes > width:
                break
            chosen.append(branch)
        return chosen

    def step(self, width: int = 1, on_layer: OnLayer | None = None) -> list[Grown]:
        """One pass: a level more for the first branches, ``width`` nodes of them together.

        on_layer: called after each layer. What it raises ends the pass and changes nothing.
        """
        chosen = self.next(width)
        frontiers = [self._frontier(branch) for branch in chosen]
        self._score([path for frontier in frontiers for path in frontier], on_layer)
        grown = []
        for branch, frontier in zip(chosen, frontiers, strict=True):
            rows = [self._session.logits_after(self._nodes[path]) for path in frontier]
            grown.append(self._grow(branch, np.stack(rows)))
        done = {one.branch for one in grown if one.done}
        self._wanted = tuple(branch for branch in self._wanted if branch not in done)
        return grown

    def finished(self, branch: Branch) -> FinishedDraft:
        """The finished draft of a branch whose prefix is verified."""
        self.follow(branch.prefix)
        self.want([branch])
        while True:
            (grown,) = self.step()
            if grown.done:
                return grown.finished

    def _path(self, tokens: tuple[int, ...]) -> list[int]:
        """The nodes along these tokens, until there is none."""
        ends = (self._nodes.get(tokens[: end + 1]) for end in range(len(tokens)))
        return [node for node in takewhile(lambda node: node is not None, ends) if node is not None]

    def _begin(self, branch: Branch) -> _Growing:
        return _Growing(
            Growth(
                branch.shape,
                self._proposal,
                len(branch.prefix),
                self._ends,
                self._random_source,
                self._with_likelihoods,
            )
        )

    def _frontier(self, branch: Branch) -> list[tuple[int, ...]]:
        """The paths, after the verified prefix, whose logits the branch needs next."""
        growing = self._growing[branch]
        predicted = branch.prefix[len(self._verified) :]
        return [
            predicted + (growing.paths[node] if node >= 0 else ())
            for node in growing.growth.frontier
        ]

    def _missing(self, paths: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The nodes along these paths that are not computed, each after its parent."""
        ends = (path[:end] for path in paths for end in range(1, len(path) + 1))
        return [path for path in dict.fromkeys(ends) if path not in self._nodes]

    def _score(self, paths: Sequence[tuple[int, ...]], on_layer: OnLayer | None) -> None:
        """Compute the nodes that are missing along these paths, in one pass."""
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

    def _grow(self, branch: Branch, logits: np.ndarray) -> Grown:
        growing = self._growing[branch]
        level = growing.growth.grow(logits)
        for token, parent in zip(level.tokens, level.parents, strict=True):
            above = growing.paths[parent] if parent >= 0 else ()
            growing.paths.append((*above, token))
        return Grown(branch, level, growing.growth.finished(), growing.growth.done)
