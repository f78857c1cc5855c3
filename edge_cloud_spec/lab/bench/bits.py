"""``bench bits``: whether a row has the same bits whoever else is in its pass, and what that costs.

The rows of random trees of tokens are known, each computed alone. Sessions are then driven at
random, together, and every row of their passes is compared. Fixed passes and free ones are timed in
turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from ...models import EMBEDDED
from ...models.load import load
from ...models.passes.target_rows import on_host
from ...models.prompt import Prompt
from ...models.session import PassRequest, Session
from ...models.vlm import Vlm
from ...share import rules_text
from .command import Options, Row
from .requests import sample_requests

CHAIN, NODES = 16, 32  # nodes of a tree; the first of them are a chain
PREFIX = -1  # the place of the prompt itself


class KnownRows:
    """A random tree after ``prompt``, and float32 [V] after the prompt and after each node."""

    def __init__(self, vlm: Vlm, prompt: Prompt, rng: np.random.Generator) -> None:
        self.prompt = prompt
        self.tokens = rng.integers(0, vlm.vocabulary, NODES).tolist()
        later = range(CHAIN, NODES)
        self.parents = [*range(-1, CHAIN - 1), *(int(rng.integers(-1, at)) for at in later)]
        session = vlm.open(prompt)
        self._rows = {PREFIX: session.forward(())[0].copy()}
        self._visit(session, PREFIX)

    def _visit(self, session: Session, node: int) -> None:
        """Compute what comes after the node, whose path is the session's prefix."""
        depth = session.length
        for child in self.children(node):
            session.truncate(depth)
            session.extend([self.tokens[child]])
            self._rows[child] = session.forward(())[0].copy()
            self._visit(session, child)

    def children(self, node: int) -> list[int]:
        """The nodes right after this one."""
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def path(self, node: int) -> list[int]:
        """The nodes from the prompt to this one."""
        path: list[int] = []
        while node != PREFIX:
            path.insert(0, node)
            node = self.parents[node]
        return path

    def differing(self, nodes: Sequence[int], rows: NDArray[np.float32]) -> int:
        """How many of these rows, after these nodes, are not the known ones bit for bit."""
        return sum(
            row.tobytes() != self._rows[node].tobytes()
            for node, row in zip(nodes, rows, strict=True)
        )


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
        rng, count = self._rng, self.count
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
            count.differing += member.known.differing([member.at, *draft], on_host(rows))
            count.rows += len(rows)
            count.width = max(count.width, len(draft))
            self._go_on(member, draft)
        count.sessions = max(count.sessions, size)

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


CACHED = 300  # rows of each session
WARM = 3  # passes that are not timed


def pass_times(
    models: dict[str, Vlm], prompts: Sequence[Prompt], sizes: Sequence[int], gamma: int, trials: int
) -> list[Row]:
    """A row a number of sessions: ms of a pass that scores a draft of ``gamma`` tokens of each.

    ``cost`` is the share by which fixed passes are slower, the median over trials, in which every
    pass is timed once; ``cost_low`` and ``cost_high`` are quartiles. CPU time of the calling
    thread: give torch one thread.
    """
    opened = {name: _open_all(vlm, prompts, max(sizes)) for name, vlm in models.items()}
    seconds: dict[tuple[str, int], list[float]] = {}
    for trial in range(WARM + trials):
        for size in sizes:
            for name in models if trial % 2 else reversed(models):
                took = _time(models[name], opened[name][:size], gamma)
                if trial >= WARM:
                    seconds.setdefault((name, size), []).append(took)
    rows: list[Row] = []
    for size in sizes:
        free, fixed = (np.array(seconds[name, size]) for name in ("free", "fixed"))
        ratio = fixed / free - 1
        rows.append(
            {
                "sessions": size,
                "free_ms": float(np.median(free)) * 1e3,
                "fixed_ms": float(np.median(fixed)) * 1e3,
                "cost": float(np.median(ratio)),
                "cost_low": float(np.quantile(ratio, 0.25)),
                "cost_high": float(np.quantile(ratio, 0.75)),
            }
        )
    return rows


def _open_all(vlm: Vlm, prompts: Sequence[Prompt], count: int) -> list[Session]:
    sessions = [vlm.open(prompts[index % len(prompts)]) for index in range(count)]
    rows = CACHED - len(prompts[0].input_ids)
    for index, session in enumerate(sessions):
        session.extend([(index + at) % vlm.vocabulary for at in range(max(rows, 1))])
        session.forward(())
    return sessions


def _time(vlm: Vlm, sessions: Sequence[Session], gamma: int) -> float:
    """Seconds of one pass: a draft and the token before it, as in a decode's round."""
    for index, session in enumerate(sessions):
        session.truncate(session.length - 1)
        session.extend([index])
    requests = [PassRequest(session, range(1, gamma + 1)) for session in sessions]
    started = time.thread_time()
    vlm.forward_together(requests)
    return time.thread_time() - started


DTYPES = ("float32", "bfloat16")
SIZES = (1, 2, 4, 8, 16)  # sessions of a timed pass


OPTIONS: Options = {
    "--rows": {"type": int, "default": 1000, "help": "compared, of a kind (%(default)s)"},
    "--sessions": {"type": int, "default": 32, "help": "at most, in a pass (%(default)s)"},
    "--prompts": {"type": int, "default": 4, "help": "with pictures (%(default)s)"},
    "--gamma": {"type": int, "default": 4, "help": "timed drafts' length (%(default)s)"},
    "--trials": {"type": int, "default": 30, "help": "of each timed pass (%(default)s)"},
    "--target": {"default": str(EMBEDDED / "target")},
    "--threads": {"type": int, "default": 1, "help": "of torch (default %(default)s)"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """Two rows of bits for each dtype (fixed; and free, which must differ in float32), and a row of
    times for each number of sessions."""
    if min(args.rows, args.sessions, args.prompts, args.gamma) < 1 or args.trials < 0:
        raise UserError("--rows, --sessions, --prompts and --gamma must be at least 1")
    rows: list[Row] = []
    for dtype in DTYPES:
        models = {
            passes: load(args.target, dtype=dtype, threads=args.threads, passes=passes)
            for passes in ("fixed", "free")
        }
        for passes, vlm in models.items():
            count = compared(vlm, args.rows, args.sessions, args.prompts, args.seed)
            rows.append({"what": "bits", "dtype": dtype, "passes": passes, **count})
            if passes == "fixed":
                rows[-1]["passed"] = count["differ"] == 0
            elif dtype == "float32":  # else the comparison shows nothing
                rows[-1]["passed"] = count["differ"] > 0
        if args.trials:
            prompts = _prompts(models["free"], args.prompts, args.seed)
            times = pass_times(models, prompts, SIZES, args.gamma, args.trials)
            rows += [{"what": "time", "dtype": dtype, **each} for each in times]
    return rows


def compared(vlm: Vlm, rows: int, sessions: int, prompts: int, seed: int) -> Row:
    """Random passes of up to so many sessions, until at least ``rows`` rows are compared."""
    rng = np.random.default_rng(seed)
    known = [KnownRows(vlm, prompt, rng) for prompt in _prompts(vlm, prompts, seed)]
    company = Company(vlm, known, sessions, rng)
    while company.count.rows < rows:
        company.turn()
    count = company.count
    return {
        "rows": count.rows,
        "differ": count.differing,
        "sessions": count.sessions,
        "width": count.width,
    }


def _prompts(vlm: Vlm, count: int, seed: int) -> list[Prompt]:
    spec = vlm.spec(rules_text(), 128)
    return [vlm.prompt(request, spec) for request in sample_requests(seed, count)]
