"""One pass of a scripted model over several sessions, whose time is taken once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Logits = np.ndarray  # float32 [1 + n, V], of one session
AtExit = Callable[[], None]  # lets the sessions' ``on_layer`` see the pass


@dataclass(frozen=True)
class PassSize:
    """What a pass computes: rows of all sessions, and how many of them each session drafted."""

    rows: int
    drafted: tuple[int, ...]


def scripted_pass(
    requests: Sequence[Any], run_pass: Callable[[PassSize, AtExit | None], None]
) -> list[Logits | Exception]:
    """See ``Vlm.forward_together``; the requests are ``PassRequest`` of scripted sessions.

    ``run_pass`` takes the time of a pass, and calls what it is given where an exit looks on.
    """
    results: list[Logits | Exception] = []
    rows, drafted, due = 0, [], []
    seen: set[int] = set()
    for request in requests:
        session = request.session
        size = session.rows_due(request.tokens, request.parents)
        try:
            if id(session) in seen:
                raise ValueError("this session is in this pass already")
            seen.add(id(session))
            results.append(session.score(request.tokens, request.parents))
        except ValueError as error:
            results.append(error)
            continue
        if size:
            rows += size
            drafted.append(len(request.tokens))
            due.append(len(results) - 1)
    looking = [place for place in due if requests[place].on_layer is not None]

    def at_exit() -> None:
        for place in looking:
            try:
                requests[place].on_layer(results[place])
            except Exception as error:
                requests[place].session.drop_nodes()
                results[place] = error

    if due:
        run_pass(PassSize(rows, tuple(drafted)), at_exit if looking else None)
    return results
