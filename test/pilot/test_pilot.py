"""The pilot: its decisions, what it publishes of them, and what it does while the link is lost."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import Any

import pytest
from helpers.checkpoints import vlm
from helpers.scripted_runner import ScriptedRunner

from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.edge.runner import DecodeSettings
from edge_cloud_spec.history import HistorySpec, picture_digest
from edge_cloud_spec.instruction import check_instruction
from edge_cloud_spec.nav.events import EStop, Instruction, Report, Words
from edge_cloud_spec.nav.status import GoalStatus, Status
from edge_cloud_spec.pilot import decision_loop
from edge_cloud_spec.pilot.decision_loop import (
    FULL,
    NONE,
    UNTIL_NEXT,
    Decide,
    Event,
    LoopSettings,
)
from edge_cloud_spec.pilot.pilot import Decided, Output, Pilot, PilotSettings
from edge_cloud_spec.presets import load_preset

IT = "find the blue box"
REPLY_TIMEOUT = 60.0  # s; only a hung test takes that long
STOPS = PilotSettings(DecodeSettings(load_preset("dsd")))
CREEPS = PilotSettings(DecodeSettings(load_preset("dsd")), alone=load_preset("edge_only"))


class Flight:
    """A pilot with a scripted runner, what it has published, and the presets of its decodes."""

    def __init__(self, settings: PilotSettings = STOPS, text: str = "action: search;") -> None:
        self.said, self.lost, self.now = list[Output](), False, 100.0
        tokens = vlm().tokenizer(text, add_special_tokens=False)["input_ids"]
        self.runner = ScriptedRunner(vlm(), tuple(tokens))
        self.pilot = Pilot(
            settings,
            lambda decide, on_receive: pytest.fail("scripted runners need no transport"),
            self.said.append,
            is_link_lost=lambda: self.lost,
            clock=lambda: self.now,
            stamp_clock=lambda: round(self.now * 1e9),
        )
        self.pilot.use(self.runner)  # type: ignore[arg-type]

    def see(self) -> None:
        self.now += 1.0
        self.pilot.see(round(self.now * 1e9), b"picture")

    def take(self) -> Decide:
        self.pilot.hear(Instruction(IT))
        self.see()
        decide = self.pilot.take()
        assert decide is not None
        return decide

    def decided(self) -> Decided:
        self.runner.go_on.set()
        return self.pilot.make(self.take())

    def of(self, kind: type) -> list[Any]:
        return [each for each in self.said if isinstance(each, kind)]


def test_a_decision_is_taken_once_and_its_words_say_what_it_was_decided_for() -> None:
    flight = Flight()
    flight.pilot.hear(Status("idle", stops=7))
    decide = flight.take()
    assert flight.pilot.take() is None, "one at a time"
    flight.runner.go_on.set()
    decided = flight.pilot.make(decide)
    assert decided.ended.words == "action: search;" and decided.ended.whole
    assert str(decided.action) == "search"
    first, last = flight.of(Words)
    assert (first.text, first.position, first.verified) == ("action: search;", 0, True)
    assert (last.finished, last.finish_reason, last.position) == (True, "end", len(first.tokens))
    for words in (first, last):
        assert (words.request, words.instruction, words.stops) == (decide.request, IT, 7)
        assert words.stamp == decide.frame.stamp and words.answer == decided.ended.words
    assert flight.said.index(decided) > flight.said.index(last)
    assert not flight.of(Report)


@pytest.mark.parametrize("stands_still", [0, 108 * 10**9])
def test_the_cameras_clock_is_measured_by_stamps_that_go_on(stands_still: int) -> None:
    flight = Flight()
    for _ in range(5):
        flight.now += 1.0
        flight.pilot.see(round((flight.now + 3.0) * 1e9), None)
    assert flight.pilot.camera_clock.offset == pytest.approx(3.0)
    for _ in range(20):
        flight.now += 1.0
        flight.pilot.see(stands_still, None)
    assert flight.pilot.camera_clock.offset == pytest.approx(3.0)
    flight.pilot.pause("")
    assert flight.pilot.camera_clock.offset is None, "another camera may come"


def test_words_have_the_time_of_their_frame_less_its_lag_and_the_cameras_offset() -> None:
    flight = Flight(replace(STOPS, loop=LoopSettings(lag=0.5)))
    flight.pilot.hear(Instruction(IT))
    flight.now += 1.0
    flight.pilot.see(round((flight.now + 3.0) * 1e9), b"picture")
    decide = flight.pilot.take()
    assert decide is not None and decide.frame.stamp == round((flight.now + 2.5) * 1e9)
    flight.runner.go_on.set()
    flight.pilot.make(decide)
    words = flight.of(Words)[0]
    assert words.stamp == decide.frame.stamp and words.camera_offset == pytest.approx(3.0)
    assert words.age == math.inf, "who receives them says it; else they move nothing"


def test_a_drafter_that_failed_in_a_decision_is_reported_and_its_answer_counts() -> None:
    flight = Flight()
    flight.runner.failure = "the draft model ran out of memory"
    assert str(flight.decided().action) == "search"
    problem = "the cloud went on alone: the draft model ran out of memory"
    assert [report.problem for report in flight.of(Report)] == [problem]


@pytest.mark.parametrize(("reason", "rest"), [("end", "\ufffd"), ("length", "")])
def test_bytes_that_never_became_a_letter_are_told_at_the_end(reason: str, rest: str) -> None:
    """Else "stop" and half of an arrow would be "stop"."""
    flight = Flight(text="stop\u2190")
    flight.runner.tokens, flight.runner.by_itself = flight.runner.tokens[:-1], reason
    decided = flight.decided()
    assert [words.text for words in flight.of(Words)] == ["stop", rest]
    assert decided.ended.words == f"stop{rest}" and flight.of(Words)[-1].finish_reason == reason


# What a mission remembers


def remembers(flight: Flight, frames: int = 8) -> None:
    flight.runner.history = HistorySpec(frames)


def answers(flight: Flight) -> list[str]:
    """The answers in the prompt of the last decision."""
    return [turn.answer for turn in flight.runner.requests[-1].history]


def test_each_prompt_holds_the_frames_and_answers_of_its_mission_before() -> None:
    flight = Flight()
    remembers(flight, 2)
    held = []
    for _ in range(4):
        decided = flight.decided()
        held.append([turn.jpeg for turn in decided.history])
        assert [turn.image_digest for turn in decided.history] == [
            picture_digest(b"picture") for _ in held[-1]
        ]
    assert [len(each) for each in held] == [0, 1, 2, 1]
    assert answers(flight) == ["action: search;"]


@pytest.mark.parametrize("change", ["goal", "history", "stop"])
def test_another_mission_begins_anew(change: str) -> None:
    flight = Flight()
    remembers(flight)
    for _ in range(2):
        flight.decided()
    assert answers(flight) == ["action: search;"]
    if change == "history":
        remembers(flight, 4)
    else:
        flight.pilot.hear(Instruction("stop" if change == "stop" else "find the red chair"))
    flight.decided()
    assert not answers(flight)


@pytest.mark.parametrize("how", ["aborted", "unverified", "no action"])
def test_what_nobody_verified_or_decided_is_in_no_history(how: str) -> None:
    text = "reason: nothing;" if how == "no action" else "action: search;"
    flight = Flight(text=text)
    remembers(flight)
    flight.runner.verified = how != "unverified"
    flight.runner.by_itself = "aborted" if how == "aborted" else "end"
    flight.decided()
    flight.now += 60.0
    flight.decided()
    assert not answers(flight)


def test_a_decision_alone_is_made_without_the_history() -> None:
    flight = Flight(CREEPS)
    remembers(flight)
    flight.decided()
    flight.lost = True
    flight.decided()
    assert not answers(flight)
    flight.lost = False
    flight.decided()
    assert answers(flight) == ["action: search;"]


@pytest.mark.parametrize(
    ("explain", "answer"),
    [(FULL, "action: search; reason: a wall;"), (UNTIL_NEXT, "action: search;")],
)
def test_where_answers_may_be_cut_the_history_ends_each_at_its_action(
    explain: str, answer: str
) -> None:
    """So that it does not depend on times."""
    flight = Flight(explaining(explain), "action: search; reason: a wall;")
    remembers(flight)
    for _ in range(2):
        flight.decided()
    assert answers(flight) == [answer]


# While a decision is under way


class Flying(Flight):
    """Decisions are made in a thread of their own; one begins, and has said its action."""

    def __init__(self, settings: PilotSettings = STOPS, lost: bool = False, **given: str) -> None:
        super().__init__(settings, **given)
        self.lost = lost
        self._thread = threading.Thread(target=self._make_all)

    def __enter__(self) -> Flying:
        self._thread.start()
        self.pilot.hear(Instruction(IT))
        self.pilot.hear(Status("idle", stops=7))
        self.see()
        self.begun()
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.go_on.set()
        self.pilot.use(None)
        self._thread.join(REPLY_TIMEOUT)

    def _make_all(self) -> None:
        for decide in iter(self.pilot.wait, None):
            self.pilot.make(decide)

    def begun(self) -> str:
        assert self.runner.said.acquire(timeout=REPLY_TIMEOUT)
        request: str = self.of(Words)[-1].request
        return request

    def ended(self) -> list[str]:
        """How decodes ended, once nothing is under way."""
        assert self.pilot.idle.wait(REPLY_TIMEOUT)
        return self.runner.ends


def explaining(explain: str) -> PilotSettings:
    return replace(STOPS, loop=LoopSettings(explain))


def test_without_explanations_a_decode_ends_at_its_action() -> None:
    with Flying(explaining(NONE)) as flying:
        assert flying.ended() == ["cut"]


def test_an_explanation_is_cut_off_when_the_next_decision_has_its_frame() -> None:
    with Flying(explaining(UNTIL_NEXT)) as flying:
        flying.pilot.hear(Status("ready", flying.of(Words)[-1].request, stops=7))
        assert not flying.runner.ends, "there is no frame from after that"
        flying.see()
        flying.begun()
        assert flying.runner.ends == ["cut"]


@pytest.mark.parametrize("event", [Instruction("stop"), EStop(True)], ids=str)
def test_what_the_operator_says_ends_a_decode_that_explains_itself(event: Event) -> None:
    with Flying(explaining(FULL)) as flying:
        flying.pilot.hear(Status("ready", flying.of(Words)[-1].request, stops=7))
        flying.see()
        assert not flying.runner.ends, "the explanation is wanted"
        assert flying.pilot.take() is None, "and one decision is made at a time"
        flying.pilot.hear(event)
        assert flying.ended() == ["aborted"]
        assert flying.of(GoalStatus)[-1].state == "stopped"


def test_an_e_stop_that_comes_amid_an_instruction_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flight, threads = Flight(), list[threading.Thread]()

    def check_meanwhile(*given: Any) -> str:
        threads.append(threading.Thread(target=flight.pilot.hear, args=(EStop(True),)))
        threads[0].start()
        threads[0].join(0.2)
        return check_instruction(*given)

    monkeypatch.setattr(decision_loop, "check_instruction", check_meanwhile)
    flight.pilot.hear(Instruction(IT))
    threads[0].join()
    flight.pilot.hear(Status("idle", stops=7))
    flight.see()
    assert not flight.pilot.instruction and flight.pilot.take() is None


@pytest.mark.parametrize(("reason", "follows"), [("end", ""), ("length", IT)])
def test_a_bare_word_is_an_action_once_its_answer_has_ended(reason: str, follows: str) -> None:
    dialect = load_dialect("uni_navid")
    settings = replace(STOPS, loop=LoopSettings(NONE, dialect=dialect))
    with Flying(settings, text="stop") as flying:
        flying.runner.by_itself = reason
        assert flying.pilot.instruction == IT and not flying.runner.ends, "it may go on"
        flying.runner.go_on.set()
        assert flying.ended() == [reason]
        assert flying.pilot.instruction == follows, "a stop, or none"


# While the link is lost


@pytest.mark.parametrize(
    ("settings", "lost", "alone"),
    [(STOPS, False, False), (STOPS, True, False), (CREEPS, True, True)],
)
def test_a_decision_that_waits_for_the_link_or_needs_none_goes_on_without_it(
    settings: PilotSettings, lost: bool, alone: bool
) -> None:
    with Flying(settings, lost) as flying:
        flying.lost = True
        flying.pilot.lose_link()
        flying.runner.go_on.set()
        assert flying.ended() == ["end"]
        assert flying.of(Decided)[0].alone is flying.pilot.decides_alone is alone
        assert flying.runner.presets == ["edge_only" if alone else "dsd"]


def test_under_creep_a_decision_in_the_cloud_is_given_up_with_the_link() -> None:
    with Flying(CREEPS) as flying:
        flying.lost = True
        flying.pilot.lose_link()
        assert flying.ended() == ["aborted"]
        assert not flying.of(Report), "it is decided anew"
        assert [str(said) for said in flying.of(GoalStatus)] == [f"following {IT}"], (
            "and is no failure"
        )
    flying = Flying(CREEPS, lost=True)
    assert flying.decided().alone
    flying.lost, flying.now = False, flying.now + 10.0
    assert not flying.decided().alone, "and in the cloud again once it is back"
