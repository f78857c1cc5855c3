"""Many sessions at one worker without a thread; some robots take a while, as real ones do.

Robots' drafts are made from the target's known answer, with wrong tokens and side branches at
random. Some are pushed: for where the draft leads if the answer is as known, for where an early
exit says that it leads, and for places that the answer never reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from ....cloud.model_thread.sessions import RobotStream
from ....cloud.model_thread.worker import Worker
from ....decoding.accept import follow
from ....decoding.digest import PrefixDigest
from ....decoding.draft import Draft
from ....wire.codec import decode_server, encode_client
from ....wire.messages import (
    ClientMessage,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Prediction,
    Verdict,
)

LONGEST = 12  # nodes of a chain; trees have a side branch more
WRONG = 0.5  # share of the chains that have a wrong token
PUSHED = 0.4  # share of the drafts, and of the predictions, after which another is pushed


class ReplayedRobot:
    """Decodes one answer with drafts after ``own``, or lets the cloud generate (``own`` None)."""

    def __init__(
        self,
        worker: Worker,
        opening: Open,
        own: Sequence[int] | None,
        random: Random,
        wrong: float = WRONG,
    ) -> None:
        """random: of its drafts; ``wrong``: the share that has a wrong token."""
        self._worker, self._own, self._random, self._wrong = worker, own, random, wrong
        self._stream = RobotStream(self._hear)
        self._base = PrefixDigest(0, 0)
        self._drafts: dict[PrefixDigest, Draft] = {}
        self._pushed: set[PrefixDigest] = set()
        self.tokens: list[int] = []
        self.due = False  # its next draft is
        self.finish = ""  # how the answer, or the stream, ended
        self.verdicts: list[Verdict] = []
        self.predictions = self.chains = self.trees = self.pushed = 0
        self._say(opening)

    def _say(self, message: ClientMessage) -> None:
        self._worker.receive(self._stream, encode_client(message))

    def _hear(self, data: bytes | None) -> None:
        message = decode_server(data) if data else None
        match message:
            case Opened():
                self._base, self.due = message.base, True
            case Verdict():
                self._settle(message)
            case Prediction():
                self.predictions += 1
                path = self._drafts[message.base].path_tokens(message.path) or ()
                self._push((*path, message.token))
            case Fault(code, text):
                self.finish, self.due = f"{code}: {text}", False

    def _settle(self, verdict: Verdict) -> None:
        path: Sequence[int] = verdict.tokens
        if (draft := self._drafts.get(verdict.base)) is not None:
            path = draft.path_tokens(verdict.path) or ()
            self.trees += draft.parents is not None
            self.chains += draft.parents is None
            self.pushed += verdict.base in self._pushed
        settled = (*path, *(() if verdict.token is None else (verdict.token,)))
        self.tokens += settled
        self._base = self._base.extend(settled)
        self.verdicts.append(verdict)
        self.finish = verdict.finish
        if verdict.finish:
            self._say(Close())
        else:
            self.due = self._own is not None and self._base not in self._drafts

    def ask(self) -> None:
        """Send the next draft, or let the cloud generate."""
        self.due = False
        if self._own is None:
            self._say(Generate(self._base))
            return
        rest = self._own[len(self.tokens) :]
        draft = self._draft((), rest or [0])
        if not rest:
            return
        count = len(follow(draft, _along(draft, rest)).path) + 1
        self._push(rest[:count])
        self._push(rest[: self._random.randint(1, LONGEST)])

    def _push(self, after: Sequence[int]) -> None:
        """Now and then, send another draft for the place that these tokens lead to."""
        rest = (self._own or ())[len(self.tokens) + len(after) :]
        place = self._base.extend(after)
        if rest and place not in self._drafts and self._random.random() < PUSHED:
            self._pushed.add(place)
            self._draft(after, rest)

    def _draft(self, after: Sequence[int], rest: Sequence[int]) -> Draft:
        place, draft = self._base.extend(after), mixed_draft(rest, self._random, self._wrong)
        self._drafts[place] = draft
        self._say(DraftMessage(place, draft, len(self._drafts)))
        return draft


def _along(draft: Draft, rest: Sequence[int]) -> Callable[[int], int]:
    """The answer's token after a node that is on its way."""

    def token_after(node: int) -> int:
        depth = 0
        while node >= 0:
            node, depth = draft.parent(node), depth + 1
        return rest[min(depth, len(rest) - 1)]

    return token_after


def mixed_draft(rest: Sequence[int], random: Random, wrong: float = WRONG) -> Draft:
    """A chain or a tree along these tokens, of any length, right for a while."""
    chain = list(rest[: random.randint(1, LONGEST)])
    if random.random() < wrong:
        at = random.randrange(len(chain))
        chain[at] = chain[at - 1] if at else max(0, chain[0] - 1)
    if random.random() < 0.5:
        return Draft(tuple(chain))
    fork = random.randrange(len(chain))  # its node has another sibling, which is tested as well
    other = (
        rest[fork] if chain[fork] != rest[fork] else chain[fork] + (1 if not chain[fork] else -1)
    )
    return Draft((*chain, other), (*range(-1, len(chain) - 1), fork - 1))


Answer = tuple[tuple[int, ...], str]  # the tokens, and how they ended


@dataclass(frozen=True)
class Replay:
    """The answers, each with how it ended, what they took, and what they were made of.

    ``batches``: how many sessions each pass had. ``openers``: each session's first verdict.
    ``predictions`` of early exits; verdicts on ``chains`` and ``trees``, and how many of these were
    ``pushed``.
    """

    answers: tuple[Answer, ...]
    batches: tuple[int, ...]
    openers: tuple[Verdict, ...]
    predictions: int
    chains: int
    trees: int
    pushed: int

    @property
    def rounds(self) -> int:
        """Verdicts."""
        return sum(self.batches)


def replay(
    worker: Worker,
    openings: Sequence[Open],
    own: Sequence[Sequence[int] | None],
    seed: int,
    wrong: float = WRONG,
) -> Replay:
    """All robots at once, until nothing is left to do; the same drafts for the same seed.

    wrong: the share of drafts that have a wrong token.
    """
    robots = [
        ReplayedRobot(worker, opening, answer, Random(f"{seed} {place}"), wrong)
        for place, (opening, answer) in enumerate(zip(openings, own, strict=True))
    ]
    batches = _run(worker, robots, Random(seed))
    return Replay(
        tuple((tuple(robot.tokens), robot.finish) for robot in robots),
        tuple(batches),
        tuple(robot.verdicts[0] for robot in robots if robot.verdicts),
        sum(robot.predictions for robot in robots),
        sum(robot.chains for robot in robots),
        sum(robot.trees for robot in robots),
        sum(robot.pushed for robot in robots),
    )


def _run(worker: Worker, robots: Sequence[ReplayedRobot], random: Random) -> list[int]:
    """Until nothing is left to do; how many verdicts each pass has brought."""
    batches: list[int] = []
    before = 0
    while True:
        due = [robot for robot in robots if robot.due]
        if worker.pending:
            chosen = random.sample(due, min(len(due), random.randint(0, 1)))
        else:
            chosen = random.sample(due, (len(due) + 1) // 2)
        if not (chosen or worker.pending):
            return batches
        for robot in chosen:
            robot.ask()
        worker.run_one()
        after = sum(len(robot.verdicts) for robot in robots)
        if after > before:
            batches.append(after - before)
            before = after
