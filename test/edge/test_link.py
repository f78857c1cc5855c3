"""Where a robot lets itself be sent, and the offset between its clock and the cloud's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.edge.link.route import (
    MAX_REDIRECTS,
    UNREACHABLE_S,
    ClientSettings,
    KnownPlace,
    Place,
    Route,
    redirect_problem,
)
from edge_cloud_spec.edge.link.stream import DRIFT, KEPT, MAX_AGE_S, ClockOffset

PLAIN = ClientSettings("127.0.0.1:7")
NAMED = replace(PLAIN, replica_hosts="10.0.0.1, 127.0.0.2")
SECURE = ClientSettings("fleet.example:7", replica_hosts="10.0.0.1")


@pytest.mark.parametrize(
    ("settings", "address", "problem"),
    [
        (PLAIN, "127.0.0.1:8", None),  # another port of the same host
        (PLAIN, "127.0.0.1:65535", None),
        *((PLAIN, there, "") for there in ("10.0.0.1:8", "localhost:8", "127.0.0.2:8")),
        *((PLAIN, there, "") for there in ("unix:/tmp/x", "", ":8", "127.0.0.1", "evil.example:8")),
        (NAMED, "10.0.0.1:8", "without TLS"),  # no setting lets a robot leave its machine so
        (NAMED, "127.0.0.2:8", None),
        (SECURE, "10.0.0.1:8", None),  # a host that is named, and the verifier's own
        (SECURE, "fleet.example:9", None),
        (SECURE, "10.0.0.2:8", "replica_hosts"),
        (SECURE, "10.0.0:8", "replica_hosts"),  # a part of a name is another name
    ],
)
def test_a_robot_goes_where_it_is_sent_to_hosts_that_it_knows_alone(
    settings: ClientSettings, address: str, problem: str | None
) -> None:
    """problem: what is said of a redirect that is not followed."""
    assert settings.secure == (settings is SECURE)
    found = redirect_problem(settings, address)
    assert bool(found) == (problem is not None)
    assert (problem or "") in found


def sent_on(known: KnownPlace | None = None) -> Route:
    """The route of a stream that its router has sent to a replica."""
    route = Route(PLAIN, known or KnownPlace(), 0.0)
    assert route.follow("127.0.0.1:8", b"lease", 60.0, 0.0) == ""
    return route


def test_a_circle_is_noticed_and_an_answer_ends_it() -> None:
    route = Route(PLAIN, KnownPlace(), 0.0)
    for number in range(MAX_REDIRECTS + 1):
        assert not route.in_circles
        assert route.follow(f"127.0.0.1:{10 + number % 2}", b"lease", 60.0, 0.0) == ""
    assert route.in_circles
    route.answered()
    assert not route.in_circles


def test_a_replica_that_broke_is_tried_once_more_and_then_the_router_is_asked() -> None:
    known = KnownPlace()
    route = Route(PLAIN, known, 0.0)
    assert route.here == Place("127.0.0.1:7")
    assert not route.lost(connected=True, now=0.0)  # the configured one: it waits
    route, replica = sent_on(known), Place("127.0.0.1:8", b"lease")
    assert Route(PLAIN, known, 1.0).here == replica  # the next stream's
    assert route.lost(connected=True, now=1.0)
    assert route.here == replica
    assert route.lost(connected=True, now=1.0)  # it breaks again without an answer
    assert (route.here, route.avoid) == (None, "127.0.0.1:8")
    assert Route(PLAIN, known, 1.0).here is None  # the next stream asks, too


def test_a_replica_that_cannot_be_reached_is_not_tried_again() -> None:
    route = sent_on()
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
        assert route.connect_s == UNREACHABLE_S  # the router: whoever watches the link is told
    assert waited[0] == UNREACHABLE_S and waited == sorted(waited) and waited[3] > 4 * waited[0]
    assert waited[-1] == waited[-2]
    route.answered()
    assert route.connect_s == UNREACHABLE_S


def test_a_lease_that_has_run_out_is_not_shown() -> None:
    known = KnownPlace()
    sent_on(known)
    assert Route(PLAIN, known, 50.0).here is not None
    assert Route(PLAIN, known, 60.0).here is None


# The offset between two clocks: the truth is within the uncertainty, whatever the link does.

WALL = 1_760_000_000 * 10**9  # ns
delays = st.integers(0, 3 * 10**9)  # ns, of one way: up to 3 s
exchanges = st.lists(st.tuples(delays, st.integers(0, 10**9), delays), min_size=1, max_size=40)


def exchange(clocks: ClockOffset, offset: int, at: int, up: int, held: int, down: int) -> int:
    """One message and its answer; returns when it ended, ns of the robot's clock."""
    end = at + up + held + down
    times = at, at + up + offset, at + up + held + offset, end
    assert clocks.observe(*times, now=end / 1e9)
    return end


@given(exchanges=exchanges, offset=st.integers(-(10**13), 10**13))
def test_the_truth_is_within_the_uncertainty(
    exchanges: list[tuple[int, int, int]], offset: int
) -> None:
    """However unequal the two ways are: a picture going up, a queue coming down."""
    clocks, at = ClockOffset(), WALL
    for up, held, down in exchanges:
        at = exchange(clocks, offset, at, up, held, down) + 10**8
        found = clocks.at(at / 1e9)
        assert found is not None
        assert abs(found.offset_s - offset / 1e9) <= found.uncertainty_s + 1e-6
    shortest = min(up + down for up, _, down in exchanges[-KEPT:]) / 2e9
    assert found.uncertainty_s <= shortest + DRIFT * 2000


@given(
    before=exchanges,
    after=exchanges,
    offset=st.integers(-(10**12), 10**12),
    jump=st.integers(7 * 10**9, 10**13).flatmap(lambda j: st.sampled_from([j, -j])),
)
def test_a_clock_that_was_set_is_noticed_at_the_first_exchange(
    before: list[tuple[int, int, int]],
    after: list[tuple[int, int, int]],
    offset: int,
    jump: int,
) -> None:
    """A jump that no delay of the link explains: the two ways differ by 6 s and a bit at most."""
    clocks, at = ClockOffset(), WALL
    for exchanged in before:
        at = exchange(clocks, offset, at, *exchanged) + 10**8
    for up, held, down in after:
        at = exchange(clocks, offset + jump, at, up % 10**8, held, down % 10**8) + 10**8
        found = clocks.at(at / 1e9)
        assert found is not None
        assert abs(found.offset_s - (offset + jump) / 1e9) <= found.uncertainty_s + 1e-6


def test_times_that_cannot_be_are_not_used() -> None:
    clocks = ClockOffset()
    assert not clocks.observe(100, 200, 200, 99, 0.0)  # the robot's clock was set back meanwhile
    assert not clocks.observe(100, 200, 199, 300, 0.0)  # the cloud's was
    assert not clocks.observe(100, 0, 500, 300, 0.0)  # it held it for longer than all of it took
    assert clocks.at(0.0) is None
    assert clocks.observe(100, 150, 160, 300, 0.0)


def test_a_sample_grows_uncertain_and_is_then_forgotten() -> None:
    clocks = ClockOffset()
    clocks.observe(0, 10**6, 10**6, 2 * 10**6, 0.0)
    fresh, old = clocks.at(0.0), clocks.at(100.0)
    assert fresh is not None and old is not None
    assert old.uncertainty_s > fresh.uncertainty_s
    assert clocks.at(MAX_AGE_S + 1) is None
