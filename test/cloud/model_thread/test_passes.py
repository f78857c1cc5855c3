"""Sessions share a pass: whose turn it is, the answers of each alone, and what a failure costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from helpers.cloud.worker_robot import OWN, POLICY, Costly, Robot, cloud, do_all, opening

from edge_cloud_spec.cloud.model_thread.sessions import WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.lab.bench.fleet import mixed
from edge_cloud_spec.lab.bench.fleet.mixed import ReplayedRobot, replay
from edge_cloud_spec.lab.bench.requests import sample_requests
from edge_cloud_spec.lab.harness.toy import ToyVlm, spec_of
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.exits import Adapter, Exits
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.share import rules_text
from edge_cloud_spec.wire.codec import decode_server, encode_client
from edge_cloud_spec.wire.messages import (
    Close,
    DraftMessage,
    Fault,
    Generate,
    Generation,
    Open,
    Opened,
    Prediction,
    Resume,
    Verdict,
)


def policies(count: int) -> list[tuple[str, SamplingPolicy]]:
    coupled = [("coupled", SamplingPolicy(0.8, seed=n)) for n in range(count)]
    return [each if n % 2 else ("greedy", GREEDY) for n, each in enumerate(coupled)]


def toy(batch: int, noise: float = 0.0) -> Worker:
    limits = WorkerLimits(sessions=9999, batch=batch, batch_rows=100)
    model: Any = ToyVlm(1, noise)
    return Worker(model, spec_of(14), None, limits)


def test_two_hundred_mixed_sessions_have_the_answers_of_each_alone() -> None:
    """Chains, trees and sessions that the cloud decodes itself, of any length."""
    openings = [
        replace(opening(n), instruction=f"find {n}", rule=rule, policy=policy, draft_identity="d")
        for n, (rule, policy) in enumerate(policies(200))
    ]
    alone = replay(toy(1), openings, [None] * 200, seed := 7)
    own = [None if n % 5 == 0 else tokens for n, (tokens, _) in enumerate(alone.answers)]
    together = replay(toy(32), openings, own, seed)
    assert together.answers == alone.answers
    assert {how for _, how in together.answers} <= {"end", "length"}
    assert together.rounds < alone.rounds
    other = replay(toy(32, noise=0.3), openings, own, seed)  # another target
    assert other.answers != alone.answers


class Failing(Costly):
    """A model that fails for prompts of some robots, or as a whole when it is asked to."""

    def __init__(self) -> None:
        super().__init__(1)
        self.sizes: list[int] = []
        self.full = 99  # sessions for which memory does not suffice
        self.short = 0  # passes for which it does not, next
        self.spoiled: Any = None  # whose rows are NaN

    def forward_together(self, requests: Any) -> Any:
        self.sizes.append(len(requests))
        self.short -= 1
        if len(requests) >= self.full or self.short >= 0:
            raise MemoryError("no memory for so many")
        results = super().forward_together(requests)
        for place, request in enumerate(requests):
            if request.session is self.spoiled:
                results[place] = np.full_like(results[place], np.nan)
        return results


def failing(**limits: Any) -> tuple[Failing, Worker]:
    model: Any = Failing()
    limit = WorkerLimits(**limits)
    return model, Worker(model, spec_of(60), ToyVlm(1, 0.5), limit, clock=lambda: model.now)  # type: ignore[arg-type]


def robots_at(worker: Worker, count: int) -> list[Robot]:
    return [Robot(worker).open(n) for n in range(count)]


def draft_together(robots: list[Robot], depth: int = 2) -> None:
    for robot in robots:
        robot.draft(depth)
    do_all(robots[0].worker)


def test_what_has_arrived_is_one_pass_and_nobody_is_waited_for() -> None:
    model, worker = failing()
    robots = robots_at(worker, 6)
    draft_together(robots[:4], 3)
    assert model.sizes == [4]
    assert all(robot.last(Verdict).path == (0, 1, 2) for robot in robots[:4])
    assert len({robot.last(Verdict).verify_s for robot in robots[:4]}) == 1


@pytest.mark.parametrize(
    ("limits", "full", "sizes", "waits"),
    [({}, 2, [3, 1, 1, 1], [0.0, 3.0, 6.0]), ({"batch": 1}, 99, [1, 1, 1], [0.0, 3.0, 6.0])],
    ids=["a pass that fails as a whole is run again", "batch 1"],
)
def test_one_by_one(
    limits: dict[str, int], full: int, sizes: list[int], waits: list[float]
) -> None:
    model, worker = failing(**limits)
    model.full = full
    robots = robots_at(worker, 3)
    draft_together(robots)
    assert model.sizes == sizes
    assert all(robot.count(Verdict) == 1 for robot in robots)
    # A pass takes a second and one for each row; one that fails takes no time here.
    assert sorted(robot.last(Verdict).queue_s for robot in robots) == pytest.approx(waits)


def test_a_session_without_memory_alone_ends_and_the_worker_goes_on() -> None:
    model, worker = failing()
    model.full = 1
    (robot,) = robots_at(worker, 1)
    assert robot.settle(2).code == "overloaded"
    model.full = 99
    assert isinstance(Robot(worker).open(5).settle(2), Verdict)


def test_a_pass_alone_that_is_short_of_memory_is_run_again_whenever_that_is() -> None:
    model, worker = failing()
    (robot,) = robots_at(worker, 1)
    for _ in range(3):
        model.short = 1
        assert isinstance(robot.settle(2), Verdict)
    model.short = 2  # but once
    assert robot.settle(2).code == "overloaded"


@pytest.mark.parametrize("broken", ["rows that are no numbers", "an exit that raises"])
def test_what_breaks_in_a_pass_costs_its_session_only(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, worker = failing()
    robots = robots_at(worker, 3)
    spoiled: Any = robots[1].stream.session

    def predictor(session: Any, *_: Any) -> Any:
        if session is spoiled:
            raise RuntimeError("a broken head")

    if broken == "an exit that raises":
        monkeypatch.setattr(worker._models, "predictor", predictor)
    else:
        model.spoiled = spoiled.target
    draft_together(robots)
    assert [robot.count(Verdict) for robot in robots] == [1, 0, 1]
    assert robots[1].count(Fault) == 1
    assert broken != "an exit that raises" or robots[1].last(Fault).code == "internal"


@pytest.mark.parametrize("how", ["leaves", "closes"])
def test_a_robot_that_goes_while_it_is_in_the_pass_disturbs_nobody(how: str) -> None:
    _, worker = failing()
    robots = robots_at(worker, 3)
    for robot in robots:
        robot.draft(2)
    worker.run_one()  # the pass
    if how == "leaves":
        robots[1].leave()
    else:
        robots[1].say(Close())
    do_all(worker)
    assert all(robots[n].count(Verdict) == 1 for n in (0, 2))
    assert worker.sessions == (3 if how == "leaves" else 2)
    robots[0].settle(2)
    assert robots[0].count(Verdict) == 2


def test_beside_sessions_that_the_cloud_decodes_prompts_are_read() -> None:
    model, worker = failing()
    robots = robots_at(worker, 3)
    for robot in robots:
        robot.say(Generate(robot.base))
    for _ in range(4):
        worker.run_one()
    new = Robot(worker)
    new.say(opening(9))
    passes = len(model.sizes)
    while new.stream.session is None or not new.stream.session.ready:
        worker.run_one()
    assert len(model.sizes) - passes <= 2
    do_all(worker)
    assert max(model.sizes) == 3
    assert all(robot.last(Verdict).finish for robot in robots)


def test_shuffled_robots_of_random_drafts_all_get_their_tokens() -> None:
    for seed in range(5):
        random = Random(seed)
        worker = cloud(batch=random.choice([2, 5, 32]), batch_rows=random.choice([4, 16, 64]))
        robots = robots_at(worker, 7)
        while any(robot.at < 40 for robot in robots):
            robot = random.choice([each for each in robots if each.at < 40])
            robot.draft(random.randint(1, 6))
            if random.random() < 0.5 and worker.pending:
                worker.run_one()
        do_all(worker)
        for robot in robots:
            drafts = [m for m in robot.heard if isinstance(m, Verdict)]
            settled = sum(len(m.path) + (m.token is not None) for m in drafts)
            assert settled >= 1
            assert not robot.count(Fault)
    assert POLICY.seed == 5
    assert len(OWN) > 40


def drafts(robot: Robot, random: Random) -> None:
    for _ in range(6):
        robot.draft(random.randint(1, 5))


def pushes(robot: Robot, random: Random) -> None:
    """The later ones come first: they wait in the pool, and the cloud may go straight on."""
    depths = [random.randint(1, 5) for _ in range(6)]
    places = [sum(depths[:n]) + n for n in range(6)]
    for place, depth in reversed(list(zip(places, depths, strict=True))):
        robot.at = place
        robot.draft(depth)


def generates(robot: Robot, random: Random) -> None:
    robot.say(Generate(robot.base, Generation(speculative=random.random() < 0.5)))


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("flood", [drafts, pushes, generates])
def test_beside_floods_a_draft_waits_for_one_turn_of_each(
    flood: Callable[[Robot, Random], None], seed: int, batch: int
) -> None:
    random = Random(seed)
    worker = cloud(batch=batch)
    floods = [Robot(worker).open(n, draft_identity="d", draft_length=9) for n in range(3)]
    robot = Robot(worker).open(9)
    for other in floods:
        flood(other, random)
    for _ in range(random.randrange(8)):
        if worker.pending:
            worker.run_one()
    for _ in range(3):
        before = [other.count(Verdict) for other in floods]
        verdicts = robot.count(Verdict)
        robot.draft(2)
        while robot.count(Verdict) == verdicts:
            worker.run_one()
        for other, count in zip(floods, before, strict=True):
            assert other.count(Verdict) - count <= 2  # one was under way
    do_all(worker)
    assert all(other.count(Verdict) > 5 for other in floods)


def test_who_asks_for_what_takes_long_gets_as_much_time_and_no_more() -> None:
    worker = cloud(batch=1)
    heavy, light = (Robot(worker).open(nonce, draft_identity="d") for nonce in range(2))
    for _ in range(3):
        heavy.draft(9)  # 11 seconds each, the others 3
    for _ in range(15):
        light.draft(1)
    while heavy.count(Verdict) < 3 and light.count(Verdict) < 15:
        worker.run_one()
    assert light.count(Verdict) >= 3 * (heavy.count(Verdict) - 1) > 0  # whose last is begun


def test_a_flood_of_new_streams_does_not_go_before_a_robot() -> None:
    worker = cloud(sessions=4)
    robot = Robot(worker).open(1)
    robot.draft(2)
    jobs = 0
    while not robot.count(Verdict):
        for _ in range(2):  # faster than they are served
            jobs += 1
            Robot(worker).say(opening(100 + jobs))
        worker.run_one()
        assert jobs < 20


def test_what_comes_while_a_verdict_is_said_waits_for_its_turn() -> None:
    """A stream that is never empty must not hold the worker in one turn."""
    worker = cloud()
    robot = Robot(worker).open(1, draft_identity="d")
    bad = encode_client(DraftMessage(robot.base.extend(OWN[:3]), Draft((1,) * 65), 0))
    again = 500

    def transport(data: bytes | None) -> None:
        nonlocal again
        if data and isinstance(decode_server(data), Fault) and again:
            again -= 1
            worker.receive(robot.stream, bad)

    robot.draft(2)
    worker.run_one()  # the pass
    robot.stream.send_bytes = transport
    for _ in range(3):
        robot.say(bad)
    worker.run_one()  # the verdict
    assert again == 500 - 3


def test_what_a_robot_that_has_left_still_wanted_is_not_computed() -> None:
    worker = cloud()
    robot = Robot(worker).open(1)
    robot.draft(2)
    robot.draft(2)
    robot.leave()
    new = Robot(worker)
    new.say(opening(2))
    new.leave()
    do_all(worker)
    assert worker.counters.judged == 0
    assert worker.counters.drafts == worker.counters.late == 2
    assert worker.sessions == 1


def test_a_close_is_heard_from_a_robot_that_has_left() -> None:
    worker = cloud()
    robot = Robot(worker).open(1)
    robot.draft(2)
    robot.say(Close())
    robot.leave()
    do_all(worker)
    assert worker.sessions == 0


def test_a_prompt_is_not_read_for_a_robot_that_has_left() -> None:
    worker = cloud()
    opened: list[object] = []
    model: Any = worker._models.target
    original = model.prefill
    model.prefill = lambda prompt: (opened.append(prompt), original(prompt))[1]
    robot = Robot(worker)
    robot.say(opening())
    worker.run_one()
    robot.leave()
    do_all(worker)
    assert (worker.sessions, len(opened)) == (1, 0)
    back = Robot(worker)
    session = robot.last(Opened)
    back.say(Resume(session.session, session.base))
    assert back.ask(DraftMessage(session.base, Draft(OWN[:2]), 0)).path == (0, 1)
    assert len(opened) == 1


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
