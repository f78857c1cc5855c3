"""The pilot: its decisions, what it publishes of them, and what it does while the link is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.checkpoints import vlm
from helpers.scripted_runner import ScriptedRunner

from edge_cloud_spec.edge.runner import DecodeSettings
from edge_cloud_spec.models.tokenizer import TextStream
from edge_cloud_spec.nav.events import EStop, Instruction, Report, Words
from edge_cloud_spec.nav.status import Status
from edge_cloud_spec.pilot.decision_loop import Decide, Say
from edge_cloud_spec.pilot.pilot import Decided, Output, Pilot, PilotSettings
from edge_cloud_spec.presets import load_preset

IT = "find the blue box"
PATIENCE = 60.0  # s; only a hung test takes that long
REFUSAL = "refused: its words are not verified (parameter allow_unverified is false)"
STOPS = PilotSettings(DecodeSettings(load_preset("dsd")))
CREEPS = PilotSettings(DecodeSettings(load_preset("dsd")), alone=load_preset("edge_only"))


class Flight:
    """A pilot with a scripted runner, what it has published, and the presets of its decodes."""

    def __init__(self, settings: PilotSettings = STOPS, text: str = "action: search;") -> None:
        self.said, self.lost, self.now = list[Output](), False, 100.0
        self.thread = threading.Thread()
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

    def take(self) -> Decide:
        self.pilot.hear(Instruction(IT))
        self.now += 1.0
        self.pilot.see(round(self.now * 1e9), b"picture")
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


def test_without_a_runner_nothing_is_decided_and_who_waits_is_let_go() -> None:
    flight = Flight()
    flight.pilot.use(None)
    flight.pilot.hear(Instruction(IT))
    flight.pilot.see(round(flight.now * 1e9), b"picture")
    assert flight.pilot.take() is None
    assert flight.pilot.wait() is None


def test_a_decode_that_raises_is_told_and_the_next_decision_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flight, kept = Flight(), ScriptedRunner.run

    def fail(*given: Any) -> None:
        raise RuntimeError("the model broke")

    monkeypatch.setattr(ScriptedRunner, "run", fail)
    decided = flight.decided()
    assert decided.outcome is None and decided.action is None
    assert [words.finish_reason for words in flight.of(Words)] == ["failed"]
    assert "the model broke" in flight.of(Report)[0].problem
    monkeypatch.setattr(ScriptedRunner, "run", kept)
    flight.now += 10.0
    assert flight.decided().ended.words == "action: search;"


def test_each_decision_has_the_next_number_and_a_seed_of_its_own() -> None:
    flight = Flight()
    flight.pilot.number = 5
    seeds = []
    for _ in range(2):
        seeds.append(flight.decided().seed)
        flight.now += 10.0
    assert seeds == [5, 6] and flight.pilot.number == 7


def test_the_cameras_clock_is_measured_by_stamps_that_go_on() -> None:
    flight = Flight()
    for _ in range(5):
        flight.now += 1.0
        flight.pilot.see(round((flight.now + 3.0) * 1e9), None)
    assert flight.pilot.camera_clock.offset == pytest.approx(3.0)
    flight.now += 100.0
    flight.pilot.see(round((flight.now - 97.0) * 1e9), b"the same stamp again")
    assert flight.pilot.camera_clock.offset == pytest.approx(3.0)
    flight.pilot.pause("")
    assert flight.pilot.camera_clock.offset is None, "another camera may come"


# Bytes that are no letter yet


def test_bytes_that_never_became_a_letter_are_told_at_the_end() -> None:
    """Else "stop" and half of an arrow would be "stop"."""
    tokenizer = vlm().tokenizer
    arrow = tokenizer("stop\u2190", add_special_tokens=False)["input_ids"]
    stream = TextStream(tokenizer)
    while not stream.text.endswith("stop"):
        stream.add(arrow[:1])
        arrow = arrow[1:]
    assert stream.add(arrow[:1]) == "" and stream.text == "stop"
    assert stream.add((), ended=True) == "\ufffd" and stream.text == "stop\ufffd"


@pytest.mark.parametrize(("reason", "rest"), [("end", "\ufffd"), ("length", "")])
def test_the_navigator_hears_of_them(reason: str, rest: str) -> None:
    flight = Flight(text="stop\u2190")
    flight.runner.tokens, flight.runner.by_itself = flight.runner.tokens[:-1], reason
    decided = flight.decided()
    assert [words.text for words in flight.of(Words)] == ["stop", rest]
    assert decided.ended.words == f"stop{rest}" and flight.of(Words)[-1].finish_reason == reason


# While the link is lost


@pytest.fixture
def flying(request: pytest.FixtureRequest) -> Iterator[Flight]:
    """A decision is under way in another thread."""
    flight = Flight(request.param[0])
    flight.lost = request.param[1]
    decide = flight.take()
    flight.thread = threading.Thread(target=flight.pilot.make, args=(decide,))
    flight.thread.start()
    assert flight.runner.said.acquire(timeout=PATIENCE)
    yield flight
    flight.runner.go_on.set()
    flight.thread.join(PATIENCE)


@pytest.mark.parametrize("flying", [(STOPS, False), (CREEPS, True)], indirect=True)
def test_a_decision_that_waits_for_the_link_or_needs_none_goes_on_without_it(
    flying: Flight,
) -> None:
    flying.lost = True
    flying.pilot.lose_link()
    flying.runner.go_on.set()
    flying.thread.join(PATIENCE)
    assert flying.runner.ends == ["end"]
    assert flying.of(Decided)[0].alone is (flying.pilot.settings is CREEPS)


@pytest.mark.parametrize("flying", [(CREEPS, False)], indirect=True)
def test_under_creep_a_decision_in_the_cloud_is_given_up_with_the_link(flying: Flight) -> None:
    flying.lost = True
    flying.pilot.lose_link()
    flying.thread.join(PATIENCE)
    assert flying.runner.ends == ["aborted"]
    assert not flying.of(Report), "it is decided anew"
    flying.now += 1.0
    assert flying.decided().alone
    flying.lost = False
    flying.now += 1.0
    assert not flying.decided().alone, "and in the cloud again once it is back"


@pytest.mark.parametrize("flying", [(STOPS, False)], indirect=True)
def test_what_the_operator_says_ends_the_decision_under_way(flying: Flight) -> None:
    flying.pilot.hear(EStop(True))
    flying.thread.join(PATIENCE)
    assert flying.runner.ends == ["aborted"]
    assert flying.of(Say)[-1].line.startswith("idle e_stop")


def test_by_default_no_lost_link_makes_a_decision_local() -> None:
    flight = Flight()
    flight.lost = True
    assert not flight.pilot.decides_alone and not flight.decided().alone


def test_a_navigator_that_refuses_unverified_words_is_told_of() -> None:
    flight = Flight(CREEPS)
    flight.pilot.hear(Status("idle", "a", REFUSAL))
    assert not flight.of(Report)  # nothing creeps
    flight.lost = True
    flight.pilot.hear(Status("idle", "a", REFUSAL))
    assert "set its parameter allow_unverified too" in flight.of(Report)[0].problem
