"""Whether fixed passes give a row the same bits alone and in company, at a published shape."""

from __future__ import annotations

import numpy as np

from ....models.passes.target_rows import on_host
from ....models.session import PassRequest, forward_together
from ..command import Row
from .random_target import RandomTarget

NODES = 4  # of each draft


def compared_bits(target: RandomTarget, robots: int, prompt: int) -> Row:
    """Each row alone, the last of a shorter draft, beside all rows in one pass."""
    sessions = [target.session(prompt, seed) for seed in range(robots)]
    tokens = list(range(1, NODES + 1))
    vocabulary = target.shape.vocabulary
    alone = [[each.forward(tokens[: n + 1])[-1] for n in range(NODES)] for each in sessions]
    requests = [PassRequest(each, tokens) for each in sessions]
    differ = 0
    for expected, rows in zip(
        alone, forward_together(target.transformer, vocabulary, requests), strict=True
    ):
        if isinstance(rows, Exception):
            raise rows
        together = on_host(rows)[1:]
        differ += sum(not np.array_equal(*pair) for pair in zip(expected, together, strict=True))
    return {"what": "bits", "robots": robots, "rows": robots * NODES, "differ": differ}
