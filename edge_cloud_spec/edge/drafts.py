"""The robot's drafts: wanted, finished, and sent.

A prediction is a prefix: the verified tokens and those that a verdict may add. It predicts that all
tokens are accepted (PicoSpec 3.2, SpecEdge 4.2), that a runner-up replaces the first rejected one,
or what an early exit saw (FSD 3). Drafts after all kinds of predictions share one cache. The most
confident predictions are drafted for first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count

from ..decoding.digest import PrefixDigest
from ..decoding.draft import MAX_PUSHED, MAX_PUSHED_BYTES, Draft
from ..decoding.preset import Preset, Speculation
from ..decoding.propose import FinishedDraft
from ..decoding.shape import Branch, Shape, chain
from ..decoding.verified_answer import VerifiedAnswer
from ..wire.messages import DraftMessage
from .answer import PendingRequest, Prefix
from .events import Effect, Work
from .measures import Measures

MAX_LOOKED_AT = 1000  # predictions; the tree of predictions after predictions would be endless


class Drafts:
    """Owns all drafts after the verified prefix and after predicted ones.

    Wanted: ``work`` tells the draft model what to draft. Finished: ``add`` and ``keep`` fill the
    cache, ``after`` reads it. Sent: ``make_request`` makes the draft whose verdict is awaited;
    ``push`` and ``hint`` make messages for predicted prefixes.
    """

    def __init__(
        self, answer: VerifiedAnswer, payload: str, preset: Preset, measures: Measures
    ) -> None:
        self.speculation = preset.speculation
        self.shape: Shape | None = None  # of the drafts that are wanted now
        # Prefixes that early exits predict, with confidence.
        self.predicted: dict[Prefix, float] = {}
        self.near: set[Prefix] = set()  # prefixes that the next verdict may lead to
        self._answer, self._payload, self._preset = answer, payload, preset
        self._measures = measures
        self._working: Work | None = None  # the draft model's last Work
        self._seeking: set[Branch] = set()  # branches that only look for a bonus token
        self._made: dict[Prefix, FinishedDraft] = {}
        self._parts: dict[Prefix, FinishedDraft] = {}  # unfinished drafts
        self._bonuses: dict[Prefix, FinishedDraft] = {}  # the most likely token after a whole path
        # With the time of sending.
        self._pushed: dict[PrefixDigest, tuple[DraftMessage, float]] = {}
        self._hints: set[Prefix] = set()  # prefixes for which hints were sent
        self._round = 0

    def invalidate(self) -> None:
        """The prompt is being replaced: forget all drafts of the old one, and the work."""
        self._working = None
        for kept in (self._made, self._parts, self._bonuses, self.predicted):
            kept.clear()
        self.forget_pushed()

    def drop_unverified(self) -> None:
        """Drop the drafts and predictions that do not extend the verified tokens.

        If the answer follows a draft part of the way, the rest of the draft is kept, as a
        generating server may add fewer tokens than were drafted.
        """
        verified = self._answer.verified
        size = len(verified)
        for prefix, draft in list(self._made.items()):
            passed = len(prefix) < size and verified[: len(prefix)] == prefix
            rest = draft.below(verified[len(prefix) :]) if passed else None
            if rest is not None:
                self._made.setdefault(verified, rest)
        for kept in (self._made, self._parts, self._bonuses, self.predicted):
            for prefix in [prefix for prefix in kept if prefix[:size] != verified]:
                del kept[prefix]

    # Wanted

    def want(self, shape: Shape | None, speculation: Speculation) -> None:
        """Set the shape of future drafts (None: no drafts), and which verdicts to predict."""
        self.shape, self.speculation = shape, speculation

    def wants(self, branch: Branch) -> bool:
        """Whether the draft model was last told to draft this branch."""
        return self._working is not None and branch in self._working.branches

    def work(self) -> list[Effect]:
        """The draft model's next Work; empty if it has not changed."""
        branches = self.choose(self.shape) if self.shape is not None else ()
        work = Work(self._answer.verified, branches)
        if work == self._working:
            return []
        self._working = work
        return [work]

    def pause(self) -> list[Effect]:
        """Discard unverified drafts, and draft nothing until the next verdict; returns the empty
        Work.

        For when neither side knows the next token yet.
        """
        self.drop_unverified()
        self._working = Work(self._answer.verified, ())
        return [self._working]

    def choose(self, shape: Shape) -> tuple[Branch, ...]:
        """The branches to draft next, most likely first."""
        size, room = len(self._answer.tokens), self._answer.room
        self._seeking.clear()
        branches = []
        self.near.clear()
        for _, prefix, bonus, level in sorted(
            self._wanted(), key=lambda prediction: -prediction[0]
        ):
            predicted = prefix[size:]
            left = room - len(predicted)
            if left < 1 or (predicted and predicted[-1] in self._answer.end_tokens):
                continue
            branch = Branch(prefix, chain(1) if bonus else shape.within(max(1, left - 1)))
            if bonus:
                self._seeking.add(branch)
            elif level <= 1:
                self.near.add(prefix)
            branches.append(branch)
        return tuple(dict.fromkeys(branches))

    def _wanted(self) -> Iterator[tuple[float, Prefix, bool, int]]:
        """Wanted drafts: confidence, prefix, whether only its bonus token is sought, verdicts
        ahead."""
        order, least = count(), self.speculation.least
        todo = [(-1.0, next(order), self._answer.verified, 0)]  # a heap, most confident first
        while todo and next(order) < MAX_LOOKED_AT:
            less, _, prefix, level = heappop(todo)
            confidence = -less
            finished = self._made.get(prefix)
            if finished is None:
                yield confidence, prefix, False, level
                continue
            if level == self.speculation.ahead:
                continue
            for share, tokens, bonus in self._predictions(finished, prefix):
                if confidence * share < least:
                    continue
                if bonus:
                    yield confidence * share, prefix + tokens, True, level + 1
                else:
                    heappush(todo, (-confidence * share, next(order), prefix + tokens, level + 1))
            if level == 0 and self.speculation.exits:
                for prediction, certainty in self.predicted.items():
                    if certainty < least:
                        continue
                    heappush(todo, (-certainty, next(order), prediction, 1))

    def _predictions(
        self, finished: FinishedDraft, prefix: Prefix
    ) -> Iterator[tuple[float, Prefix, bool]]:
        """The verdicts that a draft predicts: probability, tokens, and whether a bonus is
        missing."""
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

    # Finished

    def add(self, branch: Branch, finished: FinishedDraft) -> bool:
        """Store a branch's finished draft. False if the branch only looked for a bonus token."""
        if branch in self._seeking:
            self._bonuses[branch.prefix] = finished
            return False
        self._made.setdefault(branch.prefix, finished)
        return True

    def keep(self, branch: Branch, part: FinishedDraft) -> None:
        """Store a branch's unfinished draft, in case it is sent early."""
        if branch not in self._seeking:
            self._parts[branch.prefix] = part

    def after(self, prefix: Prefix) -> FinishedDraft | None:
        """The finished draft after this prefix, None if there is none."""
        return self._made.get(prefix)

    def finish_early(self, prefix: Prefix, levels: int) -> None:
        """Treat the unfinished draft after this prefix as finished if it has ``levels`` or more."""
        part = self._parts.get(prefix)
        if levels and part is not None and part.draft.depth >= levels:
            self._made.setdefault(prefix, part)

    # Sent

    def forget_pushed(self) -> None:
        """After a broken link: forget which drafts were pushed, so that they are sent again when
        due."""
        self._pushed.clear()
        self._hints.clear()

    def pushed_at(self, base: PrefixDigest) -> Draft | None:
        """The draft pushed for this prefix, if any; the cloud may judge it without another
        message."""
        pushed = self._pushed.get(base)
        return None if pushed is None else pushed[0].draft

    def make_request(
        self, finished: FinishedDraft, now: float, reply_timeout_s: float, exits: bool
    ) -> tuple[PendingRequest, bool]:
        """The draft after the verified prefix as a request, and whether it must still be sent.

        A pushed draft was sent already. ``now`` in seconds. ``reply_timeout_s``: how long the robot
        can wait for the verdict, including the round trip. ``exits``: whether the cloud's early
        exits should predict the verdict.
        """
        here = self._answer.digest
        one_way = self._measures.one_way.value
        # A pushed draft does not carry the token that the robot resampled; the cloud needs it.
        pushed = self._pushed.get(here) if self._answer.resampled is None else None
        if pushed is None:
            left = max(0.0, reply_timeout_s - 2 * one_way)
            message = self._message(self._answer.verified, finished, exits, left)
            starts = now + one_way
        else:
            message, starts = pushed[0], max(now - one_way, pushed[1] + one_way)
        self._pushed = {
            base: kept for base, kept in self._pushed.items() if base.length > here.length
        }
        self._round += 1
        return PendingRequest(message, finished.draft, starts), pushed is None

    def push(
        self, prefix: Prefix, finished: FinishedDraft, now: float, exits: bool
    ) -> list[Effect]:
        """The message that pushes a draft for a predicted prefix; empty if the cloud would not keep
        it."""
        if not self._preset.speculation.push or len(self._pushed) >= MAX_PUSHED:
            return []
        message = self._message(prefix, finished, exits)
        held = sum(pushed.draft.nbytes for pushed, _ in self._pushed.values())
        if held + message.draft.nbytes > MAX_PUSHED_BYTES:
            return []
        self._pushed[message.base] = (message, now)
        return [message]

    def hint(self, prefix: Prefix, finished: FinishedDraft) -> list[Effect]:
        """The message that sends a draft as a hint to a generating server; empty if it has this or
        enough."""
        verified = self._answer.verified
        self._hints = {hint for hint in self._hints if hint[: len(verified)] == verified}
        if len(self._hints) >= MAX_PUSHED or prefix in self._hints:
            return []
        self._hints.add(prefix)
        return [replace(self._message(prefix, finished, exits=False), hint=True)]

    def _message(
        self, prefix: Prefix, finished: FinishedDraft, exits: bool, reply_timeout_s: float = 0.0
    ) -> DraftMessage:
        """The message of a draft after the verified tokens, or after predicted ones beyond them."""
        answer, draft = self._answer, finished.draft
        if self._payload == "probabilities":
            values = tuple(draft.row(draft.parent(i)).at(t) for i, t in enumerate(draft.tokens))
            draft = Draft(draft.tokens, values=values)
        predicted = prefix[len(answer.tokens) :]
        left = answer.room - len(predicted) - len(finished.best)
        continues = left > 1 and finished.best[-1] not in answer.end_tokens
        open_at = finished.leaf if self._preset.speculation.open and continues else None
        return DraftMessage(
            answer.digest.extend(predicted),
            draft,
            self._round,
            None if predicted else answer.resampled,
            open_at,
            reply_timeout_s,
            without_exits=self._preset.speculation.exits and not exits,
        )
