"""The link: where a robot lets itself be sent, and a state that does not lie."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.edge.events import LinkLost
from edge_cloud_spec.edge.link.route import (
    MAX_REDIRECTS,
    UNREACHABLE_S,
    ClientSettings,
    KnownPlace,
    Place,
    Route,
    redirect_problem,
)
from edge_cloud_spec.edge.link.state import (
    HOLD_S,
    MAX_HOLD_S,
    MOST_LATE_S,
    PROBE_S,
    SILENCE_S,
    LinkMonitor,
    LinkQuality,
    LinkState,
    ReplyWatch,
)
from edge_cloud_spec.wire.codec import encode_server
from edge_cloud_spec.wire.frames import ServerFrame
from edge_cloud_spec.wire.messages import Fault, Verdict

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
    assert not route.lost(connected=True)  # the configured one: it waits
    replica = Place("127.0.0.1:8", b"lease")
    assert route.follow(replica.address, replica.lease, 60.0, 0.0) == ""
    assert Route(PLAIN, known, 50.0).here == replica  # the next stream's
    assert Route(PLAIN, known, 60.0).here is None  # a lease that has run out is not shown
    assert route.lost(connected=True)
    assert route.here == replica
    assert route.lost(connected=True)  # it breaks again without an answer
    assert (route.here, route.avoid) == (None, "127.0.0.1:8")
    assert Route(PLAIN, known, 1.0).here is None  # the next stream asks, too


def test_a_replica_beyond_a_long_round_trip_is_given_longer_each_time() -> None:
    route = Route(PLAIN, KnownPlace(), 0.0)
    assert route.connect_s == UNREACHABLE_S
    waited = []
    for port in range(8, 16):
        route.follow(f"127.0.0.1:{port}", b"lease", 60.0, 0.0)
        waited.append(route.connect_s)
        assert route.lost(connected=False) != route.in_circles
        assert route.here is None, "it is not tried again"
        assert route.connect_s == UNREACHABLE_S  # the router: whoever watches the link is told
    assert waited[0] == UNREACHABLE_S and waited == sorted(waited) and waited[3] > 4 * waited[0]
    assert waited[-1] == waited[-2]
    route.answered()
    assert route.connect_s == UNREACHABLE_S


# The state of the link under any events: it does not flap, it recovers, and it does not lie


DEADLINE_S = FIRST_S = 2.0
CLOUD, DEGRADED, LOST = LinkQuality.CLOUD, LinkQuality.DEGRADED, LinkQuality.LOST

events = st.lists(
    st.tuples(
        st.sampled_from(["in time", "late", "refused", "missed", "lost", "tick"]),
        st.sampled_from([0.0, 0.01, 0.1, 0.3, 1.0, 3.0]),
    ),
    max_size=200,
)


def happen(state: LinkState, event: str, now: float) -> None:
    if event == "in time":
        state.answered(0.1, now)
    elif event == "late":
        state.answered(DEADLINE_S + 1, now)
    elif event == "refused":
        state.answered(0.1, now, "it decides nothing")
    elif event == "missed":
        state.missed(now)
    elif event == "lost":
        state.lost("it broke", now)
    else:
        state.tick(now)


def good_link(state: LinkState, now: float, seconds: float) -> float:
    """Answers in time, ten a second, for this long."""
    for _ in range(round(10 * seconds)):
        now += 0.1
        state.answered(0.1, now)
    return now


@given(events=events)
def test_whatever_happens_it_neither_flaps_nor_lies_and_it_recovers(
    events: list[tuple[str, float]],
) -> None:
    """A better state needs the hold time; each fall needs a rise, or is one of the first two.

    It is never cloud while nothing answers or decides, and is again when answers come in time.
    """
    state, now, changes = LinkState(DEADLINE_S, FIRST_S, 0.0), 0.0, 0
    silent: float | None = DEADLINE_S  # since when something is missing
    rises: list[float] = []
    for event, pause in events:
        now += pause
        before = state.quality
        happen(state, event, now)
        changes += before != state.quality
        if state.quality < before:
            assert before - state.quality == 1
            rises.append(now)
        if event in ("in time", "late", "refused"):
            silent = None
        elif event in ("missed", "lost") and silent is None:
            silent = now
        if event in ("missed", "lost", "tick") and silent is not None and now - silent >= SILENCE_S:
            assert state.quality == LOST and state.reason
        if event in ("lost", "refused"):
            assert state.quality != CLOUD and state.reason
    assert changes <= 2 * len(rises) + 2
    # the first one is free: a link that was never bad need not prove itself
    for earlier, later in pairwise(rises[1:]):
        assert later - earlier >= HOLD_S
    good_link(state, now, 2 * MAX_HOLD_S + 1)
    assert (state.quality, state.reason) == (CLOUD, "")


@pytest.mark.parametrize("bad", ["missed", "lost"])
def test_alternating_events_change_the_state_a_few_times_a_minute(bad: str) -> None:
    """Ten good answers, then two seconds of nothing, for ten minutes."""
    state, now, changes = LinkState(DEADLINE_S, FIRST_S, 0.0), 0.0, 0
    while now < 600.0:
        for event in ["in time"] * 10 + [bad] * 20:
            before, now = state.quality, now + 0.1
            happen(state, event, now)
            changes += before != state.quality
    assert changes <= 600 / MAX_HOLD_S * 2 + 12
    good_link(state, now, MAX_HOLD_S + SILENCE_S)
    assert state.quality != LOST  # however often it was lost, it is tried within the longest hold


def test_one_late_answer_is_no_change_and_two_are() -> None:
    """A link that is good again is not judged by what it missed before."""
    state = LinkState(DEADLINE_S, FIRST_S, 0.0)
    state.answered(0.1, 0.1)
    for now, quality in ((3.0, CLOUD), (6.0, DEGRADED)):
        state.missed(now)
        state.answered(DEADLINE_S + 0.2, now + 0.2)
        assert state.quality == quality
    for now in (7.2, 8.2, 9.2, 10.2):  # few answers, so that the misses are among the last of them
        state.answered(0.1, now)
    assert state.quality == CLOUD


def fault(code: str, text: str = "why") -> ServerFrame:
    return encode_server(Fault(code, text))


def ask(monitor: LinkMonitor, answer: ServerFrame) -> None:
    """A request, its answer and its end."""
    monitor.sent("a", last=False)
    monitor.received("a", answer)
    monitor.sent("a", last=True)


def test_while_the_verifier_answers_and_its_target_does_not_the_link_is_degraded() -> None:
    """Before, it was cloud, and well again, while each decision failed."""
    now = 0.0
    monitor = LinkMonitor(DEADLINE_S, FIRST_S, lambda: now)
    monitor.probed("", "", 0.1)
    assert monitor.state.quality == CLOUD
    for second in range(1, 60):
        now = float(second)
        ask(monitor, fault("overloaded", "URL cannot be reached"))
        for _ in range(5):  # the verifier itself is well
            now += 0.1
            if monitor.check():
                monitor.probed("", "", 0.01)
        assert str(monitor.report).startswith("degraded the verifier answers")
        assert "URL cannot be reached" in monitor.report.reason
    for _ in range(60):  # nobody decides: nobody knows
        now += 1.0
        if monitor.check():
            monitor.probed("", "", 0.01)
    assert monitor.state.quality == DEGRADED
    for _ in range(5):
        now += 1.0
        ask(monitor, encode_server(Verdict(PrefixDigest(0, 0), (), 3)))
    assert str(monitor.report) == "cloud"


CAUSES: dict[str, tuple[Callable[[LinkMonitor], None], str]] = {
    "unreachable": (
        lambda m: m.probed("nothing listens there", "start one", 0.0, "unreachable"),
        "start one",
    ),
    "a wrong token": (
        lambda m: m.probed("the token is refused", "the token", 0.0, "token"),
        "the token",
    ),
    "a decode's token": (lambda m: m.received("a", fault("unauthenticated")), ""),
    "a broken stream": (lambda m: m.received("a", LinkLost("reset")), ""),
    "a full verifier": (lambda m: m.received("a", fault("overloaded")), ""),
}


@pytest.mark.parametrize(("before", "after"), list(permutations(CAUSES, 2)))
def test_the_advice_is_that_of_the_cause(before: str, after: str) -> None:
    now = 0.0
    monitor = LinkMonitor(DEADLINE_S, FIRST_S, lambda: now)
    now = FIRST_S + 1
    advice = ""
    for name in (before, after):
        now += 0.1
        CAUSES[name][0](monitor)
        goes_on = name == "a broken stream" or (before, name) == (
            "a wrong token",
            "a decode's token",
        )
        advice = advice if goes_on else CAUSES[name][1]
        assert monitor.state.advice == advice and monitor.state.reason


UNREACHABLE = "cannot reach the cloud: ", "failed to connect to all addresses: ", "reset: "
OF_ONE_CAUSE: list[Callable[[LinkState, float], None]] = [
    lambda state, now: state.missed(now),
    lambda state, now: state.tick(now),
    *(lambda s, now, why=why: s.lost(f"{why}{now}", now) for why in UNREACHABLE),
    lambda state, now: state.lost(f"UNAUTHENTICATED {now}", now, cause="token"),
    lambda state, now: state.lost("the token is refused", now, "give it", "token"),
]


@given(st.lists(st.sampled_from(OF_ONE_CAUSE), max_size=60))
def test_one_cause_has_one_sentence_until_an_answer_comes(
    events: list[Callable[[LinkState, float], None]],
) -> None:
    """A refused token had four in turn: the probe's, the decode's, the deadline's, gRPC's."""
    state, now = LinkState(DEADLINE_S, FIRST_S, 0.0), FIRST_S + 1
    OF_ONE_CAUSE[-1](state, now)
    for event in events:
        event(state, now := now + 0.3)
        assert (state.reason, state.advice) == ("the token is refused", "give it")
    state.lost("nothing listens there", now + 1, "start one", "unreachable")
    assert state.reason == "nothing listens there", "another cause is said at once"
    state.answered(0.1, now + 2)
    state.lost("it broke", now + 3)
    assert (state.reason, state.advice) == ("it broke", "")


def test_a_deadline_that_passes_says_less_than_a_connection_that_broke() -> None:
    state = LinkState(DEADLINE_S, FIRST_S, 0.0)
    state.missed(FIRST_S + 1)
    assert state.reason == "no answer within 2 s"
    state.lost("it broke", FIRST_S + 2)
    state.missed(FIRST_S + 5)
    assert state.reason == "it broke"


def test_a_watch_counts_each_deadline_that_passes() -> None:
    watch = ReplyWatch(1.0)
    assert watch.answered("a", 0.0) is None
    watch.sent("a", 10.0)
    watch.sent("a", 10.9)  # pushed meanwhile: it waits since the first one
    watch.sent("b", 10.5)
    assert [watch.misses(now) for now in (10.9, 11.0, 11.2, 11.6, 12.0)] == [0, 1, 0, 1, 1]
    assert watch.answered("a", 12.5) == 2.5
    assert watch.waiting
    watch.answered("b", 12.5)
    assert not watch.waiting
    assert watch.misses(99.0) == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_reply_is_late_beyond_the_tail_of_the_last_ones_and_never_later_than_a_decode_lasts(
    seed: int,
) -> None:
    """A cloud that is slow by habit is no bad link, one that falls silent is, and one that is quick
    again is held to the limit that was set."""
    random, now, verdict = Random(seed), 0.0, encode_server(Verdict(PrefixDigest(0, 0), (), 3))
    monitor = LinkMonitor(DEADLINE_S, FIRST_S, lambda: now)
    monitor.probed("", "", 0.1)

    def reply(seconds: float) -> None:
        nonlocal now
        monitor.sent("a", last=False)
        for _ in range(round(seconds / 0.1)):
            now += 0.1
            monitor.check()
        monitor.received("a", verdict)

    slow = [random.lognormvariate(math.log(3.0), 0.15) for _ in range(200)]
    lost = []
    for number, seconds in enumerate([*slow[:100], 60.0, *slow[100:]]):  # one of a tunnel
        reply(seconds)
        lost += [number] if monitor.state.quality > CLOUD else []
    assert lost[0] < 8 and 100 in lost and len([n for n in lost if n > 20]) < 12
    monitor.sent("a", last=False)
    silent = now
    while monitor.state.quality < LOST:
        now += 0.1
        monitor.check()
    assert now - silent < MOST_LATE_S + SILENCE_S + 0.3
    for _ in range(70):
        reply(0.1)
    monitor.sent("a", last=False)
    now += DEADLINE_S + 0.1
    before = monitor.state.missed_answers
    monitor.check()
    assert monitor.state.missed_answers == before + 1


def test_one_probe_is_under_way_at_most_and_the_next_waits() -> None:
    now = 0.0
    monitor = LinkMonitor(DEADLINE_S, FIRST_S, lambda: now)
    assert [monitor.check(), monitor.check()] == [True, False]
    now = 60.0
    assert not monitor.check()
    monitor.probed("nothing answers there", "start one", 0.0)
    assert not monitor.check()
    now += PROBE_S
    assert [monitor.check(), monitor.check()] == [True, False]


@pytest.mark.parametrize("problem", ["", "nothing answers there"])
def test_a_probe_says_nothing_of_the_link_while_a_decode_waits(problem: str) -> None:
    monitor = LinkMonitor(DEADLINE_S, FIRST_S, lambda: 60.0)
    assert monitor.check()
    monitor.sent("a", last=False)
    before = monitor.report
    monitor.probed(problem, "start one", 0.0)
    assert (monitor.report, monitor.state.advice) == (before, "")
    assert not monitor.check(), "no other is begun while it waits"
