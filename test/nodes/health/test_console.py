"""A console tells each trouble once, with its remedy, and when it is over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.status import Status
from edge_cloud_spec.nodes.drafting.camera import CameraTopics, no_picture
from edge_cloud_spec.nodes.drafting.health import drafter_health
from edge_cloud_spec.nodes.health import (
    ERROR_S,
    WARNING_S,
    WELL_S,
    Health,
    HealthConsole,
    Level,
    PublisherWatch,
    worst_of,
)
from edge_cloud_spec.nodes.monitor import Heartbeats
from edge_cloud_spec.nodes.navigator import navigator_health

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


def test_another_remedy_is_told_and_a_better_state_is_not_before_it_is_well() -> None:
    error, warning = Level.ERROR, Level.WARN
    looks = [[health("cloud", error, "start it")]] * 3
    looks += [[health("cloud", error, "give another token")]] * 3
    looks += [[health("cloud", warning, "wait")]] * 9
    lines = [line for look in told(looks) for line in look]
    assert [line.rpartition(": ")[2] for line in lines] == ["start it", "give another token"]


def test_what_is_no_check_or_only_starts_is_not_told() -> None:
    starting = Health(Level.WARN, "unconfigured")
    short = [[health("odometry", Level.WARN, "start it")]] * 3
    assert not any(told([[starting]] * 20 + short + [[]] * 20))


def monitored(heard: bool) -> Health:
    """A drafter that is gone, or never came; and a stranger on cmd_vel."""
    beats = Heartbeats(("/drafter",), 0.0)
    if heard:
        beats.hear("/drafter", "1", "fine", 0.0)
    publishers = {"/cmd_vel": ["/joystick"]} if heard else {}
    faults = PublisherWatch({"/cmd_vel": "/navigator"}).look(publishers, 20.0)
    return worst_of([*beats.look((), 20.0).values(), *faults.values()])


def test_the_nodes_own_healths_are_what_is_told() -> None:
    status = Status("idle")
    camera = no_picture(CameraTopics(("/image/compressed", "/image")), None)
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
