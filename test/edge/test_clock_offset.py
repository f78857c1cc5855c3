"""The offset between two clocks: the truth is within the uncertainty, whatever the link does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.edge.client import DRIFT, KEPT, MAX_AGE_S, ClockOffset

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
    assert clocks.steps == 0
    shortest = min(up + down for up, _, down in exchanges[-KEPT:]) / 2e9
    assert found.uncertainty_s <= shortest + DRIFT * 2000


@given(
    before=exchanges,
    after=exchanges,
    offset=st.integers(-(10**12), 10**12),
    jump=st.integers(4 * 10**9, 10**13).flatmap(lambda j: st.sampled_from([j, -j])),
)
def test_a_clock_that_was_set_is_noticed_at_the_first_exchange(
    before: list[tuple[int, int, int]],
    after: list[tuple[int, int, int]],
    offset: int,
    jump: int,
) -> None:
    """A jump that no delay of the link explains; it is noticed once."""
    clocks, at = ClockOffset(), WALL
    for exchanged in before:
        at = exchange(clocks, offset, at, *exchanged) + 10**8
    for up, held, down in after:
        at = exchange(clocks, offset + jump, at, up % 10**8, held, down % 10**8) + 10**8
        found = clocks.at(at / 1e9)
        assert found is not None
        certain = [2 * 3 + 0.2 for _ in before]  # s, that the two ways could differ by at most
        if abs(jump) / 1e9 > max(certain):
            assert abs(found.offset_s - (offset + jump) / 1e9) <= found.uncertainty_s + 1e-6
            assert clocks.steps == 1


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
