"""Decodes with the history of a mission over gRPC: the target's answers, each frame sent once."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
from helpers.checkpoints import checkpoint, jpeg, own_tokens
from helpers.cloud.grpc_cloud import Cloud

from edge_cloud_spec.cloud.model_thread.sessions import WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.runner import DecodeRunner, DecodeSettings, Outcome
from edge_cloud_spec.history import HistorySpec, Turn
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import PromptSpec, Request
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.pilot.pilot import MissionMemory
from edge_cloud_spec.presets import load_preset

TOKENS = 12
DECISIONS = 7


@cache
def model(seed: int) -> Vlm:
    return load(checkpoint("qwen3_vl", seed), threads=1)


def spec_of(frames: int, choose: str = "conversation") -> PromptSpec:
    spec = model(1).spec("You guide a robot.", TOKENS)
    return replace(spec, history=HistorySpec(frames, choose))


def verifier(frames: int, choose: str = "conversation", history_mb: float = 8.0) -> Worker:
    return Worker(model(1), spec_of(frames, choose), limits=WorkerLimits(history_mb=history_mb))


@dataclass
class Robot:
    """A robot's runner, and the memory of its mission."""

    runner: DecodeRunner
    client: VerifierClient
    policy: SamplingPolicy
    rule: str
    memory: MissionMemory = field(default_factory=MissionMemory)
    request: Any = None  # the last one

    def decide(self, number: int, preset: str) -> Outcome:
        """One decision on a new frame; it is remembered."""
        mission = ("goal", self.runner.history)
        frame = jpeg(100 + number)
        self.request = Request("find the door", frame, history=self.memory.turns(mission))
        settings = DecodeSettings(load_preset(preset), self.rule, self.policy, reply_timeout=100.0)
        nonce = secrets.randbits(64)
        outcome = self.runner.run(self.request, settings, nonce, self.client.connect)
        assert outcome.completed, outcome.text
        answer = model(1).tokenizer.decode(outcome.tokens, skip_special_tokens=True)
        self.memory.add(("goal", self.runner.history), frame, answer)
        return outcome


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def robot_at(
    stack: ExitStack, worker: Worker, policy: SamplingPolicy = GREEDY, rule: str = "greedy"
) -> Robot:
    model(2).use_memory(KvMemory())
    cloud = stack.enter_context(Cloud(worker))
    client = stack.enter_context(closing(VerifierClient(ClientSettings(cloud.address))))
    return Robot(DecodeRunner(model(2), model(2).spec("", TOKENS)), client, policy, rule)


def expected(robot: Robot, spec: PromptSpec) -> tuple[int, ...]:
    """The target's own answer to the robot's last request, by a model that keeps nothing."""
    target, memory = model(1), model(1).memory
    target.use_memory(KvMemory())
    own = own_tokens(target, robot.request, spec, robot.policy)
    target.use_memory(memory)
    return own


@pytest.mark.parametrize(
    ("preset", "rule"),
    [
        ("cloud_ar", "greedy"),
        ("dsd", "coupled"),
        ("picospec", "greedy"),
        ("fsd", "coupled"),
        ("auto", "greedy"),
        ("auto", "coupled"),
    ],
)
def test_answers_are_the_targets_own_with_every_history(
    preset: str, rule: str, stack: ExitStack
) -> None:
    """Over the frames of a conversation, and where it begins anew."""
    policy = GREEDY if rule == "greedy" else SamplingPolicy(0.7, seed=3)
    robot = robot_at(stack, verifier(4), policy=policy, rule=rule)
    held = []
    for number in range(DECISIONS):
        outcome = robot.decide(number, preset)
        assert outcome.tokens == expected(robot, spec_of(4))
        held.append(len(robot.request.history))
    assert held == [0, 1, 2, 3, 4, 1, 2]


def test_a_frame_goes_up_once_and_its_tokens_are_read_once(stack: ExitStack) -> None:
    worker = verifier(8)
    robot = robot_at(stack, worker)
    bytes_up, rows = [], []
    for number in range(6):
        before = worker.kv_memory.prefix_rows
        outcome = robot.decide(number, "cloud_ar")
        bytes_up.append(outcome.stats.up_bytes - len(jpeg(100 + number)))
        prompt = model(1).prompt(robot.request, spec_of(8))
        rows.append(len(prompt.input_ids) - (worker.kv_memory.prefix_rows - before))
    assert (
        max(bytes_up[1:]) - bytes_up[0] <= 40
    )  # the names of the specification and the conversation
    assert max(rows[1:]) <= rows[0]  # which has the system's text and the instruction as well


def test_where_the_end_of_an_answer_was_lost_its_turn_is_named(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verifier does not know which answer the robot goes on after, but it has the frames."""
    worker = verifier(8)
    monkeypatch.setattr(worker.histories, "answered", lambda *_: None)
    robot = robot_at(stack, worker)
    for number in range(4):
        outcome = robot.decide(number, "dsd")
        assert outcome.tokens == expected(robot, spec_of(8))
        # It asks once, and the picture of this decision is sent with both requests.
        assert outcome.stats.up_bytes < 2 * len(jpeg(100 + number)) + 1500


@pytest.mark.parametrize("choose", ["conversation", "last", "uniform"])
def test_a_verifier_that_lacks_a_frame_asks_and_nothing_changes(
    choose: str, stack: ExitStack
) -> None:
    """It keeps too little; the robot then goes to one that has seen nothing, and back."""
    spec = spec_of(4, choose)
    workers = [verifier(4, choose, history_mb=0.004), verifier(4, choose), verifier(4, choose)]
    robots = [robot_at(stack, worker) for worker in workers]
    robot = robots[0]
    for number in range(DECISIONS + 2):
        robot.client = robots[(number // 3) % 3].client
        outcome = robot.decide(number, ["dsd", "cloud_ar", "auto"][number % 3])
        assert outcome.tokens == expected(robot, spec)


def test_prompts_without_history_take_no_frames_from_robots(stack: ExitStack) -> None:
    worker = verifier(0)
    robot = robot_at(stack, worker)
    for number in range(3):
        outcome = robot.decide(number, "dsd")
        assert not robot.request.history
        assert outcome.tokens == expected(robot, spec_of(0))
    assert worker.histories.size == 0


def test_a_robot_that_remembers_more_than_the_prompt_holds_is_answered_all_the_same(
    stack: ExitStack,
) -> None:
    """The verifier was started again with another history in its prompts."""
    first, second = robot_at(stack, verifier(8)), robot_at(stack, verifier(2))
    for number in range(4):
        first.decide(number, "dsd")
    first.client = second.client
    outcome = first.decide(4, "dsd")
    assert outcome.tokens == expected(first, spec_of(2))
    assert first.runner.history == HistorySpec(2)


def test_a_lie_about_a_frame_is_refused_in_words(stack: ExitStack) -> None:
    robot = robot_at(stack, verifier(4))
    forged = replace(Turn.of(jpeg(1), "stop"), jpeg=jpeg(2))
    request = Request("find the door", jpeg(3), history=(forged,))
    settings = DecodeSettings(load_preset("cloud_ar"), reply_timeout=100.0)
    outcome = robot.runner.run(request, settings, 1, robot.client.connect)
    assert outcome.reason == "bad_request" and "digest" in outcome.text
