"""Robot and cloud in one dialect over gRPC; in two, the robot says so and decides nothing."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest
from helpers.checkpoints import checkpoint, jpeg
from helpers.cloud.grpc_cloud import Cloud

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.events import Emit
from edge_cloud_spec.edge.runner import DecodeRunner, DecodeSettings, Outcome
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import PromptSpec, Request
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.presets import load_preset

NAMES = ("navila", "uni_navid", "internvla_n1")


@pytest.fixture(scope="module")
def models() -> tuple[Vlm, Vlm]:
    """A target and a draft model that know nothing."""
    one, two = (load(checkpoint("qwen3_vl", seed), threads=1) for seed in (1, 2))
    return one, two


def spec_in(model: Vlm, name: str) -> PromptSpec:
    dialect = load_dialect(name)
    return model.spec(dialect.system_text, 40, dialect.user_text, dialect.identity)


@contextmanager
def pair(models: tuple[Vlm, Vlm], there: str, here: str) -> Iterator[SimpleNamespace]:
    """A verifier in the dialect ``there``, and a robot in the dialect ``here``."""
    target, drafter = models
    worker = Worker(target, spec_in(target, there), dialect=load_dialect(there))
    runner = DecodeRunner(drafter, spec_in(drafter, here))
    with (
        Cloud(worker) as cloud,
        closing(VerifierClient(ClientSettings(cloud.address))) as client,
    ):
        yield SimpleNamespace(runner=runner, client=client, worker=worker)


def decode(
    robot: SimpleNamespace, preset: str, grammar: str = "", said: list[Emit] | None = None
) -> Outcome:
    settings = DecodeSettings(
        load_preset(preset), policy=SamplingPolicy(grammar=grammar), reply_timeout=100.0
    )
    request, on_emit = Request("find the door", jpeg(1)), [] if said is None else said
    nonce = secrets.randbits(64)
    return robot.runner.run(request, settings, nonce, robot.client.connect, on_emit.append)


@pytest.mark.parametrize("name", NAMES)
def test_in_its_grammar_every_answer_is_an_action_of_the_dialect(
    name: str, models: tuple[Vlm, Vlm]
) -> None:
    dialect, tokenizer = load_dialect(name), models[0].tokenizer
    grammar = dialect.grammar("action", "action first")
    with pair(models, name, name) as robot:
        answers = []
        for preset in ("cloud_ar", "dsd", "auto", "auto", "edge_only"):
            outcome = decode(robot, preset, grammar)
            text = tokenizer.decode(outcome.tokens, skip_special_tokens=True)
            action = dialect.action_of(text, outcome.reason == "end")
            assert action is not None or outcome.reason == "length", text
            answers.append(outcome.tokens)
        assert len(set(answers[:4])) == 1, "the target's own, whoever drafts"
        beginnings = robot.worker._models.actions()
        assert len(beginnings) == len(dialect.answers)
        assert {each[-1] for each in beginnings} == {robot.worker._models.spec.end_ids[0]}


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
    there: str, here: str, preset: str, models: tuple[Vlm, Vlm]
) -> None:
    said: list[Emit] = []
    with pair(models, there, here) as robot:
        for _ in range(2):  # it is not remembered as good
            outcome = decode(robot, preset, said=said)
            assert not outcome.completed and not outcome.tokens and not said
            assert f"answers in the dialect {there}" in outcome.text, outcome.text
            assert f"this robot reads {here}" in outcome.text and "\n" not in outcome.text
            assert "serve --dialect" in outcome.text and "dialect:=" in outcome.text


def test_a_file_of_one_name_with_another_table_is_another_dialect(models: tuple[Vlm, Vlm]) -> None:
    ours = load_dialect("navila")
    other = dataclasses.replace(ours, actions=ours.actions[:-1])
    assert ours.name == other.name and ours.identity != other.identity
    named = dataclasses.replace(ours, name="mine")
    good = spec_in(models[1], "navila")
    for dialect, completes in ((named, True), (other, False)):  # another name is another's matter
        with pair(models, "navila", "navila") as robot:
            own = dataclasses.replace(good, dialect=dialect.identity)
            robot.runner = DecodeRunner(models[1], own)
            outcome = decode(robot, "dsd")
            assert outcome.completed == completes
            assert (dialect.identity in outcome.text) != completes


def test_a_prompt_is_in_the_words_of_its_dialect_and_ours_is_as_it_was(
    models: tuple[Vlm, Vlm],
) -> None:
    target, _ = models
    ours = target.spec("Guide.", 40)
    assert "user_text" not in ours.to_bytes().decode() and "dialect" not in ours.to_bytes().decode()

    def asked(spec: PromptSpec, instruction: str = "find the {order} {image} door") -> str:
        spec = PromptSpec.from_bytes(spec.to_bytes())
        ids = target.prompt(Request(instruction, jpeg(1)), spec).input_ids
        return str(target.tokenizer.decode(ids)).replace("<|image_pad|>", "")

    assert "Guide." in asked(ours) and "find the {order} {image} door\naction first" in asked(ours)
    arrows = asked(spec_in(target, "internvla_n1"))
    before, image, after = arrows.partition("<|vision_start|><|vision_end|>")
    assert "Task: find the {order} {image} door Say" in before and image and after.startswith(".")
    sentences = asked(spec_in(target, "navila"))
    before, _, after = sentences.partition("<|vision_start|><|vision_end|>")
    assert "door" in after and "Task" not in before and "action first" not in sentences


@pytest.mark.parametrize(
    "change", [{"user_text": "go"}, {"user_text": ["{instruction}"]}, {"dialect": 3}]
)
def test_a_form_without_the_instruction_is_refused(
    change: dict[str, object], models: tuple[Vlm, Vlm]
) -> None:
    spec = spec_in(models[0], "navila")
    with pytest.raises((ValueError, TypeError)):
        dataclasses.replace(spec, **change)  # type: ignore[arg-type]
