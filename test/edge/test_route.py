"""Where a robot lets itself be sent: to hosts that it knows, never without TLS, not in circles."""

from __future__ import annotations

import pytest

from edge_cloud_spec.edge.link.route import (
    MAX_REDIRECTS,
    UNREACHABLE_S,
    ClientSettings,
    KnownPlace,
    Place,
    Route,
    redirect_problem,
)

PLAIN = ClientSettings("127.0.0.1:7")


@pytest.mark.parametrize("address", ["127.0.0.1:8", "127.0.0.1:65535"])
def test_another_port_of_the_same_host_is_followed(address: str) -> None:
    assert redirect_problem(PLAIN, address) == ""


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1:8",
        "localhost:8",
        "127.0.0.2:8",
        "unix:/tmp/x",
        "",
        ":8",
        "127.0.0.1",
        "evil.example:8",
    ],
)
def test_another_host_is_not(address: str) -> None:
    assert redirect_problem(PLAIN, address)


def test_without_tls_no_setting_lets_a_robot_leave_its_machine() -> None:
    named = ClientSettings("127.0.0.1:7", replica_hosts=("10.0.0.1", "127.0.0.2"))
    assert "without TLS" in redirect_problem(named, "10.0.0.1:8")
    assert redirect_problem(named, "127.0.0.2:8") == ""


def test_with_tls_the_hosts_that_are_named_are_followed_and_no_others() -> None:
    settings = ClientSettings("fleet.example:7", replica_hosts=("10.0.0.1",))
    assert settings.secure
    assert redirect_problem(settings, "10.0.0.1:8") == ""
    assert redirect_problem(settings, "fleet.example:9") == ""
    assert "replica_hosts" in redirect_problem(settings, "10.0.0.2:8")


def test_a_circle_is_noticed_and_an_answer_ends_it() -> None:
    route = Route(PLAIN, KnownPlace(), 0.0)
    for number in range(MAX_REDIRECTS + 1):
        assert not route.in_circles
        assert route.follow(f"127.0.0.1:{10 + number % 2}", b"lease", 60.0, 0.0) == ""
    assert route.in_circles
    route.answered()
    assert not route.in_circles


def test_a_replica_that_broke_is_tried_once_more_and_then_the_front_is_asked() -> None:
    known = KnownPlace()
    route = Route(PLAIN, known, 0.0)
    assert route.here == Place("127.0.0.1:7")
    assert not route.lost(connected=True, now=0.0)  # the configured one: it waits
    route.follow("127.0.0.1:8", b"lease", 60.0, 0.0)
    assert Route(PLAIN, known, 1.0).here == Place("127.0.0.1:8", b"lease")  # the next stream's
    assert route.lost(connected=True, now=1.0)
    assert route.here == Place("127.0.0.1:8", b"lease")
    assert route.lost(connected=True, now=1.0)  # it breaks again without an answer
    assert route.here is None
    assert route.avoid == "127.0.0.1:8"
    assert Route(PLAIN, known, 1.0).here is None  # the next stream asks, too


def test_a_replica_that_cannot_be_reached_is_not_tried_again() -> None:
    route = Route(PLAIN, KnownPlace(), 0.0)
    route.follow("127.0.0.1:8", b"lease", 60.0, 0.0)
    assert route.lost(connected=False, now=0.0)
    assert route.here is None


def test_a_replica_beyond_a_long_round_trip_is_given_longer_each_time() -> None:
    route = Route(PLAIN, KnownPlace(), 0.0)
    assert route.connect_s == UNREACHABLE_S
    waited = []
    for port in range(8, 16):
        route.follow(f"127.0.0.1:{port}", b"lease", 60.0, 0.0)
        waited.append(route.connect_s)
        route.lost(connected=False, now=0.0)
        assert route.connect_s == UNREACHABLE_S  # the front: whoever watches the link is told
    assert waited[0] == UNREACHABLE_S and waited == sorted(waited) and waited[3] > 4 * waited[0]
    assert waited[-1] == waited[-2]
    route.follow("127.0.0.1:8", b"lease", 60.0, 0.0)
    route.answered()
    assert route.connect_s == UNREACHABLE_S


def test_a_lease_that_has_run_out_is_not_shown() -> None:
    known = KnownPlace()
    Route(PLAIN, known, 0.0).follow("127.0.0.1:8", b"lease", 60.0, 0.0)
    assert Route(PLAIN, known, 50.0).here is not None
    assert Route(PLAIN, known, 60.0).here is None
