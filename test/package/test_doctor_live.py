"""`doctor --live` says what is wrong with a running graph; each fault as plain data."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.doctor.graph import Endpoint, Snapshot, check_graph
from edge_cloud_spec.health import Health, Level

COMPRESSED, IMAGE = "sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/Image"
TWIST, ODOMETRY = "geometry_msgs/msg/Twist", "nav_msgs/msg/Odometry"
NODES = ("drafter", "cloud_bridge", "navigator", "stop_guard")


def robot(namespace: str = "") -> Snapshot:
    """A whole robot: its nodes, its camera, its base, its heartbeats."""

    def end(node: str, topic: str, kind: str, publishes: bool, **qos: bool) -> Endpoint:
        return Endpoint(f"{namespace}/{node}", f"{namespace}/{topic}", kind, publishes, **qos)

    status = "edge_cloud_spec/msg/NavStatus"
    return Snapshot(
        nodes=tuple(f"{namespace}/{name}" for name in (*NODES, "driver")),
        endpoints=(
            end("driver", "camera/image_raw/compressed", COMPRESSED, True, reliable=False),
            end("drafter", "camera/image_raw/compressed", COMPRESSED, False, reliable=False),
            end("drafter", "camera/image_raw", IMAGE, False, reliable=False),
            end("drafter", "verified_tokens", "edge_cloud_spec/msg/VerifiedTokens", True),
            end("driver", "odom", ODOMETRY, True),
            end("navigator", "odom", ODOMETRY, False, reliable=False),
            end("navigator", "cmd_vel", TWIST, True),
            end("stop_guard", "cmd_vel", TWIST, True),
            end("navigator", "pulse", "std_msgs/msg/Bool", True),
            end("stop_guard", "pulse", "std_msgs/msg/Bool", False),
            end("driver", "cmd_vel", TWIST, False),
            end("navigator", "nav_status", status, True, latched=True),
            end("drafter", "nav_status", status, False, latched=True),
            end("cloud_bridge", "verdict", "edge_cloud_spec/msg/Verdict", True),
        ),
        diagnostics={f"{namespace}/{name}": Health(Level.OK, "fine", check=name) for name in NODES},
        domain="67",
        seconds=5.0,
    )


def without(snapshot: Snapshot, topic: str, publishes: bool | None = None) -> Snapshot:
    kept = tuple(
        e
        for e in snapshot.endpoints
        if not e.topic.endswith(topic) or publishes not in (None, e.publishes)
    )
    return replace(snapshot, endpoints=kept)


def missing(name: str) -> Snapshot:
    """A robot without this node."""
    whole, full = robot("/robot1"), f"/robot1/{name}"
    said = {node: health for node, health in whole.diagnostics.items() if node != full}
    return replace(
        whole, nodes=tuple(node for node in whole.nodes if node != full), diagnostics=said
    )


def more(snapshot: Snapshot, *endpoints: Endpoint) -> Snapshot:
    return replace(snapshot, endpoints=(*snapshot.endpoints, *endpoints))


def stamped(name: str) -> Snapshot:
    """A robot whose node of this name has TwistStamped in place of Twist."""
    ends = robot().endpoints
    kinds = {TWIST: "geometry_msgs/msg/TwistStamped"}
    other = [
        replace(e, kind=kinds.get(e.kind, e.kind)) if e.node == f"/{name}" else e for e in ends
    ]
    return replace(robot(), endpoints=tuple(other))


def wrong(findings: list[Health]) -> list[Health]:
    return [finding for finding in findings if finding.level != Level.OK]


def only(snapshot: Snapshot, namespace: str | None = None) -> Health:
    (finding,) = wrong(check_graph(snapshot, namespace))
    return finding


@pytest.mark.parametrize("namespace", ["", "/robot1", "/fleet/a"])
def test_nothing_is_wrong_with_a_whole_robot_in_any_namespace(namespace: str) -> None:
    assert wrong(check_graph(robot(namespace))) == []
    assert wrong(check_graph(robot(namespace), namespace)) == []


BLIND = without(robot(), "compressed", True)
CAMERA = Endpoint("/driver", "/camera/rgb/compressed", COMPRESSED, True)
FORGED = Endpoint("/mallory", "/verdict", "edge_cloud_spec/msg/Verdict", True)
RENAMED = replace(
    robot(),
    endpoints=tuple(
        replace(e, topic="/go2/velocity") if e.topic == "/cmd_vel" else e for e in robot().endpoints
    ),
)


@pytest.mark.parametrize(
    ("snapshot", "namespace", "state", "said"),
    [
        (
            Snapshot(domain="67"),
            None,
            Level.ERROR,
            "no node of ours in ROS domain 67;ros2 launch",
        ),
        (Snapshot(nodes=("/turtle",)), None, Level.ERROR, "where there are 1 others"),
        (robot("/robot1"), "robot2", Level.ERROR, "namespace /robot2;some in /robot1;--namespace"),
        (
            replace(robot(), nodes=(*robot().nodes, "/drafter")),
            None,
            Level.ERROR,
            "two of /drafter",
        ),
        *((missing(name), None, Level.ERROR, f"/robot1/{name} is not running") for name in NODES),
        (BLIND, None, Level.ERROR, "nothing publishes it"),
        (more(BLIND, CAMERA), None, Level.ERROR, "camera:=/camera/rgb/compressed"),
        (without(robot(), "odom", True), None, Level.WARN, "nothing publishes /odom"),
        (without(robot(), "cmd_vel", False), None, Level.ERROR, "nobody subscribes to /cmd_vel"),
        (
            stamped("driver"),
            None,
            Level.ERROR,
            "/driver receives no /cmd_vel;it takes TwistStamped;set output.stamped to true",
        ),
        (
            stamped("stop_guard"),
            None,
            Level.ERROR,
            "the stop guard cannot stop the base;it sends TwistStamped on /cmd_vel;output.*",
        ),
        (more(robot(), FORGED), None, Level.ERROR, "/mallory publishes on /verdict"),
        (
            more(RENAMED, Endpoint("/mallory", "/go2/velocity", TWIST, True)),
            None,
            Level.ERROR,
            "/mallory publishes on /go2/velocity",
        ),
    ],
)
def test_one_fault_is_one_finding_that_names_it_and_says_what_to_do(
    snapshot: Snapshot, namespace: str | None, state: str, said: str
) -> None:
    finding = only(snapshot, namespace)
    assert finding.level == state and finding.advice
    assert all(words in f"{finding.message} {finding.advice}" for words in said.split(";"))


def test_a_raw_camera_alone_is_enough_and_one_of_another_type_is_told_apart() -> None:
    raw = Endpoint("/driver", "/camera/image_raw", IMAGE, True)
    assert wrong(check_graph(more(BLIND, raw))) == []
    other = replace(raw, topic="/camera/image_raw/compressed")
    findings = wrong(check_graph(more(BLIND, other)))
    assert any("it carries sensor_msgs/msg/Image" in finding.message for finding in findings)


@pytest.mark.parametrize(("reliable", "latched"), [(True, False), (False, True)])
def test_qos_that_does_not_fit_is_said_of_both_ends(reliable: bool, latched: bool) -> None:
    listener = Endpoint(
        "/logger", "/camera/image_raw/compressed", COMPRESSED, False, reliable, latched
    )
    assert wrong(check_graph(more(robot(), listener))) == []  # the driver is not a node of ours
    listener = replace(listener, node="/cloud_bridge")
    finding = only(more(robot(), listener))
    assert "/cloud_bridge receives nothing of /driver" in finding.message
    assert ("best effort" if reliable else "volatile") in finding.message


QOS = st.tuples(st.booleans(), st.booleans())  # reliable, latched


@given(st.lists(QOS, min_size=1, max_size=3), st.lists(QOS, min_size=1, max_size=3))
def test_of_two_nodes_with_several_ends_one_pair_that_fits_is_enough(
    sent: list[tuple[bool, bool]], heard: list[tuple[bool, bool]]
) -> None:
    """As of ``e_stop``, to which each node subscribes for every kind of publisher."""
    kind = "std_msgs/msg/Bool"
    button = [Endpoint("/button", "/e_stop", kind, True, *qos) for qos in sent]
    ends = [Endpoint("/navigator", "/e_stop", kind, False, *qos) for qos in heard]
    fits = any(not (to[0] > of[0] or to[1] > of[1]) for of in sent for to in heard)
    found = wrong(check_graph(more(robot(), *button, *ends)))
    assert [each.check for each in found] == ([] if fits else ["topic /e_stop"])


def test_a_node_that_says_nothing_or_says_it_is_ill_fails() -> None:
    whole = robot("/robot1")
    drafter = "/robot1/drafter"
    hangs = {name: health for name, health in whole.diagnostics.items() if name != drafter}
    assert (
        f"{drafter} said nothing on /diagnostics in 5 s"
        in only(replace(whole, diagnostics=hangs)).message
    )
    for level in (Level.ERROR, Level.STALE, Level.WARN):
        ill = Health(level, "no picture", check=f"{drafter} (robot1)")
        assert only(replace(whole, diagnostics={**hangs, drafter: ill})) == ill


def test_whether_it_decides_while_it_drives_and_clock_offsets_are_shown() -> None:
    values = {"drive": "stop_and_go", "refused": "0", "cloud_clock_offset_s": "0.013"}
    said = {**robot().diagnostics, "/navigator": Health(Level.OK, "idle", values=values)}
    found = [finding.message for finding in check_graph(replace(robot(), diagnostics=said))]
    assert {"drive: stop_and_go", "cloud_clock_offset_s: 0.013"} < {*found}
    assert "refused: 0" not in found


def test_settings_that_navigator_and_guard_need_and_have_otherwise_are_named() -> None:
    told = {"/navigator": "twist, stop_nudge 0.001", "/stop_guard": "twist, stop_nudge 0.0"}
    said = {
        n: replace(h, values={"output": told.get(n, n)}) for n, h in robot().diagnostics.items()
    }
    finding = only(replace(robot(), diagnostics=said))
    assert finding.level == Level.ERROR and "the same output.*" in finding.advice
    assert "/navigator has twist, stop_nudge 0.001; /stop_guard has" in finding.message
    alike = {name: replace(each, values={"output": "twist"}) for name, each in said.items()}
    assert wrong(check_graph(replace(robot(), diagnostics=alike))) == []


def test_two_robots_do_not_mix() -> None:
    """What the second lacks is said of the second; the first one's camera does not help it."""
    one, blind = robot("/robot1"), without(robot("/robot2"), "compressed", True)
    said = {**one.diagnostics, **blind.diagnostics}
    two = Snapshot(one.nodes + blind.nodes, one.endpoints + blind.endpoints, said, seconds=5.0)
    finding = only(two)
    assert finding.check == "camera of /robot2" and "/robot2/camera/image_raw" in finding.message
    assert wrong(check_graph(two, "robot1")) == []
    lie = {"/robot1/drafter": Health(Level.ERROR, "a lie of robot 2's")}
    assert wrong(check_graph(replace(two, diagnostics={**two.diagnostics, **lie}), "robot2")) == [
        finding
    ]
