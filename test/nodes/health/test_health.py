"""What the parts of a node's health promise, without ROS."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from edge_cloud_spec.nav.status import Status
from edge_cloud_spec.nodes.cloud_bridge import Rate
from edge_cloud_spec.nodes.drafting.camera import CameraTopics, CameraWatch
from edge_cloud_spec.nodes.drafting.health import drafter_health
from edge_cloud_spec.nodes.health import Health, Level, RecentProblem, worst_of
from edge_cloud_spec.nodes.navigator import navigator_health

TOPIC = "/camera/image_raw/compressed"
TOPICS = CameraTopics((TOPIC, "/camera/image_raw"), publishers=1)
LEVELS = st.sampled_from(list(Level))


def jpeg(level: int = 128, seed: int = 0) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 4, (48, 64, 3))
    data = io.BytesIO()
    Image.fromarray((noise + level).astype(np.uint8)).save(data, "JPEG")
    return data.getvalue()


@given(st.lists(st.tuples(LEVELS, st.text(st.characters(categories=["L"]), min_size=1))))
def test_the_worst_decides_the_level_and_everything_wrong_is_said(
    parts: list[tuple[Level, str]],
) -> None:
    healths = [Health(level, text, values={str(i): i}) for i, (level, text) in enumerate(parts)]
    whole = worst_of(healths)
    assert whole.severity == max((h.severity for h in healths), default=0)
    assert set(whole.values) == {str(i) for i in range(len(parts))}
    for each in healths:
        assert each.level == Level.OK or each.message in whole.message
    assert worst_of([*healths, Health(Level.ERROR, "x", "do y")]).message.count("x: do y") >= 1


def test_a_problem_is_forgotten_in_time_or_when_it_works_again() -> None:
    problem = RecentProblem(10.0)
    assert problem.text(0.0) == ""
    problem.report("no answer", 5.0)
    assert problem.text(14.9) == "no answer"
    assert problem.text(15.0) == ""
    problem.report("no answer", 20.0)
    problem.clear()
    assert problem.text(20.1) == ""


def seen(
    watch: CameraWatch, frames: list[tuple[float, int, bytes]], moving: bool = False
) -> Health:
    """Frames at (s, stamp in ms), the health asked for after each; the last answer."""
    health = Health(Level.OK, "")
    for at, stamp, data in frames:
        watch.on_frame(stamp * 10**6, data, at)
        health = watch.health(TOPICS, moving, at)
    return health


def test_a_camera_that_was_never_there_is_missing_and_its_neighbour_is_named() -> None:
    watch = CameraWatch(started=0.0)
    nobody = CameraTopics(TOPICS.subscribed)
    assert watch.health(nobody, False, 1.0).level == Level.OK  # it may be about to start
    health = watch.health(nobody, False, 4.0)
    assert health.level == Level.ERROR and f"no picture on {TOPIC}" in health.message
    assert "nothing publishes it" in health.message and "start the camera driver" in health.advice
    others = CameraTopics(TOPICS.subscribed, others=("/scan_image", "/camera/imag_raw/compressed"))
    health = watch.health(others, False, 4.0)
    assert "there is /camera/imag_raw/compressed" in health.message
    assert "camera:=/camera/imag_raw/compressed" in health.advice
    unlike = CameraTopics(TOPICS.subscribed, others=("/zq",))
    health = watch.health(unlike, False, 4.0)
    assert "there is /zq" in health.message


def test_a_topic_of_another_type_is_told_from_a_silent_one() -> None:
    watch = CameraWatch(started=0.0)
    wrong = CameraTopics(TOPICS.subscribed, 1, ("sensor_msgs/msg/Image",))
    assert "it carries sensor_msgs/msg/Image" in watch.health(wrong, False, 4.0).message
    assert "though it has a publisher" in watch.health(TOPICS, False, 4.0).message


def test_a_camera_that_stops_and_comes_back_is_ok_again() -> None:
    watch = CameraWatch(started=0.0)
    assert seen(watch, [(1.0, 1, jpeg())]).level == Level.OK
    gone = watch.health(TOPICS, False, 5.0)
    assert gone.level == Level.ERROR and gone.values["camera_silent_s"] == 4.0
    assert seen(watch, [(6.0, 6, jpeg())]).level == Level.OK


def test_stamps_that_stand_still_are_frozen_and_a_driver_that_begins_anew_is_not() -> None:
    watch = CameraWatch(started=0.0)
    frozen = seen(watch, [(t * 0.5, 7000, jpeg(seed=t)) for t in range(6)])
    assert frozen.level == Level.ERROR and "their stamps do not go on" in frozen.message
    assert seen(watch, [(3.0, 0, jpeg()), (3.5, 500, jpeg())]).level == Level.OK


def test_the_same_picture_is_frozen_only_where_the_robot_moves() -> None:
    """A simulated robot that stands still sees the very same picture; that is no fault."""
    same = [(t * 1.0, 1000 * t, jpeg()) for t in range(60)]
    assert seen(CameraWatch(started=0.0), same).level == Level.OK
    frozen = seen(CameraWatch(started=0.0), same[:5], moving=True)
    assert frozen.level == Level.ERROR and "the robot moves" in frozen.message
    fresh = [(t * 1.0, 1000 * t, jpeg(seed=t)) for t in range(10)]
    assert seen(CameraWatch(started=0.0), fresh, moving=True).level == Level.OK


def test_a_black_picture_and_one_that_cannot_be_read_are_said_and_pass() -> None:
    watch = CameraWatch(started=0.0)
    black = seen(watch, [(1.0, 1, jpeg(level=0))])
    assert black.level == Level.WARN and "black" in black.message and "lens" in black.advice
    cut = seen(watch, [(2.0, 2, jpeg()[:200])])
    assert cut.level == Level.ERROR and "cannot be read" in cut.message
    assert seen(watch, [(3.0, 3, b"forward")]).level == Level.ERROR
    assert seen(watch, [(4.0, 4, b"")]).level == Level.OK  # a raw frame that nobody needed encoded
    assert seen(watch, [(5.0, 5, jpeg())]).level == Level.OK


@pytest.mark.parametrize("level", list(Level))
def test_advice_follows_what_is_wrong(level: Level) -> None:
    assert (
        str(Health(level, "the lens is covered", "uncover it")) == "the lens is covered: uncover it"
    )
    assert str(Health(level, "fine")) == "fine"


PRESSED = Status("stopped", "-", "e_stop")


def facts(**given: object) -> Health:
    stands = Status("idle", "-", "started")
    return navigator_health(**{"status": stands, "topic": "/odom", **given})  # type: ignore[arg-type]


def test_what_holds_the_navigator_is_said_with_what_to_do() -> None:
    assert facts().level == Level.OK
    for wrong, level, words in (
        ({"status": PRESSED}, Level.WARN, ("e_stop is on", "release it")),
        ({"missing": "odometry is missing"}, Level.ERROR, ("/odom", "driver")),
        ({"timed": True}, Level.WARN, ("timed", "odom:=")),
        ({"problem": "odometry jumped, to 3 m"}, Level.WARN, ("two sources",)),
        ({"parameters": "limits.speed is 9"}, Level.ERROR, ("limits.speed", "param set")),
    ):
        health = facts(**wrong)
        assert health.level == level and all(word in str(health) for word in words), wrong


def test_a_told_stop_is_no_fault_and_missing_odometry_outweighs_an_e_stop() -> None:
    assert facts(status=Status("stopped", "-", "told to stop")).level == Level.OK
    both = facts(status=PRESSED, missing="odometry is missing")
    assert both.level == Level.ERROR and both.message.index("odometry") < both.message.index("e_s")


def drafter(**given: object) -> Health:
    camera = Health(Level.OK, "pictures come")
    return drafter_health(**{"instruction": "find it", "camera": camera, **given})  # type: ignore[arg-type]


def test_a_drafter_says_the_worst_of_camera_thread_and_decision() -> None:
    assert drafter().level == Level.OK and "find it" in drafter().message
    assert drafter(instruction="").message == "no instruction"
    assert drafter(alive=False).level == Level.ERROR
    blind = drafter(camera=Health(Level.ERROR, "no picture"), problem="no decision")
    assert blind.level == Level.ERROR and "no picture | no decision" in blind.message


@given(st.lists(st.tuples(st.floats(0.1, 3), st.integers(0, 10**6)), min_size=2, max_size=40))
def test_a_rate_is_within_those_of_its_steps(steps: list[tuple[float, int]]) -> None:
    rate, now, count, rates = Rate(), 0.0, 0, []
    assert rate.per_second(count, now) == 0
    for seconds, bytes_ in steps:
        now, count = now + seconds, count + bytes_
        rates.append(bytes_ / seconds)
        measured = rate.per_second(count, now)
        assert min(rates) * 0.999 <= measured <= max(rates) * 1.001 + 1e-9


def test_a_link_that_falls_silent_has_no_rate_soon() -> None:
    rate = Rate()
    for second in range(10):
        assert rate.per_second(1000 * second, float(second)) in (0, 1000)
    assert [rate.per_second(9000, float(second)) for second in range(10, 18)][-1] == 0
