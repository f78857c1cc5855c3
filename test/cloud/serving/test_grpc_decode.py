"""Decodes over gRPC on loopback: the target's tokens, or what to do instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from helpers.checkpoints import jpeg, own_tokens
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.grpc_robot import (
    OWN,
    POLICIES,
    REQUEST,
    Talk,
    decode_at,
    opening,
    settings,
)

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.runner import DecodeRunner, Outcome
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.image import PictureLimits
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import Prompt, PromptSpec, Request
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.share import rules_text
from edge_cloud_spec.wire.channel import MESSAGE_BYTES
from edge_cloud_spec.wire.messages import DraftMessage, Generate

LESS = PictureLimits(max_pixels=128 * 128 * 3 // 4, max_image_tokens=12)  # of 128 x 128, 64 tokens


@pytest.fixture(scope="module")
def cloud() -> Iterator[SimpleNamespace]:
    """The embedded pair, whose drafter is often right; the target once more, to be asked alone."""
    target, alone = (load(EMBEDDED / "target", threads=1) for _ in range(2))
    robot, drafter = (load(EMBEDDED / "drafter", threads=1) for _ in range(2))
    robot.limit_picture(LESS)
    spec = target.spec(rules_text(), 24)
    with Cloud(Worker(target, spec, drafter)) as running:
        link = VerifierClient(ClientSettings(running.address))
        yield SimpleNamespace(spec=spec, alone=alone, robot=robot, link=link)
        link.close()


def decode(
    cloud: Any, request: Request = REQUEST, robot: Vlm | None = None, **changes: Any
) -> Outcome:
    runner = DecodeRunner(robot or cloud.robot, cloud.spec)
    return runner.run(request, settings(**changes), 7, cloud.link.connect)


def test_several_robots_at_once_get_each_its_own_answer(cloud: Any) -> None:
    """The first one's picture is smaller, which changes no word."""
    jobs = [("dsd", "coupled"), ("cloud_sd", "coupled"), ("cloud_ar", "greedy")]
    requests = [Request("find the silver bottle", jpeg(seed)) for seed in range(3)]
    robots = [cloud.robot, *(load(EMBEDDED / "drafter", threads=1) for _ in jobs[1:])]

    def run(number: int) -> tuple[int, ...]:
        preset, rule = jobs[number]
        return decode(cloud, requests[number], robots[number], preset=preset, rule=rule).tokens

    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(run, range(3)))
    assert answers == [
        own_tokens(cloud.alone, request, cloud.spec, POLICIES[rule])
        for request, (_, rule) in zip(requests, jobs, strict=True)
    ]


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
@pytest.mark.parametrize("preset", ["dsd", "edge_only"])
def test_a_request_that_cannot_be_used_ends_with_what_to_do_and_the_next_is_served(
    cloud: Any, preset: str, request_: Request, advice: str
) -> None:
    outcome = decode(cloud, request_, preset=preset)
    assert (outcome.reason, outcome.tokens) == ("bad_request", ())
    assert re.search(advice, outcome.text)
    assert "\n" not in outcome.text
    assert decode(cloud, preset=preset).completed


def test_a_message_over_the_limit_is_a_fault_and_the_verifier_goes_on(cloud: Any) -> None:
    huge = Request("find it", REQUEST.jpeg + bytes(MESSAGE_BYTES))
    outcome = decode(cloud, huge, preset="cloud_ar")
    assert outcome.reason == "too_large"
    assert "smaller camera frame" in outcome.text
    assert decode(cloud).completed


@pytest.mark.parametrize(
    ("has", "of", "complaint"),
    [
        (lambda robot: robot, {"tokenizer_digest": b"other"}, "different tokenizers; use two"),
        (lambda robot: robot.preprocessing.spec, {"patch_size": 99}, "has patch_size 99 and"),
    ],
    ids=["other tokens", "other patches of a picture"],
)
def test_a_drafter_of_another_family_is_refused_before_anything_is_drafted(
    cloud: Any, has: Any, of: dict[str, Any], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in of.items():
        monkeypatch.setitem(has(cloud.robot).__dict__, name, value)
    outcome = decode(cloud)
    assert (outcome.reason, outcome.stats.drafted) == ("bad_request", 0)
    assert complaint in outcome.text and "of one family" in outcome.text


def test_a_robot_that_looks_at_another_picture_is_found_out(
    cloud: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt_of = cloud.robot.prompt

    def of_another_picture(request: Request, spec: PromptSpec) -> Prompt:
        other: Prompt = prompt_of(replace(request, jpeg=jpeg(2)), spec)
        return other

    monkeypatch.setattr(cloud.robot, "prompt", of_another_picture)
    outcome = decode(cloud)
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


def test_an_open_said_twice_is_one_session_and_what_came_before_it_is_dropped(toy: Any) -> None:
    """A robot may have sent that before it knew that its stream is a new one."""
    with Talk(toy.address) as first, Talk(toy.address) as second:
        first.say(Generate(PrefixDigest(0, 1)))
        first.say(DraftMessage(PrefixDigest(0, 1), Draft((1,)), 0))
        one, two = first.ask(opening()), second.ask(opening())
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
    toy: Any, error: Exception, code: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Talk(toy.address) as robot, monkeypatch.context() as patched:
        base = robot.ask(opening()).base
        patched.setattr(type(toy.worker._models.target), "logits", Mock(side_effect=error))
        fault = robot.ask(DraftMessage(base, Draft((1,)), 0))
    assert fault.code == code
    assert text in fault.text
    assert (fault.retry_after_s > 0) == (code == "overloaded")
    assert decode_at(toy.address).tokens == OWN
