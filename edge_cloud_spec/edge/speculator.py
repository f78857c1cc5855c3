"""What to draft while a verdict is awaited: predicted verdicts, and the cache of pre-drafts.

A prediction is a prefix: the verified tokens and those that a verdict would add. It enters the same
cache wherever it comes from: all tokens are accepted (PicoSpec 3.2, SpecEdge 4.2), a runner-up
replaces the first rejected one, or an early exit predicts it (FSD 3). The most confident
predictions are drafted for first.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..decoding.growth import FinishedDraft
from ..decoding.shape import Branch, Shape, chain
from ..decoding.speculation import Speculation
from .events import Work

Prefix = tuple[int, ...]


class Speculator:
    """The drafts that are made or wanted after the verified prefix and after predicted ones."""

    def __init__(self, speculation: Speculation) -> None:
        self.speculation = speculation
        self.shape: Shape | None = None  # of the drafts that are wanted now
        self._working: Work | None = None  # what was asked of the draft model last
        self._ends: frozenset[int] = frozenset()
        self._seeking: set[Branch] = set()  # branches that only look for a bonus token
        self._near: set[Prefix] = set()  # what the next verdict may lead to
        self._verified: Prefix = ()
        self._drafts: dict[Prefix, FinishedDraft] = {}
        self._parts: dict[Prefix, FinishedDraft] = {}  # of drafts in the making
        self._bonuses: dict[Prefix, FinishedDraft] = {}  # the likeliest token after a whole path
        self._predicted: dict[Prefix, float] = {}  # by exits, after the verified prefix

    def plan(self, shape: Shape | None, speculation: Speculation) -> None:
        """What drafts are to look like from now on (None: none are wanted), and what to predict."""
        self.shape, self.speculation = shape, speculation

    def void(self) -> None:
        """What the draft model was asked for last is not wanted any more."""
        self._working = None

    def begin(self, end_tokens: tuple[int, ...]) -> None:
        """A prompt stands; forget what was drafted under another. Nothing follows an end token."""
        self._ends = frozenset(end_tokens)
        for held in (self._drafts, self._parts, self._bonuses, self._predicted):
            held.clear()

    def settle(self, verified: Prefix) -> None:
        """These tokens are verified now; what does not extend them is void."""
        self._verified = verified
        size = len(verified)
        for held in (self._drafts, self._parts, self._bonuses, self._predicted):
            for prefix in [prefix for prefix in held if prefix[:size] != verified]:
                del held[prefix]

    def draft_after(self, prefix: Prefix, cut: int = 0) -> FinishedDraft | None:
        """The draft after this prefix, if it is whole or has at least ``cut`` levels (0: whole)."""
        part = self._parts.get(prefix)
        if cut and part is not None and part.draft.depth >= cut:
            self._drafts.setdefault(prefix, part)
        return self._drafts.get(prefix)

    def keep(self, branch: Branch, part: FinishedDraft) -> None:
        """Keep what there is of a branch, should it have to be cut short."""
        if branch not in self._seeking:
            self._parts[branch.prefix] = part

    def was_predicted(self, prefix: Prefix) -> bool | None:
        """Whether an exit predicted that the verdict leads here; None where none predicted."""
        return prefix in self._predicted if self._predicted else None

    def predict(self, prefix: Prefix, confidence: float) -> None:
        """An early exit predicts that the verdict will lead here."""
        self._predicted[prefix] = confidence

    def drafted(self, branch: Branch, finished: FinishedDraft) -> bool:
        """A branch is done. False where it only looked for a bonus token."""
        if branch in self._seeking:
            self._bonuses[branch.prefix] = finished
            return False
        self._drafts.setdefault(branch.prefix, finished)
        return True

    def wants(self, branch: Branch) -> bool:
        """Whether the draft model was asked for this branch last."""
        return self._working is not None and branch in self._working.branches

    def work(self, verified: Prefix, room: int) -> list[Work]:
        """Ask the draft model for what is wanted now, unless it was asked for just that."""
        branches = self.branches(self.shape, room) if self.shape is not None else ()
        work = Work(verified, branches)
        if work == self._working:
            return []
        self._working = work
        return [work]

    def rest(self, verified: Prefix) -> list[Work]:
        """Ask the draft model for nothing: what comes next is not known to any model."""
        self.settle(verified)
        self._working = Work(verified, ())
        return [self._working]

    def branches(self, shape: Shape, room: int) -> tuple[Branch, ...]:
        """What to draft next, the likeliest first. room: tokens that the answer may still get."""
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
        """Confidence, prefix, whether only the bonus token is looked for there, verdicts away."""
        todo: list[tuple[float, Prefix, int]] = [(1.0, self._verified, 0)]
        while todo:
            confidence, prefix, level = todo.pop()
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
                    todo.append((confidence * share, prefix + tokens, level + 1))
            if level == 0 and self.speculation.exits:
                todo += [
                    (confidence, prediction, 1)
                    for prediction, confidence in self._predicted.items()
                ]

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
