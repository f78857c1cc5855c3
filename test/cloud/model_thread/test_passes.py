"""Sessions share a pass, and read their prompts in chunks before it and again once evicted."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
from helpers.bounded_toy import SESSION_BYTES, BoundedToy
from helpers.checkpoints import own_tokens
from helpers.cloud.replaying_robot import ReplayingRobot
from helpers.cloud.served_answers import opening_of
from helpers.cloud.worker_robot import OWN, Costly, Robot, cloud, do_all, opening
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.cloud.model_thread.engine import NO_MEMORY_RETRY_S
from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.cloud.model_thread.sessions import HeldSession
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.exits import Adapter, Exits
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.load import load
from edge_cloud_spec.nav.answer import ORDERS, action_of
from edge_cloud_spec.wire.frames import ServerFrame
from edge_cloud_spec.wire.messages import (
    Close,
    DraftMessage,
    Fault,
    Generate,
    Generation,
    Opened,
    Resume,
    Verdict,
)
from edge_cloud_spec_lab.bench.requests import sample_questions, sample_requests
from edge_cloud_spec_lab.harness.scripted.model import ScriptedPrefill
from edge_cloud_spec_lab.harness.toy import ToyVlm, spec_of

COUPLED = ("coupled", SamplingPolicy(0.8, seed=5))
ROOM = 3  # sessions that there is memory for


class Failing(Costly):
    """A model that has no memory for some passes."""

    def __init__(self) -> None:
        super().__init__(1)
        self.sizes: list[int] = []
        self.full = 99  # sessions for which memory does not suffice
        self.short = 0  # passes for which it does not, next

    def forward_together(self, requests: Any) -> Any:
        self.sizes.append(len(requests))
        self.short -= 1
        if len(requests) >= self.full or self.short >= 0:
            raise MemoryError("no memory for so many")
        return super().forward_together(requests)


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


@pytest.mark.parametrize(
    ("limits", "full", "sizes", "waits"),
    [
        ({}, 99, [3], [0.0, 0.0, 0.0]),
        ({}, 2, [3, 1, 1, 1], [0.0, 3.0, 6.0]),
        ({"batch": 1}, 99, [1, 1, 1], [0.0, 3.0, 6.0]),
    ],
    ids=[
        "what has arrived is one pass and nobody is waited for",
        "a pass that fails as a whole is run again, one by one",
        "batch 1",
    ],
)
def test_sessions_share_a_pass(
    limits: dict[str, int], full: int, sizes: list[int], waits: list[float]
) -> None:
    model, worker = failing(**limits)
    model.full = full
    robots = robots_at(worker, 5)[:3]
    draft_together(robots)
    assert model.sizes == sizes
    assert [robot.last(Verdict).path for robot in robots] == [(0, 1)] * 3
    # A pass takes a second and one for each row; one that fails takes no time here.
    assert sorted(robot.last(Verdict).queue_s for robot in robots) == pytest.approx(waits)


def test_a_session_alone_without_memory_has_another_pass_and_then_ends_and_the_worker_goes_on() -> (
    None
):
    model, worker = failing()
    (robot,) = robots_at(worker, 1)
    for _ in range(3):
        model.short = 1
        assert isinstance(robot.settle(2), Verdict)
    model.short = 2  # it is run again but once
    fault = robot.settle(2)
    assert (fault.code, fault.retry_after_s) == ("overloaded", NO_MEMORY_RETRY_S)
    assert isinstance(Robot(worker).open(5).settle(2), Verdict)


def test_what_breaks_in_a_pass_costs_its_session_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a head of an exit does; what breaks at a verdict stands below."""
    _, worker = failing()
    robots = robots_at(worker, 3)

    def predictor(session: Any, *_: Any) -> None:
        if session is robots[1].stream.session:
            raise RuntimeError("a broken head")

    monkeypatch.setattr(worker._models, "predictor", predictor)
    draft_together(robots)
    assert [robot.count(Verdict) for robot in robots] == [1, 0, 1]
    assert robots[1].last(Fault).code == "internal"


def test_beside_sessions_that_the_cloud_decodes_prompts_are_read() -> None:
    model, worker = failing()
    robots = robots_at(worker, 3)
    for robot in robots:
        robot.say(Generate(robot.base))
    for _ in range(4):
        worker.run_one()
    new, passes = Robot(worker), len(model.sizes)
    new.say(opening(9))
    while new.stream.session is None or not new.stream.session.target.ready:
        worker.run_one()
    assert len(model.sizes) - passes <= 2
    do_all(worker)
    assert max(model.sizes) == 3
    assert all(robot.last(Verdict).finish for robot in robots)


def drafts(robot: Robot, random: Random) -> None:
    for _ in range(6):
        robot.draft(random.randint(1, 5))


def pushes(robot: Robot, random: Random) -> None:
    """The later ones come first: they wait in the pool, and the cloud may go straight on."""
    depths = [random.randint(1, 5) for _ in range(6)]
    for number, depth in reversed(list(enumerate(depths))):
        robot.at = sum(depths[:number]) + number
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
    for _ in range(random.randrange(4)):
        worker.run_one()
    for verdicts in range(3):
        before = [other.count(Verdict) for other in floods]
        robot.draft(2)
        while robot.count(Verdict) == verdicts:
            worker.run_one()
        came = [other.count(Verdict) - n for other, n in zip(floods, before, strict=True)]
        assert max(came) <= 2  # one was under way
    do_all(worker)
    assert all(other.count(Verdict) > 5 for other in floods)


def test_a_draft_that_came_during_a_pass_is_heard_before_its_verdict_is_said() -> None:
    worker = cloud()
    robot = Robot(worker).open(1, draft_identity="d")
    robot.draft(2)
    worker.run_one()  # the pass
    robot.draft(2)
    robot.say(Resume("another one", robot.base))  # waits its turn
    do_all(worker)
    assert [type(message) for message in robot.heard[1:]] == [Verdict, Verdict, Fault]
    assert [robot.heard[n].base for n in (1, 2)] == [robot.base, robot.base.extend(OWN[:3])]
    assert worker.counters.verified == 2


def test_a_session_that_asks_for_a_drafter_that_is_not_there_goes_on() -> None:
    model: Any = Costly(1)
    robot = Robot(Worker(model, spec_of(60))).open(1)
    assert "--drafter" in robot.ask(Generate(robot.base, Generation(speculative=True))).text
    assert isinstance(robot.settle(1), Verdict)


def test_what_comes_while_a_verdict_is_said_waits_for_its_turn() -> None:
    """A stream that is never empty must not hold the worker in one turn."""
    worker = cloud()
    robot = Robot(worker).open(1, draft_identity="d")
    bad = DraftMessage(robot.base.extend(OWN[:3]), Draft((1,) * 65), 0)
    answered: list[Fault] = []

    def transport(frame: ServerFrame) -> None:
        if frame.fault is not None and len(answered) < 500:
            answered.append(frame.fault)
            robot.say(bad)

    robot.draft(2)
    worker.run_one()  # the pass
    robot.stream.send_frame = transport  # type: ignore[assignment]
    for _ in range(3):
        robot.say(bad)
    worker.run_one()  # the verdict
    assert len(answered) == 3


def test_what_a_robot_that_has_left_still_wanted_is_not_computed_but_its_close_is_heard() -> None:
    worker = cloud()
    robot, closing = (Robot(worker).open(nonce) for nonce in range(2))
    new = Robot(worker)
    new.say(opening(2))
    for _ in range(2):
        robot.draft(2)
    closing.say(Close())
    for gone in (robot, closing, new):
        gone.leave()
    do_all(worker)
    assert worker.counters.verified == 0
    assert worker.counters.drafts == worker.counters.late == 2
    assert len(worker.held) == 1


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_prompt_is_not_read_on_for_a_robot_that_has_left_and_holds_no_memory(
    is_begun: bool,
) -> None:
    """Else it is held until the session is forgotten, and those that wait for some wait on."""
    target, worker = long_prompts()
    robot = Robot(worker)
    robot.say(opening())
    while robot.stream.session is None or (is_begun and not target.now):  # half of it
        worker.run_one()
    session, before = robot.stream.session, target.now
    assert session.target.holds == is_begun
    robot.leave()
    do_all(worker)
    assert (len(worker.held), session.target.holds, session.target.ready) == (1, False, False)
    assert target.now == before
    back = Robot(worker)
    back.base = robot.last(Opened).base
    back.say(Resume(session.name, back.base))
    assert back.settle(2).path == (0, 1), "it is read anew"


@pytest.mark.parametrize("generates", [False, True])
def test_a_session_whose_cache_cannot_follow_its_verdict_is_given_up(
    generates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is ahead of its cache: what it said next would be another answer's."""
    first, spoiled, last = robots = robots_at(cloud(), 3)
    session: Any = spoiled.stream.session
    commit = Mock(side_effect=MemoryError("no memory to move rows"))
    monkeypatch.setattr(session.target, "commit", commit)
    if generates:
        spoiled.say(Generate(spoiled.base))
    draft_together([first, last] if generates else robots)
    assert spoiled.last(Fault).code == "overloaded"
    assert len(spoiled.worker.held) == 2
    heard = spoiled.count(Verdict)
    spoiled.at = 3
    spoiled.draft(2)
    spoiled.say(Resume(session.name, spoiled.base.extend(OWN[:3])))
    draft_together([first, last])
    assert spoiled.last(Fault).code == "unknown_session"
    assert [robot.count(Verdict) for robot in robots] == [2, heard, 2]


class LongPrompts(Costly):
    """Its prompts are read in two steps, a second for each row."""

    def prefill(self, prompt: Any) -> Any:
        return ScriptedPrefill(lambda: self.session(prompt), 8, self._read)

    def _read(self, share: float) -> None:
        self.now += 8 * share


def long_prompts() -> tuple[Any, Worker]:
    target: Any = LongPrompts(1)
    return target, Worker(target, spec_of(60), None, WorkerLimits(batch_rows=4), lambda: target.now)


@pytest.mark.parametrize(
    ("verified", "is_read", "costs"),
    [
        (0, False, (4 + 3, 1.0 + 1 + 3)),  # half of the prompt, and the draft
        (0, True, (1.0 + 3, 1.0 + 1 + 3)),
        (2, False, (4 + 1.0 + 2 + 3, 1.0 + 1 + 3)),
    ],
    ids=[
        "the first verdict costs no pass and the next one does",
        "a draft that arrives later has a pass",
        "an answer that another verifier began is read first",
    ],
)
def test_a_draft_that_waits_for_its_prompt(
    verified: int, is_read: bool, costs: tuple[float, float]
) -> None:
    target, worker = long_prompts()
    robot = Robot(worker)
    robot.say(opening(verified=OWN[:verified]))
    while not target.now:  # half of it
        worker.run_one()
    if is_read:
        do_all(worker)
    robot.base, robot.at = robot.last(Opened).base, verified
    for number, cost in enumerate(costs):
        before = target.now
        robot.settle(3)
        assert (robot.count(Verdict), robot.last(Verdict).path) == (number + 1, (0, 1, 2))
        assert target.now - before == cost
    # Nothing is learned of passes that were none.
    own_passes = 2 if is_read or verified else 1
    assert worker._scheduler.estimator.passes == own_passes


def toy_cloud(room: float, **limits: int) -> Worker:
    """A worker with memory for so many sessions."""
    kept = WorkerLimits(kv_mb=room * SESSION_BYTES / 2**20, **limits)
    return Worker(BoundedToy(1), spec_of(60), ToyVlm(1, 0.5), kept)  # type: ignore[arg-type]


def toy_robots(worker: Worker, count: int, seed: int = 0) -> list[ReplayingRobot]:
    """Some let the cloud generate."""
    return [
        ReplayingRobot(
            worker,
            opening(nonce, draft_identity="toy"),
            OWN,
            Random(f"{seed} {nonce}"),
            generates=nonce % 4 == 3,
        )
        for nonce in range(count)
    ]


@settings(max_examples=6)
@given(data=st.data(), room=st.integers(1, 3), rows=st.sampled_from([16, 100, 256]))
def test_whoever_vanishes_or_comes_back_the_others_end_as_if_they_were_alone(
    data: st.DataObject, room: int, rows: int
) -> None:
    worker = toy_cloud(room, batch_rows=rows, batch=data.draw(st.integers(1, 8)))
    robots = toy_robots(worker, 12, data.draw(st.integers(0, 99)))
    for _ in range(data.draw(st.integers(0, 60))):
        if not worker.pending:
            break
        worker.run_one()
        if data.draw(st.integers(0, 3)) == 0:
            robot = robots[data.draw(st.integers(0, 11))]
            if not robot.finished:
                data.draw(st.sampled_from([robot.lose_the_link, robot.vanish, robot.close]))()
    do_all(worker)
    for robot in robots:
        assert robot.finished == "gone" or tuple(robot.tokens) == OWN
        assert not robot.faults
    assert worker.kv_memory.peak <= room * SESSION_BYTES


def test_a_prompt_that_never_fits_is_refused_at_once() -> None:
    worker = toy_cloud(0.5)
    (robot,) = toy_robots(worker, 1)
    do_all(worker)
    (fault,) = robot.faults
    assert (fault.code, fault.retry_after_s, len(worker.held)) == ("overloaded", 0, 0)
    assert "--kv-memory" in fault.text


def test_who_waits_for_room_gets_it_from_those_that_never_stop() -> None:
    """Pushed drafts follow one another at once: without a rule such a session would stay."""
    worker = toy_cloud(1)
    robots = toy_robots(worker, 4)
    while worker.pending:
        worker.run_one()
        begun = [len(robot.tokens) for robot in robots]
        assert max(begun) <= 45 or min(begun) > 0, "one is nearly done, another has not begun"
    assert [tuple(robot.tokens) for robot in robots] == [OWN] * 4


def test_the_first_verdict_of_the_first_decode_has_the_action_without_a_pass_of_its_own() -> None:
    target = load(EMBEDDED / "target", threads=1)
    spec = target.spec(48)
    effects = {}
    for n, question in enumerate(sample_questions(3, 2)):
        request = replace(question, order=ORDERS[0]).request
        for lookup in (True, False):
            robot = Robot(Worker(target, spec))  # to which nobody has said anything yet
            asked = replace(opening_of(request), lookup=lookup)
            robot.say(replace(asked, generation=Generation()))
            while not robot.count(Verdict):
                robot.worker.run_one()
            verdict = robot.last(Verdict)
            said = target.tokenizer.decode([*verdict.tokens, verdict.token])
            assert (str(action_of(said)) != "None") == lookup
            assert (verdict.drafted > 0) == lookup
            effects[n, lookup] = said
    assert len({effects[n, True] for n in range(2)}) > 1  # there are some to choose from
    assert all(effects[n, True].startswith(effects[n, False]) for n in range(2))


class ShortMemory:
    """A device without memory for the logits of a pass, after its exits predicted: for several
    sessions together, and once for each alone."""

    def __init__(self, worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failed: set[HeldSession] = set()
        self._batch: list[HeldSession] = []
        models, transformer = worker._models, worker._models.target.transformer
        forward, logits = models.forward, transformer.logits

        def in_pass(batch: list[HeldSession], on_predicted: Any) -> Any:
            self._batch = batch
            try:
                return forward(batch, on_predicted)
            finally:
                self._batch = []

        def failing(*given: Any) -> Any:
            if set(self._batch) <= self.failed:
                return logits(*given)
            if len(self._batch) == 1:
                self.failed |= set(self._batch)
            raise MemoryError("no memory for the logits")

        monkeypatch.setattr(models, "forward", in_pass)
        monkeypatch.setattr(transformer, "logits", failing)


def test_sessions_that_share_passes_and_are_evicted_say_what_each_says_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The embedded target with room for three of ten, and exits that are wrong. Each is evicted
    after a prediction as well: its robot has drafted on from that by then."""
    target, alone = (load(EMBEDDED / "target", threads=1) for _ in range(2))
    spec, memory, ticks = target.spec(24), KvMemory(), itertools.count()
    alone.use_memory(memory)
    exits = Exits(target, {2: Adapter(target.transformer.hidden_size, 4)}, range(spec.vocabulary))
    requests, rules = sample_requests(0, 10), itertools.cycle([("greedy", GREEDY), COUPLED])
    asked = list(zip(requests, rules, strict=False))
    own_tokens(alone, requests[0], spec, GREEDY)
    limits = WorkerLimits(batch_rows=64, kv_mb=ROOM * memory.peak / 2**20)
    own = [own_tokens(alone, request, spec, policy) for request, (_, policy) in asked]
    worker = Worker(target, spec, None, limits, lambda: next(ticks) / 1e3, exits)
    short = ShortMemory(worker, monkeypatch)
    robots = [
        ReplayingRobot(
            worker,
            replace(opening_of(request, *rule), draft_identity="replayed", predictions=True),
            answer,
            Random(nonce),
            generates=nonce == 6,
        )
        for nonce, ((request, rule), answer) in enumerate(zip(asked, own, strict=True))
    ]
    do_all(worker)
    assert [tuple(robot.tokens) for robot in robots] == own
    assert len(short.failed) == len(robots)
    assert worker.kv_memory.evictions > 2 * len(robots) and worker.kv_memory.restored_rows > 0
    assert worker._scheduler.estimator.passes < worker.counters.verdicts, "no pass was shared"
    judged = [(robot, verdict) for robot in robots[:6] for verdict in robot.verdicts]
    drafts = [robot.sent[verdict.base] for robot, verdict in judged]
    assert {draft.parents is None for draft in drafts} == {True, False}
    assert any(verdict.base in robot.pushed for robot, verdict in judged)
    right = {verdict.base: (verdict.path, verdict.token) for _, verdict in judged}
    predicted = [message for robot in robots[:6] for message in robot.predictions]
    assert len({message.base for message in predicted}) < len(predicted), "none again"
    assert any((message.path, message.token) != right[message.base] for message in predicted)
