"""A log says what happens without end a few times a second, and how often it was."""

from __future__ import annotations

from itertools import pairwise

import pytest

from edge_cloud_spec.throttle import MAX_KINDS, Throttle, with_more


@pytest.mark.parametrize("most", [1, 5])
def test_what_comes_without_end_is_said_so_often_a_second_and_nothing_is_uncounted(
    most: int,
) -> None:
    throttle = Throttle(most)
    said = [throttle.admit("refused", number / 500) for number in range(5000)]  # for ten seconds
    written = [more for more in said if more is not None]
    assert len(written) == 10 * most
    assert sum(written) + len(written) == 9 * 500 + most, "all but the last second's others"


def test_what_goes_on_is_said_ever_more_rarely_and_at_once_after_it_was_over() -> None:
    throttle = Throttle(longest_s=60.0)
    said = {now: throttle.admit("refused", now) for now in map(float, range(600))}
    written = [now for now, more in said.items() if more is not None]
    gaps = [later - earlier for earlier, later in pairwise(written)]
    assert gaps[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0] and max(gaps) == 60.0
    assert sum(said[now] or 0 for now in written) + len(written) == written[-1] + 1
    assert throttle.admit("refused", 800.0) is not None
    assert throttle.admit("refused", 801.0) == 0, "a second after it began anew"


def test_one_kind_does_not_silence_another_and_the_kinds_that_are_known_are_bounded() -> None:
    throttle = Throttle()
    assert [throttle.admit(kind, 0.0) for kind in "aab"] == [0, None, 0]
    assert all(throttle.admit(number, 0.0) == 0 for number in range(5000))
    assert len(throttle._kinds) <= MAX_KINDS


def test_a_line_says_how_many_it_stands_for() -> None:
    assert with_more("refused", 0) == "refused"
    assert with_more("refused", 41) == "refused (41 more of these)"
