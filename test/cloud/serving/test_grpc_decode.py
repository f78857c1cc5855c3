"""Decodes with real models over gRPC on loopback: the target's tokens, or what to do instead."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.checkpoints import checkpoint, jpeg
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.grpc_robot import POLICIES, REQUEST, SHAPES, settings

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.propose import coupled_token
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.events import Emit
from edge_cloud_spec.edge.runner import DecodeRunner, Outcome
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import Request
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.wire.channel import MESSAGE_BYTES


@pytest.fixture(scope="module")
def robots() -> list[Vlm]:
    """Draft models, one for each robot: another checkpoint of the family, other padding rows."""
    return [load(checkpoint("qwen3_vl", 2, 384), threads=1) for _ in range(3)]


@pytest.fixture(scope="module")
def cloud() -> Iterator[SimpleNamespace]:
    target = load(checkpoint("qwen3_vl", 1), threads=1)
    spec = target.spec("You guide a robot.", 24)
    alone = load(checkpoint("qwen3_vl", 1), threads=1)
    with Cloud(Worker(target, spec, load(checkpoint("qwen3_vl", 2, 384)))) as running:
        link = VerifierClient(ClientSettings(running.address))
        yield SimpleNamespace(address=running.address, spec=spec, alone=alone, link=link)
        link.close()


def decode(cloud: Any, robot: Vlm, request: Request = REQUEST, **changes: Any) -> Outcome:
    chosen = settings(**changes)
    return DecodeRunner(robot, cloud.spec).run(request, chosen, 7, cloud.link.connect)


def alone(cloud: Any, request: Request, policy: SamplingPolicy) -> tuple[int, ...]:
    """The target's own tokens, one pass for each, without any of the decoding."""
    session = cloud.alone.open(cloud.alone.prompt(request, cloud.spec))
    tokens: list[int] = []
    while len(tokens) < cloud.spec.max_tokens:
        tokens.append(coupled_token(session.forward(())[0], policy, len(tokens)))
        if tokens[-1] in cloud.spec.end_ids:
            break
        session.extend(tokens[-1:])
    return tuple(tokens)


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
@pytest.mark.parametrize("preset", SHAPES)
def test_every_preset_gives_the_targets_own_tokens(
    cloud: Any, robots: list[Vlm], preset: str, rule: str
) -> None:
    outcome = decode(cloud, robots[0], preset=preset, rule=rule)
    assert outcome.completed, outcome.text
    assert outcome.tokens == alone(cloud, REQUEST, POLICIES[rule])
    assert outcome.stats.stale == 0
    assert (outcome.stats.drafted > 0) == (preset != "cloud_ar")


@pytest.mark.parametrize("preset", SHAPES)
def test_rejection_completes_and_repeats_by_seed(
    cloud: Any, robots: list[Vlm], preset: str
) -> None:
    outcomes = [decode(cloud, robots[0], preset=preset, rule="rejection") for _ in range(2)]
    assert all(outcome.completed for outcome in outcomes)
    assert outcomes[0].tokens == outcomes[1].tokens


def test_the_drafter_alone_needs_no_cloud_and_says_so(cloud: Any, robots: list[Vlm]) -> None:
    seen: list[Emit] = []
    runner = DecodeRunner(robots[0], cloud.spec)
    refuse = lambda on_receive: pytest.fail("it connected")  # noqa: E731
    outcome = runner.run(REQUEST, settings("edge_only"), 7, refuse, seen.append)
    assert outcome.completed
    assert not any(emit.verified for emit in seen)


def test_a_second_decode_does_not_wait_to_hear_how_to_prompt(cloud: Any, robots: list[Vlm]) -> None:
    runner = DecodeRunner(robots[0], cloud.spec)
    first, second = (runner.run(REQUEST, settings(), n, cloud.link.connect) for n in (1, 2))
    assert first.tokens == second.tokens
    assert second.stats.down_bytes < first.stats.down_bytes - 300  # the specification


def test_several_robots_at_once_get_each_its_own_answer(cloud: Any, robots: list[Vlm]) -> None:
    jobs = [("dsd", "coupled"), ("cloud_sd", "coupled"), ("cloud_ar", "greedy")]
    requests = [Request("find the silver bottle", jpeg(seed)) for seed in range(3)]
    outcomes: dict[int, Outcome] = {}

    def run(i: int) -> None:
        preset, rule = jobs[i]
        outcomes[i] = decode(cloud, robots[i], requests[i], preset=preset, rule=rule)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, (_, rule) in enumerate(jobs):
        assert outcomes[i].tokens == alone(cloud, requests[i], POLICIES[rule])


BAD_REQUESTS = [
    (Request("", REQUEST.jpeg), "instruction is empty"),
    (Request("x" * 100_000, REQUEST.jpeg), "has 100000 characters"),
    (Request("find <|im_end|>", REQUEST.jpeg), "control token"),
    (Request("find it", b""), "frame is empty"),
    (Request("find it", b"\xff\xd8 not a picture"), "not a JPEG or PNG image"),
    (Request("find it", REQUEST.jpeg[:200]), "damaged"),
    (Request("find it", REQUEST.jpeg, "last words first"), "order .* unknown.*use one of"),
]


@pytest.mark.parametrize(
    ("request_", "advice"), BAD_REQUESTS, ids=[a[:20] for _, a in BAD_REQUESTS]
)
@pytest.mark.parametrize("preset", ["cloud_ar", "dsd", "edge_only"])
def test_a_request_that_cannot_be_used_ends_with_what_to_do(
    cloud: Any, robots: list[Vlm], preset: str, request_: Request, advice: str
) -> None:
    outcome = decode(cloud, robots[0], request_, preset=preset)
    assert outcome.reason == "bad_request"
    assert re.search(advice, outcome.text)
    assert "\n" not in outcome.text
    assert outcome.tokens == ()


def test_after_bad_requests_the_verifier_serves_as_before(cloud: Any, robots: list[Vlm]) -> None:
    for bad, _ in BAD_REQUESTS:
        decode(cloud, robots[0], bad)
    assert decode(cloud, robots[0]).tokens == alone(cloud, REQUEST, GREEDY)


def test_a_message_over_the_limit_is_a_fault_and_the_verifier_goes_on(
    cloud: Any, robots: list[Vlm]
) -> None:
    huge = Request("find it", REQUEST.jpeg + bytes(MESSAGE_BYTES))
    outcome = decode(cloud, robots[0], huge, preset="cloud_ar")
    assert outcome.reason == "too_large"
    assert "smaller camera frame" in outcome.text
    assert decode(cloud, robots[0]).completed


def test_a_drafter_of_another_family_is_refused(cloud: Any) -> None:
    robot = load(checkpoint("qwen3_vl", 2, 384))
    robot.tokenizer_digest = b"of another family"
    outcome = decode(cloud, robot)
    assert outcome.reason == "bad_request"
    assert "different tokenizers; use two checkpoints of one family" in outcome.text


def test_a_picture_form_that_differs_is_told_before_anything_is_drafted(cloud: Any) -> None:
    robot = load(checkpoint("qwen2_vl", 2))
    robot.tokenizer_digest = cloud.alone.tokenizer_digest
    outcome = decode(cloud, robot)
    assert outcome.reason == "bad_request"
    assert "choose models of one family" in outcome.text
