"""What fixed passes cost: seconds of the same passes, free and fixed, in turns."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from ....models.prompt import Prompt
from ....models.session import PassRequest, Session
from ....models.vlm import Vlm
from ..command import Row

CACHED = 300  # rows of each session
WARM = 3  # passes that are not timed


def pass_times(
    models: dict[str, Vlm], prompts: Sequence[Prompt], sizes: Sequence[int], gamma: int, trials: int
) -> list[Row]:
    """A row a number of sessions: ms of a pass that scores a draft of ``gamma`` tokens of each.

    ``speedup`` is that over as many passes alone, ``cost`` the share by which fixed passes are
    slower, each the median over trials, in which every pass is timed once; ``cost_low`` and
    ``cost_high`` are quartiles. CPU time of the calling thread: give torch one thread.
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
        alone = {name: np.array(seconds[name, sizes[0]]) / sizes[0] for name in models}
        rows.append(
            {
                "sessions": size,
                "free_ms": float(np.median(free)) * 1e3,
                "fixed_ms": float(np.median(fixed)) * 1e3,
                "free_speedup": float(np.median(size * alone["free"] / free)),
                "fixed_speedup": float(np.median(size * alone["fixed"] / fixed)),
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
