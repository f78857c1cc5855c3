"""The robot drafts from verified answers alone, and from those of the same target."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.edge import runner as runner_module
from edge_cloud_spec.edge.events import Abort, Emit
from edge_cloud_spec.edge.runner import DecodeRunner
from edge_cloud_spec.lab.harness.toy import ToyVlm, spec_of
from edge_cloud_spec.lab.harness.virtual_decode import Decode
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import Open

OPENING = Open(1, "find", b"", "action first", GREEDY, "greedy", draft_identity="toy", lookup=True)


def looked_up(runner: DecodeRunner, *tokens: int) -> tuple[int, ...]:
    """What the robot finds after these tokens, in what it has learned."""
    lookup = runner._lookup_of(OPENING)
    assert lookup is not None
    return lookup.draft(tokens, 8).tokens


@pytest.mark.parametrize(
    ("preset", "learns"),
    [("auto", True), ("cloud_lookup", False), ("dsd", False), ("edge_only", False)],
)
def test_a_robot_learns_what_was_verified_where_its_preset_looks_up(
    preset: str, learns: bool
) -> None:
    one = Decode(Random(1), preset)
    outcome = one.run()
    assert outcome.completed and outcome.tokens
    assert looked_up(one._runner)[:1] == (outcome.tokens[:1] if learns else ())


def test_an_answer_that_was_not_completed_is_not_learned() -> None:
    one = Decode(Random(1), "auto")
    emit = one.on_emit

    def abort(emitted: Emit) -> None:
        emit(emitted)
        one.inbox.put(Abort("enough"))

    one.on_emit = abort  # type: ignore[method-assign]
    assert one.run().reason == "aborted" and one.emitted
    assert looked_up(one._runner) == ()


@pytest.mark.parametrize("preset", ["auto", "fsd", "dsd"])
def test_with_a_lookup_of_its_own_a_robot_says_the_targets_words(
    preset: str,
) -> None:
    looking = replace(load_preset(preset), lookup=True)
    for seed in range(3):
        one = Decode(Random(seed), looking, seed=seed)
        assert list(one.run().tokens) == one.own_answer()[0]


def test_another_targets_answers_are_forgotten() -> None:
    model: Any = ToyVlm(1)
    runner = DecodeRunner(model, spec_of(60))
    for spec in (spec_of(60), spec_of(61)):
        runner.remember(spec.to_bytes())
        lookup = runner._lookup_of(OPENING)
        assert lookup is not None
        assert looked_up(runner, 1) == ()
        lookup.learn((1, 2, 3))
        runner.remember(spec.to_bytes())
        assert looked_up(runner, 1) == (2, 3)


def test_nothing_is_kept_where_there_are_no_suffixes() -> None:
    model: Any = ToyVlm(1)
    assert DecodeRunner(model, spec_of(60), lookup_suffixes=0)._lookup_of(OPENING) is None
    with pytest.raises(ValueError, match="suffixes"):
        DecodeRunner(model, spec_of(60), lookup_suffixes=-1)


def test_the_vocabulary_is_that_of_the_clouds_specification(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[int] = []
    monkeypatch.setattr(runner_module, "Lookups", lambda *args: given.append(args[-1]))
    model: Any = ToyVlm(1)
    runner = DecodeRunner(model, spec_of(vocabulary=60))
    runner.remember(spec_of(vocabulary=61).to_bytes())
    assert given == [60, 61]
