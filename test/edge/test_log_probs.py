"""Log probabilities over a real link: of candidates, all in one pass, and of an answer's tokens.
They are those of transformers' own forwards."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.checkpoints import checkpoint, full_logits, jpeg
from helpers.cloud.grpc_cloud import Cloud

from edge_cloud_spec import Decoder
from edge_cloud_spec.cloud.model_thread import engine
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.processors import LogitsProcessing
from edge_cloud_spec.decoding.target_rows import LogitRows
from edge_cloud_spec.edge.events import Emit
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.passes.transformer import Transformer
from edge_cloud_spec.models.prompt import text_tokens
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.request import Message, Picture, Request
from edge_cloud_spec.wire.messages import ANSWER, Code, Open

CLOSE = 1e-4  # of a log probability
# One begins with another, and they have other numbers of tokens.
OPTIONS = ("left", "left of the chair", "stop", "turn right and go to the door")
FORMS = {
    "qwen3_vl": (Picture.of(jpeg(3)), "where is the box?"),
    "qwen3": ("where is the box?",),
}


class Served(ExitStack):
    """A random target behind gRPC, and a robot."""

    def __init__(self, family: str) -> None:
        super().__init__()
        self.family, path = family, checkpoint(family)
        target = load(path, threads=1, check=False)
        own = LogitsProcessing(repetition_penalty=1.2)  # which the probabilities are without
        self.target, self.spec = target, replace(target.spec(24), logits=own)
        cloud = self.enter_context(Cloud(Worker(target, self.spec)))
        self.decoder = self.enter_context(Decoder(cloud.address, str(path)))

    def own(self, parts: tuple[Any, ...], tokens: tuple[int, ...]) -> list[float]:
        """The log probabilities of these tokens after the prompt, by transformers."""
        prompt = self.target.prompt(Request((Message("user", parts),)), self.spec)
        rows = full_logits(self.family, prompt, [*tokens])[:, : self.spec.vocabulary]
        rows = rows.astype(np.float64)
        rows -= np.logaddexp.reduce(rows, axis=1)[:, None]
        return [float(rows[at, token]) for at, token in enumerate(tokens)]


@pytest.fixture(scope="module", params=FORMS)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with Served(request.param) as served:
        yield served


@pytest.mark.parametrize("whole", [True, False])
def test_candidates_are_as_likely_as_in_forwards_of_their_own(served: Served, whole: bool) -> None:
    parts = FORMS[served.family]
    told = served.decoder.score([Message("user", parts)], OPTIONS, whole=whole)
    ends = [(token,) for token in served.spec.end_ids] if whole else [()]
    assert len(told) == len(OPTIONS)
    for text, log_prob in zip(OPTIONS, told, strict=True):
        tokens = text_tokens(served.target, text)
        own = np.logaddexp.reduce([sum(served.own(parts, (*tokens, *end))) for end in ends])
        assert log_prob == pytest.approx(own, abs=CLOSE)
    if not whole:
        assert told[1] < told[0], "what begins with another is less likely"


def test_all_candidates_are_scored_in_one_pass_with_the_prompt(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, forward = [], Transformer.forward

    def counted(self: Transformer, hidden: Any, *given: Any, **named: Any) -> Any:
        rows.append(len(hidden))
        return forward(self, hidden, *given, **named)

    monkeypatch.setattr(Transformer, "forward", counted)
    messages = [Message("user", (*FORMS[served.family], "now"))]
    served.decoder.score(messages, OPTIONS)
    assert len(rows) == 1
    served.decoder.score(messages, OPTIONS)  # the prompt is kept, and what follows it is computed
    assert len(rows) == 2 and len(OPTIONS) < rows[1] < rows[0]


def decoded(served: Served, parts: Sequence[Any], **changes: Any) -> tuple[Outcome, list[float]]:
    """A decode that asks for the log probabilities of its tokens, and those."""
    told: list[float] = []
    decoder, request = served.decoder, Request((Message("user", tuple(parts)),))
    settings = replace(decoder.settings, log_probs=ANSWER, **changes)

    def on_emit(emit: Emit) -> None:
        assert len(emit.log_probs) == len(emit.tokens)
        told.extend(emit.log_probs)

    connect = decoder.client.connect
    return decoder.runner.run(request, settings, secrets.randbits(64), connect, on_emit), told


@pytest.mark.parametrize("preset", ["auto", "dsd", "specedge", "cloud_ar", "cloud_lookup"])
@pytest.mark.parametrize("rule", ["greedy", "coupled"])
def test_an_answers_tokens_are_as_likely_as_in_one_forward_over_it(
    served: Served, preset: str, rule: str
) -> None:
    policy = GREEDY if rule == "greedy" else SamplingPolicy(1.2, top_p=0.9, seed=3)
    parts = FORMS[served.family]
    outcome, told = decoded(served, parts, preset=load_preset(preset), rule=rule, policy=policy)
    assert outcome.completed and len(told) == len(outcome.tokens) > 8
    assert told == pytest.approx(served.own(parts, outcome.tokens), abs=CLOSE)


def test_who_does_not_ask_is_told_nothing_and_nothing_is_computed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = Message("user", FORMS[served.family])
    plain = served.decoder.decode([message])
    monkeypatch.setattr(LogitRows, "log_prob", lambda *_: 1 / 0)
    again = served.decoder.decode([message])
    assert again.outcome.tokens == plain.outcome.tokens
    assert not decoded(served, message.parts)[0].completed, "it is asked here"


def test_a_verifier_that_tells_none_is_named_in_a_sentence(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = engine.decode_client

    def older(frame: Any) -> Any:
        message = read(frame)
        return replace(message, log_probs="") if isinstance(message, Open) else message

    monkeypatch.setattr(engine, "decode_client", older)
    outcome, told = decoded(served, FORMS[served.family])
    assert outcome.reason == Code.UNSUPPORTED and not told
    said = "the cloud does not tell log probabilities; the cloud's version may differ"
    assert outcome.text == said
    with pytest.raises(UserError, match=said):
        served.decoder.score([Message("user", ("x",))], OPTIONS)


@pytest.mark.parametrize(
    ("candidates", "complaint"),
    [
        ((), "each candidate must be a text"),
        (("left", ""), "each candidate must be a text"),
        (("left", "stop", "left"), "two candidates have the same tokens"),
        ([f"{number} of the chair" for number in range(60)], "128 at most: give fewer"),
        (("left",) * 65, "at most 64 candidates"),
    ],
)
def test_candidates_that_cannot_be_scored_are_refused_in_a_sentence(
    served: Served, candidates: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        served.decoder.score([Message("user", FORMS[served.family])], candidates)
    assert served.decoder.score([Message("user", FORMS[served.family])], ["left"])
