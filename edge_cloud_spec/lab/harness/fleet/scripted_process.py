"""Scripted passes in real time: the server's worker and a robot's answers, in their processes."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from ....cloud.model_thread.sessions import WorkerLimits
from ....cloud.model_thread.worker import Worker
from ....decoding.policy import GREEDY
from ....models.prompt import Request
from ..real import PunctualSleep
from ..regimes import Regime
from ..scripted.pair import SPEC, DraftVlm, own_answer, request_of, scripted_worker
from .load import FleetLoad


def sleeping_worker(regime: Regime, limits: WorkerLimits) -> Worker:
    """A worker whose passes sleep as long as the regime's take."""
    import_module("edge_cloud_spec.models.session")  # torch: not in the first pass
    return scripted_worker(regime, time.perf_counter, PunctualSleep(), limits, drafts=True)


class ScriptedAnswers:
    """One robot's draft model, which sleeps, and its requests; see ``Answers``."""

    def __init__(self, regime: Regime, load: FleetLoad, robot: int) -> None:
        self.spec = SPEC
        self._load, self._robot = load, robot
        self.draft_model: Any = DraftVlm(regime, PunctualSleep())

    def next(self, number: int) -> tuple[Request, tuple[int, ...]]:
        """See ``Answers``."""
        seed, tokens = self._load.answer_seed(self._robot, number), self._load.tokens
        return request_of(seed), own_answer(seed, GREEDY, tokens)
