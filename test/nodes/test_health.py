"""What the parts of a node's health promise, without ROS."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.graph.decode_graph import frame
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.health import Health, Level, worst_of
from edge_cloud_spec.models.image import decode_image
from edge_cloud_spec.nav.status import NavCode, NavigatorStatus
from edge_cloud_spec.nodes.drafter import drafter_health
from edge_cloud_spec.nodes.drafting.camera import (
    TYPES,
    CameraTopics,
    CameraWatch,
    camera_topics,
    encode_frame,
    no_picture,
)
from edge_cloud_spec.nodes.endpoints import Endpoint
from edge_cloud_spec.nodes.health import (
    ERROR_S,
    LEFT_S,
    OWNERS,
    UNKNOWN_NODE,
    UNKNOWN_S,
    WARNING_S,
    WELL_S,
    HealthConsole,
    PublisherWatch,
)
from edge_cloud_spec.nodes.monitor import Heartbeats
from edge_cloud_spec.nodes.navigator import navigator_health
from edge_cloud_spec.throttle import LINES, RECENT_PROBLEM_S, Reports
from edge_cloud_spec_lab.sim.camera import encode_jpeg

TOPIC = "/camera/image_raw/compressed"
TOPICS = CameraTopics((TOPIC, "/camera/image_raw"), publishers=1)
NAMELESS = f"{UNKNOWN_NODE}/{UNKNOWN_NODE}"
NEIGHBOUR = "/camera/imag_raw/compressed"
LEVELS = st.sampled_from(list(Level))


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
    reports = Reports(lambda line: None)
    assert reports.recent(0.0) == ""
    reports.add("no answer", 5.0)
    assert reports.recent(5.0 + 0.99 * RECENT_PROBLEM_S) == "no answer"
    assert reports.recent(5.0 + RECENT_PROBLEM_S) == ""
    reports.add("no answer", 50.0)
    reports.clear()
    assert reports.recent(50.1) == ""


def test_what_repeats_is_logged_ever_more_seldom_and_all_together_a_few_times_a_second() -> None:
    """Each refusal names its request and its figures; and texts may all differ."""
    lines: list[str] = []
    reports = Reports(lines.append)
    for tick in range(20 * 60):
        reports.add(f"request {tick:x}f moves nothing: its frame is {tick}.5 s old", tick / 20)
    assert 4 <= len(lines) <= 8 and "more of these" in lines[-1]
    assert reports.count == 20 * 60
    for tick in range(20 * 10):
        reports.add("other: " + "x" * tick, 100 + tick / 20)
    assert len(lines) <= 8 + 10 * LINES + LINES


@pytest.mark.parametrize(
    ("publishers", "types", "others", "words"),
    [
        (0, (), (), ("nothing publishes it", "start the camera driver")),
        (0, (), ("/scan_image", NEIGHBOUR), (f"there is {NEIGHBOUR}", f"camera:={NEIGHBOUR}")),
        (0, (), ("/zq",), ("there is /zq",)),
        (1, ("sensor_msgs/msg/Image",), (), ("it carries sensor_msgs/msg/Image",)),
        (1, (), (), ("though it has a publisher",)),
    ],
)
def test_a_camera_that_was_never_there_is_missing_and_its_neighbour_is_named(
    publishers: int, types: tuple[str, ...], others: tuple[str, ...], words: tuple[str, ...]
) -> None:
    topics = CameraTopics(TOPICS.subscribed, publishers, types, others)
    watch = CameraWatch(started=0.0)
    assert watch.health(topics, 1.0).level == Level.OK, "it may be about to start"
    health = watch.health(topics, 4.0)
    assert health.level == Level.ERROR and f"no picture on {TOPIC}" in health.message
    assert all(word in str(health) for word in words)


def test_of_pictures_only_those_that_we_draw_are_no_neighbours_unless_they_are_subscribed_to() -> (
    None
):
    compressed, raw = TYPES.values()
    ends = [
        Endpoint("/driver", "/front", raw, True),
        Endpoint("/driver", "/front", "std_msgs/msg/String", True),
        Endpoint("/annotator", "/image_annotated/compressed", compressed, True),
        Endpoint("/looker", "/rear", raw, False),
        Endpoint("/driver", "/side", compressed, True),
        Endpoint("/driver", "/odom", "nav_msgs/msg/Odometry", True),
    ]
    front = camera_topics({"/front/compressed": compressed, "/front": raw}, iter(ends))
    wrong, others = ("std_msgs/msg/String",), ("/side",)
    assert front == CameraTopics(("/front/compressed", "/front"), 2, wrong, others)
    drawn = camera_topics({"/image_annotated/compressed": compressed}, ends)
    assert drawn.publishers == 1 and drawn.others == ("/front", "/side")


Frames = list[tuple[float, int, bytes]]  # (s, stamp in ms, picture)
SAME: Frames = [(float(t), 1000 * t, frame()) for t in range(60)]
STILL: Frames = [(t * 0.5, 7000, frame(t)) for t in range(6)]


@pytest.mark.parametrize(
    ("frames", "level", "words"),
    [
        (SAME, Level.OK, "come"),  # as a simulated robot sees that stands
        (STILL, Level.ERROR, "their stamps do not go on"),
        ([*STILL, (3.0, 0, frame()), (3.5, 500, frame())], Level.OK, "come"),
        (
            [(1.0, 1, encode_jpeg(np.zeros((48, 64, 3), np.uint8)))],
            Level.WARN,
            "black: take the cover off the lens",
        ),
        ([(1.0, 1, frame()[:200])], Level.ERROR, "cannot be read"),
        ([(1.0, 1, b"forward")], Level.ERROR, "cannot be read"),
        ([(1.0, 1, b"")], Level.OK, "come"),  # a raw one that nobody needed encoded
    ],
)
def test_what_is_wrong_with_pictures_is_said_and_passes(
    frames: Frames, level: Level, words: str
) -> None:
    watch, health = CameraWatch(started=0.0), Health(Level.OK, "")
    for at, stamp, data in frames:
        watch.on_frame(stamp * 10**6, data, at)
        health = watch.health(TOPICS, at)
    assert health.level == level and words in str(health)
    watch.on_frame(10**9, data, at + 0.1, "their encoding is odd")
    assert watch.health(TOPICS, at + 0.1).message == "their encoding is odd"
    watch.on_frame(0, data, at + 0.2)
    assert "have no time: their header.stamp is 0" in str(watch.health(TOPICS, at + 0.2))
    gone = watch.health(TOPICS, at + 4.2)
    assert gone.level == Level.ERROR and gone.values["camera_silent_s"] == 4.0
    watch.on_frame(10**12, frame(99), at + 5.0)
    assert watch.health(TOPICS, at + 5.0).level == Level.OK


def test_a_raw_picture_that_is_refused_is_said_until_one_that_is_needed_is_taken() -> None:
    watch, why = CameraWatch(started=0.0), "camera frames have encoding 'yuv422'"
    for second, (data, problem) in enumerate(
        [(b"", why), (b"", ""), (frame(), ""), (b"", ""), (b"", why)]
    ):
        watch.on_frame((second + 1) * 10**9, data, float(second), problem)
        health = watch.health(TOPICS, float(second))
        assert (health.level, str(health)) == (
            (Level.OK, "pictures come") if second in (2, 3) else (Level.ERROR, why)
        ), second


def test_a_raw_frame_whose_fields_lie_is_a_picture_of_its_size_or_one_sentence() -> None:
    random, taken = Random(1), 0
    sizes = (0, 1, 3, 8, 64, 300, 65_501, 2**16, 2**31, 2**32 - 1)
    for _ in range(2000):
        width, height = random.choices(sizes, k=2)
        known = "rgb8", "bgra8", "mono8", "mono16", "16UC1"
        encoding = random.choice((*known, "", "rgb8\n", "x" * 10**5))
        step = random.choice((width, 3 * width, 4 * width, *sizes))
        size = random.choice((step * height, step * height - 1, 3 * width * height, 0))
        raw: Any = SimpleNamespace(
            width=width,
            height=height,
            step=step,
            encoding=encoding,
            data=bytes(min(max(0, size), 10**6)),
            is_bigendian=0,
        )
        try:
            assert decode_image(encode_frame(raw)).size == (width, height)
            taken += 1
        except UserError as error:
            assert str(error).isprintable() and len(str(error)) < 250
    assert taken > 20


def test_a_raw_frame_of_16_bits_keeps_its_higher_8_and_what_is_no_picture_is_named() -> None:
    grey = np.random.default_rng(0).integers(0, 65536, (24, 40))
    for order in ("<", ">"):
        data = grey.astype(f"{order}u2").tobytes()
        raw: Any = SimpleNamespace(
            width=40, height=24, step=80, encoding="mono16", data=data, is_bigendian=order == ">"
        )
        seen = np.asarray(decode_image(encode_frame(raw)).convert("L"), int)
        assert np.abs(seen - (grey >> 8)).mean() < 8
    for changes, said in (
        ({"encoding": "16UC1"}, "a depth camera's"),
        ({"step": 0}, "rows of 0 bytes"),
        ({"data": data[:-1]}, "truncated"),
    ):
        with pytest.raises(UserError, match=said):
            encode_frame(SimpleNamespace(**(vars(raw) | changes)))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        *((said, "") for said in ("", "jpeg", "png", "rgb8; jpeg compressed bgr8")),
        *((said, "") for said in ("bgr8; jpeg compressed ", "mono8; jpeg compressed mono8")),
        *((said, "") for said in ("mono16; png compressed ", "8UC3; jpeg compressed ")),
        *((f"bayer_rggb8; jpeg compressed {colour}", "") for colour in ("bgr8", "rgb8")),
        ("yuv422_yuy2; png compressed bgr8", ""),
        ("16UC1; png compressed ", "a depth camera's"),
        (" 16UC1 ;png", "a depth camera's"),
        ("16UC1; compressedDepth png", "a depth camera's"),
        ("32FC1; compressedDepth rvl", "a depth camera's"),
        ("bayer_rggb8; jpeg compressed ", "without their colours"),
        ("bayer_rggb8; jpeg compressed mono8", "without their colours"),
        ("bayer_gbrg16; png compressed ", "without their colours"),
        ("yuv422_yuy2; jpeg compressed mono8", "without their colours"),
        ("uyvy; jpeg compressed mono8", "without their colours"),
    ],
)
def test_a_compressed_frame_is_refused_for_what_the_raw_one_was(said: str, why: str) -> None:
    compressed: Any = SimpleNamespace(format=said, data=b"the picture")
    if not why:
        assert encode_frame(compressed) == b"the picture"
        return
    with pytest.raises(UserError, match=why):
        encode_frame(compressed)
    raw: Any = SimpleNamespace(encoding=said.partition(";")[0].strip())
    with pytest.raises(UserError, match="a depth camera's" if "depth" in why else "publish rgb8"):
        encode_frame(raw)


FINE, PRESSED = (
    NavigatorStatus("idle", "-", "started"),
    NavigatorStatus("stopped", "-", "e_stop is on", code=NavCode.E_STOP),
)
RUNS_AWAY = NavigatorStatus("stopped", "-", "it runs away", code=NavCode.IMPLAUSIBLE)


@pytest.mark.parametrize(
    ("given", "level", "words"),
    [
        ({}, Level.OK, ()),
        ({"status": NavigatorStatus("stopped", "-", "told to stop")}, Level.OK, ()),
        ({"status": PRESSED}, Level.WARN, ("e_stop is on", "release it")),
        # It is the code that counts, not the words.
        ({"status": replace(PRESSED, code=NavCode.NONE)}, Level.OK, ()),
        ({"missing": "odometry is missing"}, Level.ERROR, ("/odom", "driver")),
        ({"missing": "none", "status": PRESSED}, Level.ERROR, ("none (/odom)", " | e_stop is on")),
        ({"timed": True}, Level.WARN, ("timed", "odom:=")),
        ({"slow": "it comes 5 times"}, Level.WARN, ("it comes 5 times: see /odom",)),
        ({"frame": "base_footprint"}, Level.WARN, ("'base_footprint'", "set base_frame")),
        ({"status": RUNS_AWAY, "held": True}, Level.ERROR, ("moves: it runs away",)),
        # Whoever presses e_stop, as it says, has not ended that.
        ({"status": PRESSED, "held": True}, Level.ERROR, ("nothing moves: e_stop is on",)),
        ({"problem": "odometry jumped, to 3 m"}, Level.WARN, ("jumped",)),
        ({"parameters": "limits.speed is 9"}, Level.ERROR, ("limits.speed", "param set")),
    ],
)
def test_what_holds_the_navigator_is_said_with_what_to_do(
    given: dict[str, Any], level: Level, words: tuple[str, ...]
) -> None:
    health = navigator_health(**{"status": FINE, "topic": "/odom", **given})
    assert health.level == level and all(word in str(health) for word in words)


@pytest.mark.parametrize(
    ("given", "level", "words"),
    [
        ({}, Level.OK, "find it"),
        ({"instruction": ""}, Level.OK, "no instruction"),
        ({"alive": False}, Level.ERROR, "the model's thread has ended"),
        (
            {"camera": Health(Level.ERROR, "no picture"), "problem": "no decision"},
            Level.ERROR,
            "no picture | no decision",
        ),
    ],
)
def test_a_drafter_says_the_worst_of_camera_thread_and_decision(
    given: dict[str, Any], level: Level, words: str
) -> None:
    camera = Health(Level.OK, "pictures come")
    health = drafter_health(**{"instruction": "find it", "camera": camera, **given})
    assert health.level == level and words in health.message


CHECKS, REMEDIES = ("cloud", "camera"), ("start it", "give another token", "")
WELL = "well again"
SECOND = st.dictionaries(
    st.sampled_from(CHECKS),
    st.tuples(st.sampled_from([Level.WARN, Level.ERROR]), st.sampled_from(REMEDIES)),
)


def told(seconds: list[list[Health]]) -> list[list[str]]:
    """The lines of each look, one a second."""
    console = HealthConsole()
    return [[line for _, line in console.look(each, float(s))] for s, each in enumerate(seconds)]


def health(check: str, level: Level, remedy: str, second: int = 0) -> Health:
    return Health(level, f"it does not answer (for {second} s)", remedy, check=check)


@given(st.lists(SECOND, max_size=40))
def test_a_remedy_is_told_once_until_all_is_well_again_which_is_told_once(
    seconds: list[dict[str, tuple[Level, str]]],
) -> None:
    looks = [[health(c, *w, s) for c, w in wrong.items()] for s, wrong in enumerate(seconds)]
    lines = [line for look in told(looks) for line in look]
    for check in CHECKS:
        lasting: set[str] = set()
        for line in (line for line in lines if line.startswith(f"{check}: ")):
            remedy = line.rpartition(": ")[2]  # or the sentence, where there is none
            assert remedy not in lasting if remedy != WELL else lasting
            lasting = lasting | {remedy} if remedy != WELL else set()


@given(st.sampled_from([Level.WARN, Level.ERROR, Level.STALE]), st.integers(0, 5))
def test_what_lasts_is_told_within_five_seconds_and_so_is_its_end(
    level: Level, before: int
) -> None:
    looks = [[]] * before + [[health("cloud", level, "start it")]] * 6 + [[]] * 5
    lines = told(looks)
    assert sum(map(len, lines)) == 2
    assert any(lines[before : before + 6]) and any(lines[before + 6 :])
    assert max(WARNING_S, ERROR_S, WELL_S) < 5


NO_CHECK = Health(Level.WARN, "unconfigured")  # such as a node that only starts


@pytest.mark.parametrize(
    ("looks", "remedies"),
    [
        ([[NO_CHECK]] * 20, []),
        ([[health("odometry", Level.WARN, "start it")]] * 3 + [[]] * 20, []),
        (
            [
                *[[health("cloud", Level.ERROR, "start it")]] * 3,
                *[[health("cloud", Level.ERROR, "give another token")]] * 3,
                *[[health("cloud", Level.WARN, "wait")]] * 9,
            ],
            ["start it", "give another token"],
        ),
    ],
    ids=["no check", "over soon", "another remedy, and a better state that is not well yet"],
)
def test_what_is_told_is_another_remedy_of_a_check_that_lasts(
    looks: list[list[Health]], remedies: list[str]
) -> None:
    lines = [line for look in told(looks) for line in look]
    assert [line.rpartition(": ")[2] for line in lines] == remedies


def monitored(heard: bool) -> Health:
    """A drafter that is gone, or never came; and a stranger on cmd_vel."""
    beats = Heartbeats(("/drafter",), 0.0)
    if heard:
        beats.receive("/drafter", "1", "fine", 0.0)
    publishers = {"/cmd_vel": ["/joystick"]} if heard else {}
    faults = PublisherWatch({"/cmd_vel": ["/navigator"]}).look(publishers, 20.0)
    return worst_of([*beats.look((), 20.0).values(), *faults.values()])


def test_the_nodes_own_healths_are_what_is_told() -> None:
    status = NavigatorStatus("idle")
    camera = no_picture(CameraTopics(("/image/compressed", "/image")))
    for health, *lines in (
        (drafter_health("", camera), "camera: no picture on /image/compressed"),
        (navigator_health(status, "/odom", timed=True), "odometry: no odometry on"),
        (navigator_health(status, "/odom", "silent"), "odometry: silent (/odom)"),
        (monitored(True), "/drafter: /drafter is gone", "/cmd_vel: /joystick publishes on"),
        (monitored(False),),
    ):
        found = [line for look in told([list(health.parts)] * 9) for line in look]
        assert len(found) == len(lines)
        for line, begins in zip(found, lines, strict=True):
            assert line.startswith(begins)
            assert line.count(": ") > 1  # what to do about it


CMD_VEL, OWNER, DRAFTER = "/robot1/cmd_vel", "/robot1/navigator", "/robot1/drafter"
GUARD = "/robot1/stop_guard"


@pytest.mark.parametrize(
    "looks",
    [
        [
            (0.0, [], None, ""),
            (0.1, [OWNER], None, ""),
            (0.2, [OWNER, "/mallory"], Level.ERROR, f"/mallory publishes on {CMD_VEL}"),
            (0.2, [OWNER, "/mallory"], Level.ERROR, f"{OWNER} alone"),
            (0.3, [OWNER], None, ""),
        ],
        [(0.0, ["/robot2/navigator"], Level.ERROR, "/robot2/navigator")],
        [
            (0.0, [OWNER, "/robot1/joy"], None, ""),
            (0.1, [OWNER, "/robot2/joy"], Level.ERROR, "/robot2/joy"),
        ],
        [
            (0.0, [OWNER] * 2, Level.WARN, "two nodes"),
            (LEFT_S + 1, [OWNER] * 2, Level.ERROR, "two nodes"),
            (LEFT_S + 2, [OWNER], None, ""),
            (LEFT_S + 3, [OWNER] * 2, Level.WARN, "two nodes"),
        ],
        [
            (0.0, [NAMELESS], None, ""),
            (UNKNOWN_S - 0.1, [NAMELESS], None, ""),
            (UNKNOWN_S + 0.1, [NAMELESS], Level.ERROR, "without a ROS name"),
            (UNKNOWN_S + 0.2, [OWNER], None, ""),
        ],
    ],
    ids=[
        "a stranger is named at once, and forgotten when it is gone",
        "a node of our names in another namespace is a stranger",
        "one is allowed only where its whole name is",
        "a second of one name may be one that was killed, unless it stays",
        "one without a name is waited for a moment",
    ],
)
def test_who_publishes_in_another_nodes_place_is_named(
    looks: list[tuple[float, list[str], Level | None, str]],
) -> None:
    watch = PublisherWatch({CMD_VEL: [OWNER]}, frozenset({"/robot1/joy"}))
    for now, names, level, words in looks:
        found = watch.look({CMD_VEL: names}, now)
        assert [health.level for health in found.values()] == [level] * bool(level)
        assert all(words in health.message and health.advice for health in found.values())


@given(st.lists(st.sampled_from([OWNER, GUARD, "/robot1/cloud_bridge", "/mallory"]), max_size=4))
def test_nobody_but_the_owners_once_each_passes(names: list[str]) -> None:
    found = PublisherWatch({CMD_VEL: [OWNER, GUARD]}).look({CMD_VEL: names}, 0.0)
    assert (CMD_VEL in found) == (sorted(names) not in ([], [OWNER], [GUARD], [OWNER, GUARD]))


def test_the_guard_may_stop_the_base_and_say_nothing_else_in_the_navigators_place() -> None:
    assert [topic for topic, owners in OWNERS.items() if "stop_guard" in owners] == ["cmd_vel"]


def spoken(instance: str, begin: int, end: int) -> list[tuple[float, str]]:
    """Once a second."""
    return [(float(at), instance) for at in range(begin, end)]


LATER = [(at + 0.5, "second") for at in range(2, 5)]


@pytest.mark.parametrize(
    ("beats", "present", "looks"),
    [
        (
            [*spoken("a", 0, 5), (8.1, "a")],
            True,
            [
                (4.0, Level.OK, "speaks"),
                (8.0, Level.STALE, "has said nothing for 4 s; last: 'following': see its log, or"),
                (8.25, Level.OK, "speaks"),
            ],
        ),
        ([(0.5, "a")], False, [(4.0, Level.ERROR, "is gone")]),
        ([], False, [(4.0, Level.OK, "not running yet"), (11.0, Level.ERROR, "is not running")]),
        ([], True, [(60.0, Level.WARN, "nothing yet")]),
        (spoken("a", 0, 5), False, [(4.25, Level.ERROR, "not running")]),
        (
            [*spoken("a", 0, 3), *spoken("b", 3, 6), (5.5, "a"), *spoken("c", 6, 14)],
            True,
            [
                *((float(at), Level.OK, "speaks") for at in range(6)),
                (5.75, Level.ERROR, "two nodes"),
                (13.25, Level.OK, "speaks"),
            ],
        ),
        (
            [*spoken("first", 0, 16), *LATER],
            True,
            [(1.0, Level.OK, ""), (3.0, Level.ERROR, "two nodes"), (15.0, Level.OK, "")],
        ),
    ],
    ids=[
        "it falls silent, and speaks again",
        "it left the graph",
        "it never came",
        "it loads a model",
        "somebody speaks in its name",
        "it was started again, then there are two",
        "two are one again once the second has ended",
    ],
)
def test_a_nodes_heartbeat_tells_how_it_is(
    beats: list[tuple[float, str]], present: bool, looks: list[tuple[float, Level, str]]
) -> None:
    """Looked at four times a second; another robot's counts for nothing."""
    heart, other = Heartbeats((DRAFTER,), 0.0), "/robot2/drafter"
    for quarter in range(4 * 60 + 1):
        now = quarter / 4
        heart.receive(other, "other", "following", now)
        for at, instance in sorted(beats):
            if now - 0.25 < at <= now:
                heart.receive(DRAFTER, instance, "following", at)
        health = heart.look([other, *[DRAFTER] * present], now)[DRAFTER]
        for at, level, words in looks:
            assert at != now or (health.level == level and words in str(health)), now


def test_a_monitor_that_stood_still_itself_accuses_nobody() -> None:
    heart, levels = Heartbeats((DRAFTER,), 0.0), dict[float, Level]()
    heart.receive(DRAFTER, "a", "following", 1.0)
    for now in (1.0, 1.5, 31.5, 32.0, 33.0, 34.0, 35.0):
        levels[now] = heart.look([DRAFTER], now)[DRAFTER].level
    assert (levels[1.5], levels[31.5], levels[35.0]) == (Level.OK, Level.OK, Level.STALE)
