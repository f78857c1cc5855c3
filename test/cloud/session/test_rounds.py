"""The cloud's side of a round: how far it goes alone, what it guesses, what it tells of P."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.cloud.verification import BASE, END, VOCABULARY, draft, session, stale, verdict_of

from edge_cloud_spec.cloud.session.events import (
    Extend,
    Predicted,
    Propose,
    Proposed,
    Reply,
    Score,
    Scored,
)
from edge_cloud_spec.cloud.session.verification import EMPTY, Verification
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.split import SparseResidual, Split
from edge_cloud_spec.decoding.target_rows import LogitRows
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.wire.messages import (
    Alone,
    DraftMessage,
    Generate,
    Open,
    Prediction,
    RowMessage,
    RowRequest,
    Verdict,
)


def says(*tokens: int) -> Scored:
    """Logits whose argmax are these tokens, row by row."""
    logits = np.zeros((len(tokens), VOCABULARY), np.float32)
    logits[range(len(tokens)), tokens] = 5
    return Scored(LogitRows(logits))


def scores(actions: list) -> list[Draft]:
    return [action.draft for action in actions if isinstance(action, Score)]


def test_generating_stops_at_the_length_that_was_asked_for() -> None:
    cloud = session()
    actions = cloud.handle(Generate(BASE, Alone(until=3)))
    for token in (4, 5, 6):
        assert cloud.generating
        assert scores(actions) == [EMPTY]
        actions = cloud.handle(says(token))
    assert not cloud.generating and scores(actions) == []
    assert cloud.handle(Generate(cloud.digest, Alone(until=3))) == []  # it is that long already
    assert not cloud.generating
    assert scores(cloud.handle(Generate(cloud.digest, Alone(until=4)))) == [EMPTY]
    assert scores(cloud.handle(says(7))) == []
    assert cloud.tokens == [4, 5, 6, 7]


def test_a_generated_draft_may_go_beyond_the_length_that_was_asked_for_and_stops_there() -> None:
    cloud = session()
    assert cloud.handle(Generate(BASE, Alone(True, 2))) == [Propose((), 3)]
    cloud.handle(Proposed(Draft((1, 2, 3))))
    actions = cloud.handle(says(1, 2, 3, 4))
    assert cloud.tokens == [1, 2, 3, 4]
    assert not cloud.generating
    assert not any(isinstance(action, Propose) for action in actions)


def test_asking_again_further_back_repeats_what_came_since_and_goes_on() -> None:
    cloud = session()
    cloud.handle(Generate(BASE))
    for token in (1, 2):
        cloud.handle(says(token))
    assert cloud.handle(Generate(BASE)) == []  # it is at it, and nothing was missed
    cloud.pause()
    cloud.handle(says(3))
    again = cloud.handle(Generate(BASE.extend((1,))))
    assert [a.message.token for a in again if isinstance(a, Reply)] == [2, 3]
    assert scores(again) == [EMPTY]
    assert cloud.handle(Generate(PrefixDigest(1, 1))) == []
    assert stale(cloud) == 1


def test_a_finished_answer_is_repeated_to_who_asks_and_nothing_more_is_made() -> None:
    cloud = session()
    cloud.handle(Generate(BASE))
    cloud.handle(says(1))
    cloud.handle(says(END))
    again = cloud.handle(Generate(BASE))
    assert [a.message.finish for a in again if isinstance(a, Reply)] == ["", "end"]
    assert len(again) == 2 and not cloud.generating


def test_a_guess_is_about_the_draft_of_a_robot_that_is_being_scored() -> None:
    cloud = session()
    prediction = Predicted((0,), 5, 0.75, 2)
    assert cloud.handle(prediction) == []  # nothing is
    cloud.handle(Generate(BASE))
    assert cloud.handle(prediction) == []  # no robot's
    cloud.handle(says(1))
    cloud.pause()
    cloud.handle(says(2))
    there = cloud.digest
    cloud.handle(draft(3, 4, base=there))
    assert cloud.handle(prediction) == [Reply(Prediction(there, (0,), 5, 0.75, 2))]
    cloud.handle(says(3, 5, 0))
    assert cloud.handle(prediction) == []


def split_session(residual: Split) -> tuple[Verification, Verdict]:
    """A split session after a rejection, and what was said of it."""
    policy = SamplingPolicy(1.0)
    opening = Open(1, "find", b"", "action first", policy, "rejection", payload="probabilities")
    opening = replace(opening, split=residual, draft_identity="small")
    cloud = Verification("s", opening, BASE, end_tokens=(END,), max_tokens=9, vocabulary=VOCABULARY)
    cloud.handle(DraftMessage(BASE, Draft((1, 2), values=(1e-9, 1.0)), 0))
    said = verdict_of(cloud.handle(says(1, 3, 3)))
    assert (said.path, said.token) == ((0,), None) and said.residual is not None
    return cloud, said


@pytest.mark.parametrize("kind", [Split("dense"), Split("top_k", 3), Split("sparse", 2, 4)])
def test_a_rejected_place_is_told_in_the_form_that_was_asked_for(kind: Split) -> None:
    cloud, said = split_session(kind)
    told = said.residual
    (row,) = [action.message for action in cloud.handle(RowRequest(BASE))]
    assert isinstance(row, RowMessage) and row.base == BASE
    dense = row.row.shares
    assert dense.argmax() == 3 and len(dense) == VOCABULARY
    if kind.residual == "sparse":
        assert isinstance(told, SparseResidual)
        assert (len(told.top), len(told.tail_tokens)) == (2, 4)
        assert told.tail_mass == pytest.approx(1 - dense[told.top].sum())
        return
    assert isinstance(told, TokenDistribution)
    if kind.residual == "top_k":
        assert told.ids is not None and len(told.ids) == 3
        assert told.probabilities == pytest.approx(dense[told.ids])
    else:
        assert told.ids is None and told.shares == pytest.approx(dense)


def test_a_row_is_told_of_the_last_rejection_alone_and_until_the_robot_goes_on() -> None:
    cloud, said = split_session(Split("sparse", 2, 0))
    for place in (BASE, cloud.digest):  # the draft's, or a robot's that brought its tokens
        (told,) = cloud.handle(RowRequest(place))
        assert told.message.base == place
    assert cloud.handle(RowRequest(PrefixDigest(0, 3))) == []
    assert stale(cloud) == 1
    again = DraftMessage(BASE, Draft((7,), values=(0.5,)), 1)
    (repeated,) = cloud.handle(again)
    assert repeated.message == replace(said, tokens=(1,))
    there = cloud.digest.extend((5,))
    following = Draft((6,), values=(0.9,))
    bare = cloud.handle(DraftMessage(cloud.digest, following, 2))
    assert [a.message.code for a in bare] == ["bad_draft"]  # it has to say which token it drew
    went_on = cloud.handle(DraftMessage(there, following, 2, resampled=5))
    assert went_on == [Extend((5,)), Score(following)]
    assert (cloud.tokens, cloud.digest) == ([1, 5], there)
    assert cloud.handle(RowRequest(BASE)) == []
    assert stale(cloud) == 2
    cloud.handle(says(6, 2))
    (old,) = cloud.handle(again)
    assert old.message.residual is None  # only the last one is kept whole
    assert cloud.counters.repeated == 2


@pytest.mark.parametrize(
    ("resampled", "complaint"),
    [
        (VOCABULARY, "outside the vocabulary"),
        (-1, "outside the vocabulary"),
        (END, "ended with the resampled token"),
    ],
)
def test_a_resampled_token_that_cannot_be_is_refused(resampled: int, complaint: str) -> None:
    cloud, _ = split_session(Split("dense"))
    there = cloud.digest.extend((resampled,))
    message = DraftMessage(there, Draft((6,), values=(0.9,)), 1, resampled=resampled)
    (said,) = cloud.handle(message)
    assert said.message.code == "bad_draft" and complaint in said.message.text
    assert cloud.tokens == [1]
    assert cloud.counters.refused == 1


def test_a_resampled_token_that_is_the_last_one_closes_the_decode() -> None:
    cloud, _ = split_session(Split("dense"))
    for _ in range(6):  # up to seven tokens of nine: a rejection each
        there = cloud.digest.extend((5,))
        cloud.handle(DraftMessage(there, Draft((6,), values=(1.0,)), 1, resampled=5))
        said = verdict_of(cloud.handle(says(3, 3)))
        assert said.residual is not None and said.path == ()
    assert len(cloud.tokens) == 7
    there = cloud.digest.extend((5,))
    cloud.handle(DraftMessage(there, Draft((6,), values=(1.0,)), 1, resampled=5))
    verdict_of(cloud.handle(says(3, 3)))
    there = cloud.digest.extend((5,))
    (said,) = cloud.handle(DraftMessage(there, Draft((6,), values=(1.0,)), 1, resampled=5))
    assert "close the decode" in said.message.text


@pytest.mark.parametrize(
    ("draft_", "open_at", "complaint"),
    [
        (Draft((1, 2)), 1, ""),
        (Draft((1, 2)), 0, "after one of its leaves"),
        (Draft((1, 2)), 2, "is not one of the draft's 2"),
        (Draft((1, 2, 3), (-1, -1, 0)), 1, ""),
        (Draft((1, 2, 3), (-1, -1, 0)), 2, ""),
        (Draft((1, 2, 3), (-1, -1, 0)), 0, "after one of its leaves"),
        (Draft((1, 2, 3), (-1, -1, 0)), 3, "is not one of the draft's 3"),
    ],
)
def test_a_draft_goes_on_after_one_of_its_leaves(
    draft_: Draft, open_at: int, complaint: str
) -> None:
    cloud = session()
    (said,) = cloud.handle(DraftMessage(BASE, draft_, 0, open_at=open_at))
    if complaint:
        assert complaint in said.message.text
        assert cloud.under_way is None
    else:
        assert said == Score(draft_)
        assert cloud.under_way.open_at == open_at


def test_every_verdict_is_counted_once_and_every_message_that_changed_nothing() -> None:
    cloud = session()
    cloud.handle(draft(1, 2))
    cloud.handle(says(1, 2, 3))
    cloud.handle(draft(1, 2))
    cloud.handle(draft(9, base=PrefixDigest(7, 7)))  # no drafter was named: not kept
    cloud.handle(Draft and DraftMessage(cloud.digest, Draft(()), 1))
    counters = cloud.counters
    assert (counters.drafts, counters.verdicts, counters.judged, counters.repeated) == (4, 1, 1, 1)
    assert (counters.late, counters.refused, counters.accounted) == (1, 1, 4)


def test_a_token_drawn_for_another_sessions_rejection_gives_the_session_up() -> None:
    """Else its robot would wait: the two have drifted apart."""
    cloud, _ = split_session(Split("sparse", 2, 0))
    cloud = Verification(
        "t", cloud._opening, BASE, end_tokens=(END,), max_tokens=9, vocabulary=VOCABULARY
    )
    drawn = DraftMessage(BASE.extend((5,)), Draft((6,), values=(0.9,)), 1, resampled=5)
    (said,) = cloud.handle(drawn)
    assert said.message.code == "unknown_session"
