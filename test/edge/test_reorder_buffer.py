"""Verdicts that overtook another one: kept until their turn, each once, never too many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.edge.answer import MAX_EARLY, EarlyVerdicts
from edge_cloud_spec.wire.messages import Verdict

BASE = PrefixDigest(0, 77)


def place(length: int, other: int = 0) -> PrefixDigest:
    return PrefixDigest(length, 1000 * length + other)


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 2), st.integers(0, 3)),
        max_size=60,
    )
)
def test_a_verdict_is_kept_for_its_place_until_the_answer_has_passed_it(
    steps: list[tuple[bool, int, int, int]],
) -> None:
    early, kept, here = EarlyVerdicts(), {}, 0
    for keeps, ahead, other, on in steps:
        if keeps:
            base = place(here + ahead, other)
            verdict = Verdict(base, (), ahead)
            assert early.keep(verdict, place(here)) == (base not in kept)
            kept.setdefault(base, verdict)
        else:
            assert early.take(place(here, other)) is kept.pop(place(here, other), None)
            here += on
            kept = {base: each for base, each in kept.items() if base.length >= here}
            early.keep(Verdict(place(here + 99), (), 1), place(here))  # as one does that comes
            early.take(place(here + 99))


def test_so_many_are_kept_and_those_that_were_passed_make_room() -> None:
    early = EarlyVerdicts()
    for n in range(MAX_EARLY):
        assert early.keep(Verdict(place(3, n), (), 1), BASE)
    assert not early.keep(Verdict(place(9), (), 1), BASE)
    assert not early.keep(Verdict(place(9), (), 1), place(3, 7))  # not passed: one of them is next
    assert early.keep(Verdict(place(9), (), 1), place(4))
    assert early.take(place(3, 1)) is None
    assert early.take(place(9)) is not None
    assert early.take(place(9)) is None
