"""Requests of text alone over gRPC: answers are those of transformers' ``generate`` with every
preset, over broken connections and at another verifier, as a conversation goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers.checkpoints import TEXT_FAMILIES, text_pair
from helpers.cloud.grpc_cloud import Cloud, Proxy
from helpers.cloud.grpc_robot import POLICIES, settings
from helpers.cloud.served_answers import refused, worker_of
from helpers.cloud.vllm_peer import VllmPeer

from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.models.load import load
from edge_cloud_spec.request import ASSISTANT, SYSTEM, USER, Message, Picture, Request
from edge_cloud_spec_lab.harness.grpc_robot import GrpcRobot
from edge_cloud_spec_lab.harness.reference import generate, load_reference

PRESETS = ("auto", "dsd", "dssd", "tslt", "picospec", "specedge", "cloud_lookup")
BEGUN = Message(SYSTEM, ("Be brief.",)), Message(USER, ("find the green box",))
ANY = ("--dialect", "any")
OPTIONS = ("--device", "cpu", "--dtype", "float32", "--no-check", "--max-tokens", "24")


@dataclass(frozen=True)
class Served:
    """A robot, whose connection goes to the first of two verifiers of one target; and transformers'
    own model of it."""

    family: str
    robot: GrpcRobot
    proxy: Proxy
    addresses: tuple[str, str]
    directory: Path
    target: Any
    own: Callable[[Request, str], tuple[int, ...]]
    """The target's answer by transformers."""

    def decode(self, request: Request, preset: str, rule: str, **options: Any) -> Outcome:
        outcome = self.robot.runner.run(
            request, settings(preset, rule), 1, self.robot.client.connect, **options
        )
        assert outcome.completed, outcome.text
        return outcome


@pytest.fixture(scope="module", params=TEXT_FAMILIES)
def served(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    there, here = text_pair(tmp_path_factory.mktemp("pair"), request.param)
    target, drafter = (load(path, check=False) for path in (there, here))
    with ExitStack() as stack:
        options = ("--target", str(there), "--drafter", "", *ANY, *OPTIONS)
        clouds = [stack.enter_context(Cloud(worker_of(*options))) for _ in range(2)]
        proxy = stack.enter_context(Proxy(clouds[0].address))
        robot = stack.enter_context(GrpcRobot(proxy.address, drafter, target.spec(24)))
        addresses = clouds[0].address, clouds[1].address
        reference = load_reference(str(there), target)

        @cache
        def own(asked: Request, rule: str) -> tuple[int, ...]:
            spec = target.spec(24)
            return generate(reference, target.prompt(asked, spec), spec, POLICIES[rule])

        yield Served(request.param, robot, proxy, addresses, there, target, own)


def test_every_preset_says_what_generate_says_as_a_conversation_goes_on(served: Served) -> None:
    """By either rule in turn: a preset has the other one in the next family."""
    messages, said = BEGUN, set[tuple[int, ...]]()
    for at, preset in enumerate(PRESETS, TEXT_FAMILIES.index(served.family)):
        rule = ("greedy", "coupled")[at % 2]
        request = Request(messages)
        tokens = served.decode(request, preset, rule).tokens
        assert tokens == served.own(request, rule)
        said.add(tokens)
        text = served.target.tokenizer.decode(tokens, skip_special_tokens=True)
        messages = (*messages, Message(ASSISTANT, (text,)), Message(USER, (f"after {preset}?",)))
    assert len(said) > 1  # the answers depend on what was said


@pytest.mark.parametrize(("preset", "at"), [("dsd", 0), ("specedge", 1)])
def test_an_answer_goes_on_after_a_cut_and_at_another_verifier(
    served: Served, preset: str, at: int
) -> None:
    served.proxy.redirect(served.addresses[0])
    request, breaks = Request((*BEGUN[:1], Message(USER, (f"{preset} and {at}",)))), list[int]()

    def on_emit(_: Any) -> None:
        if not breaks:
            breaks.append(1)
            served.proxy.redirect(served.addresses[at])

    outcome = served.decode(request, preset, "coupled", on_emit=on_emit)
    assert outcome.tokens == served.own(request, "coupled") and breaks
    assert outcome.stats.resumed


def test_a_picture_is_refused_in_a_sentence_and_the_next_request_is_answered(
    served: Served,
) -> None:
    shown = Request((Message(USER, (Picture.of(b"\xff\xd8"), "find it")),))
    refused(served.robot.decode(shown, settings()), "picture", "bad_request")
    request = Request(BEGUN)
    assert served.decode(request, "dsd", "greedy").tokens == served.own(request, "greedy")


def test_a_target_of_text_on_vllm_needs_its_small_files_alone(
    served: Served, tmp_path: Path
) -> None:
    for path in served.directory.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, tmp_path)
    drafter, spec = served.robot.runner.draft_model, served.target.spec(24)
    request = Request((*BEGUN, Message(ASSISTANT, ("Left.",)), Message(USER, ("And now?",))))
    with VllmPeer(served.directory) as peer, ExitStack() as stack:
        where = ("--target", f"vllm:{peer.url}", "--checkpoint", str(tmp_path))
        cloud = stack.enter_context(Cloud(worker_of(*where, *ANY, "--max-tokens", "24")))
        robot = stack.enter_context(GrpcRobot(cloud.address, drafter, spec))
        for preset, rule in (("dsd", "greedy"), ("specedge", "greedy"), ("auto", "coupled")):
            outcome = robot.decode(request, settings(preset, rule))
            assert outcome.completed and outcome.tokens == served.own(request, rule), outcome
