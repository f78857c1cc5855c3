"""What an early exit guesses is drafted after, for a preset that wants it, and nothing else."""

from __future__ import annotations

import pytest
from helpers.edge_decoder import BASE, OPENING, SPEC

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.propose import FinishedDraft
from edge_cloud_spec.decoding.shape import Branch
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.events import (
    Action,
    Drafted,
    Emit,
    PromptReady,
    Received,
    Send,
    Work,
)
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import (
    DraftMessage,
    Opened,
    Prediction,
    Verdict,
    spec_digest,
)

TOKENS = (3, 4, 5, 6)


def finished(tokens: tuple[int, ...]) -> FinishedDraft:
    return FinishedDraft(Draft(tokens), tokens, len(tokens) - 1, leaves=((tokens, 0.5),))


def waiting(preset: str = "fsd") -> tuple[EdgeDecoder, list[Action]]:
    """A robot whose first draft is on its way, and what it did then."""
    robot = EdgeDecoder(OPENING, load_preset(preset))
    robot.start(0.0, SPEC)
    robot.handle(Received(Opened("s", b"", BASE)), 0.0)
    (work,) = robot.handle(PromptReady(b"prompt", spec_digest(SPEC), (0,), 20), 0.0)
    assert isinstance(work, Work)
    return robot, robot.handle(Drafted(work.branches[0], TOKENS, finished(TOKENS)), 1.0)


def wanted(actions: list[Action]) -> list[Branch]:
    return [branch for action in actions if isinstance(action, Work) for branch in action.branches]


def test_a_guess_is_drafted_after_and_the_draft_goes_out_when_it_comes_true() -> None:
    robot, _ = waiting()
    actions = robot.handle(Received(Prediction(BASE, (0, 1), 9, 0.8, 2)), 1.1)
    prediction = (*TOKENS[:2], 9)
    branch = next(branch for branch in wanted(actions) if branch.prefix == prediction)
    assert not any(isinstance(action, (Emit, Send)) for action in actions)
    assert robot.tokens == [] and robot.stats.predictions == 1
    sent = robot.handle(Drafted(branch, (7, 8), finished((7, 8))), 1.2)
    pushes = load_preset("fsd").speculation.push
    assert any(isinstance(action, Send) for action in sent) == pushes
    verdict = Verdict(BASE, (0, 1), 9, leads_to=BASE.extend(prediction).short)
    actions = robot.handle(Received(verdict), 2.0)
    assert actions[0] == Emit(0, prediction, True)
    if not pushes:
        (message,) = [a.message for a in actions if isinstance(a, Send)]
        assert isinstance(message, DraftMessage)
        assert (message.base, message.draft.tokens) == (BASE.extend(prediction), (7, 8))
    assert robot.measures.exits.total == 1.0


def test_a_guess_that_does_not_come_true_is_counted_and_forgotten() -> None:
    robot, _ = waiting()
    robot.handle(Received(Prediction(BASE, (), 9, 0.8, 2)), 1.1)
    arrived = (*TOKENS[:1], 8)
    verdict = Verdict(BASE, (0,), 8, leads_to=BASE.extend(arrived).short)
    actions = robot.handle(Received(verdict), 2.0)
    assert all(branch.prefix[:2] == arrived for branch in wanted(actions))
    exits = robot.measures.exits
    assert (exits.total, exits.count) == (0.0, 1)


@pytest.mark.parametrize(
    "prediction",
    [
        Prediction(BASE, (1,), 9, 0.9, 2),  # no path of the draft
        Prediction(BASE, (0, 4), 9, 0.9, 2),
        Prediction(BASE, (0, 0), 9, 0.9, 2),
    ],
)
def test_a_guess_off_the_draft_is_nothing(prediction: Prediction) -> None:
    robot, _ = waiting()
    assert robot.handle(Received(prediction), 1.1) == []
    assert (robot.stats.predictions, robot.stats.stale) == (0, 0)


@pytest.mark.parametrize("base", [BASE.extend((3,)), PrefixDigest(0, 5)])
def test_a_guess_at_another_place_is_stale(base: PrefixDigest) -> None:
    robot, _ = waiting()
    assert robot.handle(Received(Prediction(base, (), 9, 0.9, 2)), 1.1) == []
    assert (robot.stats.predictions, robot.stats.stale) == (0, 1)


def test_a_guess_at_nothing_that_was_sent_is_stale() -> None:
    robot = EdgeDecoder(OPENING, load_preset("fsd"))
    robot.start(0.0, SPEC)
    robot.handle(Received(Opened("s", b"", BASE)), 0.0)
    robot.handle(PromptReady(b"prompt", spec_digest(SPEC), (0,), 20), 0.0)
    assert robot.handle(Received(Prediction(BASE, (), 9, 0.9, 2)), 0.1) == []
    assert (robot.stats.predictions, robot.stats.stale) == (0, 1)


@pytest.mark.parametrize("preset", ["dsd", "picospec", "specedge"])
def test_a_preset_without_exits_does_not_draft_after_them(preset: str) -> None:
    robot, _ = waiting(preset)
    assert not robot.measures.exits.count
    assert robot.handle(Received(Prediction(BASE, (0,), 9, 0.9, 2)), 1.1) == []
    assert robot.stats.predictions == 0


def test_the_surer_guess_is_worked_on_first() -> None:
    robot, _ = waiting()
    robot.handle(Received(Prediction(BASE, (), 8, 0.3, 1)), 1.1)
    both = wanted(robot.handle(Received(Prediction(BASE, (0,), 9, 0.7, 2)), 1.2))
    places = [branch.prefix for branch in both]
    assert places.index((3, 9)) < places.index((8,))
    again = wanted(robot.handle(Received(Prediction(BASE, (), 8, 0.9, 3)), 1.3))
    assert again[0].prefix == (8,)
