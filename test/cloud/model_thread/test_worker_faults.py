"""What fails between a pass and its verdict costs one session, and never leaves it half settled."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from helpers.cloud.worker_robot import OWN, Robot, cloud, do_all

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.lab.bench.fleet import mixed
from edge_cloud_spec.lab.bench.fleet.mixed import ReplayedRobot, replay
from edge_cloud_spec.lab.bench.requests import sample_requests
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.exits import Adapter, Exits
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.share import rules_text
from edge_cloud_spec.wire.codec import decode_server
from edge_cloud_spec.wire.messages import (
    Fault,
    Generate,
    Open,
    Prediction,
    Resume,
    Verdict,
)


@pytest.mark.parametrize("generates", [False, True])
def test_a_session_whose_cache_cannot_follow_its_verdict_is_given_up(
    generates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is ahead of its cache: what it said next would be another answer's."""
    worker = cloud()
    robots = [Robot(worker).open(n) for n in range(3)]
    spoiled = robots[1].stream.session
    assert spoiled is not None

    def commit(path: Any) -> None:
        raise MemoryError("no memory to move rows")

    monkeypatch.setattr(spoiled.target, "commit", commit)
    for robot in robots:
        if generates and robot is robots[1]:
            robot.say(Generate(robot.base))
        else:
            robot.draft(2)
    do_all(worker)
    assert robots[1].last(Fault).code == "overloaded"
    assert worker.sessions == 2
    heard = robots[1].count(Verdict)
    robots[1].at = 3
    robots[1].draft(2)
    robots[1].say(Resume(spoiled.verification.session, robots[1].base.extend(OWN[:3])))
    for robot in (robots[0], robots[2]):
        robot.draft(2)
    do_all(worker)
    assert robots[1].last(Fault).code == "unknown_session"
    assert robots[1].count(Verdict) == heard
    assert [robots[n].count(Verdict) for n in (0, 2)] == [2, 2]


class ShortMemory:
    """A device without memory for a pass's logits, after its exits predicted: once for each of so
    many sessions alone, and for those together."""

    def __init__(self, target: Vlm, sessions: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.predicted: list[Prediction] = []
        self.failed: set[PrefixDigest] = set()
        self._seen = 0
        logits = target.transformer.logits

        def failing(*args: Any) -> Any:
            bases = {message.base for message in self.predicted[self._seen :]}
            self._seen = len(self.predicted)
            if len(self.failed) < sessions and not bases <= self.failed:
                if len(bases) == 1:
                    self.failed |= bases
                raise MemoryError("no memory for the logits")
            return logits(*args)

        monkeypatch.setattr(target.transformer, "logits", failing)


@pytest.mark.parametrize("robots", [1, 2])
def test_a_session_that_is_evicted_after_its_prediction_has_the_verdict_of_one_that_was_not(
    robots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Robots have drafted on from the prediction by then, and it was wrong."""
    target = load(EMBEDDED / "target", threads=1)
    spec = target.spec(rules_text(), 8)
    target.crop(spec.vocabulary)
    untrained = Exits(
        target, {2: Adapter(target.transformer.hidden_size, 4)}, range(spec.vocabulary)
    )
    openings = [
        Open(
            n,
            request.instruction,
            request.jpeg,
            request.order,
            GREEDY,
            "greedy",
            tokenizer_digest=target.tokenizer_digest,
            draft_identity="replayed",
            predictions=True,
        )
        for n, request in enumerate(sample_requests(0, robots))
    ]
    alone = replay(Worker(target, spec), openings, [None] * robots, 0).answers
    monkeypatch.setattr(mixed, "PUSHED", 1.0)
    short = ShortMemory(target, robots, monkeypatch)
    hear = ReplayedRobot._hear

    def heard(robot: ReplayedRobot, data: bytes | None) -> None:
        before = robot.predictions
        hear(robot, data)
        if robot.predictions > before:
            message = decode_server(data or b"")
            assert isinstance(message, Prediction)
            short.predicted.append(message)

    monkeypatch.setattr(ReplayedRobot, "_hear", heard)
    worker = Worker(target, spec, exits=untrained)
    at_work = [
        ReplayedRobot(worker, opening, tokens, Random(n))
        for n, (opening, (tokens, _)) in enumerate(zip(openings, alone, strict=True))
    ]
    mixed._run(worker, at_work, Random(0))
    assert [(tuple(robot.tokens), robot.finish) for robot in at_work] == list(alone)
    assert len(short.failed) == robots
    assert worker.kv_memory.prefix_hits >= robots, "none was filled again"
    bases = [message.base for message in short.predicted]
    assert len(set(bases)) < len(bases), "nothing was predicted again after the eviction"
    verdicts = {verdict.base: verdict for robot in at_work for verdict in robot.verdicts}
    assert any(
        (m.path, m.token) != (verdicts[m.base].path, verdicts[m.base].token)
        for m in short.predicted
    )
    assert worker.counters.unused > 0, "no draft was pushed after a wrong prediction"
