"""A pilot on callbacks of one's own: it gets there, and whatever ends it stops the base."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from helpers.checkpoints import vlm
from helpers.scripted_runner import ScriptedRunner

from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.edge.runner import DecodeSettings, Outcome
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.nav.answer import CLAUSES, Dialect
from edge_cloud_spec.nav.motion import Limits
from edge_cloud_spec.nav.settings import Settings
from edge_cloud_spec.pilot.decision_loop import LoopSettings
from edge_cloud_spec.pilot.pilot import Pilot, PilotSettings
from edge_cloud_spec.presets import load_preset

IT = "find the blue box"
FORWARD, STOP = "action: move forward small;", "action: stop;"
REPLY_TIMEOUT = 60.0  # s; only a hung test takes that long


class Says(ScriptedRunner):
    """Says these answers, one a decision, the last again and again."""

    def __init__(self, *answers: str) -> None:
        super().__init__(vlm(), ())
        self.answers = list(answers)
        self.go_on.set()

    def run(self, *given: Any) -> Outcome:
        text = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.tokens = tuple(vlm().tokenizer(text, add_special_tokens=False)["input_ids"])
        return super().run(*given)


class Robot:
    """A base and a camera of one's own; ``way``: m ahead, of velocities that last a tick."""

    def __init__(self, runner: ScriptedRunner, dialect: Dialect = CLAUSES) -> None:
        loop = LoopSettings(retry=0.0, dialect=dialect)
        settings = PilotSettings(DecodeSettings(load_preset("dsd")), loop)
        self.pilot = Pilot(settings, lambda decide, on_receive: pytest.fail("no transport"))
        self.pilot.use(runner)  # type: ignore[arg-type]
        self.commands: list[tuple[float, float, float]] = []
        self.look: Callable[[], bytes] = lambda: b"picture"
        self.stopped_by: list[str] = []

    @property
    def moved(self) -> bool:
        return any(map(any, self.commands))

    def drive(self, vx: float, vy: float, wz: float) -> None:
        self.commands.append((vx, vy, wz))
        if not (vx or vy or wz):
            self.stopped_by.append(threading.current_thread().name)

    def go(self, instruction: str = IT, **given: Any) -> str:
        return str(self.pilot.navigate(instruction, lambda: self.look(), self.drive, **given))


def test_it_moves_as_the_verified_words_say_and_stands_at_the_end() -> None:
    robot = Robot(Says(FORWARD, STOP))
    assert robot.go() == f"done {IT}"
    assert robot.moved and all(vx >= 0 for vx, _, _ in robot.commands)
    assert robot.commands[-1] == (0.0, 0.0, 0.0)
    assert robot.go() == f"done {IT}", "and again"


def test_it_reads_answers_in_the_decoders_dialect() -> None:
    robot = Robot(Says("forward", "stop"), load_dialect("uni_navid"))
    assert robot.go() == f"done {IT}"
    assert robot.moved


def test_settings_and_odometry_are_ones_own() -> None:
    robot, at = Robot(Says(FORWARD, STOP)), [0.0, 0.0, 0.0]

    def odometry() -> tuple[float, float, float]:
        at[0] += robot.commands[-1][0] * 0.05 if robot.commands else 0.0
        return at[0], at[1], at[2]

    slow = Settings(limits=Limits(speed=0.15))
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
    assert not {"model", "watchdog"} & {thread.name for thread in threading.enumerate()}
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


def test_problems_are_reported_while_it_goes_on() -> None:
    robot, told = Robot(Says("no action at all:", STOP)), list[str]()
    runner = robot.pilot.runner
    assert runner is not None
    run = runner.run

    def fail_once(*given: Any) -> Outcome:
        runner.run = run  # type: ignore[method-assign]
        raise UserError("the verifier asks for a token; give token_file")

    runner.run = fail_once  # type: ignore[method-assign]
    assert robot.go(report=told.append) == f"done {IT}"
    assert told[0] == "the verifier asks for a token; give token_file"
