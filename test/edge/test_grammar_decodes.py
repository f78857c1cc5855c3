"""A checkpoint that knows nothing answers with an action, under every preset, over gRPC."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
from helpers.checkpoints import checkpoint, jpeg, own_tokens
from helpers.cloud.grpc_cloud import Cloud

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.runner import DecodeRunner, DecodeSettings, Outcome
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import ORDERS, Request
from edge_cloud_spec.nav.answer import NotAnAction, answer_grammar, read_answer
from edge_cloud_spec.presets import load_preset, preset_names

VERIFIED = [name for name in preset_names() if load_preset(name).verified]
POLICIES = {
    "greedy": GREEDY,
    "coupled": SamplingPolicy(0.9, seed=3),
    "rejection": SamplingPolicy(0.9, seed=3),
}


@pytest.fixture(scope="module")
def there() -> Iterator[SimpleNamespace]:
    """A verifier with a drafter, a robot, and the target once more, to be asked by itself."""
    target, alone = (load(checkpoint("qwen3_vl", 1), threads=1) for _ in range(2))
    draft_model, draft_in_cloud = (load(checkpoint("qwen3_vl", 2), threads=1) for _ in range(2))
    spec = target.spec("You guide a robot.", 80)
    worker, runner = Worker(target, spec, draft_in_cloud), DecodeRunner(draft_model, spec)
    with (
        Cloud(worker) as cloud,
        contextlib.closing(VerifierClient(ClientSettings(cloud.address))) as client,
    ):
        yield SimpleNamespace(runner=runner, client=client, alone=alone, spec=spec)


def decode(
    there: SimpleNamespace, preset: str, rule: str, order: str, grammar: str | None = None
) -> Outcome:
    text = answer_grammar("action", order) if grammar is None else grammar
    policy = replace(POLICIES[rule], grammar=text)
    settings = DecodeSettings(load_preset(preset), rule, policy, reply_timeout=100.0)
    request = Request("find the silver bottle", jpeg(1), order)
    return there.runner.run(request, settings, secrets.randbits(64), there.client.connect)


def words(there: SimpleNamespace, outcome: Outcome) -> str:
    return there.alone.tokenizer.decode(outcome.tokens, skip_special_tokens=True)


@pytest.mark.parametrize("preset", VERIFIED)
@pytest.mark.parametrize(("order", "rule"), [(ORDERS[0], "greedy"), (ORDERS[1], "coupled")])
def test_every_answer_is_an_action_and_the_targets_own(
    there: SimpleNamespace, preset: str, order: str, rule: str
) -> None:
    outcome = decode(there, preset, rule, order)
    assert outcome.completed, outcome.text
    request = Request("find the silver bottle", jpeg(1), order)
    policy = replace(POLICIES[rule], grammar=answer_grammar("action", order))
    assert outcome.tokens == own_tokens(there.alone, request, there.spec, policy)
    assert read_answer(words(there, outcome)) is not None


@pytest.mark.parametrize(
    ("preset", "rule"),
    [
        *((preset, "rejection") for preset in ("dsd", "dssd", "mc_dsd", "cloud_sd")),
        ("edge_only", "greedy"),
    ],
)
def test_what_is_sampled_or_not_verified_is_an_action_too(
    there: SimpleNamespace, preset: str, rule: str
) -> None:
    outcome = decode(there, preset, rule, ORDERS[1])
    assert outcome.completed, outcome.text
    assert read_answer(words(there, outcome)) is not None


def test_without_the_grammar_it_is_none(there: SimpleNamespace) -> None:
    """The negative control."""
    outcome = decode(there, "dsd", "greedy", ORDERS[0], grammar="")
    with contextlib.suppress(NotAnAction):
        assert read_answer(words(there, outcome)) is None


def test_forced_tokens_need_no_pass(
    there: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of the target nor of the draft model."""
    passes: list[int] = []  # by their nodes
    monkeypatch.setattr(there.runner, "on_pass", lambda *of: passes.append(of[2]))
    text = 'start: "action: " ("stop" | "search") "; reason: none;"'
    for preset in ("cloud_ar", "dsd"):
        outcome = decode(there, preset, "greedy", ORDERS[0], grammar=text)
        said = words(there, outcome)
        assert said in ("action: stop; reason: none;", "action: search; reason: none;")
        assert len(outcome.stats.rounds) < len(outcome.tokens) / 2
    assert 0 in passes and any(passes)


@pytest.mark.parametrize("preset", ["cloud_ar", "dsd"])
@pytest.mark.parametrize("text", ["start: @@@", "start: nothing"])
def test_a_text_that_is_no_grammar_ends_the_decode_and_nothing_else(
    there: SimpleNamespace, text: str, preset: str
) -> None:
    outcome = decode(there, preset, "greedy", ORDERS[0], grammar=text)
    assert (outcome.reason, outcome.tokens) == ("bad_request", ())
    assert "the grammar 'start: " in outcome.text
    assert decode(there, preset, "greedy", ORDERS[0]).completed
