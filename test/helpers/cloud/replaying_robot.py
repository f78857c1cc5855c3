"""A robot at a worker without threads; it drafts from the answer that it knows, partly wrong."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from helpers.cloud.worker_robot import Robot

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.wire.messages import (
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Prediction,
    Resume,
    ServerMessage,
    Verdict,
)

LONGEST = 5  # nodes of a chain; trees have a side branch more
WRONG = 0.5  # share of the drafts that have a wrong token


class ReplayingRobot(Robot):
    """Sends chains and trees, and often the draft after the one under way; or the cloud
    generates."""

    def __init__(
        self,
        worker: Worker,
        opening: Open,
        answer: Sequence[int],
        random: Random,
        *,
        generates: bool = False,
    ) -> None:
        """random: draws the drafts."""
        super().__init__(worker)
        self.opening, self.answer = opening, answer
        self.random, self.generates = random, generates
        self.tokens: list[int] = []
        self.verdicts: list[Verdict] = []
        self.predictions: list[Prediction] = []
        self.faults: list[Fault] = []
        self.finished = ""
        self.sent: dict[PrefixDigest, Draft] = {}
        self.pushed: set[PrefixDigest] = set()  # places of drafts that were sent ahead
        self._opened: Opened | None = None
        self.say(opening)

    def lose_the_link(self) -> None:
        """The stream is cut, and another one asked to go on."""
        if self._opened is not None and not self.finished:
            self.leave()
            self.connect()
            self.say(Resume(self._opened.session, self._here(), self.opening.secret))

    def vanish(self) -> None:
        self.leave()
        self.finished = "gone"

    def close(self) -> None:
        self.say(Close())
        self.finished = "gone"

    def _here(self, after: Sequence[int] = ()) -> PrefixDigest:
        return self._opened.base.extend((*self.tokens, *after))

    def hear(self, message: ServerMessage) -> None:
        if self.finished == "gone":
            return
        match message:
            case Opened() as opened:
                self.pushed.clear()  # they may be lost
                self._opened = self._opened or opened
                self._ask()
            case Verdict(base) as verdict if base == self._here():
                self._settle(verdict)
            case Prediction(base, path, token) as prediction:
                self.predictions.append(prediction)
                self._push((*(self.sent[base].path_tokens(path) or ()), token))
            case Fault(code) as fault:
                self.faults.append(fault)
                self.finished = self.finished or code

    def _settle(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        drafted = self.sent.get(verdict.base, Draft(()))
        path = verdict.tokens or drafted.path_tokens(verdict.path) or ()
        self.tokens += [*path, *(() if verdict.token is None else (verdict.token,))]
        self.finished = verdict.finish
        if not self.finished and not self.generates:
            self._ask()

    def _ask(self) -> None:
        if self.generates:
            self.say(Generate(self._here()))
            return
        rest = self.answer[len(self.tokens) :]
        if self._here() not in self.pushed:
            self._draft((), rest)
        if self.random.random() < 0.5:
            self._push(rest[: self.random.randint(1, LONGEST)])

    def _push(self, after: Sequence[int]) -> None:
        """Send another draft, for the place that these tokens lead to."""
        rest = self.answer[len(self.tokens) + len(after) :]
        place = self._here(after)
        if rest and place not in self.sent:
            self.pushed.add(place)
            self._draft(after, rest)

    def _draft(self, after: Sequence[int], rest: Sequence[int]) -> None:
        place = self._here(after)
        draft = self.sent.setdefault(place, mixed_draft(rest, self.random))
        self.say(DraftMessage(place, draft, 0))


def mixed_draft(rest: Sequence[int], random: Random) -> Draft:
    """A random chain or tree along ``rest``, which may have a wrong token."""
    chain = list(rest[: random.randint(1, LONGEST)])
    if random.random() < WRONG:
        at = random.randrange(len(chain))
        chain[at] = chain[at - 1] if at else max(0, chain[0] - 1)
    if random.random() < 0.5:
        return Draft(tuple(chain))
    fork = random.randrange(len(chain))  # its node has another sibling, which is tested as well
    other = (
        rest[fork] if chain[fork] != rest[fork] else chain[fork] + (1 if not chain[fork] else -1)
    )
    return Draft((*chain, other), (*range(-1, len(chain) - 1), fork - 1))
