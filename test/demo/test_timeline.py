"""Where the time line of a run puts the parts of a round."""

from __future__ import annotations

import pytest

from edge_cloud_spec.lab.demo.timeline import spans
from edge_cloud_spec.observe.decision import ShownRound


def test_a_pass_is_in_the_middle_of_the_time_that_its_draft_waited() -> None:
    round_ = ShownRound(1, 0, drafting=1.0, sent=1.2, answered=2.0, verify=0.4)
    parts = {name: [pytest.approx(span) for span in found] for name, found in spans(round_).items()}
    assert parts == {"drafting": [(1.0, 0.2)], "waiting": [(1.2, 0.8)], "verifying": [(1.4, 0.4)]}


def test_a_pass_of_the_cloud_alone_ends_with_its_verdict() -> None:
    round_ = ShownRound(1, 0, answered=2.0, verify=0.4)
    assert spans(round_) == {"drafting": [], "waiting": [], "verifying": [(1.6, 0.4)]}


def test_a_round_without_a_verdict_has_no_pass() -> None:
    assert not any(spans(ShownRound(1, 0)).values())
