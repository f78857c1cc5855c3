"""Small random models over gRPC: answers are the target's own, in its grammar, dialect, history."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from helpers.checkpoints import checkpoint, jpeg, own_tokens
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.grpc_robot import POLICIES, settings

from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.runner import DecodeRunner, Outcome
from edge_cloud_spec.history import HistorySpec, Turn
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import ORDERS, PromptSpec, Request
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.pilot.pilot import MissionMemory
from edge_cloud_spec.presets import load_preset, preset_names

VERIFIED = [name for name in preset_names() if load_preset(name).verified]
NAMES = ("navila", "uni_navid", "internvla_n1")
DECISIONS = 7


@cache
def model(name: str) -> Vlm:
    """The target, the same to be asked by itself (alone), and the draft models of both sides."""
    return load(checkpoint("qwen3_vl", 1 if name in ("target", "alone") else 2), threads=1)


class Robot:
    """A robot at a verifier of its own, and the memory of its mission."""

    def __init__(self, stack: ExitStack, worker: Worker, spec: PromptSpec) -> None:
        model("drafter").use_memory(KvMemory())
        cloud = stack.enter_context(Cloud(worker))
        self.client = stack.enter_context(closing(VerifierClient(ClientSettings(cloud.address))))
        self.worker, self.runner = worker, DecodeRunner(model("drafter"), spec)
        self.memory = MissionMemory()

    def decode(
        self,
        preset: str,
        rule: str = "greedy",
        grammar: str = "",
        order: str = ORDERS[0],
        number: int = 0,
        **others: Any,
    ) -> Outcome:
        """One decision on a frame of this number; it is remembered."""
        mission, frame = ("goal", self.runner.history), jpeg(100 + number)
        self.request = Request("find the door", frame, order, history=self.memory.turns(mission))
        self.policy = replace(POLICIES[rule], grammar=grammar)
        chosen = replace(settings(preset, rule), policy=self.policy)
        nonce = secrets.randbits(64)
        outcome = self.runner.run(self.request, chosen, nonce, self.client.connect, **others)
        self.text = model("alone").tokenizer.decode(outcome.tokens, skip_special_tokens=True)
        self.memory.add(("goal", self.runner.history), frame, self.text)
        return outcome

    def own(self, spec: PromptSpec) -> tuple[int, ...]:
        """The target's own answer to the last request, by a model that keeps nothing."""
        model("alone").use_memory(KvMemory())
        return own_tokens(model("alone"), self.request, spec, self.policy)


# Grammars and dialects


def spec_in(name: str) -> PromptSpec:
    dialect = load_dialect(name)
    return model("target").spec(dialect.system_text, 80, dialect.user_text, dialect.identity)


@pytest.fixture(scope="module")
def pair() -> Iterator[Callable[[str, str], Robot]]:
    """A robot in the second dialect at a verifier in the first; the same one for all tests."""
    with ExitStack() as stack:

        def made(there: str, here: str) -> Robot:
            models = model("target"), spec_in(there), model("drafter in the cloud")
            worker = Worker(*models, dialect=load_dialect(there))
            return Robot(stack, worker, spec_in(here))

        yield cache(made)


@pytest.mark.parametrize(
    ("name", "order", "preset", "rule", "own"),
    [
        *(("clauses", ORDERS[0], preset, "greedy", True) for preset in VERIFIED),
        *(("clauses", ORDERS[1], preset, "coupled", True) for preset in VERIFIED),
        *((name, ORDERS[0], each, "greedy", True) for name in NAMES for each in ("dsd", "auto")),
        *((name, ORDERS[1], "cloud_ar", "coupled", True) for name in NAMES),
        *(
            ("clauses", ORDERS[1], preset, "rejection", False)
            for preset in ("dsd", "dssd", "mc_dsd", "cloud_sd")
        ),
        *((name, ORDERS[1], "edge_only", "greedy", False) for name in ("clauses", *NAMES)),
    ],
)
def test_every_answer_is_an_action_and_the_targets_own(
    pair: Any, name: str, order: str, preset: str, rule: str, own: bool
) -> None:
    """Of models that know nothing; ``own``: it is verified, and not sampled with other noise."""
    robot, dialect = pair(name, name), load_dialect(name)
    outcome = robot.decode(preset, rule, dialect.grammar("action", order), order)
    assert outcome.completed, outcome.text
    assert dialect.action_of(robot.text, ended=outcome.reason == "end") is not None
    assert not own or outcome.tokens == robot.own(spec_in(name))


def test_without_the_grammar_it_is_none(pair: Any) -> None:
    """The negative control."""
    for name in ("clauses", *NAMES):
        robot = pair(name, name)
        outcome = robot.decode("dsd")
        assert load_dialect(name).action_of(robot.text, ended=outcome.reason == "end") is None


@pytest.mark.parametrize("name", NAMES)
def test_a_verifier_knows_the_answers_of_its_dialect_before_it_has_said_any(
    pair: Any, name: str
) -> None:
    models = pair(name, name).worker._models
    beginnings = models.actions()
    assert len(beginnings) == len(load_dialect(name).answers)
    assert {each[-1] for each in beginnings} == {models.spec.end_ids[0]}


def test_forced_tokens_need_no_pass(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the target nor of the draft model."""
    robot, passes = pair("clauses", "clauses"), list[int]()  # by their nodes
    monkeypatch.setattr(robot.runner, "on_pass", lambda *of: passes.append(of[2]))
    text = 'start: "action: " ("stop" | "search") "; reason: none;"'
    for preset in ("cloud_ar", "dsd"):
        outcome = robot.decode(preset, grammar=text)
        assert robot.text in ("action: stop; reason: none;", "action: search; reason: none;")
        assert len(outcome.stats.rounds) < len(outcome.tokens) / 2
    assert 0 in passes and any(passes)


@pytest.mark.parametrize("preset", ["cloud_ar", "dsd"])
@pytest.mark.parametrize("text", ["start: @@@", "start: nothing"])
def test_a_text_that_is_no_grammar_ends_the_decode_and_nothing_else(
    pair: Any, text: str, preset: str
) -> None:
    robot, action = pair("clauses", "clauses"), load_dialect("clauses").grammar("action", ORDERS[0])
    outcome = robot.decode(preset, grammar=text)
    assert (outcome.reason, outcome.tokens) == ("bad_request", ())
    assert "the grammar 'start: " in outcome.text
    assert robot.decode(preset, grammar=action).completed


@pytest.mark.parametrize(
    ("there", "here", "preset"),
    [
        ("navila", "clauses", "cloud_ar"),
        ("clauses", "navila", "dsd"),
        ("navila", "uni_navid", "auto"),
        ("clauses", "navila", "fsd"),
    ],
)
def test_a_robot_of_another_dialect_says_what_to_do_and_decides_nothing(
    pair: Any, there: str, here: str, preset: str
) -> None:
    said: list[object] = []
    for _ in range(2):  # it is not remembered as good
        outcome = pair(there, here).decode(preset, on_emit=said.append)
        assert not outcome.completed and not outcome.tokens and not said
        assert f"answers in the dialect {there}" in outcome.text, outcome.text
        assert f"this robot reads {here}" in outcome.text and "\n" not in outcome.text
        assert "serve --dialect" in outcome.text and "dialect:=" in outcome.text


def test_a_file_of_one_name_with_another_table_is_another_dialect(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    robot, ours, good = pair("navila", "navila"), load_dialect("navila"), spec_in("navila")
    other = replace(ours, actions=ours.actions[:-1])
    assert ours.name == other.name
    named = replace(ours, name="mine")  # another name is another's matter
    for dialect, completes in ((named, True), (other, False)):
        own = replace(good, dialect=dialect.identity)
        monkeypatch.setattr(robot, "runner", DecodeRunner(model("drafter"), own))
        outcome = robot.decode("dsd")
        assert outcome.completed == completes
        assert (dialect.identity in outcome.text) != completes


def test_a_prompt_is_in_the_words_of_its_dialect_and_ours_is_as_it_was() -> None:
    target = model("target")
    ours = target.spec("Guide.", 40)
    assert "user_text" not in ours.to_bytes().decode() and "dialect" not in ours.to_bytes().decode()

    def asked(spec: PromptSpec) -> str:
        spec = PromptSpec.from_bytes(spec.to_bytes())
        ids = target.prompt(Request("find the {order} {image} door", jpeg(1)), spec).input_ids
        return str(target.tokenizer.decode(ids)).replace("<|image_pad|>", "")

    assert "Guide." in asked(ours) and "find the {order} {image} door\naction first" in asked(ours)
    image = "<|vision_start|><|vision_end|>"
    before, after = asked(spec_in("internvla_n1")).split(image)
    assert "Task: find the {order} {image} door Say" in before and after.startswith(".")
    before, after = asked(spec_in("navila")).split(image)
    assert "door" in after and "Task" not in before and "action first" not in before + after


@pytest.mark.parametrize(
    "change", [{"user_text": "go"}, {"user_text": ["{instruction}"]}, {"dialect": 3}]
)
def test_a_form_without_the_instruction_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        replace(spec_in("navila"), **change)


# The history of a mission


def spec_of(frames: int, choose: str = "conversation") -> PromptSpec:
    spec = model("target").spec("You guide a robot.", 12)
    return replace(spec, history=HistorySpec(frames, choose))


@pytest.fixture
def robot_of() -> Iterator[Callable[..., Robot]]:
    """A robot whose verifier's prompts have this history."""
    with ExitStack() as stack:

        def made(spec: PromptSpec, history_mb: float = 8.0) -> Robot:
            limits = WorkerLimits(history_mb=history_mb)
            worker = Worker(model("target"), spec, limits=limits)
            return Robot(stack, worker, model("drafter").spec("", 12))

        yield made


@pytest.mark.parametrize(
    ("preset", "rule", "frames"),
    [
        ("cloud_ar", "greedy", 4),
        ("dsd", "coupled", 4),
        ("picospec", "greedy", 4),
        ("fsd", "coupled", 4),
        ("auto", "greedy", 4),
        ("auto", "coupled", 4),
        ("dsd", "greedy", 0),
    ],
)
def test_answers_are_the_targets_own_with_every_history(
    preset: str, rule: str, frames: int, robot_of: Any
) -> None:
    """Over the frames of a conversation, where it begins anew, and where no frame is remembered."""
    robot = robot_of(spec_of(frames))
    held = []
    for number in range(DECISIONS):
        outcome = robot.decode(preset, rule, number=number)
        assert outcome.completed and outcome.tokens == robot.own(spec_of(frames))
        held.append(len(robot.request.history))
    assert held == ([0, 1, 2, 3, 4, 1, 2] if frames else [0] * DECISIONS)
    assert bool(robot.worker.histories.size) == bool(frames)


def test_a_frame_goes_up_once_and_its_tokens_are_read_once(robot_of: Any) -> None:
    robot = robot_of(spec_of(8))
    bytes_up, rows = [], []
    for number in range(6):
        before = robot.worker.kv_memory.prefix_rows
        outcome = robot.decode("cloud_ar", number=number)
        bytes_up.append(outcome.stats.up_bytes - len(jpeg(100 + number)))
        prompt = model("target").prompt(robot.request, spec_of(8))
        rows.append(len(prompt.input_ids) - (robot.worker.kv_memory.prefix_rows - before))
    assert (
        max(bytes_up[1:]) - bytes_up[0] <= 40
    )  # the names of the specification and the conversation
    assert max(rows[1:]) <= rows[0]  # which has the system's text and the instruction as well


def test_where_the_end_of_an_answer_was_lost_its_turn_is_named(
    robot_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verifier does not know which answer the robot goes on after, but it has the frames."""
    robot = robot_of(spec_of(8))
    monkeypatch.setattr(robot.worker.histories, "answered", lambda *_: None)
    for number in range(4):
        outcome = robot.decode("dsd", number=number)
        assert outcome.tokens == robot.own(spec_of(8))
        # It asks once, and the picture of this decision is sent with both requests.
        assert outcome.stats.up_bytes < 2 * len(jpeg(100 + number)) + 1500


@pytest.mark.parametrize("choose", ["conversation", "last", "uniform"])
def test_a_verifier_that_lacks_a_frame_asks_and_nothing_changes(choose: str, robot_of: Any) -> None:
    """It keeps too little; the robot then goes to one that has seen nothing, and back."""
    spec = spec_of(4, choose)
    robots = [robot_of(spec, history_mb) for history_mb in (0.004, 8.0, 8.0)]
    robot, clients = robots[0], [each.client for each in robots]
    for number in range(DECISIONS + 2):
        robot.client = clients[(number // 3) % 3]
        outcome = robot.decode(["dsd", "cloud_ar", "auto"][number % 3], number=number)
        assert outcome.tokens == robot.own(spec)


def test_a_robot_that_remembers_more_than_the_prompt_holds_is_answered_all_the_same(
    robot_of: Any,
) -> None:
    """The verifier was started again with another history in its prompts."""
    robot = robot_of(spec_of(8))
    for number in range(4):
        robot.decode("dsd", number=number)
    robot.client = robot_of(spec_of(2)).client
    assert robot.decode("dsd", number=4).tokens == robot.own(spec_of(2))
    assert robot.runner.history == HistorySpec(2)


def test_a_lie_about_a_frame_is_refused_in_words(
    robot_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    robot = robot_of(spec_of(4))
    forged = replace(Turn.of(jpeg(1), "stop"), jpeg=jpeg(2))
    monkeypatch.setattr(robot.memory, "turns", lambda mission: (forged,))
    outcome = robot.decode("cloud_ar")
    assert outcome.reason == "bad_request" and "digest" in outcome.text
