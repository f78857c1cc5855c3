"""Whether commands reach a base, and a guard's stops with them, by the graph's endpoints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.health import Level
from edge_cloud_spec.nodes.endpoints import BASE, GUARD, VELOCITIES, Endpoint, base_and_guard

NAVIGATOR, PULSE = "/robot1/navigator", "std_msgs/msg/Bool"
TOPICS = st.sampled_from(
    ["/robot1/cmd_vel", "/robot2/cmd_vel", "/robot1/pulse", "/api/sport/request"]
)
KINDS = st.sampled_from([*VELOCITIES, PULSE])
NODES = st.sampled_from(
    [
        *(f"{robot}/{name}" for robot in ("", "/robot1", "/robot2") for name in (GUARD, "base")),
        *("/robot1/recorder", "/rosbag2_recorder", "/_ros2cli_4711", "/twist_mux", "/watcher"),
    ]
)
ENDPOINTS = st.builds(Endpoint, NODES, TOPICS, KINDS, st.booleans(), st.booleans(), st.booleans())


def own(kind: str) -> list[Endpoint]:
    topic = "/api/sport/request" if kind == VELOCITIES[2] else "/robot1/cmd_vel"
    return [
        Endpoint(NAVIGATOR, topic, kind, True),
        Endpoint(NAVIGATOR, "/robot1/pulse", PULSE, True),
    ]


@given(st.sampled_from(VELOCITIES), st.lists(ENDPOINTS, max_size=6))
def test_a_guard_counts_that_hears_the_pulse_and_sends_the_navigators_type_where_it_does(
    kind: str, others: list[Endpoint]
) -> None:
    """Whatever else is on these topics; its name alone is no guard, nor is another robot's."""
    mine, pulse = own(kind)
    hears = {e.node for e in others if (e.topic, e.publishes) == (pulse.topic, False)}
    sends = [
        e.kind
        for e in others
        if e.publishes and e.topic == mine.topic and e.node in hears and e.node.endswith(GUARD)
    ]
    said = [
        each for each in base_and_guard(NAVIGATOR, [*others, mine, pulse]) if each.check == GUARD
    ]
    assert (not said) == (bool(sends) and all(sent == kind for sent in sends))
    assert all(each.level == Level.ERROR and each.advice for each in said)


@given(st.sampled_from(VELOCITIES), st.lists(ENDPOINTS, max_size=6))
def test_who_listens_beside_a_base_of_another_type_does_not_make_it_the_base(
    kind: str, others: list[Endpoint]
) -> None:
    """Whatever takes the navigator's type there; a recorder and a console are no base at all."""
    mine, pulse = own(kind)
    hearers = [
        e
        for e in others
        if e.topic == mine.topic
        and not e.publishes
        and not e.node.endswith(("recorder", "_ros2cli_4711"))
    ]
    takes = [e.kind == kind and not e.latched for e in hearers]
    held = any(e.kind != kind for e in hearers) or not any(takes)
    said = [
        each for each in base_and_guard(NAVIGATOR, [pulse, mine, *others]) if each.check == BASE
    ]
    if takes and all(takes):
        assert not said
    else:
        assert [e.level for e in said] == [Level.ERROR if takes and held else Level.WARN]
    assert all(each.advice for each in said)


@pytest.mark.parametrize(
    ("takes", "sends", "what"),
    [
        (1, 0, "it takes TwistStamped, not Twist: set output.stamped to true"),
        (0, 1, "it takes Twist, not TwistStamped: set output.stamped to false"),
    ],
)
def test_what_to_set_for_a_base_of_another_type_is_said(takes: int, sends: int, what: str) -> None:
    mine = Endpoint(NAVIGATOR, "/cmd_vel", VELOCITIES[sends], True)
    base = Endpoint("/base", "/cmd_vel", VELOCITIES[takes], False)
    (said,) = (e for e in base_and_guard(NAVIGATOR, [mine, base]) if e.check == BASE)
    assert f"/base receives no /cmd_vel: {what} (navigator, stop_guard)" in str(said)
    assert len("nothing moves: " + str(said).partition(", and start")[0]) <= 128, "as echo cuts it"
