"""Two models on pictures: how often the draft is right at each depth, and what each pass costs."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from ....decoding.cost_model import Costs
from ....edge.measures import Measures
from ....errors import UserError
from ....models.prompt import PromptSpec, Request
from ....models.session import Session
from ....models.vlm import Vlm

T = TypeVar("T")

DEPTH = 8  # tokens of the chains that are drafted
DRAFT_SIZES = (1, 2, 4, 8, 16)  # nodes of the draft model's passes that are timed
VERIFY_SIZES = (0, 1, 2, 4, 8, 16, 32)  # drafted tokens of the target's
REPEATS = 3  # of each size on a picture; the first one warms up


@dataclass
class PairMeasures:
    """Counts and times (s) of all pictures so far."""

    reached: list[int] = field(default_factory=lambda: [0] * DEPTH)
    accepted: list[int] = field(default_factory=lambda: [0] * DEPTH)
    wrong: int = 0  # first choices that were, and those whose second choice was right
    second: int = 0
    tokens: int = 0
    draft: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    verify: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    prefill: list[float] = field(default_factory=list)
    draft_prefill: list[float] = field(default_factory=list)
    draft_rows: list[int] = field(default_factory=list)  # of the draft model's prompts

    @property
    def by_depth(self) -> list[float | None]:
        """Share of the drafts' tokens that were the target's, where those before them were."""
        pairs = zip(self.accepted, self.reached, strict=True)
        return [round(a / r, 4) if r else None for a, r in pairs]

    @property
    def acceptance(self) -> float:
        """The same over all depths."""
        return sum(self.accepted) / max(1, sum(self.reached))

    def median(self, times: dict[int, list[float]], nodes: int) -> float:
        """Of passes over so many nodes, s."""
        return statistics.median(times[nodes])

    def costs(self, one_way: float) -> Costs:
        """As the cost model takes them; ``one_way`` of the link in s."""
        measures = Measures()
        for nodes in DRAFT_SIZES:
            measures.drafted(nodes, self.median(self.draft, nodes))
        for nodes in VERIFY_SIZES:
            measures.verified(nodes, self.median(self.verify, nodes), None)
        measured = measures.costs()
        return Costs(
            measured.draft,
            measured.verify,
            self.median(self.verify, 0),
            one_way,
            min(0.99, self.acceptance),
            self.second / self.wrong if self.wrong else 0.0,
        )


def opened(model: Vlm, spec: PromptSpec, request: Request) -> tuple[Session, float]:
    """A session after the prompt, and the seconds that the prompt took.

    Raises UserError where the model cannot take the request.
    """
    try:
        prompt = model.prompt(request, spec)
    except ValueError as error:
        raise UserError(f"{model.identity} cannot take the picture: {error}") from None
    return _timed(partial(model.open, prompt))


def measure(ours: Session, theirs: Session, spec: PromptSpec, into: PairMeasures) -> int:
    """Decode one request greedily with drafted chains, time passes; its answer's tokens.

    ours, theirs: the target's session and the draft model's, both after the prompt.
    """
    count = 0
    while count < spec.max_tokens:
        chain, second = _chain(theirs)
        logits = ours.forward(chain)
        likeliest = logits.argmax(axis=1).tolist()
        along = next((i for i, t in enumerate(chain) if t != likeliest[i]), len(chain))
        settled = [*chain[:along], likeliest[along]]
        end = next((i for i, token in enumerate(settled) if token in spec.end_ids), None)
        if end is not None:  # what was drafted after the end is not judged
            along, settled = min(along, end + 1), settled[: end + 1]
        judged = len(chain) if end is None else min(len(chain), end + 1)
        _count(into, along, judged, settled, second)
        ours.commit(range(min(along, len(settled))))
        ours.extend(settled[along:])
        theirs.truncate(theirs.length)
        theirs.extend(settled)
        count = min(count + len(settled), spec.max_tokens)
        if end is not None:
            break
    into.tokens += count
    _time_passes(ours, VERIFY_SIZES, into.verify)
    _time_passes(theirs, DRAFT_SIZES, into.draft)
    return count


def _chain(session: Session) -> tuple[list[int], list[int]]:
    """The draft model's likeliest tokens after its prefix, and the second likeliest beside them."""
    row = session.logits_after(-1)
    first, second = [], []
    for place in range(DEPTH):
        best = np.argsort(row)[-2:].tolist()
        first.append(best[1])
        second.append(best[0])
        if place < DEPTH - 1:
            row = session.grow([best[1]], [place - 1])[-1]
    return first, second


def _count(
    into: PairMeasures, along: int, judged: int, settled: Sequence[int], second: Sequence[int]
) -> None:
    for depth in range(min(along + 1, judged)):
        into.reached[depth] += 1
        into.accepted[depth] += depth < along
    if along < judged:
        into.wrong += 1
        into.second += settled[along] == second[along]


def _time_passes(session: Session, sizes: Sequence[int], into: dict[int, list[float]]) -> None:
    """Passes over chains after a last token that is not computed yet, as in a round.

    A pass of ``n`` nodes of the draft model has n rows; one of the target has the last token's,
    too: it is what the verdict before settled.
    """
    last, length = session.tokens[-1], session.length
    for size in sizes:
        nodes = [last] * size
        for repeat in range(REPEATS + 1):
            session.truncate(length - 1)
            session.extend([last])
            _, seconds = _timed(partial(session.forward, nodes))
            if repeat:
                into[size].append(seconds)


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    _synchronize()
    begun = time.perf_counter()
    result = work()
    _synchronize()
    return result, time.perf_counter() - begun


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def memory_mb() -> float:
    """Of this process (resident), or the most that the GPU held; MB."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return float(torch.cuda.max_memory_allocated() / 1e6)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / 1e6
