"""Why two runs' words differ: what they depend on, and what the rule makes of it."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

from edge_cloud_spec.decoding.noise import decision_seed
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.edge.decode_options import DecodeOptions
from edge_cloud_spec.edge.verifier_memory import VerifierMemory
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.byte_drafter import BYTES_DIGEST
from edge_cloud_spec.nav.answer import CLAUSES, ORDERS
from edge_cloud_spec.nav.history import Turn
from edge_cloud_spec.request import messages_digest
from edge_cloud_spec.wire.codec import encode_client
from edge_cloud_spec.wire.frames import ClientFrame, Head
from edge_cloud_spec.wire.messages import Open, base_digest
from edge_cloud_spec_lab.harness.toy import spec_of
from edge_cloud_spec_lab.replay.difference import reasons
from edge_cloud_spec_lab.replay.recording import opening_of, parameters_of
from edge_cloud_spec_lab.running.run_log import Decision, RunLog

ASKED = CLAUSES.request("find it", b"a picture")
GREEDY = Open(1, ASKED, SamplingPolicy(), "greedy", draft_identity="d")
SAMPLED = replace(GREEDY, rule="coupled", policy=SamplingPolicy(1.0, seed=3))
DRAWN = replace(SAMPLED, rule="rejection")


def run(opening: Open, preset: str = "dsd", **run_info: str) -> tuple[RunLog, Decision]:
    run_log = RunLog()
    run_log.run_info = json.dumps(run_info)
    return run_log, Decision(1, "r", 0.0, preset=preset, opening=encode_client(opening).data)


@pytest.mark.parametrize(
    ("was", "changes", "why"),
    [
        (GREEDY, {"rule": "coupled"}, "the rule is coupled, and was greedy"),
        (GREEDY, {"request": CLAUSES.request("find it", b"another")}, "the picture is "),
        (GREEDY, {"request": CLAUSES.request("stop it", b"a picture")}, "the rest of the mess"),
        (GREEDY, {"max_tokens": 9}, "the max_tokens is 9, and was 0"),
        (SAMPLED, {"policy": SamplingPolicy(1.0, seed=4)}, "the seed is 4, and was 3"),
        (SAMPLED, {"policy": SamplingPolicy(2.0, seed=3)}, "the temperature is 2.0, and was 1.0"),
        (DRAWN, {"draft_identity": "e"}, "the draft model is e, and was d"),
    ],
)
def test_what_the_words_depend_on_is_named(was: Open, changes: dict[str, Any], why: str) -> None:
    found = reasons(run(was), run(replace(was, **changes)))
    assert found.startswith(why) and ";" not in found


SAMPLING: dict[str, Any] = {
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.5,
    "seed": 3,
    "grammar": 'start: "yes" | "no"',
}


def test_each_option_of_sampling_has_its_value_here() -> None:
    assert set(SAMPLING) == {each.name for each in fields(SamplingPolicy)}


@pytest.mark.parametrize("name", SAMPLING)
def test_an_option_of_sampling_reaches_the_cloud_and_comes_back_in_a_replay(name: str) -> None:
    """A default in its place would be what nobody asked for, and no error would say so."""
    given = {"rule": "coupled", name: SAMPLING[name]}
    policy = DecodeOptions.of(given).settings.policy
    assert getattr(policy, name) == given[name] != getattr(SamplingPolicy(), name)
    usual = replace(
        GREEDY, rule="coupled", policy=DecodeOptions.of({"rule": "coupled"}).settings.policy
    )
    asked = replace(usual, policy=policy)
    decision = replace(run(asked)[1], seed=decision_seed(3, 1))
    assert opening_of(decision).policy == policy
    assert base_digest(asked, b"", b"") != base_digest(usual, b"", b"")
    assert reasons(run(usual), run(asked)).startswith(f"the {name} is ")
    assert ({"rule": "coupled"} | parameters_of(decision, asked))[name] == given[name]


@pytest.mark.parametrize(
    "changes", [{}, {"draft_identity": "e"}, {"policy": SamplingPolicy(seed=4)}, {"nonce": 2}]
)
def test_what_they_do_not_depend_on_is_no_reason(changes: dict[str, Any]) -> None:
    found = reasons(run(GREEDY), run(replace(GREEDY, **changes), "fsd"))
    assert found.startswith("nothing that the bag knows of differs: ")
    newer = reasons(run(GREEDY, versions="torch 1"), run(GREEDY, versions="torch 2"))
    assert "but the software is torch 2, and was torch 1" in newer


def test_a_bag_of_protocol_4_is_refused_in_a_sentence() -> None:
    """Its Open: the protocol, an instruction, a picture, an order."""
    said = b"\x08\x04\x1a\x07find it\x22\x02jp\x2a\x0caction first"
    recorded = ClientFrame.of(Head("open"), said).data
    decision = Decision(3, "r", 0.0, opening=recorded)
    with pytest.raises(UserError, match="decision 3 was recorded with protocol 4") as refused:
        opening_of(decision)
    assert "replay it with the edge_cloud_spec that made it" in str(refused.value)


def asked_by(*openings: Open) -> RunLog:
    """The log of decisions that ask so, in this order."""
    log, header = RunLog(), SimpleNamespace(stamp=SimpleNamespace(sec=1, nanosec=0))
    for number, opening in enumerate(openings):
        payload = encode_client(opening).data
        log.on_message(
            "decode_request",
            SimpleNamespace(
                kind=0,
                request_id=f"r{number}",
                payload=payload,
                seed=0,
                preset="dsd",
                header=header,
            ),
            float(number),
        )
    return log


def test_what_a_request_names_is_known_from_those_before_it() -> None:
    """A conversation of three frames, of which each request sends what is new; a picture that is
    asked about again is not sent twice."""
    memory, openings = VerifierMemory(), list[Open]()
    turns = [Turn.of(bytes([n]), f"action: {n};") for n in range(3)]
    wholes = [
        replace(CLAUSES.request("find it", bytes([n]), ORDERS[1], turns[:n]), continues=True)
        for n in (0, 1, 2, 2)
    ]
    for whole in wholes:
        said, after = memory.shortened(whole)
        memory.add(whole)
        openings.append(replace(GREEDY, request=said, after=after))
    decisions = [*asked_by(*openings).decisions.values()]
    for decision, whole in zip(decisions, wholes, strict=True):
        assert messages_digest(decision.messages) == whole.digest
    assert [decision.remembered for decision in decisions] == [0, 1, 2, 2]
    assert [len(opening.request.messages) for opening in openings] == [1, 2, 2, 1]
    for decision, opening in zip(decisions, openings, strict=True):
        assert parameters_of(decision, opening)["order"] == ORDERS[1]
    cut_off = asked_by(*openings[1:]).decisions["r0"]  # recording began in the midst
    assert cut_off.remembered == 0 and "order" not in parameters_of(cut_off, openings[1])


def test_the_models_of_the_run_and_the_preset_are_named() -> None:
    found = reasons(run(DRAWN, target="a"), run(DRAWN, "fsd", target="b"))
    assert found == "the target is b, and was a; the preset is fsd, and was dsd"


@pytest.mark.parametrize(("asked", "gave", "played"), [(64, 128, 64), (1024, 128, 128)])
def test_an_answer_that_the_verifier_cut_is_played_to_its_length(
    asked: int, gave: int, played: int
) -> None:
    """By a verifier that would give more."""
    opening, spec = replace(GREEDY, max_tokens=asked), spec_of(gave)
    _, decision = run(opening)
    assert parameters_of(decision, opening, spec)["max_tokens"] == played
    in_bytes = replace(opening, tokenizer_digest=BYTES_DIGEST, max_tokens=4 * asked)
    spec = replace(spec, max_tokens=4 * gave)
    assert parameters_of(decision, in_bytes, spec)["max_tokens"] == played
