"""Sessions that are driven at random, together, and compared with what each is alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....models.passes.target_rows import on_host
from ....models.session import PassRequest, Session
from ....models.vlm import Vlm
from .known_rows import PREFIX, KnownRows

WIDTH = 16  # of a draft, at most


@dataclass
class _Member:
    """A session, and the node that its prefix ends with."""

    session: Session
    known: KnownRows
    at: int = PREFIX


@dataclass
class BitCount:
    """Rows that were compared, those with other bits, and the largest company and draft."""

    rows: int = 0
    differing: int = 0
    sessions: int = 0
    width: int = 0


class Company:
    """``size`` sessions of the known trees; ``turn`` runs one pass of some of them."""

    def __init__(
        self, vlm: Vlm, known: Sequence[KnownRows], size: int, rng: np.random.Generator
    ) -> None:
        self._vlm, self._rng = vlm, rng
        self._members = [self._open(known[index % len(known)]) for index in range(size)]
        self.count = BitCount()

    def turn(self) -> None:
        """Disturb some sessions, run a pass of random ones with random drafts, compare its rows,
        and commit, add or roll back at random."""
        rng = self._rng
        size = int(rng.integers(1, len(self._members) + 1))
        chosen = rng.choice(len(self._members), size, replace=False).tolist()
        for index in chosen:
            if rng.random() < 0.1:
                self._members[index] = self._open(self._members[index].known)
            if rng.random() < 0.1:
                self._members[index].session.evict()
        drafts = [self._draft(self._members[index]) for index in chosen]
        requests = [
            self._request(self._members[index], draft)
            for index, draft in zip(chosen, drafts, strict=True)
        ]
        results = self._vlm.forward_together(requests)
        for index, draft, rows in zip(chosen, drafts, results, strict=True):
            if isinstance(rows, Exception):
                raise rows
            member = self._members[index]
            self.count.differing += member.known.differing([member.at, *draft], on_host(rows))
            self.count.rows += len(rows)
            self.count.width = max(self.count.width, len(draft))
            self._go_on(member, draft)
        self.count.sessions = max(self.count.sessions, size)

    def _open(self, known: KnownRows) -> _Member:
        """A session whose prompt is computed in steps of random sizes."""
        prefill = self._vlm.prefill(known.prompt)
        whole = self._rng.random() < 0.5
        while not prefill.step(1 << 30 if whole else int(self._rng.integers(1, 40))):
            pass
        return _Member(prefill.session, known)

    def _draft(self, member: _Member) -> list[int]:
        """Nodes after the member's place, 0 to ``WIDTH``: each after its parent, a chain or not."""
        rng, known = self._rng, member.known
        width = int(rng.integers(0, WIDTH + 1))
        chain = rng.random() < 0.5
        draft: list[int] = []
        open_nodes = known.children(member.at)
        while open_nodes and len(draft) < width:
            at = 0 if chain else int(rng.integers(len(open_nodes)))
            node = open_nodes.pop(at)
            draft.append(node)
            open_nodes = known.children(node) + ([] if chain else open_nodes)
        return draft

    def _request(self, member: _Member, draft: list[int]) -> PassRequest:
        known = member.known
        place = {member.at: -1, **{node: index for index, node in enumerate(draft)}}
        tokens = [known.tokens[node] for node in draft]
        return PassRequest(member.session, tokens, [place[known.parents[n]] for n in draft])

    def _go_on(self, member: _Member, draft: list[int]) -> None:
        """Commit a path of the draft, add tokens after it, or go back."""
        rng, known = self._rng, member.known
        if draft and rng.random() < 0.7:
            end = draft[int(rng.integers(len(draft)))]
            path = [node for node in known.path(end) if node in draft]
            member.session.commit([draft.index(node) for node in path])
            member.at = end
        while rng.random() < 0.5 and known.children(member.at):
            member.at = int(rng.choice(known.children(member.at)))
            member.session.extend([known.tokens[member.at]])
        if rng.random() < 0.2 or not known.children(member.at):
            path = known.path(member.at)
            length = int(rng.integers(0, len(path) + 1))
            member.session.truncate(length)
            member.at = path[length - 1] if length else PREFIX
