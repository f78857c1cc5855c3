"""Many scripted robots and one server, in virtual time: each robot on a link of its own.

Robots, worker and codec are the real ones, as in ``harness/virtual.py``; robots are green threads
on one timeline, of which one runs at a time. Beside them SpecEdge's baseline, which has both models
on the server (5, appendix C): all answers under way are one batch, ``depth`` passes of the draft
model over them, then one pass of the target. It has no link, since its robots only read; a robot
that pauses is not in the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

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
from ....errors import UserError
from ....models.draft_model import DraftModel
from ....models.prompt import Request
from ..regimes import Regime, ServerRegime
from ..scripted.model import ScriptedSession
from ..scripted.pair import (
    SPEC,
    BusyTime,
    CalibratedLanguage,
    ScriptedVlm,
    own_answer,
    request_of,
    scripted_worker,
)
from ..virtual import PATIENCE, ProfileImpairments, ScriptedRobot
from ..virtual_link import VirtualCloud, VirtualLink
from ..virtual_time import Timeline
from .load import FleetLoad, RobotActivity, RoundTime

try:
    from greenlet import getcurrent, greenlet
except ImportError:
    raise UserError(
        "robots in virtual time need greenlet; pip install 'edge-cloud-spec[bench]'"
    ) from None


class Pause:
    """A thread that waits; of those who would wake it the first does."""

    def __init__(self, thread: greenlet) -> None:
        self._thread: greenlet | None = thread

    def end(self) -> None:
        """Wake it, the first time; called where time passes."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.switch()


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
            self.timeline.step(float("inf"))

    def sleep(self, seconds: float) -> None:
        """Let this much time pass for the calling thread."""
        until = self.timeline.now + seconds
        if not self.timeline.skip(until):
            self.pause(until)
            self.wait()

    def pause(self, until: float | None = None) -> Pause:
        """A pause of the calling thread, begun by ``wait``; ``until``: its latest end, s."""
        pause = Pause(getcurrent())
        if until is not None:
            self.timeline.at(until, pause.end)
        return pause

    def wait(self) -> None:
        """Let others run until the calling thread's pause is ended."""
        self._main.switch()


class ThreadInbox(Inbox):
    """The queue of one virtual thread."""

    def __init__(self, threads: VirtualThreads) -> None:
        super().__init__()
        self._threads = threads
        self._pause: Pause | None = None

    def put(self, item: Item, block: bool = True, timeout: float | None = None) -> None:
        super().put(item)
        pause, self._pause = self._pause, None
        if pause is not None:
            self._threads.timeline.after(0.0, pause.end)

    def get(self, block: bool = True, timeout: float | None = None) -> Item:
        now = self._threads.timeline.now
        if block and self.empty():
            self._pause = self._threads.pause(None if timeout is None else now + timeout)
            self._threads.wait()
            self._pause = None
        return self.get_nowait()


class ServerOnly:
    """Decodes for all robots; ``run`` returns what each got."""

    def __init__(self, server: ServerRegime, robots: int, load: FleetLoad) -> None:
        self._server, self._load = server, load
        self._now = 0.0
        self._answers = [_Answer(server, load, number) for number in range(robots)]
        self.passes: list[tuple[float, int]] = []  # ms and drafted tokens, of the target's

    def run(self) -> list[RobotActivity]:
        """Until each robot has the answer that was under way at the end of the time."""
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
        self.passes.append((verify_ms, sum(drafted)))
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
        self._draft_model = _model(server.regime, server.server_only_alpha)
        self._target_model = _model(server.regime, 1.0)
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
        first = not position
        self.activity.rounds.append(RoundTime(now, seconds, emitted, first))
        if first:
            self._first = (now, emitted)
        if self._target.length >= self._load.tokens:
            self._finish(now)

    def _finish(self, now: float) -> None:
        load, activity = self._load, self.activity
        own = own_answer(load.answer_seed(self._robot, self._number), GREEDY, load.tokens)
        activity.answers += 1
        activity.wrong += self._target.tokens != own
        began, first = self._first
        if first < load.tokens:
            activity.spans.append((now - began, load.tokens - first))
        self._number += 1
        think = self._random.expovariate(1 / load.think_s) if load.think_s else 0.0
        self.begins = now + think
        self.ended = self.begins >= load.seconds
        self._begin()

    def _begin(self) -> None:
        request = request_of(self._load.answer_seed(self._robot, self._number))
        prompt = self._target_model.prompt(request, SPEC)
        self._target = ScriptedSession(
            self._target_model, self._target_model.language.start(prompt)
        )
        session = ScriptedSession(self._draft_model, self._draft_model.language.start(prompt))
        proposal = ProposalConfig("greedy", GREEDY, drawn=False)
        self._drafter = DraftModel(session, proposal)  # type: ignore[arg-type]


def _model(regime: Regime, alpha: float) -> ScriptedVlm:
    return ScriptedVlm(regime, lambda seconds: None, CalibratedLanguage(alpha, regime.runner_up))


def _session(model: ScriptedVlm, request: Request) -> ScriptedSession:
    return ScriptedSession(model, model.language.start(model.prompt(request, SPEC)))


class VirtualFleet:
    """Robots that decode under one preset; ``run`` lets them, and returns what they did."""

    def __init__(
        self,
        regime: Regime,
        robots: int,
        preset: Preset,
        load: FleetLoad,
        limits: WorkerLimits | None = None,
        make_worker: Callable[..., Worker] = scripted_worker,
    ) -> None:
        """make_worker: the server's; arguments as of ``scripted_worker``."""
        self._preset, self._load = preset, load
        self.timeline = timeline = Timeline()
        self._threads = VirtualThreads(timeline)
        limits = limits or WorkerLimits()
        limits = replace(limits, sessions=max(limits.sessions, 2 * robots))
        self.passes: list[tuple[float, int]] = []  # ms and drafted tokens, of the target's

        def worker(clock: Callable[[], float], sleep: Callable[[float], None]) -> Worker:
            self.cloud_busy = BusyTime(sleep)
            drafts = preset.drafter == "cloud"
            return make_worker(regime, clock, self.cloud_busy, limits, self._on_pass, drafts)

        cloud = VirtualCloud(timeline, worker)
        self.worker = cloud.worker
        self.robots = [self._robot(regime, cloud, number) for number in range(robots)]
        self.activities = [RobotActivity() for _ in self.robots]

    def run(self) -> list[RobotActivity]:
        """Until each robot has finished the answer under way at the end of the time."""
        for number, robot in enumerate(self.robots):
            self._threads.start(partial(self._decode, number, robot))
        self._threads.run()
        return self.activities

    def _robot(self, regime: Regime, cloud: VirtualCloud, number: int) -> ScriptedRobot:
        profile = self._load.link(regime, number)
        impairments = ProfileImpairments(profile, self._load.seed * 1_009 + number)
        link = VirtualLink(self.timeline, cloud, impairments)
        inbox: Any = partial(ThreadInbox, self._threads)
        sleep = self._threads.sleep
        return ScriptedRobot(
            regime, link.connect, lambda: self.timeline.now, sleep, PATIENCE, inbox
        )

    def _decode(self, number: int, robot: ScriptedRobot) -> None:
        load, random, activity = self._load, self._load.random(number), self.activities[number]
        answer = 0
        self._threads.sleep(random.random() * 0.2)  # not all at once
        while self.timeline.now < load.seconds:
            decoded = robot.decode(self._preset, load.tokens, load.answer_seed(number, answer))
            activity.add(decoded.outcome, decoded.own)
            answer += 1
            if load.think_s:
                self._threads.sleep(random.expovariate(1 / load.think_s))

    def _on_pass(self, kind: str, ms: float, drafted: int) -> None:
        if kind == "verify":
            self.passes.append((ms, drafted))
