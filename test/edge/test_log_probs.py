"""Log probabilities over a real link: of candidates, all in one pass, and of an answer's tokens.
They are those of transformers' own forwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from helpers.checkpoints import checkpoint, full_logits, jpeg
from helpers.cloud.grpc_cloud import Cloud

from edge_cloud_spec import Decoder
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.passes.transformer import Transformer
from edge_cloud_spec.models.prompt import text_tokens
from edge_cloud_spec.request import Message, Picture, Request

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
        self.target, self.spec = target, target.spec(24)
        cloud = self.enter_context(Cloud(Worker(target, self.spec)))
        self.decoder = self.enter_context(Decoder(cloud.address, str(path)))

    def own(self, parts: tuple[Any, ...], tokens: tuple[int, ...]) -> float:
        """The log probability of these tokens after the prompt, by transformers."""
        prompt = self.target.prompt(Request((Message("user", parts),)), self.spec)
        rows = full_logits(self.family, prompt, [*tokens])[:, : self.spec.vocabulary]
        rows = rows.astype(np.float64)
        rows -= np.logaddexp.reduce(rows, axis=1)[:, None]
        return float(sum(rows[at, token] for at, token in enumerate(tokens)))


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
        own = np.logaddexp.reduce([served.own(parts, (*tokens, *end)) for end in ends])
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
