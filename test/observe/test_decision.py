"""A viewer that missed a draft still shows the verdict on it."""

from __future__ import annotations

from edge_cloud_spec.observe.decision import ShownRound


def test_of_a_draft_that_was_not_heard_whole_what_was_heard_is_shown() -> None:
    assert ShownRound(1, 0, drafted=("turn", "left"), path=(0, 1, 2)).kept == ("turn", "left")
    assert ShownRound(1, 0, path=(0, 1)).kept == ()
    assert ShownRound(1, 0, drafted=("go", "turn", "left"), path=(1, 2)).kept == ("turn", "left")
