"""Both models on the server: SpecEdge's baseline (5, appendix C), in virtual time.

All answers under way are one batch: ``depth`` passes of the draft model over them, then one pass of
the target. No link, since its robots only read; a robot that pauses is not in the batch.
"""

from __future__ import annotations

from random import Random

from ....decoding.accept import accept
from ....decoding.policy import GREEDY
from ....decoding.propose import ProposalConfig
from ....decoding.random_source import SeededRandomSource
from ....decoding.shape import BestFirst, Branch
from ....decoding.target_rows import LogitRows
from ....models.draft_model import DraftModel
from ....models.prompt import Request
from ..regimes import Regime, ServerRegime
from ..scripted.language import CalibratedLanguage
from ..scripted.model import ScriptedSession
from ..scripted.pair import SPEC, ScriptedVlm, own_answer, request_of
from .activity import RobotActivity, RoundTime
from .load import FleetLoad


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
