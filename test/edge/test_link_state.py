"""The state of the link under any events: it does not flap, it recovers, and it does not lie."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.edge.events import LinkLost
from edge_cloud_spec.edge.link.state import (
    HOLD_S,
    LOST_S,
    MAX_HOLD_S,
    PROBE_S,
    LinkMonitor,
    LinkQuality,
    LinkState,
    ReplyWatch,
)
from edge_cloud_spec.wire.codec import encode_server
from edge_cloud_spec.wire.messages import Fault, Verdict

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
def test_it_does_not_flap_whatever_happens(events: list[tuple[str, float]]) -> None:
    """A better state needs the hold time; each fall needs a rise, or is one of the first two."""
    state, now, changes = LinkState(DEADLINE_S, FIRST_S, 0.0), 0.0, 0
    rises: list[float] = []
    for event, pause in events:
        now += pause
        before = state.quality
        happen(state, event, now)
        changes += before != state.quality
        if state.quality < before:
            assert before - state.quality == 1
            rises.append(now)
    assert changes <= 2 * len(rises) + 2
    # the first one is free: a link that was never bad need not prove itself
    for earlier, later in pairwise(rises[1:]):
        assert later - earlier >= HOLD_S


@given(events=events)
def test_it_is_never_cloud_while_nothing_answers_or_decides(
    events: list[tuple[str, float]],
) -> None:
    state, now = LinkState(DEADLINE_S, FIRST_S, 0.0), 0.0
    silent: float | None = DEADLINE_S  # since when something is missing
    for event, pause in events:
        now += pause
        happen(state, event, now)
        if event in ("in time", "late", "refused"):
            silent = None
        elif event in ("missed", "lost") and silent is None:
            silent = now
        state.tick(now)
        if silent is not None and now - silent >= LOST_S:
            assert state.quality == LOST
            assert state.reason
        if event in ("lost", "refused"):
            assert state.quality != CLOUD and state.reason


@given(events=events)
def test_it_recovers_from_anything_when_answers_come_in_time(
    events: list[tuple[str, float]],
) -> None:
    state, now = LinkState(DEADLINE_S, FIRST_S, 0.0), 0.0
    for event, pause in events:
        now += pause
        happen(state, event, now)
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
    good_link(state, now, MAX_HOLD_S + LOST_S)
    assert state.quality != LOST  # however often it was lost, it is tried within the longest hold


def test_one_late_answer_is_no_change_and_two_are() -> None:
    state = LinkState(DEADLINE_S, FIRST_S, 0.0)
    state.answered(0.1, 0.1)
    for now, quality in ((3.0, CLOUD), (6.0, DEGRADED)):
        state.missed(now)
        state.answered(DEADLINE_S + 0.2, now + 0.2)
        assert state.quality == quality
    good_link(state, 6.2, 4.0)
    assert state.quality == CLOUD


def test_a_link_that_is_good_again_is_not_judged_by_what_it_missed_before() -> None:
    state = LinkState(DEADLINE_S, FIRST_S, 0.0)
    state.answered(0.1, 0.1)
    for now in (3.0, 3.1):
        state.missed(now)
    for now in (3.2, 4.2, 5.2, 6.2):  # few answers, so that the misses are among the last of them
        state.answered(0.1, now)
    assert state.quality == CLOUD


def fault(code: str, text: str = "why") -> bytes:
    return encode_server(Fault(code, text))


def ask(monitor: LinkMonitor, answer: bytes) -> None:
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
    "unreachable": (lambda m: m.probed("nothing listens there", "start one", 0.0), "start one"),
    "a wrong token": (lambda m: m.probed("the token is refused", "the token", 0.0), "the token"),
    "a decode's token": (lambda m: m.received("a", fault("unauthenticated")), ""),
    "a broken stream": (lambda m: m.received("a", LinkLost("reset")), ""),
    "a full verifier": (lambda m: m.received("a", fault("overloaded")), ""),
}


@pytest.mark.parametrize(("before", "after"), list(permutations(CAUSES, 2)))
def test_the_advice_is_that_of_the_cause(before: str, after: str) -> None:
    now = 0.0
    monitor = LinkMonitor(DEADLINE_S, FIRST_S, lambda: now)
    now = FIRST_S + 1
    for name in (before, after):
        now += 0.1
        CAUSES[name][0](monitor)
        assert monitor.state.advice == CAUSES[name][1] and monitor.state.reason


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
