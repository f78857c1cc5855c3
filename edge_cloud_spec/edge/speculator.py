"""What to draft while a verdict is awaited: predicted verdicts, and the cache of pre-drafts.

A prediction is a prefix: the verified tokens and those that a verdict would add. Drafts for all
predictions are in one cache, whatever predicts: that all tokens are accepted (PicoSpec 3.2,
SpecEdge 4.2), that a runner-up replaces the first rejected one, or an early exit (FSD 3). The most
confident predictions are drafted for first.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count

from ..decoding.preset import Speculation
from ..decoding.propose import FinishedDraft
from ..decoding.shape import Branch, Shape, chain
from .events import Work

Prefix = tuple[int, ...]

MAX_LOOKED_AT = 1000  # predictions; each draft that is finished has many, and so have theirs


class Speculator:
    """The drafts that are made or wanted after the verified prefix and after predicted ones."""

    def __init__(self, speculation: Speculation) -> None:
        self.speculation = speculation
        self.shape: Shape | None = None  # of the drafts that are wanted now
        self._working: Work | None = None  # the draft model's last Work
        self._ends: frozenset[int] = frozenset()
        self._seeking: set[Branch] = set()  # branches that only look for a bonus token
        self._near: set[Prefix] = set()  # prefixes that the next verdict may lead to
        self._verified: Prefix = ()
        self._drafts: dict[Prefix, FinishedDraft] = {}
        self._parts: dict[Prefix, FinishedDraft] = {}  # of unfinished drafts
        self._bonuses: dict[Prefix, FinishedDraft] = {}  # the likeliest token after a whole path
        self._predicted: dict[Prefix, float] = {}  # by exits, after the verified prefix

    def plan(self, shape: Shape | None, speculation: Speculation) -> None:
        """Set the shape of drafts from now on (None: no drafts), and which verdicts to predict."""
        self.shape, self.speculation = shape, speculation

    def forget_work(self) -> None:
        """The draft model's last Work is not wanted any more."""
        self._working = None

    def begin(self, end_tokens: tuple[int, ...]) -> None:
        """A prompt is ready: forget drafts under another. Nothing is drafted after an end token."""
        self._ends = frozenset(end_tokens)
        for kept in (self._drafts, self._parts, self._bonuses, self._predicted):
            kept.clear()

    def settle(self, verified: Prefix) -> None:
        """These tokens are verified now; drop drafts and predictions that do not extend them.

        Of a draft along which the answer went, what is left is kept: a cloud that goes on alone
        settles less than was drafted.
        """
        self._verified = verified
        size = len(verified)
        for prefix, draft in list(self._drafts.items()):
            passed = len(prefix) < size and verified[: len(prefix)] == prefix
            rest = draft.below(verified[len(prefix) :]) if passed else None
            if rest is not None:
                self._drafts.setdefault(verified, rest)
        for kept in (self._drafts, self._parts, self._bonuses, self._predicted):
            for prefix in [prefix for prefix in kept if prefix[:size] != verified]:
                del kept[prefix]

    def draft_after(self, prefix: Prefix, cut: int = 0) -> FinishedDraft | None:
        """The draft after this prefix, if finished or ``cut`` levels deep (0: only if finished)."""
        part = self._parts.get(prefix)
        if cut and part is not None and part.draft.depth >= cut:
            self._drafts.setdefault(prefix, part)
        return self._drafts.get(prefix)

    def keep(self, branch: Branch, part: FinishedDraft) -> None:
        """Keep the part of a branch that is drafted, in case it is cut short."""
        if branch not in self._seeking:
            self._parts[branch.prefix] = part

    def was_predicted(self, prefix: Prefix) -> bool | None:
        """Whether an exit predicted that the verdict leads here; None where none predicted."""
        return prefix in self._predicted if self._predicted else None

    def predict(self, prefix: Prefix, confidence: float) -> None:
        """An early exit predicts that the verdict will lead here."""
        self._predicted[prefix] = confidence

    def drafted(self, branch: Branch, finished: FinishedDraft) -> bool:
        """A branch is finished. False where it only looked for a bonus token."""
        if branch in self._seeking:
            self._bonuses[branch.prefix] = finished
            return False
        self._drafts.setdefault(branch.prefix, finished)
        return True

    def wants(self, branch: Branch) -> bool:
        """Whether this branch is in the draft model's last Work."""
        return self._working is not None and branch in self._working.branches

    def work(self, verified: Prefix, room: int) -> list[Work]:
        """The Work for what is wanted now, unless it is the last one. room: as in ``branches``."""
        branches = self.branches(self.shape, room) if self.shape is not None else ()
        work = Work(verified, branches)
        if work == self._working:
            return []
        self._working = work
        return [work]

    def pause(self, verified: Prefix) -> list[Work]:
        """Draft nothing: no model knows the next token."""
        self.settle(verified)
        self._working = Work(verified, ())
        return [self._working]

    def branches(self, shape: Shape, room: int) -> tuple[Branch, ...]:
        """What to draft next, the most confident first. room: tokens that the answer may get."""
        size = len(self._verified)
        self._seeking.clear()
        branches = []
        self._near.clear()
        for confidence, prefix, bonus, level in sorted(
            self._wanted(), key=lambda prediction: -prediction[0]
        ):
            predicted = prefix[size:]
            left = room - len(predicted)
            if confidence < self.speculation.least or left < 1:
                continue
            if predicted and predicted[-1] in self._ends:
                continue
            branch = Branch(prefix, chain(1) if bonus else shape.within(max(1, left - 1)))
            if bonus:
                self._seeking.add(branch)
            elif level <= 1:
                self._near.add(prefix)
            branches.append(branch)
        return tuple(dict.fromkeys(branches))

    def is_near(self, prefix: Prefix) -> bool:
        """Whether the next verdict may lead here."""
        return prefix in self._near

    def _wanted(self) -> Iterator[tuple[float, Prefix, bool, int]]:
        """Confidence, prefix, whether only its bonus token is sought, and verdicts ahead."""
        order = count()
        todo = [(-1.0, next(order), self._verified, 0)]  # a heap, the most confident first
        while todo and next(order) < MAX_LOOKED_AT:
            less, _, prefix, level = heappop(todo)
            confidence = -less
            finished = self._drafts.get(prefix)
            if finished is None:
                yield confidence, prefix, False, level
                continue
            if level == self.speculation.ahead:
                continue
            for share, tokens, bonus in self._predictions(finished, prefix):
                if bonus:
                    yield confidence * share, prefix + tokens, True, level + 1
                else:
                    heappush(todo, (-confidence * share, next(order), prefix + tokens, level + 1))
            if level == 0 and self.speculation.exits:
                for prediction, certainty in self._predicted.items():
                    heappush(todo, (-certainty, next(order), prediction, 1))

    def _predictions(
        self, finished: FinishedDraft, prefix: Prefix
    ) -> Iterator[tuple[float, Prefix, bool]]:
        """Verdicts that a draft predicts: share, tokens, and whether a bonus is missing."""
        runners_up = self.speculation.runners_up
        if self.speculation.open:
            yield finished.confidence, finished.best, False
        elif self.speculation.all_accepted:
            for leaf, share in finished.leaves if runners_up else finished.leaves[:1]:
                bonus = self._bonuses.get(prefix + leaf)
                if bonus is None:
                    yield share, leaf, True
                    continue
                yield share * bonus.confidence, leaf + bonus.best, False
                for tokens, likelihood in bonus.recoveries if runners_up else ():
                    yield share * likelihood, leaf + tokens, False
        if runners_up:
            for tokens, likelihood in finished.recoveries:
                yield likelihood, tokens, False
