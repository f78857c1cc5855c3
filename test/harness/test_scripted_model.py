"""The scripted model keeps the promises of a session; its acceptance is the one it was given."""

from __future__ import annotations

import numpy as np
import pytest

from edge_cloud_spec.harness.scripted_model import PassCost, ScriptedModel


def test_logits_depend_on_the_prefix_only() -> None:
    model = ScriptedModel(50, seed=3)
    one, two = model.open(b"a"), model.open(b"a")
    one.extend([4, 5])
    two.forward([9, 4, 5], [-1, -1, 1])
    two.commit([1, 2])
    assert one.tokens == two.tokens == (4, 5)
    assert np.array_equal(one.forward([7]), two.forward([7]))
    two.extend([8])
    two.truncate(1)
    one.truncate(1)
    assert np.array_equal(one.forward([]), two.forward([]))
    assert not np.array_equal(one.forward([]), model.open(b"b").forward([]))


@pytest.mark.parametrize("share", [0.0, 0.6, 0.85, 1.0])
def test_greedy_agreement_is_the_given_share(share: float) -> None:
    target, draft = ScriptedModel(64, 1), ScriptedModel(64, 1, share)
    one, two = target.open(), draft.open()
    equal = 0
    for _ in range(2000):
        token, guess = int(one.forward([])[0].argmax()), int(two.forward([])[0].argmax())
        equal += token == guess
        one.extend([token])
        two.extend([token])
    assert abs(equal / 2000 - share) < 0.04


def test_costs_are_counted_by_rows() -> None:
    model = ScriptedModel(8, cost=PassCost(prefill=1.0, fixed=0.1, per_row=0.01))
    session = model.open()
    session.forward([])
    assert model.seconds == 1.0
    session.extend([1])
    session.forward([2, 3])
    assert model.seconds == pytest.approx(1.0 + 0.1 + 0.03)
    assert model.passes == 1


def test_misuse_is_refused() -> None:
    session = ScriptedModel(8).open()
    session.forward([1, 2], [-1, -1])
    with pytest.raises(ValueError, match="not a path"):
        session.commit([0, 1])
    with pytest.raises(ValueError, match="truncate"):
        session.truncate(1)
