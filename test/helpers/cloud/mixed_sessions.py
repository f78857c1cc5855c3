"""Whether answers depend on who else is in the pass, or on an eviction before it.

Chains, trees, pushed drafts, early exits and sessions that the cloud decodes itself, at one worker
with memory for a few of them, each beside itself alone at a worker with one session in a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from statistics import fmean

from edge_cloud_spec.cloud.model_thread.sessions import RobotStream, WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.accept import follow
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.lab.bench.chi_square import compare
from edge_cloud_spec.lab.bench.command import Row
from edge_cloud_spec.lab.bench.requests import sample_requests
from edge_cloud_spec.lab.harness.grpc_robot import MAX_TOKENS
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.exits import Exits
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import Request
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.share import rules_text
from edge_cloud_spec.wire.codec import decode_server, encode_client
from edge_cloud_spec.wire.messages import (
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
        """random: draws the drafts; ``wrong``: the share of drafts with a wrong token."""
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

    return lambda node: rest[min(len(draft.path(node)), len(rest) - 1)]


def mixed_draft(rest: Sequence[int], random: Random, wrong: float = WRONG) -> Draft:
    """A random chain or tree along ``rest``; ``wrong``: the chance that it has a wrong token."""
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
    """Run until nothing is left to do; returns how many verdicts each pass has brought."""
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


PICTURES = 16  # sessions that ask about one share what comes before their own words
ROOM = 3  # sessions that there is memory for
COUPLED = 0.8  # temperature
SAMPLED = SamplingPolicy(12.0, top_k=4)  # four likely tokens at each place
TOGETHER = 50  # of the sessions that are compared so
LIKELY = 1e-4  # a p-value below it is no chance
BATCH_ROWS = 64  # less than a prompt, so that prompts are read between passes


def session_bytes(request: Request, target: Vlm) -> int:
    """The bytes that a session of this request takes in the target's caches."""
    spec, memory = target.spec(rules_text(), MAX_TOKENS), KvMemory()
    target.use_memory(memory)
    session = target.open(target.prompt(request, spec))
    session.extend([0] * MAX_TOKENS)
    session.forward([0] * 16)
    return memory.peak


def embedded_tokens_row(sessions: int, seed: int) -> Row:
    """``tokens_row`` of the embedded target, with memory for ``ROOM`` of the sessions."""
    target = load(EMBEDDED / "target", threads=1)
    exits = Exits.load(EMBEDDED / "target" / "exits", target)
    requests = sample_requests(seed, min(PICTURES, sessions))
    room = ROOM * session_bytes(requests[0], target)

    def worker(alone: bool) -> Worker:
        held = WorkerLimits(sessions=1 << 20, batch_rows=BATCH_ROWS, kv_mb=room / 2**20)
        limits = replace(held, batch=1, kv_mb=0.0) if alone else held
        ticks = count()  # what is chosen for a pass depends on times, and must not on a machine's
        spec = target.spec(rules_text(), MAX_TOKENS)
        return Worker(target, spec, None, limits, lambda: next(ticks) / 1e3, exits)

    return tokens_row(worker, mixed_openings(target, requests, sessions, seed), seed)


def mixed_openings(
    target: Vlm, requests: Sequence[Request], sessions: int, seed: int
) -> list[Open]:
    """Greedy and coupled in turns, answers of any length; every other one wants predictions."""
    openings = []
    for number in range(sessions):
        request = requests[number % len(requests)]
        samples = (number // 2 + number // len(requests)) % 2
        coupled = SamplingPolicy(COUPLED, seed=seed + number)
        opening = Open(
            number,
            request.instruction,
            request.jpeg,
            request.order,
            coupled if samples else GREEDY,
            "coupled" if samples else "greedy",
            max_tokens=1 + (17 * number + seed) % MAX_TOKENS,
            tokenizer_digest=target.tokenizer_digest,
            draft_identity="replayed",
            predictions=number % 2 == 0,
        )
        openings.append(opening)
    return openings


def tokens_row(worker: Callable[[bool], Worker], openings: Sequence[Open], seed: int) -> Row:
    """How many answers equal, token for token, those of each session by itself.

    worker: makes one with memory for all and one session a pass (True), or one without. ``passed``
    requires a mix of all kinds.
    """
    alone = worker(True)
    own: list[Answer] = []
    for opening in openings:
        own += replay(alone, [opening], [None], seed).answers
    tight = worker(False)
    drafted = [None if n % 7 == 6 else tokens for n, (tokens, _) in enumerate(own)]
    together = replay(tight, openings, drafted, seed)
    same = [a == b for a, b in zip(together.answers, own, strict=True)].count(True)
    mixture = mixture_of(together, tight)
    return {
        "rule": "greedy, coupled",
        "sessions": len(openings),
        "equal_answers": same,
        "tokens": sum(len(tokens) for tokens, _ in own),
        "evictions_alone": alone.kv_memory.evictions,
        **mixture,
        "equal": same == len(openings),
        "passed": same == len(openings)
        and not alone.kv_memory.evictions
        and min(mixture.values()) > 0
        and mixture["batch_max"] > 1,
    }


def mixture_of(replayed: Replay, worker: Worker) -> dict[str, float]:
    """What happened; a part that did not is 0."""
    memory = worker.kv_memory
    return {
        "verify_passes": len(replayed.batches),
        "batch_mean": fmean(replayed.batches),
        "batch_max": max(replayed.batches),
        "chains": replayed.chains,
        "trees": replayed.trees,
        "pushed": replayed.pushed,
        "generated": replayed.rounds - replayed.chains - replayed.trees,
        "predictions": replayed.predictions,
        "evictions": memory.evictions,
        "restored_rows": memory.restored_rows,
    }


def rejection_row(worker: Callable[[bool], Worker], opening: Open, samples: int, seed: int) -> Row:
    """Answers of many seeds, batched and alone, by chi-square.

    ``wrong_p_value`` is the same test of a rule that draws from P, not from the residual, after a
    rejection: it must be told from the target.
    """
    greedy = replay(worker(True), [replace(opening, policy=GREEDY, rule="greedy")], [None], seed)
    own = greedy.answers[0][0]

    def sampled(alone: bool, first: int) -> list[tuple[tuple[int, ...], Verdict]]:
        found: list[tuple[tuple[int, ...], Verdict]] = []
        model = worker(alone)
        for start in range(first, first + samples, TOGETHER):
            openings = [
                replace(opening, nonce=n, rule="rejection", policy=replace(SAMPLED, seed=n))
                for n in range(start, min(start + TOGETHER, first + samples))
            ]
            drafts: list[Sequence[int] | None] = [None if alone else own] * len(openings)
            replayed = replay(model, openings, drafts, start, wrong=0.0)
            found += zip((t for t, _ in replayed.answers), replayed.openers, strict=True)
        return found

    alone, together = sampled(True, seed), sampled(False, seed + samples)
    other = sampled(True, seed + 2 * samples)
    wrong = [
        tokens if verdict.path else drawn
        for (tokens, verdict), (drawn, _) in zip(together, other, strict=True)
    ]
    expected = [tokens for tokens, _ in alone]
    test = compare([tokens for tokens, _ in together], expected)
    control = compare(wrong, expected)
    return {
        "rule": "rejection",
        "sessions": samples,
        "rejected": sum(not verdict.path for _, verdict in together),
        "chi_square": test.chi_square,
        "freedom": test.freedom,
        "p_value": test.p_value,
        "wrong_p_value": control.p_value,
        "equal": test.p_value > LIKELY,
        "passed": test.p_value > LIKELY > control.p_value,
    }
