"""The robot's state machine, one event at a time: how a decode begins and ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.edge_decoder import (
    BASE,
    OPENED,
    OPENING,
    PROMPT,
    SPEC,
    Robot,
    decoder,
    drafted,
    drafting,
    drafts,
    finish,
    sent,
    verdict,
    waiting,
    work,
)

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.shape import chain
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.events import (
    ANSWERED,
    Abort,
    Cut,
    Emit,
    Finish,
    LinkUp,
    Prepare,
    PromptReady,
    Received,
    Send,
    TimePassed,
    Unusable,
)
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import Close, Fault, Opened, spec_digest


def test_a_known_specification_saves_waiting_for_the_cloud() -> None:
    robot = decoder()
    assert robot.start(0.0, SPEC) == [Send(OPENING), Prepare(SPEC)]
    assert robot.handle(PROMPT, 0.1) == [work((), chain(4))]


def test_the_clouds_own_specification_is_taken_and_what_was_drafted_is_void() -> None:
    robot = decoder()
    robot.start(0.0, b"an old one")
    robot.handle(PromptReady(b"prompt", spec_digest(b"an old one"), (0,), 20), 0.0)
    robot.handle(drafted(robot, (3,)), 0.0)
    late = drafted(robot, (4,), (3, 4))
    opened = Received(Opened("s", SPEC, BASE))
    assert robot.handle(opened, 0.1) == [Prepare(SPEC)]
    assert robot.handle(late, 0.1) == []
    assert robot.handle(PROMPT, 0.2) == [work((), chain(4))]
    (message,) = sent(drafts(robot, (5, 6, 7, 8), 0.3))
    assert message.base == BASE
    assert message.draft.tokens == (5, 6, 7, 8)


@pytest.mark.parametrize("known", [b"", SPEC])
def test_prompts_that_differ_end_the_decode_at_once(known: bytes) -> None:
    robot = decoder()
    robot.start(0.0, known)
    other = Received(Opened("s", b"" if known else SPEC, PrefixDigest(0, 5)))
    actions = [*robot.handle(other, 0.0), *robot.handle(PROMPT, 0.0)]
    assert finish(actions).reason == "prompt_mismatch"
    assert "same tokenizer" in finish(actions).text
    assert sent(actions) == [Close()]


def test_a_prompt_of_a_specification_that_was_replaced_meanwhile_is_ignored() -> None:
    robot = decoder()
    robot.start(0.0, b"an old one")
    assert robot.handle(Received(Opened("s", SPEC, BASE)), 0.1) == [Prepare(SPEC)]
    old = PromptReady(b"prompt", spec_digest(b"an old one"), (0,), 20)
    assert robot.handle(old, 0.2) == []
    assert robot.handle(PROMPT, 0.3) == [work((), chain(4))]


def test_a_cloud_that_does_not_say_how_to_prompt_is_not_waited_for() -> None:
    robot = decoder()
    robot.start(0.0)
    assert finish(robot.handle(OPENED, 0.0)).reason == "bad_opened"


def test_an_end_is_told_to_the_cloud_and_nothing_happens_after() -> None:
    robot = waiting()
    actions = robot.handle(verdict(BASE, (0,), 0, finish="end"), 2.0)
    assert actions == [Emit(0, (3, 0), True), Send(Close()), Finish("end")]
    assert robot.deadline is None
    later = (drafted(robot, (1,), (1,)), OPENED, LinkUp(), TimePassed(), Abort("late"))
    assert [robot.handle(event, 99.0) for event in later] == [[]] * 5


@pytest.mark.parametrize(
    ("event", "reason", "text"),
    [
        (Abort("e_stop"), "aborted", "e_stop"),
        (Unusable("the frame is damaged"), "bad_request", "the frame is damaged"),
        (Received(Fault("overloaded", "try later")), "overloaded", "try later"),
    ],
)
@pytest.mark.parametrize("make", [drafting, waiting])
def test_whatever_ends_a_decode_is_said_with_a_goodbye(make, event, reason, text) -> None:
    robot = make()
    assert robot.handle(event, 2.0) == [Send(Close()), Finish(reason, text)]
    assert robot.finished


@pytest.mark.parametrize("make", [drafting, waiting])
def test_an_answer_that_is_cut_keeps_what_is_verified_and_takes_nothing_more(make) -> None:
    robot = make()
    assert robot.handle(Cut(), 2.0) == [Send(Close()), Finish("cut")] and "cut" in ANSWERED
    assert robot.handle(verdict(BASE, (0,), 9), 2.1) == []
    assert robot.handle(Cut(), 2.2) == []


def test_a_fault_does_not_pass_for_an_answer_that_was_cut() -> None:
    actions = waiting().handle(Received(Fault("cut", "")), 2.0)
    assert finish(actions).reason == "fault"


def test_a_decode_without_a_cloud_says_nothing() -> None:
    robot = decoder("edge_only")
    assert robot.start(0.0) == [Prepare(b"")]
    robot.handle(replace(PROMPT, spec_digest=b""), 0.0)
    assert robot.handle(drafted(robot, (5,)), 0.0) == [Emit(0, (5,), False)]
    assert robot.handle(drafted(robot, (0,), (5, 0)), 0.0) == [Emit(1, (0,), False), Finish("end")]


def test_no_token_is_drafted_that_the_answer_has_no_room_for() -> None:
    robot = Robot(replace(OPENING, max_tokens=3), load_preset("dsd"))
    robot.start(0.0, SPEC)
    robot.handle(OPENED, 0.0)
    assert robot.handle(PROMPT, 0.0) == [work((), chain(2))]
    drafts(robot, (3, 4), 0.0)
    assert robot.handle(verdict(BASE, (0,), 9), 1.0)[1:] == [work((3, 9), chain(1))]


@pytest.mark.parametrize("protocol", [0, 2])
def test_a_cloud_that_knows_no_grammar_is_refused_where_one_is_asked_for(protocol: int) -> None:
    opening = replace(OPENING, policy=replace(OPENING.policy, grammar="start: /a/"))
    robot = EdgeDecoder(opening, load_preset("cloud_ar"))
    robot.start(0.0, SPEC)
    end = finish(robot.handle(Received(Opened("s", SPEC, BASE, protocol)), 0.1))
    assert (end.reason, robot.tokens) == ("bad_opened", [])
    assert "knows no grammar" in end.text


def test_a_cloud_that_knows_grammars_goes_on() -> None:
    opening = replace(OPENING, policy=replace(OPENING.policy, grammar="start: /a/"))
    robot = EdgeDecoder(opening, load_preset("cloud_ar"))
    robot.start(0.0, SPEC)
    robot.handle(Received(Opened("s", SPEC, BASE, 3)), 0.1)
    assert not robot.finished
