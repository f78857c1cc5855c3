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
from helpers.requests import ANY_FORM, shown, user

from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.edge import runner as runner_module
from edge_cloud_spec.edge.client import VerifierClient
from edge_cloud_spec.edge.events import Abort, Inbox
from edge_cloud_spec.edge.link.route import ClientSettings
from edge_cloud_spec.edge.runner import DecodeRunner, Outcome
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import PromptSpec
from edge_cloud_spec.models.session import Prefill
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.nav.answer import ORDERS, Dialect
from edge_cloud_spec.nav.history import NO_HISTORY, HistorySpec
from edge_cloud_spec.pilot.memory import MissionMemory
from edge_cloud_spec.presets import load_preset, preset_names
from edge_cloud_spec.request import Request
from edge_cloud_spec.share import rules_text
from edge_cloud_spec.wire.messages import Open

VERIFIED = [name for name in preset_names() if load_preset(name).verified]
NAMES = ("navila", "uni_navid", "internvla_n1")
DECISIONS = 7


@cache
def model(name: str) -> Vlm:
    """The target, the same to be asked by itself (alone), and the draft models of both sides."""
    directory = checkpoint("qwen3_vl", 1 if name in ("target", "alone") else 2)
    return load(directory, threads=1, check=False)


class Robot:
    """A robot at a verifier of its own, and the memory of its mission."""

    def __init__(self, stack: ExitStack, worker: Worker, dialect: Dialect) -> None:
        model("drafter").use_memory(KvMemory())
        cloud = stack.enter_context(Cloud(worker))
        self.client = stack.enter_context(closing(VerifierClient(ClientSettings(cloud.address))))
        self.worker, self.dialect = worker, dialect
        self.runner = DecodeRunner(model("drafter"), model("drafter").spec(80))
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
        history, frame = self.dialect.history, jpeg(100 + number)
        self.turns = self.memory.turns("goal", history)
        self.request = self.dialect.request("find the door", frame, order, self.turns)
        outcome = self.ask(preset, rule, grammar, **others)
        self.text = model("alone").tokenizer.decode(outcome.tokens, skip_special_tokens=True)
        self.memory.add("goal", history, frame, self.text)
        return outcome

    def ask(self, preset: str, rule: str = "greedy", grammar: str = "", **others: Any) -> Outcome:
        """Decode the request."""
        self.policy = replace(POLICIES[rule], grammar=grammar)
        chosen = replace(settings(preset, rule), policy=self.policy)
        nonce = secrets.randbits(64)
        return self.runner.run(self.request, chosen, nonce, self.client.connect, **others)

    def own(self, spec: PromptSpec) -> tuple[int, ...]:
        """The target's own answer to the last request."""
        return target_alone(self.request, spec, self.policy)


@cache
def target_alone(request: Request, spec: PromptSpec, policy: SamplingPolicy) -> tuple[int, ...]:
    """The answer of a model that keeps nothing."""
    model("alone").use_memory(KvMemory())
    return own_tokens(model("alone"), request, spec, policy)


# Grammars and dialects


def spec_in(name: str) -> PromptSpec:
    return model("target").spec(80, load_dialect(name).system_text)


@pytest.fixture(scope="module")
def pair() -> Iterator[Callable[[str, str], Robot]]:
    """A robot in the second dialect at a verifier in the first; the same one for all tests."""
    with ExitStack() as stack:

        def made(there: str, here: str) -> Robot:
            worker = Worker(model("target"), spec_in(there), model("drafter in the cloud"))
            dialect = load_dialect(here)
            return Robot(stack, worker, replace(dialect, history=NO_HISTORY))

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
    """They come with the request; those that may be a whole answer end there."""
    robot = pair(name, name)
    robot.decode("cloud_ar")
    dialect, models = robot.dialect, robot.worker._models
    opening = Open(1, robot.request, GREEDY, "greedy", lookup=True)
    lookup = robot.worker._engine._lookups.of("", opening)
    assert lookup is not None
    beginnings = lookup._beginnings
    assert len(beginnings) == len(dialect.candidates) == len(robot.request.candidates) > 2
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
        ("uni_navid", "clauses", "auto"),
        ("clauses", "navila", "fsd"),
    ],
)
def test_a_robot_of_another_dialect_says_what_to_do_and_decides_nothing(
    pair: Any, there: str, here: str, preset: str
) -> None:
    """By the system text: ours has one, and the others have none."""
    said: list[object] = []
    for _ in range(2):  # it is not remembered as good
        outcome = pair(there, here).decode(preset, on_emit=said.append)
        assert not outcome.completed and not outcome.tokens and not said
        assert "this verifier answers requests" in outcome.text and "\n" not in outcome.text
        assert "system text" in outcome.text and "dialect:=, --dialect" in outcome.text


def test_a_prompt_is_in_the_words_of_its_dialect() -> None:
    target = model("target")

    def asked(name: str) -> str:
        request = load_dialect(name).request("find the {order} {image} door", jpeg(1))
        ids = target.prompt(request, spec_in(name)).input_ids
        return str(target.tokenizer.decode(ids)).replace("<|image_pad|>", "")

    said = asked("clauses")
    assert rules_text() in said and "find the {order} {image} door\naction first" in said
    image = "<|vision_start|><|vision_end|>"
    before, after = asked("internvla_n1").split(image)
    assert "Task: find the {order} {image} door Say" in before and after.startswith(".")
    before, after = asked("navila").split(image)
    assert "door" in after and "Task" not in before and "action first" not in before + after


# The history of a mission


def spec() -> PromptSpec:
    return model("target").spec(12)


def remembering(frames: int, choose: str = "conversation") -> Dialect:
    return replace(load_dialect("clauses"), history=HistorySpec(frames, choose))


@pytest.fixture
def robot_of() -> Iterator[Callable[..., Robot]]:
    """A robot that remembers its mission so, at a verifier of its own."""
    with ExitStack() as stack:

        def made(dialect: Dialect, history_mb: float = 8.0) -> Robot:
            limits, models = WorkerLimits(history_mb=history_mb), (model("target"), spec())
            worker = Worker(*models, model("drafter in the cloud"), limits)
            return Robot(stack, worker, dialect)

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
    """Over the frames of a conversation, where it begins anew, and where no frame is remembered,
    nor kept by the verifier."""
    robot = robot_of(remembering(frames))
    held = []
    for number in range(DECISIONS):
        outcome = robot.decode(preset, rule, number=number)
        assert outcome.completed and outcome.tokens == robot.own(spec())
        held.append(len(robot.turns))
    assert held == ([0, 1, 2, 3, 4, 1, 2] if frames else [0] * DECISIONS)
    kept = sum(isinstance(each, bytes) for each in robot.worker.messages._known[""].kept.values())
    assert kept == (DECISIONS if frames else 0)


def test_a_frame_goes_up_once_and_its_tokens_are_read_once(robot_of: Any) -> None:
    robot = robot_of(remembering(8))
    bytes_up, rows = [], []
    for number in range(6):
        before = robot.worker.kv_memory.prefix_rows
        outcome = robot.decode("cloud_ar", number=number)
        bytes_up.append(outcome.stats.up_bytes - len(jpeg(100 + number)))
        prompt = model("target").prompt(robot.request, spec())
        rows.append(len(prompt.input_ids) - (robot.worker.kv_memory.prefix_rows - before))
    assert max(bytes_up[1:]) < 300 and bytes_up[0] > len(rules_text())  # nor do the texts go again
    assert max(rows[1:]) <= rows[0]  # which has the system's text and the instruction as well


def test_a_request_of_no_history_sends_its_system_text_once(robot_of: Any) -> None:
    robot = robot_of(remembering(0))
    first, second = (
        robot.decode("cloud_ar", number=n).stats.up_bytes - len(jpeg(100 + n)) for n in (0, 1)
    )
    assert second < first - len(rules_text()) + 40


@pytest.mark.parametrize("choose", ["conversation", "last", "uniform"])
def test_a_verifier_that_lacks_a_frame_asks_and_nothing_changes(choose: str, robot_of: Any) -> None:
    """It keeps too little; the robot then goes to one that has seen nothing, and back."""
    dialect = remembering(4, choose)
    robots = [robot_of(dialect, history_mb) for history_mb in (0.004, 8.0, 8.0)]
    robot, clients = robots[0], [each.client for each in robots]
    for number in range(DECISIONS + 2):
        robot.client = clients[(number // 3) % 3]
        outcome = robot.decode(["dsd", "cloud_ar", "auto"][number % 3], number=number)
        assert outcome.tokens == robot.own(spec())


@pytest.mark.parametrize("preset", ["dsd", "cloud_ar", "auto"])
@pytest.mark.parametrize("why", ["forgot", "never had", "another's"])
def test_messages_that_the_verifier_does_not_know_by_their_name_are_sent_and_the_answer_is_the_same(
    robot_of: Any, why: str, preset: str
) -> None:
    """A robot names what it believes to be there; what another credential has sent is not."""
    robot, other = robot_of(remembering(8)), robot_of(remembering(8))
    for number in range(3):
        robot.decode("dsd", number=number)
    store = robot.worker.messages
    if why == "forgot":
        store._known.clear()
    elif why == "never had":
        robot.client = other.client
    else:
        store._known["another"] = store._known.pop("")
    outcome = robot.decode(preset, number=3)
    assert outcome.completed and outcome.tokens == robot.own(spec()) and len(robot.turns) == 3
    assert outcome.stats.up_bytes > 4 * 1000, "all of it went up"
    again = robot.decode(preset, number=4)
    assert again.tokens == robot.own(spec())
    assert again.stats.up_bytes < 2 * len(jpeg(104)) + 1500, "and is named from then on"


@pytest.mark.parametrize("form", ANY_FORM)
def test_answers_to_requests_of_any_form_are_the_targets_own_with_every_preset(
    robot_of: Any, form: str
) -> None:
    """From the second on the verifier has it all. Each preset has both rules, in one form or in
    the next."""
    robot, number = robot_of(remembering(0)), [*ANY_FORM].index(form)
    robot.request = Request(ANY_FORM[form], continues=True)
    for at, preset in enumerate(VERIFIED):
        outcome = robot.ask(preset, ("greedy", "coupled")[(number + at) % 2])
        assert outcome.completed and outcome.tokens == robot.own(spec()), preset


@pytest.mark.parametrize("preset", ["dsd", "picospec", "auto"])
def test_a_long_prompt_is_read_in_steps_and_given_up_between_them(
    preset: str, robot_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt of any length holds up neither what arrives nor who comes next."""
    monkeypatch.setattr(runner_module, "ROWS_A_STEP", 16)
    robot, read = robot_of(remembering(0)), list[int]()
    step = Prefill.step

    def watched(prefill: Prefill, rows: int, on_layer: Any = None) -> bool:
        before = prefill.rows_left
        done = step(prefill, rows, on_layer)
        if on_layer is not None:  # the robot's
            read.append(before - prefill.rows_left)
            if is_gone:
                inbox.put(Abort("nobody reads it"))
        return done

    monkeypatch.setattr(Prefill, "step", watched)
    for is_gone in (False, True):
        read.clear()
        inbox = Inbox()
        robot.request = Request((user("7" * 90 * (1 + is_gone)),))
        outcome = robot.ask(preset, inbox=inbox)
        assert max(read) <= 16
        if is_gone:
            assert outcome.reason == "aborted" and sum(read) < 90
        else:
            assert outcome.tokens == robot.own(robot.runner.spec_of(robot.runner._known_spec))
            assert len(read) > 5


def test_a_lie_about_a_picture_is_refused_in_words(robot_of: Any) -> None:
    robot = robot_of(remembering(0))
    robot.request = Request((user("Hello", replace(shown(0), data=jpeg(2))),))
    outcome = robot.ask("cloud_ar")
    assert outcome.reason == "bad_request" and "digest" in outcome.text
