"""Decodes over gRPC on loopback: the target's tokens, or what to do instead."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.checkpoints import checkpoint, jpeg
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.grpc_robot import (
    OWN,
    POLICIES,
    REQUEST,
    SHAPES,
    Talk,
    decode_at,
    opening,
    settings,
)

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.propose import coupled_token
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.events import Emit
from edge_cloud_spec.edge.runner import DecodeRunner, Outcome
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.image import PictureLimits
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import Prompt, PromptSpec, Request
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.presets import load_preset, preset_names
from edge_cloud_spec.share import rules_text
from edge_cloud_spec.wire.channel import MESSAGE_BYTES
from edge_cloud_spec.wire.codec import encode_client
from edge_cloud_spec.wire.messages import DraftMessage, Fault, Generate, Opened, Verdict

LESS = PictureLimits(max_pixels=128 * 128 * 3 // 4, max_image_tokens=12)  # of 128 x 128, 64 tokens
PRESETS = [
    name
    for name in preset_names()
    if (chosen := load_preset(name)).verified and chosen.exact and chosen.drafts_on_robot
]


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


@pytest.fixture(scope="module")
def embedded() -> Iterator[SimpleNamespace]:
    """The embedded pair, whose drafter is often right; the target once more, to be asked alone."""
    target, alone = (load(EMBEDDED / "target", threads=1) for _ in range(2))
    robot = load(EMBEDDED / "drafter", threads=1)
    robot.limit_picture(LESS)
    spec = target.spec(rules_text(), 24)
    with Cloud(Worker(target, spec)) as running:
        link = VerifierClient(ClientSettings(running.address))
        yield SimpleNamespace(spec=spec, alone=alone, robot=robot, link=link)
        link.close()


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_smaller_picture_changes_no_word(embedded: Any, preset: str, rule: str) -> None:
    outcome = decode(embedded, embedded.robot, preset=preset, rule=rule)
    assert outcome.completed, outcome.text
    assert outcome.tokens == alone(embedded, REQUEST, POLICIES[rule])
    if load_preset(preset).pacing != "auto":  # which may leave it to the cloud
        assert 0 < outcome.stats.accepted <= outcome.stats.drafted


def test_a_robot_that_looks_at_another_picture_is_found_out(
    embedded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt_of = embedded.robot.prompt

    def of_another_picture(request: Request, spec: PromptSpec) -> Prompt:
        other: Prompt = prompt_of(Request(request.instruction, jpeg(2), request.order), spec)
        return other

    monkeypatch.setattr(embedded.robot, "prompt", of_another_picture)
    outcome = decode(embedded, embedded.robot)
    assert not outcome.completed and outcome.tokens == ()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"rule": "luck"}, "rule must be greedy, coupled or rejection, not 'luck'"),
        ({"rule": "greedy"}, "greedy goes with temperature 0"),
        ({"policy": GREEDY}, "greedy goes with temperature 0"),
    ],
)
def test_a_rule_that_does_not_go_with_the_policy_is_refused(
    toy: Any, changes: dict[str, Any], complaint: str
) -> None:
    with Talk(toy.address) as robot:
        assert complaint in robot.ask(replace(opening(), **changes)).text


def test_garbage_and_bad_drafts_leave_the_session_unharmed(toy: Any) -> None:
    with Talk(toy.address) as robot:
        opened = robot.ask(opening())
        assert isinstance(opened, Opened)
        random = np.random.default_rng(0)
        good = encode_client(DraftMessage(opened.base, Draft(OWN[:3]), 5))
        for _ in range(100):
            mutated = bytearray(good)
            for place in random.integers(0, len(mutated), 2):
                mutated[place] = random.integers(0, 256)
            if mutated[0] != good[0]:  # not by chance another draft for this very prefix
                robot.say(bytes(mutated))
        robot.say(random.bytes(1000))
        for bad in (Draft((99,)), Draft(()), Draft((1, 2), (1, -1)), Draft((1,) * 2000)):
            robot.say(DraftMessage(opened.base, bad, 0))
        heard = robot.ask(good)
        faults = []
        while not isinstance(heard, Verdict):
            faults.append(heard)
            heard = robot.hear()
        assert len(faults) > 5
        assert all(isinstance(fault, Fault) and fault.text for fault in faults)
        assert (heard.path, heard.token) == ((0, 1, 2), OWN[3])


def test_what_is_said_before_a_session_is_dropped_without_a_fault(toy: Any) -> None:
    """A robot may have sent it before it knew that its stream is a new one."""
    with Talk(toy.address) as robot:
        robot.say(Generate(PrefixDigest(0, 1)))
        robot.say(DraftMessage(PrefixDigest(0, 1), Draft((1,)), 0))
        assert isinstance(robot.ask(opening()), Opened)


def test_an_open_said_twice_is_one_session(toy: Any) -> None:
    with Talk(toy.address) as first, Talk(toy.address) as second:
        one = first.ask(opening())
        two = second.ask(opening())
        assert (one.session, one.base) == (two.session, two.base)
        assert second.ask(opening(nonce=2)).session != one.session


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (RuntimeError("device-side assert"), "internal", "RuntimeError"),
        (MemoryError("no room"), "overloaded", "no memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "overloaded", "no memory"),
    ],
)
def test_a_failing_model_is_a_fault_and_the_next_session_is_served(
    toy: Any, error: Exception, code: str, text: str
) -> None:
    model = toy.worker._models.target
    original = type(model).logits
    with Talk(toy.address) as robot:
        base = robot.ask(opening()).base
        try:
            type(model).logits = lambda *_: (_ for _ in ()).throw(error)
            fault = robot.ask(DraftMessage(base, Draft((1,)), 0))
        finally:
            type(model).logits = original
    assert fault.code == code
    assert text in fault.text
    assert (fault.retry_after_s > 0) == (code == "overloaded")
    assert decode_at(toy.address).tokens == OWN
