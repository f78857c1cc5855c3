"""Why two runs' words differ: what they depend on, and what the rule makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec.observe.decision import Decision
from edge_cloud_spec.observe.run_log import RunLog
from edge_cloud_spec.replay.difference import reasons
from edge_cloud_spec.wire.codec import encode_client
from edge_cloud_spec.wire.messages import Open

ASKED = CLAUSES.request("find it", b"a picture")
GREEDY = Open(1, ASKED, SamplingPolicy(), "greedy", draft_identity="d")
SAMPLED = replace(GREEDY, rule="coupled", policy=SamplingPolicy(1.0, seed=3))
DRAWN = replace(SAMPLED, rule="rejection")


def run(opening: Open, preset: str = "dsd", **run_info: str) -> tuple[RunLog, Decision]:
    run_log = RunLog()
    run_log.run_info = json.dumps(run_info)
    return run_log, Decision(1, "r", 0.0, preset=preset, opening=encode_client(opening))


@pytest.mark.parametrize(
    ("was", "changes", "why"),
    [
        (GREEDY, {"rule": "coupled"}, "the rule is coupled, and was greedy"),
        (GREEDY, {"request": CLAUSES.request("find it", b"another")}, "the picture is "),
        (GREEDY, {"request": CLAUSES.request("stop it", b"a picture")}, "the messages are "),
        (GREEDY, {"max_tokens": 9}, "the max_tokens is 9, and was 0"),
        (SAMPLED, {"policy": SamplingPolicy(1.0, seed=4)}, "the seed is 4, and was 3"),
        (SAMPLED, {"policy": SamplingPolicy(2.0, seed=3)}, "the temperature is 2.0, and was 1.0"),
        (DRAWN, {"draft_identity": "e"}, "the draft model is e, and was d"),
    ],
)
def test_what_the_words_depend_on_is_named(was: Open, changes: dict[str, Any], why: str) -> None:
    found = reasons(run(was), run(replace(was, **changes)))
    assert found.startswith(why) and ";" not in found


@pytest.mark.parametrize(
    "changes", [{}, {"draft_identity": "e"}, {"policy": SamplingPolicy(seed=4)}, {"nonce": 2}]
)
def test_what_they_do_not_depend_on_is_no_reason(changes: dict[str, Any]) -> None:
    found = reasons(run(GREEDY), run(replace(GREEDY, **changes), "fsd"))
    assert found.startswith("nothing that the bag knows of differs: ")
    newer = reasons(run(GREEDY, versions="torch 1"), run(GREEDY, versions="torch 2"))
    assert "but the software is torch 2, and was torch 1" in newer


def test_the_models_of_the_run_and_the_preset_are_named() -> None:
    found = reasons(run(DRAWN, target="a"), run(DRAWN, "fsd", target="b"))
    assert found == "the target is b, and was a; the preset is fsd, and was dsd"
