"""Random messages of a verifier break no promise of a robot's decode; a robot that breaks one is
found out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fuzz import Broken, spoil
from fuzz.decoder import run

from edge_cloud_spec.decoding.verified_answer import VerifiedAnswer
from edge_cloud_spec.edge.answer import settled_by
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.rounds import Mode, Rounds
from edge_cloud_spec.wire.messages import Opened, Verdict


def test_a_sample_of_random_messages_breaks_no_promise() -> None:
    counts = run(1000, seed=3)
    assert counts["emits"] > 1000 and counts["resampled"] > 5
    reached = {name.split(" > ")[0] for name in counts if " > " in name}
    assert reached == {mode.name for mode in Mode}
    for reason in ("end", "length", "timeout", "bad_verdict", "bad_opened", "prompt_mismatch"):
        assert counts[f"finish {reason}"], reason


# What is wrong: each gets what is right first.


def _believes(on_verdict: Any, self: Rounds, verdict: Verdict, now: float) -> Any:
    here = self.answer.is_at(verdict.base)
    tokens = settled_by(verdict, self._awaited_draft)[1] if here else None
    if tokens is not None:
        verdict = replace(verdict, leads_to=self.answer.digest.extend(tokens).short)
    return on_verdict(self, verdict, now)


def _believes_anywhere(on_verdict: Any, self: Rounds, verdict: Verdict, now: float) -> Any:
    if self.answer.begun and verdict.base.length == len(self.answer.tokens):
        verdict = replace(verdict, base=self.answer.digest)
    return _believes(on_verdict, self, verdict, now)


def _prompts_anew(_: Any, self: EdgeDecoder, opened: Opened, now: float) -> Any:
    return self._prepare(opened.spec) if opened.spec else self._compare_bases()


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (Rounds, "on_verdict", _believes),
        (Rounds, "on_verdict", _believes_anywhere),
        (VerifiedAnswer, "room", 100),
        (EdgeDecoder, "_on_first_opened", _prompts_anew),
    ],
)
def test_a_robot_that_breaks_a_promise_is_found_out(
    owner: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, owner, name, wrong)
    with pytest.raises(Broken):
        run(6000, seed=1)
