"""What a draft may be: its size, its depth, and the bytes of what is pushed."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from helpers.cloud.verification import BASE, END, ROW, VOCABULARY, verdict_of

from edge_cloud_spec.cloud.session import drafts
from edge_cloud_spec.cloud.session.events import Reply, Scored
from edge_cloud_spec.cloud.session.verification import Verification
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.split import Split
from edge_cloud_spec.decoding.target_rows import LogitRows
from edge_cloud_spec.wire.messages import DraftMessage, Fault, Open

PUSHES = Open(
    1,
    "find",
    b"",
    "action first",
    SamplingPolicy(1.0),
    "rejection",
    payload="dense",
    draft_identity="d",
)


def sized(draft_tokens: int, max_tokens: int = 50) -> Verification:
    return Verification(
        "s",
        replace(PUSHES, policy=GREEDY, rule="greedy", payload="ids"),
        BASE,
        end_tokens=(END,),
        max_tokens=max_tokens,
        vocabulary=VOCABULARY,
        draft_tokens=draft_tokens,
    )


def refusal(actions: list) -> str:
    (said,) = actions
    assert isinstance(said, Reply)
    assert isinstance(said.message, Fault)
    assert said.message.code == "bad_draft"
    return said.message.text


@pytest.mark.parametrize("ahead", [0, 3])  # pushed, too
def test_a_draft_of_more_tokens_than_the_cloud_takes_is_refused_with_both_numbers(
    ahead: int,
) -> None:
    cloud = sized(draft_tokens=8)
    base = BASE.extend((1,) * ahead)
    bush = Draft((1,) * 9, (-1,) * 9)
    for large in (Draft((1,) * 9), bush):
        assert re.search("at most 8 tokens here, not 9", refusal(cloud.handle(after(base, large))))
    assert isinstance(cloud.handle(after(base, Draft((1,) * 8))), list)
    assert cloud.counters.refused == 2
    assert cloud.counters.judged + cloud.pushed == 1


@pytest.mark.parametrize("ahead", [0, 3])
def test_a_draft_deeper_than_the_answer_has_room_for_is_refused_with_both_numbers(
    ahead: int,
) -> None:
    cloud = sized(draft_tokens=64, max_tokens=10)
    base = BASE.extend((1,) * ahead)
    text = refusal(cloud.handle(after(base, Draft((1,) * (11 - ahead)))))
    assert f"of depth {11 - ahead} where the answer has room for {10 - ahead}" in text
    wide = Draft((1,) * 20, (-1,) * 20)  # not deep
    cloud.handle(after(base, wide))
    assert cloud.counters.judged + cloud.pushed == 1


def test_after_a_resampled_token_there_is_room_for_one_token_less() -> None:
    split = replace(PUSHES, payload="probabilities", split=Split("dense"))
    for depth, judged in ((4, 1), (5, 0)):
        cloud = Verification(
            "s", split, BASE, end_tokens=(END,), max_tokens=5, vocabulary=VOCABULARY
        )
        cloud.handle(DraftMessage(BASE, Draft((1,), values=(0.9,)), 0))
        logits = np.full((2, VOCABULARY), -50, np.float32)
        logits[:, 2] = 50
        assert verdict_of(cloud.handle(Scored(LogitRows(logits)))).residual is not None
        draft = Draft((1,) * depth, values=(0.9,) * depth)
        cloud.handle(DraftMessage(BASE.extend((2,)), draft, 1, resampled=2))
        assert cloud.counters.judged == 1 + judged


def test_pushed_rows_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "MAX_PUSHED_BYTES", 3 * ROW.nbytes)
    cloud = Verification("s", PUSHES, BASE, end_tokens=(END,), max_tokens=50, vocabulary=VOCABULARY)
    pushed = [after(BASE.extend((1,) * n), Draft((1,), rows=(ROW,))) for n in range(1, 5)]
    for message in pushed[:3]:
        assert cloud.handle(message) == []
    assert "push fewer" in refusal(cloud.handle(pushed[3]))
    assert cloud.pushed == 3


def after(base: PrefixDigest, draft: Draft) -> DraftMessage:
    return DraftMessage(base, draft, 0)
