"""Foreign publishers and silent nodes, as the monitor judges them; without ROS."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nodes.health import LEFT_S, UNKNOWN, Level, PublisherWatch
from edge_cloud_spec.nodes.monitor import Heartbeats

VERDICT, CMD_VEL = "/robot1/verdict", "/robot1/cmd_vel"
OWNERS = {VERDICT: "/robot1/cloud_bridge", CMD_VEL: "/robot1/navigator"}
NODES = ("/robot1/drafter", "/robot1/navigator")
DRAFTER = NODES[0]


def test_the_owner_alone_is_no_fault_and_a_stranger_is_named_at_once() -> None:
    watch = PublisherWatch(OWNERS)
    good = {VERDICT: ["/robot1/cloud_bridge"], CMD_VEL: ["/robot1/navigator"]}
    assert watch.look({}, 0.0) == watch.look(good, 0.1) == {}
    forged = {**good, VERDICT: ["/robot1/cloud_bridge", "/mallory"]}
    (found,) = watch.look(forged, 0.2).items()
    assert found[0] == VERDICT and found[1].level == Level.ERROR
    assert "/mallory publishes on /robot1/verdict" in found[1].message
    assert "/robot1/cloud_bridge alone" in found[1].message and found[1].advice
    assert watch.look(good, 0.3) == {}


def test_a_node_of_our_names_in_another_namespace_is_a_stranger_too() -> None:
    found = PublisherWatch(OWNERS).look({CMD_VEL: ["/robot2/navigator"]}, 0.0)
    assert found[CMD_VEL].level == Level.ERROR and "/robot2/navigator" in found[CMD_VEL].message


def test_a_stranger_is_allowed_only_where_its_whole_name_is() -> None:
    watch = PublisherWatch(OWNERS, frozenset({"/robot1/joy"}))
    assert watch.look({CMD_VEL: ["/robot1/navigator", "/robot1/joy"]}, 0.0) == {}
    assert watch.look({CMD_VEL: ["/robot1/navigator", "/robot2/joy"]}, 0.0)


def test_a_second_one_of_the_same_name_warns_and_is_an_error_if_it_stays() -> None:
    """One that was killed and started again is seen twice for a while."""
    watch = PublisherWatch(OWNERS)
    two = {CMD_VEL: ["/robot1/navigator"] * 2}
    assert watch.look(two, 0.0)[CMD_VEL].level == Level.WARN
    assert watch.look(two, LEFT_S + 1)[CMD_VEL].level == Level.ERROR
    assert watch.look({CMD_VEL: ["/robot1/navigator"]}, LEFT_S + 2) == {}
    assert watch.look(two, LEFT_S + 3)[CMD_VEL].level == Level.WARN


def test_a_publisher_without_a_name_is_waited_for_half_a_second_and_no_longer() -> None:
    watch = PublisherWatch(OWNERS)
    nameless = {VERDICT: [f"{UNKNOWN}/{UNKNOWN}"]}
    assert watch.look(nameless, 0.0) == watch.look(nameless, 0.4) == {}
    assert "without a ROS name" in watch.look(nameless, 0.6)[VERDICT].message
    assert watch.look({VERDICT: ["/robot1/cloud_bridge"]}, 0.7) == {}


@given(
    st.lists(
        st.sampled_from(
            ["/robot1/navigator", "/robot1/cloud_bridge", "/mallory", "/robot2/drafter"]
        )
    )
)
def test_nobody_but_the_owner_once_passes(names: list[str]) -> None:
    found = PublisherWatch(OWNERS).look({CMD_VEL: names}, 0.0)
    assert (CMD_VEL in found) == (names not in ([], ["/robot1/navigator"]))


def beat(beats: Heartbeats, name: str, now: float, instance: str = "a") -> None:
    beats.hear(name, instance, "following", now)


def looked(beats: Heartbeats, until: float, present: tuple[str, ...] = NODES) -> Heartbeats:
    """Looks four times a second, as the monitor does."""
    at = beats._looked or beats.started
    while at < until:
        at = min(at + 0.25, until)
        beats.look(present, at)
    return beats


def test_a_node_that_falls_silent_is_stale_with_its_last_words_and_ok_when_it_speaks() -> None:
    beats = Heartbeats(NODES, 0.0)
    for at in range(5):
        looked(beats, float(at))
        for name in NODES:
            beat(beats, name, float(at))
    assert {h.level for h in beats.look(NODES, 4.0).values()} == {Level.OK}
    for at in (5, 6, 7):
        looked(beats, float(at))
        beat(beats, NODES[1], float(at))
    found = looked(beats, 8.0).look(NODES, 8.0)
    assert found[DRAFTER].level == Level.STALE and found[NODES[1]].level == Level.OK
    assert "has said nothing for 4 s; last: 'following'" in found[DRAFTER].message
    assert "restart" in found[DRAFTER].advice
    beat(beats, DRAFTER, 8.1)
    assert beats.look(NODES, 8.2)[DRAFTER].level == Level.OK


def test_a_node_that_left_the_graph_is_gone_and_one_that_never_came_is_not_running() -> None:
    beats = Heartbeats(NODES, 0.0)
    beat(beats, DRAFTER, 0.5)
    found = looked(beats, 4.0, ()).look((), 4.0)
    assert found[DRAFTER].level == Level.ERROR and "is gone" in found[DRAFTER].message
    assert found[NODES[1]].level == Level.OK  # it may still start
    found = looked(beats, 11.0, ()).look((), 11.0)
    assert found[NODES[1]].level == Level.ERROR and "is not running" in found[NODES[1]].message


def test_a_node_that_loads_a_model_is_waited_for() -> None:
    found = looked(Heartbeats(NODES, 0.0), 60.0).look(NODES, 60.0)
    assert found[DRAFTER].level == Level.WARN and "nothing yet" in found[DRAFTER].message


def test_who_speaks_in_the_name_of_a_node_that_is_dead_is_found() -> None:
    beats = Heartbeats(NODES, 0.0)
    for at in range(5):
        looked(beats, float(at), ())
        beat(beats, DRAFTER, float(at))
    health = beats.look((), 4.1)[DRAFTER]
    assert health.level == Level.ERROR and "not running" in health.message


def test_two_that_speak_under_one_name_are_found_and_a_restart_is_not_two() -> None:
    beats = Heartbeats(NODES, 0.0)
    for at, instance in enumerate("aaabbb"):
        looked(beats, float(at))
        beat(beats, DRAFTER, float(at), instance)
        assert beats.look(NODES, float(at))[DRAFTER].level == Level.OK
    beat(beats, DRAFTER, 5.5, "a")
    health = beats.look(NODES, 5.6)[DRAFTER]
    assert health.level == Level.ERROR and "two nodes" in health.message
    for at in range(6, 14):
        looked(beats, float(at))
        beat(beats, DRAFTER, float(at), "c")
    assert beats.look(NODES, 13.1)[DRAFTER].level == Level.OK


def test_two_nodes_are_one_again_once_the_second_has_ended() -> None:
    """Before, the first one was taken for a liar for as long as it ran."""
    beats = Heartbeats(NODES, 0.0)
    levels = []
    for at in range(16):
        looked(beats, float(at))
        beat(beats, DRAFTER, float(at), "first")
        if 2 <= at < 5:
            beat(beats, DRAFTER, at + 0.5, "second")
        levels.append(beats.look(NODES, at + 0.6)[DRAFTER].level)
    assert levels[:2] == [Level.OK] * 2 and levels[-1] == Level.OK
    assert Level.ERROR in levels[2:6]


def test_another_robots_heartbeat_does_not_count() -> None:
    beats = Heartbeats(NODES, 0.0)
    for at in range(12):
        looked(beats, float(at), ("/robot2/drafter", "/drafter"))
        beat(beats, "/robot2/drafter", float(at))
        beat(beats, "/drafter", float(at))
    assert beats.look((), 11.1)[DRAFTER].level == Level.ERROR


def test_a_monitor_that_stood_still_itself_accuses_nobody() -> None:
    beats = Heartbeats(NODES, 0.0)
    beat(beats, DRAFTER, 1.0)
    assert looked(beats, 1.5).look(NODES, 1.5)[DRAFTER].level == Level.OK
    assert beats.look(NODES, 31.5)[DRAFTER].level == Level.OK
    assert looked(beats, 35.0).look(NODES, 35.0)[DRAFTER].level == Level.STALE
