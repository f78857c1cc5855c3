"""SpecEdge's baseline, a server with both models (5, appendix C), in virtual time.

All current answers are one batch: ``depth`` passes of the draft model over them, then one pass of
the target. There is no link, since robots only receive; a robot that pauses is not in the batch.
"""

from __future__ import annotations

from typing import Any

from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.decoding.shape import BestFirst

from ...harness.cost_profiles import ServerCostProfile
from ...harness.fleet.load import FleetLoad, RobotActivity, RoundTime
from ...harness.scripted.model import SCRIPTED_SPEC, CalibratedVlm, own_answer, request_of
from ..decodes import local_rounds


def run_server_only(server: ServerCostProfile, robots: int, load: FleetLoad) -> list[RobotActivity]:
    """Decode for all robots, until each has the answer that was in progress at the end of the
    time."""
    cost_profile = server.cost_profile
    # A batch's drafts are taken to cost no more than one's: the baseline at its best.
    drafting_ms = server.server_only_depth * cost_profile.draft_pass_ms(server.width)
    answers = [_Answer(server, load, number) for number in range(robots)]
    now = 0.0
    while busy := [answer for answer in answers if not answer.ended]:
        now = max(now, min(answer.begins for answer in busy))
        batch = [answer for answer in busy if answer.begins <= now]
        verify_ms = cost_profile.batch_pass_ms([answer.draft() for answer in batch])
        seconds = (drafting_ms + verify_ms) / 1e3
        now += seconds
        for answer in batch:
            answer.verify(now, seconds)
    return [answer.activity for answer in answers]


class _Answer:
    """A robot's current answer, and the ones after it."""

    def __init__(self, server: ServerCostProfile, load: FleetLoad, robot: int) -> None:
        self._shape = BestFirst(server.nodes, server.server_only_depth, server.width)
        self._load, self._robot, self._random = load, robot, load.random(robot)
        self._draft_model = CalibratedVlm(server.server_only_alpha, server.cost_profile.runner_up)
        self._target_model = CalibratedVlm()
        self._number, self._emitted = 0, tuple[int, ...]()
        self.activity = RobotActivity()
        self.begins = self._random.random() * 0.2
        self.ended = False
        self._begin()

    def draft(self) -> int:
        """Draft a tree, which is verified at once; returns how many tokens it has."""
        self._round = next(self._local)
        return len(self._round.draft)

    def verify(self, now: float, seconds: float) -> None:
        """Record that the pass over the draft ended at ``now``, after a cycle of ``seconds``."""
        position = len(self._emitted)
        self._emitted = (self._emitted + self._round.emitted)[: self._load.tokens]
        emitted = len(self._emitted) - position
        self._rounds.append(RoundTime(now, seconds, emitted, not position))
        self.activity.rounds.append(self._rounds[-1])
        if len(self._emitted) == self._load.tokens:
            self._finish(now)

    def _finish(self, now: float) -> None:
        load, activity = self._load, self.activity
        own = own_answer(load.answer_seed(self._robot, self._number), GREEDY, load.tokens)
        activity.finish(self._rounds)
        activity.wrong += self._emitted != own
        self._number += 1
        self.begins = now + load.pause(self._random)
        self.ended = self.begins >= load.seconds
        self._begin()

    def _begin(self) -> None:
        self._rounds: list[RoundTime] = []
        self._emitted = ()
        request = request_of(self._load.answer_seed(self._robot, self._number))
        prompt = self._target_model.prompt(request, SCRIPTED_SPEC)
        target: Any = self._target_model.session(prompt)
        drafter: Any = self._draft_model.session(prompt)
        self._local = local_rounds(target, drafter, SCRIPTED_SPEC, "greedy", GREEDY, self._shape)
