"""A robot whose draft model looks less closely at the picture: the words stay the target's."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.checkpoints import jpeg
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.grpc_robot import POLICIES, REQUEST, settings

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.propose import coupled_token
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.runner import DecodeRunner, Outcome
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.image import PictureLimits
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import Prompt, PromptSpec, Request
from edge_cloud_spec.presets import load_preset, preset_names
from edge_cloud_spec.share import rules_text

LESS = PictureLimits(max_pixels=128 * 128 * 3 // 4, max_image_tokens=12)  # of 128 x 128, 64 tokens
PRESETS = [
    name
    for name in preset_names()
    if (chosen := load_preset(name)).verified and chosen.exact and chosen.drafts_on_robot
]


@pytest.fixture(scope="module")
def cloud() -> Iterator[SimpleNamespace]:
    """The embedded pair, whose drafter is often right; the target once more, to be asked alone."""
    target, alone = (load(EMBEDDED / "target", threads=1) for _ in range(2))
    robot = load(EMBEDDED / "drafter", threads=1)
    robot.limit_picture(LESS)
    spec = target.spec(rules_text(), 24)
    with Cloud(Worker(target, spec)) as running:
        link = VerifierClient(ClientSettings(running.address))
        yield SimpleNamespace(spec=spec, alone=alone, robot=robot, link=link)
        link.close()


def decode(cloud: Any, preset: str, rule: str) -> Outcome:
    runner = DecodeRunner(cloud.robot, cloud.spec)
    return runner.run(REQUEST, settings(preset, rule), 7, cloud.link.connect)


def own_tokens(cloud: Any, rule: str) -> tuple[int, ...]:
    session = cloud.alone.open(cloud.alone.prompt(REQUEST, cloud.spec))
    tokens: list[int] = []
    while len(tokens) < cloud.spec.max_tokens:
        tokens.append(coupled_token(session.forward(())[0], POLICIES[rule], len(tokens)))
        if tokens[-1] in cloud.spec.end_ids:
            break
        session.extend(tokens[-1:])
    return tuple(tokens)


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_smaller_picture_changes_no_word(cloud: Any, preset: str, rule: str) -> None:
    outcome = decode(cloud, preset, rule)
    assert outcome.completed, outcome.text
    assert outcome.tokens == own_tokens(cloud, rule)
    if load_preset(preset).pacing != "auto":  # which may leave it to the cloud
        assert 0 < outcome.stats.accepted <= outcome.stats.drafted


def test_a_robot_that_looks_at_another_picture_is_found_out(
    cloud: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt_of = cloud.robot.prompt

    def of_another_picture(request: Request, spec: PromptSpec) -> Prompt:
        other: Prompt = prompt_of(Request(request.instruction, jpeg(2), request.order), spec)
        return other

    monkeypatch.setattr(cloud.robot, "prompt", of_another_picture)
    outcome = decode(cloud, "dsd", "greedy")
    assert not outcome.completed and outcome.tokens == ()
    print(outcome.reason, outcome.text)
