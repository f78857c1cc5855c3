"""The pilot: its decisions, what it publishes of them, and what it does while the link is lost."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from helpers.checkpoints import vlm
from helpers.scripted_runner import ScriptedRunner

from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.edge.runner import DecodeRunner, DecodeSettings, Outcome
from edge_cloud_spec.errors import TRACEBACKS, UserError
from edge_cloud_spec.instruction import check_instruction
from edge_cloud_spec.models.byte_drafter import ByteDrafter, byte_spec
from edge_cloud_spec.nav.answer import CLAUSES, Dialect
from edge_cloud_spec.nav.events import EStop, Instruction, Report, Words
from edge_cloud_spec.nav.free_space import NOTHING_SEEN, FreeSpace
from edge_cloud_spec.nav.history import HistorySpec
from edge_cloud_spec.nav.limits import Limits
from edge_cloud_spec.nav.motion import IN_THE_WAY
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.nav.status import TOLD_TO_STOP, GoalStatus, NavigatorStatus
from edge_cloud_spec.pilot import decision_loop
from edge_cloud_spec.pilot.decision_loop import (
    EXPLAIN_FULL,
    EXPLAIN_NONE,
    EXPLAIN_UNTIL_NEXT,
    SAME_PICTURE,
    Decide,
    Event,
    LoopSettings,
)
from edge_cloud_spec.pilot.pilot import Decided, Output, Pilot, PilotSettings
from edge_cloud_spec.presets import load_preset, preset_names
from edge_cloud_spec.share import config_names

IT = "find the blue box"
SEARCH, FORWARD, STOP = "action: search;", "action: move forward small;", "action: stop;"
REPLY_TIMEOUT = 60.0  # s; only a hung test takes that long
STOPS = PilotSettings(DecodeSettings(load_preset("dsd")))
CREEPS = PilotSettings(DecodeSettings(load_preset("dsd")), alone=load_preset("edge_only"))


def explaining(explain: str) -> PilotSettings:
    return replace(STOPS, loop=LoopSettings(explain))


def remembering(settings: PilotSettings, frames: int) -> PilotSettings:
    dialect = replace(settings.dialect, history=HistorySpec(frames))
    return replace(settings, dialect=dialect)


class Flight:
    """A pilot with a scripted runner, what it has published, and the presets of its decodes."""

    def __init__(
        self, settings: PilotSettings = STOPS, text: str = SEARCH, frames: int = 0
    ) -> None:
        self.said, self.lost, self.now = list[Output](), False, 100.0
        self.failing: tuple[type, ...] = ()  # what cannot be published
        tokens = vlm().tokenizer(text, add_special_tokens=False)["input_ids"]
        self.runner = ScriptedRunner(vlm(), tuple(tokens))
        self.pilot = Pilot(
            remembering(settings, frames),
            lambda decide, on_receive: pytest.fail("scripted runners need no transport"),
            self.publish,
            is_link_lost=lambda: self.lost,
            clock=lambda: self.now,
            stamp_clock=lambda: round(self.now * 1e9),
        )
        self.pilot.use(self.runner)  # type: ignore[arg-type]

    def publish(self, output: Output) -> None:
        self.said.append(output)
        if isinstance(output, self.failing):
            raise ZeroDivisionError("an adversary")

    def see(self, picture: bytes | None = b"picture", ahead: float = 0.0) -> None:
        """A second later; ``ahead``: of the camera's clock, s."""
        self.now += 1.0
        self.pilot.see(round((self.now + ahead) * 1e9), picture)

    def take(self) -> Decide:
        self.pilot.receive(Instruction(IT))
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
    flight.pilot.receive(NavigatorStatus("idle", stops=7))
    decide = flight.take()
    assert flight.pilot.take() is None, "one at a time"
    flight.runner.go_on.set()
    decided = flight.pilot.make(decide)
    assert decided.answer == SEARCH and str(decided.ended.action) == "search"
    first, last = flight.of(Words)
    assert (first.text, first.position, first.verified) == (SEARCH, 0, True)
    assert (last.finished, last.finish_reason, last.position) == (True, "end", len(first.tokens))
    for words in (first, last):
        assert (words.request, words.instruction, words.stops) == (decide.request, IT, 7)
        assert words.stamp == decide.frame.stamp and words.answer == decided.answer
        assert (str(words.reading.action), words.reading.end) == ("search", len(SEARCH))
    assert flight.said.index(decided) > flight.said.index(last)
    assert not flight.of(Report)


@pytest.mark.parametrize("stands_still", [0, 108 * 10**9])
def test_the_cameras_clock_is_measured_by_stamps_that_go_on(stands_still: int) -> None:
    flight = Flight()
    for _ in range(5):
        flight.see(None, ahead=3.0)
    assert flight.pilot.camera_clock.offset == pytest.approx(3.0)
    for _ in range(20):
        flight.now += 1.0
        flight.pilot.see(stands_still, None)
    assert flight.pilot.camera_clock.offset == pytest.approx(3.0)
    flight.pilot.pause("")
    assert flight.pilot.camera_clock.offset is None, "another camera may come"


def test_words_have_the_time_of_their_frame_less_its_lag_and_the_cameras_offset() -> None:
    flight = Flight(replace(STOPS, loop=LoopSettings(lag=0.5)))
    flight.pilot.receive(Instruction(IT))
    flight.see(ahead=3.0)
    decide = flight.pilot.take()
    assert decide is not None and decide.frame.stamp == round((flight.now + 2.5) * 1e9)
    flight.runner.go_on.set()
    flight.pilot.make(decide)
    words = flight.of(Words)[0]
    assert words.stamp == decide.frame.stamp and words.camera_offset == pytest.approx(3.0)
    assert words.age == math.inf, "who receives them says it; else they move nothing"


def test_what_was_not_quite_as_asked_for_is_reported_and_its_answer_counts() -> None:
    flight = Flight()
    flight.runner.shortened = "the verifier gives 128 tokens at most"
    flight.runner.failure = "the draft model ran out of memory"
    assert str(flight.decided().ended.action) == "search"
    problem = "the cloud went on alone: the draft model ran out of memory"
    assert [each.problem for each in flight.of(Report)] == [problem, flight.runner.shortened]


@pytest.mark.parametrize(("reason", "rest"), [("end", "\ufffd"), ("length", "")])
def test_bytes_that_never_became_a_letter_are_told_at_the_end(reason: str, rest: str) -> None:
    """Else "stop" and half of an arrow would be "stop"."""
    flight = Flight(text="stop\u2190")
    flight.runner.tokens, flight.runner.by_itself = flight.runner.tokens[:-1], reason
    decided = flight.decided()
    assert [words.text for words in flight.of(Words)] == ["stop", rest]
    assert decided.answer == f"stop{rest}" and flight.of(Words)[-1].finish_reason == reason


# What a mission remembers


def answers(flight: Flight) -> list[str]:
    """The answers in the prompt of the last decision."""
    messages = flight.runner.requests[-1].messages
    return [message.text for message in messages if message.role == "assistant"]


def test_each_prompt_holds_the_frames_and_answers_of_its_mission_before() -> None:
    flight = Flight(frames=2)
    held = []
    for _ in range(4):
        decided = flight.decided()
        held.append(decided.history)
        assert all(turn.picture.data == b"picture" for turn in decided.history)
    assert [len(each) for each in held] == [0, 1, 2, 1]
    assert answers(flight) == [SEARCH]


@pytest.mark.parametrize("change", ["goal", "history", "stop"])
def test_another_mission_begins_anew(change: str) -> None:
    flight = Flight(frames=8)
    for _ in range(2):
        flight.decided()
    assert answers(flight) == [SEARCH]
    if change == "history":
        flight.pilot.settings = remembering(STOPS, 0)
    else:
        flight.pilot.receive(Instruction("stop" if change == "stop" else "find the red chair"))
    flight.decided()
    assert not answers(flight)


EXPLAINED = f"{SEARCH} reason: a wall;"


@pytest.mark.parametrize(
    ("explain", "text", "verified", "reason", "held"),
    [
        (EXPLAIN_FULL, SEARCH, True, "aborted", []),
        (EXPLAIN_FULL, SEARCH, False, "end", []),
        (EXPLAIN_FULL, "reason: nothing;", True, "end", []),
        (EXPLAIN_FULL, EXPLAINED, True, "end", [EXPLAINED]),
        # Where answers may be cut, it does not depend on times.
        (EXPLAIN_UNTIL_NEXT, EXPLAINED, True, "end", [SEARCH]),
    ],
)
def test_a_history_has_whole_answers_or_actions_and_nothing_that_nobody_verified_or_decided(
    explain: str, text: str, verified: bool, reason: str, held: list[str]
) -> None:
    flight = Flight(explaining(explain), text, frames=8)
    flight.runner.verified, flight.runner.by_itself = verified, reason
    flight.decided()
    flight.now += 60.0
    flight.decided()
    assert answers(flight) == held


def test_a_decision_alone_is_made_without_the_history() -> None:
    """In the cloud again, once the link is back, there is one."""
    flight = Flight(CREEPS, frames=8)
    flight.decided()
    flight.lost = True
    assert flight.decided().alone and not answers(flight)
    flight.lost = False
    assert not flight.decided().alone and answers(flight) == [SEARCH]


# What a prompt tells of free space

TELLS = replace(CLAUSES, user_text=f"{CLAUSES.user_text}\nFree space: {{free_space}}.")
TELLING = replace(STOPS, dialect=TELLS)
UNSEEN = NOTHING_SEEN.words


def show(flight: Flight, *seconds: float, base_clock: float | None = None) -> None:
    """Lidars showed tenths of a metre ahead, one for each: so many seconds from now."""
    for number, later in enumerate(seconds, 1):
        at = round((flight.now + later) * 1e9)
        flight.pilot.receive(FreeSpace(number / 10, at=at, base_clock=base_clock))


def spaces(flight: Flight) -> list[str]:
    """What the last prompt tells of free space ahead, message by message."""
    messages = flight.runner.requests[-1].messages
    said = [re.search(r"ahead ([a-z0-9. ]+),", each.text) for each in messages]
    return [found[1] for found in said if found]


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        ((0.6, 0.9, 1.2, 1.5), "0.2 m"),  # the frame is a second later
        ((0.75, 2.0), "0.1 m"),
        ((1.25, 0.5), "0.1 m"),
        ((0.6, 1.4), "not seen"),
        ((-3.0, 5.0), "not seen"),
        ((), "not seen"),
    ],
)
def test_a_prompt_tells_the_free_space_of_its_frames_time_or_that_none_is_known(
    shown: tuple[float, ...], told: str
) -> None:
    flight = Flight(TELLING)
    show(flight, *shown)
    flight.decided()
    assert spaces(flight) == [told]
    assert bool(flight.of(Report)) == (told == "not seen")
    assert flight.runner.requests[-1].text.endswith(f"Free space: ahead {told}, {UNSEEN[16:]}.")


@pytest.mark.parametrize(
    ("camera", "base"), [(0.0, None), (-0.2, None), (3.0, None), (3.0, 3.0), (-3.0, -3.0)]
)
@pytest.mark.parametrize("lag", [0.0, 4.0])
def test_the_time_is_the_same_by_whatever_clock_the_camera_stamps_its_frames(
    camera: float, base: float | None, lag: float
) -> None:
    flight = Flight(replace(TELLING, loop=LoopSettings(lag=lag)))
    for _ in range(4):
        flight.see(None, camera)
    flight.pilot.receive(Instruction(IT))
    flight.now += lag
    show(flight, 1.0 - lag - 0.4, 1.0 - lag + min(0.0, camera) * (base is None), base_clock=base)
    flight.see(b"picture", camera)
    decide = flight.pilot.take()
    assert decide is not None and decide.free_space.words.startswith("ahead 0.2 m,")


def test_a_conversation_tells_the_free_space_of_each_of_its_frames() -> None:
    flight = Flight(TELLING, frames=2)
    told = []
    for number in range(4):
        show(flight, *[1.0] * (number + 1))
        flight.decided()
        told.append(spaces(flight))
    assert told == [["0.1 m"], ["0.1 m", "0.2 m"], ["0.1 m", "0.2 m", "0.3 m"], ["0.3 m", "0.4 m"]]


PLACED = replace(
    CLAUSES,
    user_text="{instruction}\n{free_space}\n{order}",
    free_space="seen {seen}; not {tried}",
    seen=r"far (?P<metres>[\d.]+) (?P<side>left|ahead|right) (?P<degrees>\d+);",
)
FAR = "reason: blue box far 2.0 left 90; action: turn left large;"


def placed(flight: Flight, x: float, y: float, yaw: float) -> str:
    """What the prompt tells of places, of a decision that is made with the front there."""
    at = round((flight.now + 1.0) * 1e9)
    flight.pilot.receive(FreeSpace(1.0, front=Pose(x, y, yaw), at=at))
    flight.decided()
    return flight.runner.requests[-1].text.splitlines()[-2]


def saying(text: str) -> Flight:
    """A pilot whose model says this."""
    flight = Flight(replace(STOPS, dialect=PLACED))
    flight.runner.tokens = tuple(vlm().tokenizer(text, add_special_tokens=False)["input_ids"])
    return flight


def test_a_prompt_tells_where_an_answer_saw_the_thing_and_what_was_tried_there() -> None:
    flight = saying(FAR)
    assert placed(flight, 0.0, 0.0, 0.0) == "seen not seen; not nothing"
    assert placed(flight, 0.05, 0.0, 0.1) == "seen left 86 2.0; not turn left large"
    assert placed(flight, 1.0, 0.0, 0.0).endswith("not nothing")  # elsewhere
    assert placed(flight, 0.0, 0.0, math.pi / 2).endswith("not nothing")  # it faces elsewhere
    for tries in (2, 3, 4, 5, 6, 6):
        assert placed(flight, 0.0, 0.0, 0.0).count("turn left large") == tries
    assert placed(flight, 0.0, 0.0, 0.0).startswith("seen left 90 2.0; ")


def test_what_another_mission_saw_and_tried_is_not_told() -> None:
    flight = saying(FAR)
    placed(flight, 0.0, 0.0, 0.0)
    flight.pilot.receive(Instruction("find the red chair"))
    assert placed(flight, 0.0, 0.0, 0.0) == "seen not seen; not nothing"


def test_what_was_decided_alone_was_tried_but_nobody_has_seen_it() -> None:
    """The drafter's words are not verified: it tells no place by them, and repeats itself less."""
    flight = saying(FAR)
    placed(flight, 0.0, 0.0, 0.0)
    flight.runner.verified = False
    for tries in range(3):
        said = placed(flight, 0.0, 1.0, 0.0)
        assert said.startswith("seen left 90 1.0; ") and said.count("turn left large") == tries


def test_what_no_answer_sees_any_more_is_where_it_was() -> None:
    flight = saying(FAR)
    placed(flight, 0.0, 0.0, 0.0)
    search = "reason: no blue box, nothing known; action: search;"
    flight.runner.tokens = tuple(vlm().tokenizer(search, add_special_tokens=False)["input_ids"])
    assert placed(flight, 0.0, 1.0, 0.0).startswith("seen left 90 1.0;")
    assert placed(flight, 0.0, 2.0, -1.0).startswith("seen ")
    assert placed(flight, 0.0, 4.0, 0.0).startswith("seen right 90 2.0;")


TELLS_NOTHING = [
    name for name in config_names("dialect") if not load_dialect(name).tells_free_space
]


@pytest.mark.parametrize("name", TELLS_NOTHING)
@pytest.mark.parametrize("frames", [0, 2])
def test_a_dialect_without_its_place_tells_no_free_space(name: str, frames: int) -> None:
    settings = replace(STOPS, dialect=load_dialect(name))
    requests = []
    for shown in ((), (1.0,)):
        flight = Flight(settings, frames=frames)
        for _ in range(2):
            show(flight, *shown)
            flight.decided()
        requests.append(flight.runner.requests[-1])
        assert not flight.of(Report)
    assert requests[0] == requests[1] and "not seen" not in requests[0].text


# While a decision is under way


class Flying(Flight):
    """Decisions are made in a thread of their own; one begins, and has said its action."""

    def __init__(self, settings: PilotSettings = STOPS, lost: bool = False, **given: str) -> None:
        super().__init__(settings, **given)
        self.lost = lost
        self._thread = threading.Thread(target=self._make_all)

    def __enter__(self) -> Flying:
        self._thread.start()
        self.pilot.receive(Instruction(IT))
        self.pilot.receive(NavigatorStatus("idle", stops=7))
        self.see()
        assert self.runner.said.acquire(timeout=REPLY_TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.go_on.set()
        self.pilot.use(None)
        self._thread.join(REPLY_TIMEOUT)

    def _make_all(self) -> None:
        for decide in iter(self.pilot.wait, None):
            self.pilot.make(decide)

    def ended(self) -> list[str]:
        """How decodes ended, once nothing is under way."""
        assert self.pilot.idle.wait(REPLY_TIMEOUT)
        return self.runner.ends


@pytest.mark.parametrize("failing", [(Words,), (Decided,), (GoalStatus,), (Report,), (object,)])
def test_nothing_that_a_report_raises_ends_a_pilot(
    failing: tuple[type, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Before, a figure that was divided by 0 s ended the thread that decides, for ever."""
    caplog.set_level("DEBUG", TRACEBACKS.name)
    with Flying() as flying:
        flying.failing, flying.runner.failure = failing, "out of memory"  # so that all are told
        flying.pilot.receive(Instruction(IT))
        flying.runner.go_on.set()
        assert flying.ended() == ["end"]
        flying.pilot.receive(NavigatorStatus("ready", flying.of(Words)[0].request, stops=7))
        flying.see()
        assert flying.runner.said.acquire(timeout=REPLY_TIMEOUT), "and decides again"
        assert flying.ended() == ["end", "end"] and flying.pilot.instruction == IT
    sentences = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert sentences and all("adversary" in each and "\n" not in each for each in sentences)
    assert "in publish" in caplog.text, "the traceback is at level debug"


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_that_a_drafter_of_chains_cannot_follow_is_refused_before_it_decides(
    preset: str,
) -> None:
    """Whatever the drafter is by its path: the settings say it, or the decode works in chains."""
    runner, wanted = DecodeRunner(ByteDrafter(), byte_spec(64, "")), load_preset(preset)
    try:
        fitted = runner.fitted(wanted)
    except UserError as error:
        assert f"preset {preset}: it drafts trees" in str(error) and "dsd" in str(error)
        flight = Flight(PilotSettings(DecodeSettings(wanted)))
        flight.pilot.use(runner)
        assert flight.pilot.make(flight.take()).ended.problem == str(error), (
            "and if it is set later"
        )
        assert flight.of(Decided) and flight.take(), "it goes on"
    else:
        assert fitted.shape.is_chain or not fitted.drafts_on_robot


def test_without_explanations_a_decode_ends_at_its_action() -> None:
    with Flying(explaining(EXPLAIN_NONE)) as flying:
        assert flying.ended() == ["cut"]


@pytest.mark.parametrize("event", [Instruction("stop"), EStop(True)], ids=str)
def test_what_the_operator_says_ends_a_decode_that_explains_itself(event: Event) -> None:
    with Flying(explaining(EXPLAIN_FULL)) as flying:
        flying.pilot.receive(NavigatorStatus("ready", flying.of(Words)[-1].request, stops=7))
        flying.see()
        assert not flying.runner.ends, "the explanation is wanted"
        assert flying.pilot.take() is None, "and one decision is made at a time"
        flying.pilot.receive(event)
        assert flying.ended() == ["aborted"]
        assert flying.of(GoalStatus)[-1].state == "stopped"


def test_an_e_stop_that_comes_amid_an_instruction_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flight, threads = Flight(), list[threading.Thread]()

    def check_meanwhile(*given: Any) -> str:
        threads.append(threading.Thread(target=flight.pilot.receive, args=(EStop(True),)))
        threads[0].start()
        threads[0].join(0.2)
        return check_instruction(*given)

    monkeypatch.setattr(decision_loop, "check_instruction", check_meanwhile)
    flight.pilot.receive(Instruction(IT))
    threads[0].join()
    flight.pilot.receive(NavigatorStatus("idle", stops=7))
    flight.see()
    assert not flight.pilot.instruction and flight.pilot.take() is None


@pytest.mark.parametrize(("reason", "follows"), [("end", ""), ("length", IT)])
def test_a_bare_word_is_an_action_once_its_answer_has_ended(reason: str, follows: str) -> None:
    dialect = load_dialect("uni_navid")
    settings = replace(STOPS, loop=LoopSettings(EXPLAIN_NONE), dialect=dialect)
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


# On callbacks of one's own: it gets there, and whatever ends it stops the base


class Says(ScriptedRunner):
    """Says these answers, one a decision, the last again and again; an error is raised."""

    def __init__(self, *answers: str | UserError) -> None:
        super().__init__(vlm(), ())
        self.answers = list(answers)
        self.go_on.set()

    def run(self, *given: Any) -> Outcome:
        text = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(text, UserError):
            raise text
        self.tokens = tuple(vlm().tokenizer(text, add_special_tokens=False)["input_ids"])
        return super().run(*given)


class Robot:
    """A base and a camera of one's own; ``way``: m ahead, of velocities that last a tick."""

    def __init__(self, runner: ScriptedRunner, dialect: Dialect = CLAUSES) -> None:
        loop = LoopSettings(retry=0.0)
        settings = PilotSettings(DecodeSettings(load_preset("dsd")), loop, dialect=dialect)
        self.pilot = Pilot(settings, lambda decide, on_receive: pytest.fail("no transport"))
        self.pilot.use(runner)  # type: ignore[arg-type]
        self.commands: list[tuple[float, float, float]] = []
        self.look: Callable[[], bytes] = lambda: b"picture"
        self.stopped_by: list[str] = []
        self.beside = {*threading.enumerate()}  # threads of other tests

    @property
    def moved(self) -> bool:
        return any(map(any, self.commands))

    def drive(self, vx: float, vy: float, wz: float) -> None:
        self.commands.append((vx, vy, wz))
        if not (vx or vy or wz):
            self.stopped_by.append(threading.current_thread().name)

    def go(self, instruction: str = IT, **given: Any) -> str:
        return str(self.pilot.navigate(instruction, lambda: self.look(), self.drive, **given))


@pytest.mark.parametrize(
    ("dialect", "answers"), [("clauses", (FORWARD, STOP)), ("uni_navid", ("forward", "stop"))]
)
def test_it_moves_as_the_verified_words_say_and_stands_at_the_end(
    dialect: str, answers: tuple[str, str]
) -> None:
    robot = Robot(Says(*answers), load_dialect(dialect))
    assert robot.go() == f"done {IT}"
    assert robot.moved and all(vx >= 0 for vx, _, _ in robot.commands)
    assert robot.commands[-1] == (0.0, 0.0, 0.0)
    assert robot.go() == f"done {IT}", "and again"


def test_settings_and_odometry_are_ones_own() -> None:
    robot, at = Robot(Says(FORWARD, STOP)), [0.0, 0.0, 0.0]

    def odometry() -> tuple[float, float, float]:
        at[0] += robot.commands[-1][0] * 0.05 if robot.commands else 0.0
        return at[0], at[1], at[2]

    slow = NavigatorSettings(limits=Limits(speed=0.15))
    assert robot.go(odometry=odometry, settings=slow) == f"done {IT}"
    assert robot.moved and max(vx for vx, _, _ in robot.commands) <= 0.15
    assert 0.0 < at[0] < 0.4, "a small step, or less where the stop came before its end"


@pytest.mark.parametrize("error", [OSError("the camera is gone"), KeyboardInterrupt()])
def test_what_a_callback_raises_ends_it_and_the_base_stands(error: BaseException) -> None:
    robot = Robot(Says(FORWARD))

    def look() -> bytes:
        if robot.moved:
            raise error
        return b"picture"

    robot.look = look
    with pytest.raises(type(error)):
        robot.go()
    assert robot.commands[-1] == (0.0, 0.0, 0.0)
    assert not {*threading.enumerate()} - robot.beside, "its threads have ended"
    assert robot.pilot.instruction == ""
    robot.look, robot.pilot.runner = lambda: b"picture", Says(STOP)  # type: ignore[assignment]
    assert robot.go() == f"done {IT}", "and can begin again"


def test_a_callback_that_hangs_while_it_drives_is_no_reason_to_drive_on() -> None:
    robot, stopped = Robot(Says(FORWARD, STOP)), threading.Event()

    def drive(vx: float, vy: float, wz: float) -> None:
        Robot.drive(robot, vx, vy, wz)
        if "watchdog" in robot.stopped_by:
            stopped.set()

    def look() -> bytes:
        if robot.moved:
            assert stopped.wait(REPLY_TIMEOUT)
        return b"picture"

    robot.drive, robot.look = drive, look  # type: ignore[method-assign]
    robot.go()
    assert stopped.is_set()


def test_an_instruction_that_cannot_be_used_is_a_sentence_and_moves_nothing() -> None:
    robot = Robot(Says(FORWARD))
    with pytest.raises(UserError, match="the instruction is empty"):
        robot.go(" ")
    assert not robot.commands


def test_a_stop_in_any_words_ends_it_and_the_base_stands() -> None:
    robot = Robot(Says(FORWARD))
    assert robot.go("Stopp, bitte!") == f"stopped {TOLD_TO_STOP}"
    assert robot.commands and not robot.moved
    assert not {*threading.enumerate()} - robot.beside, "its threads have ended"

    def look() -> bytes:
        if robot.moved:
            robot.pilot.receive(Instruction("arrête-toi"))
        return b"picture"

    robot.look = look
    assert robot.go() == f"stopped {TOLD_TO_STOP}", "said meanwhile, by another thread"
    assert robot.moved and robot.commands[-1] == (0.0, 0.0, 0.0)


def test_a_lidar_of_ones_own_stops_it_and_is_told_of_in_each_prompt() -> None:
    says = Says(FORWARD, STOP)
    robot, angles = Robot(says, TELLS), np.radians(np.arange(-180.0, 180.0))
    ranges = np.full(360, 8.0)
    ranges[170:190] = 0.6  # ahead
    with pytest.raises(UserError, match=r"clauses tells .free_space., and no lidar looks: give"):
        robot.go()
    assert not robot.commands
    told = list[str]()
    look = {"scan": lambda: (ranges, angles, 0.05, 10.0), "report": told.append}
    assert robot.go(odometry=lambda: (0.0, 0.0, 0.0), **look) == f"done {IT}"
    assert not robot.moved and IN_THE_WAY in " ".join(told)
    for request in says.requests:
        assert request.text.endswith("ahead blocked, left free, right free, behind free.")


def test_problems_are_reported_while_it_goes_on() -> None:
    problem, told = "the verifier asks for a token; give token_file", list[str]()
    robot = Robot(Says(UserError(problem), "no action at all:", STOP))
    assert robot.go(report=told.append) == f"done {IT}"
    assert told[0] == problem


def test_a_camera_of_ones_own_that_shows_one_picture_for_ever_holds_it_until_that_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decision_loop, "MOVED_S", 0.3)
    told, runner = list[str](), Says(FORWARD)
    robot, pictures = Robot(runner), count()

    def look() -> bytes:
        if SAME_PICTURE in told:
            runner.answers = [STOP]
            return bytes(str(next(pictures)), "ascii")
        return b"picture"

    robot.look = look
    assert robot.go(report=told.append) == f"done {IT}"
    assert told == [SAME_PICTURE] and robot.moved


def test_what_the_navigator_reports_is_told_ever_more_seldom_and_may_raise() -> None:
    told, asked = list[str](), list[int]()

    def report(sentence: str) -> None:
        told.append(sentence)
        raise OSError("the log is full")

    def odometry() -> tuple[float, float, float]:
        asked.append(1)
        return math.nan, 0.0, 0.0

    robot = Robot(Says("fly away, fly away", FORWARD, STOP))
    assert robot.go(report=report, odometry=odometry) == f"done {IT}"
    assert any("fly away" in each and "moves nothing" in each for each in told)
    dropped = [each for each in told if "odometry" in each and "was dropped" in each]
    assert 1 <= len(dropped) < len(asked) / 3, "not 20 times a second"
