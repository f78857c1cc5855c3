"""Many scripted robots and one server, in virtual time: each robot on a link of its own.

Robots, worker and codec are the real ones, as in ``harness/virtual.py``; robots are green threads
on one timeline, of which one runs at a time. Beside them SpecEdge's baseline, which has both models
on the server (5, appendix C): all answers under way are one batch, ``depth`` passes of the draft
model over them, then one pass of the target. It has no link, since its robots only read; a robot
that pauses is not in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

from ....cloud.model_thread.sessions import WorkerLimits
from ....cloud.model_thread.worker import Worker
from ....decoding.accept import accept
from ....decoding.policy import GREEDY
from ....decoding.preset import Preset
from ....decoding.propose import ProposalConfig
from ....decoding.random_source import SeededRandomSource
from ....decoding.shape import BestFirst, Branch
from ....decoding.target_rows import LogitRows
from ....edge.events import Inbox, Item
from ....models.draft_model import DraftModel
from ..regimes import Regime, ServerRegime
from ..scripted.model import SPEC, CalibratedVlm, own_answer, request_of, scripted_worker
from ..virtual import ScriptedRobot
from ..virtual_time import ProfileImpairments, Timeline, VirtualCloud, VirtualLink
from .load import FleetLoad, RobotActivity, RoundTime


class VirtualThreads:
    """Green threads whose waiting lets time pass; what one raises ends ``run``."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._main = getcurrent()
        self._running = 0

    def start(self, job: Callable[[], None]) -> None:
        """Begin this job when time passes."""

        def run() -> None:
            job()
            self._running -= 1

        self._running += 1
        self.timeline.after(0.0, greenlet(run, self._main).switch)

    def run(self) -> None:
        """Let time pass until all jobs have ended; raises Hung."""
        while self._running:
            self.timeline.step(math.inf)

    def sleep(self, seconds: float) -> None:
        """Let this much time pass for the calling thread."""
        until = self.timeline.now + seconds
        if not self.timeline.skip(until):
            self.pause(until)
            self.wait()

    def pause(self, until: float = math.inf) -> Callable[[], None]:
        """A pause of the calling thread, begun by ``wait``, until then or until this is called."""
        waiting = [getcurrent()]

        def end() -> None:
            if waiting:
                waiting.pop().switch()

        if until < math.inf:
            self.timeline.at(until, end)
        return end

    def wait(self) -> None:
        """Let others run until the calling thread's pause is ended."""
        self._main.switch()


class ThreadInbox(Inbox):
    """The queue of one virtual thread."""

    def __init__(self, threads: VirtualThreads) -> None:
        super().__init__()
        self._threads = threads
        self._end_pause: Callable[[], None] | None = None

    def put(self, item: Item, block: bool = True, timeout: float | None = None) -> None:
        super().put(item)
        end, self._end_pause = self._end_pause, None
        if end is not None:
            self._threads.timeline.after(0.0, end)

    def get(self, block: bool = True, timeout: float | None = None) -> Item:
        if block and self.empty():
            until = math.inf if timeout is None else self._threads.timeline.now + timeout
            self._end_pause = self._threads.pause(until)
            self._threads.wait()
            self._end_pause = None
        return self.get_nowait()


class ServerOnly:
    """Decodes for all robots; ``run`` returns what each got."""

    def __init__(self, server: ServerRegime, robots: int, load: FleetLoad) -> None:
        self._server, self._load = server, load
        self._now = 0.0
        self._answers = [_Answer(server, load, number) for number in range(robots)]

    def run(self) -> list[RobotActivity]:
        """Run until each robot has the answer that was under way at the end of the time."""
        while busy := [answer for answer in self._answers if not answer.ended]:
            batch = [answer for answer in busy if answer.begins <= self._now]
            if batch:
                self._cycle(batch)
            else:
                self._now = min(answer.begins for answer in busy)
        return [answer.activity for answer in self._answers]

    def _cycle(self, batch: list[_Answer]) -> None:
        server, regime = self._server, self._server.regime
        drafted = [answer.draft() for answer in batch]
        verify_ms = regime.batch_pass_ms(drafted)
        # A batch's drafts are taken to cost no more than one's: the baseline at its best.
        drafting_ms = server.server_only_depth * regime.draft_pass_ms(server.width)
        seconds = (drafting_ms + verify_ms) / 1e3
        self._now += seconds
        for answer in batch:
            answer.verify(self._now, seconds)


class _Answer:
    """A robot's answer under way, and the ones after it."""

    def __init__(self, server: ServerRegime, load: FleetLoad, robot: int) -> None:
        self._shape = BestFirst(server.nodes, server.server_only_depth, server.width)
        self._load, self._robot = load, robot
        self._random: Random = load.random(robot)
        self._draft_model = CalibratedVlm(server.server_only_alpha, server.regime.runner_up)
        self._target_model = CalibratedVlm()
        self._number = 0
        self.activity = RobotActivity()
        self.begins = self._random.random() * 0.2
        self.ended = False
        self._begin()

    def draft(self) -> int:
        """Draft a tree; returns how many tokens it has."""
        self._draft = self._drafter.finished(Branch(self._target.tokens, self._shape)).draft
        return len(self._draft)

    def verify(self, now: float, seconds: float) -> None:
        """The pass over the draft ended at ``now``; its cycle took so many seconds."""
        position, draft = self._target.length, self._draft
        logits = self._target.score(draft.tokens, draft.parents)
        taken = accept("greedy", draft, LogitRows(logits), GREEDY, position, SeededRandomSource(0))
        assert taken.token is not None
        room = self._load.tokens - position
        path = taken.path[:room]
        self._target.commit(path)
        self._target.extend((taken.token,) if len(path) < room else ())
        emitted = self._target.length - position
        self._rounds.append(RoundTime(now, seconds, emitted, not position))
        self.activity.rounds.append(self._rounds[-1])
        if self._target.length >= self._load.tokens:
            self._finish(now)

    def _finish(self, now: float) -> None:
        load, activity = self._load, self.activity
        own = own_answer(load.answer_seed(self._robot, self._number), GREEDY, load.tokens)
        activity.finish(self._rounds)
        activity.wrong += self._target.tokens != own
        self._number += 1
        self.begins = now + load.pause(self._random)
        self.ended = self.begins >= load.seconds
        self._begin()

    def _begin(self) -> None:
        self._rounds: list[RoundTime] = []
        request = request_of(self._load.answer_seed(self._robot, self._number))
        prompt = self._target_model.prompt(request, SPEC)
        self._target = self._target_model.session(prompt)
        session: Any = self._draft_model.session(prompt)
        proposal = ProposalConfig("greedy", GREEDY, drawn=False)
        self._drafter = DraftModel(session, proposal)


class VirtualFleet:
    """Robots that decode under one preset; ``run`` lets them, and returns what they did."""

    def __init__(
        self,
        regime: Regime,
        robots: int,
        preset: Preset,
        load: FleetLoad,
        limits: WorkerLimits | None = None,
    ) -> None:
        self._regime, self._robots, self._preset, self._load = regime, robots, preset, load
        self._timeline = Timeline()
        self._threads = VirtualThreads(self._timeline)
        limits = limits or WorkerLimits()
        limits = replace(limits, sessions=max(limits.sessions, 2 * robots))
        drafts = preset.drafter == "cloud"
        make_worker = partial(scripted_worker, regime, limits=limits, drafts=drafts)
        self._cloud = VirtualCloud(self._timeline, make_worker)

    @property
    def worker(self) -> Worker:
        """The server's."""
        return self._cloud.worker

    def run(self) -> list[RobotActivity]:
        """Run until each robot has finished the answer under way at the end of the time."""
        activities = [RobotActivity() for _ in range(self._robots)]
        for number, activity in enumerate(activities):
            self._threads.start(partial(self._decode, number, activity))
        self._threads.run()
        return activities

    def _decode(self, number: int, activity: RobotActivity) -> None:
        load, threads, timeline = self._load, self._threads, self._timeline
        link, random = load.link(self._regime, number), load.random(number)
        impairments = ProfileImpairments(link, load.seed * 1_009 + number)
        robot = ScriptedRobot(
            self._regime,
            VirtualLink(timeline, self._cloud, impairments).connect,
            lambda: timeline.now,
            threads.sleep,
            inbox=partial(ThreadInbox, threads),
        )
        answer = 0
        threads.sleep(random.random() * 0.2)  # not all at once
        while timeline.now < load.seconds:
            decoded = robot.decode(self._preset, load.tokens, load.answer_seed(number, answer))
            activity.add(decoded.outcome, decoded.own)
            answer += 1
            if load.think_s:
                threads.sleep(load.pause(random))
