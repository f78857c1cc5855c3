"""The cloud's state machine: verdicts are kept and repeated, whatever is asked and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.cloud.verification import (
    BASE,
    END,
    ROW,
    VOCABULARY,
    draft,
    opened,
    play,
    says,
    session,
    split_opening,
    verdict_of,
)

from edge_cloud_spec.cloud.session import drafts
from edge_cloud_spec.cloud.session.events import (
    Commit,
    DuePass,
    Effect,
    Extend,
    Reply,
)
from edge_cloud_spec.cloud.session.session import CloudSession, Status
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.split import SparseResidual, Split
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.wire.messages import (
    Close,
    DraftMessage,
    Generate,
    Open,
    Opened,
    Resume,
    RowMessage,
    RowRequest,
    Verdict,
)

after = BASE.extend
PLAIN = Open(1, "find", b"", "action first", GREEDY, "greedy")
DENSE = replace(
    PLAIN, policy=SamplingPolicy(1.0), rule="rejection", payload="dense", draft_identity="d"
)


def replies(effects: list[Effect]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, Reply)]


def refusal(effects: list[Effect]) -> str:
    (said,) = replies(effects)
    assert said.code == "bad_draft"
    return str(said.text)


def drawn(at: PrefixDigest, *tokens: int, token: int | None = None) -> DraftMessage:
    """What a robot that resamples drafts after the token that it drew."""
    where = at if token is None else at.extend((token,))
    return DraftMessage(where, Draft(tokens, values=(0.9,) * len(tokens)), 1, resampled=token)


def test_a_draft_is_scored_and_its_path_kept() -> None:
    """Its verdict says which prefix it leads to."""
    cloud = session()
    message = draft(1, 2, 3, round_=4)
    assert cloud.handle(message) == [DuePass(message.draft, 3, awaited=True, exits=True)]
    said = Verdict(BASE, (0, 1), 5, verify_s=0.1, queue_s=0.2, leads_to=after((1, 2, 5)).short)
    assert cloud.handle(says(1, 2, 5, 0)) == [Reply(said), Commit((0, 1), (5,))]
    assert (cloud.tokens, cloud.digest) == ([1, 2, 5], after((1, 2, 5)))


def test_a_verdict_is_repeated_with_its_tokens_and_never_drawn_again() -> None:
    cloud = session("rejection")
    cloud.handle(DraftMessage(BASE, Draft((1, 2), rows=(ROW, ROW)), 0))
    first = verdict_of(cloud.handle(says(3, 4, 5)))
    for other in ((1, 2), (7,)):
        again = DraftMessage(BASE, Draft(other, rows=(ROW,) * len(other)), 1)
        assert cloud.handle(again) == [Reply(first)]
    cloud = session()
    play(cloud, (draft(1, 2, 3), (1, 2, 3)), (says(1, 2, 5, 0), None, {"tokens": ()}))
    said = verdict_of(cloud.handle(draft(7, 7)))
    assert (said.path, said.tokens, said.token) == ((0, 1), (1, 2), 5)


@pytest.mark.parametrize(
    ("rule", "bad", "complaint"),
    [
        ("greedy", Draft(()), "at least one"),
        ("greedy", Draft((VOCABULARY,)), "outside the vocabulary"),
        ("greedy", Draft((1, 2), (1, -1)), "earlier node"),
        ("greedy", Draft((1,), rows=(ROW,)), "do not go with payload ids"),
        ("rejection", Draft((1,)), "do not go with payload dense"),
        ("rejection", Draft((1,), values=(0.5,)), "do not go with payload dense"),
        ("rejection", Draft((1, 2), (-1, -1), (ROW, ROW)), "needs 1 rows, not 2"),
        (
            "rejection",
            Draft((1,), rows=(TokenDistribution(np.full(3, 1 / 3, np.float32)),)),
            "shape",
        ),
    ],
)
def test_a_bad_draft_is_a_fault_and_the_session_goes_on(
    rule: str, bad: Draft, complaint: str
) -> None:
    cloud = session(rule)
    assert complaint in refusal(cloud.handle(DraftMessage(BASE, bad, 0)))
    good = Draft((1,), rows=(ROW,) if rule == "rejection" else None)
    assert cloud.handle(DraftMessage(BASE, good, 0)) == [DuePass(good, 1, awaited=True, exits=True)]


@pytest.mark.parametrize("ahead", [0, 3])  # pushed, too
@pytest.mark.parametrize(
    ("max_tokens", "good", "bad", "complaint"),
    [
        (50, Draft((1,) * 8), Draft((1,) * 9), "at most 8 tokens here, not 9"),
        (50, Draft((1,) * 8), Draft((1,) * 9, (-1,) * 9), "at most 8 tokens here, not 9"),
        (
            7,
            Draft((1,) * 8, (-1,) * 8),
            Draft((1,) * 8),
            "of depth 8 where the answer has room for",
        ),
    ],
)
def test_a_draft_too_large_or_too_deep_is_refused_with_both_numbers(
    max_tokens: int, good: Draft, bad: Draft, complaint: str, ahead: int
) -> None:
    opening = replace(DENSE, policy=GREEDY, rule="greedy", payload="ids")
    cloud = opened(opening, max_tokens, draft_tokens=8)
    place = after((1,) * ahead)
    said = refusal(cloud.handle(DraftMessage(place, bad, 0)))
    assert complaint in said and (max_tokens > 8 or said.endswith(f" {max_tokens - ahead}"))
    cloud.handle(DraftMessage(place, good, 0))
    assert (cloud.counters.refused, cloud.counters.judged + cloud.pushed) == (1, 1)


def test_pushed_rows_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "MAX_PUSHED_BYTES", 3 * ROW.nbytes)
    cloud = opened(DENSE)
    pushed = [DraftMessage(after((1,) * n), Draft((1,), rows=(ROW,)), 0) for n in range(1, 5)]
    play(cloud, *((message, None) for message in pushed[:3]))
    assert "push fewer" in refusal(cloud.handle(pushed[3]))
    assert cloud.pushed == 3


@pytest.mark.parametrize(
    ("tokens", "own", "path", "token", "finish"),
    [
        ((1, END, 3), (1, END, 3, 4), (0, 1), None, "end"),
        ((1, 2, 3), (1, 2, END, 4), (0, 1), END, "end"),
        ((1, 2, 3), (1, 2, 3, END), (0, 1, 2), END, "end"),
        ((1, 2, 3, 4), (1, 2, 3, 4, 5), (0, 1, 2, 3), None, "length"),
        ((1, 2, 3), (1, 2, 3, 4), (0, 1, 2), 4, "length"),
        ((1, 2, 3), (1, 2, 8, 4), (0, 1), 8, ""),
    ],
)
def test_an_answer_ends_at_its_end_token_or_its_length(
    tokens: Any, own: Any, path: Any, token: int | None, finish: str
) -> None:
    cloud = session(max_tokens=4)
    cloud.handle(draft(*tokens))
    said = verdict_of(cloud.handle(says(*own)))
    assert (said.path, said.token, said.finish) == (path, token, finish)
    assert (cloud.status is Status.FINISHED) == bool(finish)
    assert (cloud.handle(draft(1, base=cloud.digest)) == []) == bool(finish)


def test_any_beginning_of_the_answer_is_a_place_to_resume_from_and_nothing_else() -> None:
    cloud = session()
    play(cloud, (draft(1, 2, 3), (1, 2, 3)), (says(1, 2, 5, 0), None))
    for size in range(4):
        place = after((1, 2, 5)[:size])
        play(cloud, (Resume("s", place), Reply(Opened("s", b"", cloud.digest, 0))))
    for place in (after((2,)), after((1, 2, 5, 6)), PrefixDigest(2, BASE.hash)):
        play(cloud, (Resume("s", place), "unknown_session"))


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
    effects = cloud.handle(DraftMessage(BASE, draft_, 0, open_at=open_at))
    if complaint:
        assert complaint in refusal(effects) and cloud.status is Status.WAITING
    else:
        due = DuePass(draft_, len(draft_), awaited=True, exits=True, open_at=open_at)
        assert effects == [due] and cloud.status is Status.SCORING


def test_every_verdict_is_counted_once_and_every_message_that_changed_nothing() -> None:
    cloud = session()
    elsewhere = draft(9, base=PrefixDigest(7, 7))  # no drafter was named: not kept
    play(cloud, (elsewhere, None), (draft(1, 2), (1, 2)), (draft(2), None))
    for event in (says(1, 2, 3), draft(1, 2), elsewhere, draft(base=after((1, 2, 3)))):
        cloud.handle(event)
    counters = cloud.counters
    assert (counters.drafts, counters.verdicts, counters.judged, counters.repeated) == (6, 1, 1, 1)
    assert (counters.late, counters.refused, counters.accounted) == (3, 1, 6)


class Unlucky:
    """Accepts the first token, rejects the second."""

    def __init__(self) -> None:
        self.asked = 0

    def accept(self, *_: object) -> bool:
        self.asked += 1
        return self.asked == 1

    def draw(self, weights: np.ndarray, *_: object) -> int:
        return int(np.argmax(weights))


def rejected(residual: Split, max_tokens: int = 9) -> tuple[CloudSession, Verdict]:
    """A session whose robot has heard a rejection after one accepted token, and is to resample."""
    cloud = opened(split_opening(residual), max_tokens, random_source=Unlucky())
    cloud.handle(DraftMessage(BASE, Draft((1, 2), values=(0.5, 0.5)), 0))
    said = verdict_of(cloud.handle(says(1, 3, 3)))
    assert (said.path, said.token) == ((0,), None) and said.residual is not None
    assert cloud.tokens == [1]
    return cloud, said


@pytest.mark.parametrize("kind", [Split("dense"), Split("top_k", 3), Split("sparse", 2, 4)])
def test_a_rejected_place_is_told_in_the_form_that_was_asked_for(kind: Split) -> None:
    """And it is not drawn again by the server."""
    cloud, said = rejected(kind)
    told = said.residual
    (row,) = replies(cloud.handle(RowRequest(BASE)))
    assert isinstance(row, RowMessage) and row.base == BASE
    dense = row.row.shares
    assert dense.argmax() == 3 and len(dense) == VOCABULARY
    if isinstance(told, SparseResidual):
        assert (kind.residual, len(told.top), len(told.tail_tokens)) == ("sparse", 2, 4)
        assert told.tail_mass == pytest.approx(1 - dense[told.top].sum())
    else:
        assert told is not None and (told.ids is None) == (kind.residual == "dense")
        assert len(told.probabilities) == (3 if kind.residual == "top_k" else VOCABULARY)
        assert told.probabilities == pytest.approx(dense if told.ids is None else dense[told.ids])
    play(cloud, (Generate(cloud.digest), None))
    assert not cloud.generating


def test_a_row_is_told_of_the_last_rejection_alone_and_until_the_robot_goes_on() -> None:
    cloud, said = rejected(Split("sparse", 2, 0))
    heard = cloud.digest  # the robot's, which does not know whether its own token arrives
    for place in (BASE, heard):  # the draft's, or a robot's that brought its tokens
        (told,) = replies(cloud.handle(RowRequest(place)))
        assert told.base == place
    again, there = drawn(BASE, 7), heard.extend((5,))
    play(
        cloud,
        (RowRequest(PrefixDigest(0, 3)), None),
        (again, Reply(replace(said, tokens=(1,)))),
        (drawn(heard, 6), "bad_draft"),  # it has to say which token it drew
    )
    assert play(cloud, (drawn(heard, 6, token=5), (6,)))[0] == Extend((5,))
    assert (cloud.tokens, cloud.digest) == ([1, 5], there)
    play(cloud, (Resume("s", heard), Reply(Opened("s", b"", there, 0))), (RowRequest(BASE), None))
    cloud.handle(says(6, 2))
    (old,) = replies(cloud.handle(again))
    assert old.residual is None  # only the last one is kept whole
    assert cloud.counters.repeated == 2


@pytest.mark.parametrize(
    ("max_tokens", "depth", "resampled", "complaint"),
    [
        (9, 1, VOCABULARY, "outside the vocabulary"),
        (9, 1, -1, "outside the vocabulary"),
        (9, 1, END, "ended with the resampled token"),
        (6, 4, 2, ""),
        (6, 5, 2, "of depth 5 where the answer has room for 4"),
        (2, 1, 2, "close the decode"),  # with the last token the decode closes
    ],
)
def test_a_resampled_token_that_cannot_be_is_refused_and_one_leaves_room_for_one_less(
    max_tokens: int, depth: int, resampled: int, complaint: str
) -> None:
    cloud, _ = rejected(Split("dense"), max_tokens)
    effects = cloud.handle(drawn(cloud.digest, *(1,) * depth, token=resampled))
    assert complaint in refusal(effects) if complaint else isinstance(effects[-1], DuePass)
    assert (cloud.tokens, cloud.counters.refused) == (([1], 1) if complaint else ([1, 2], 0))


def test_a_token_drawn_for_a_rejection_that_was_not_here_changes_no_answer() -> None:
    """Its robot would wait, since the two have drifted apart: the session is given up."""
    cloud = opened(split_opening(Split("sparse", 2, 0)))
    play(cloud, (drawn(BASE, 6, token=5), "unknown_session"))
    cloud = session()
    play(cloud, (draft(1), (1,)), (says(1, 2), None), (Close(3), None))
    assert cloud.tokens == [1, 2]


@pytest.mark.parametrize(("last", "kept"), [(END, [1, END]), (VOCABULARY, [1]), (None, [1])])
def test_the_token_that_a_robot_drew_last_comes_with_its_goodbye(
    last: int | None, kept: list[int]
) -> None:
    cloud, _ = rejected(Split("dense"))
    assert cloud.handle(Close(last)) == []
    assert cloud.tokens == kept
    assert cloud.status is Status.FINISHED


def test_a_robot_that_resamples_comes_back_only_where_nothing_was_judged_or_is_being() -> None:
    """Elsewhere the session could not give it the row that it may ask for: it is opened anew."""
    cloud = opened(split_opening(Split("dense")), 9, random_source=Unlucky())
    assert cloud.stands_at(BASE)
    cloud.handle(DraftMessage(BASE, Draft((1, 2), values=(0.5, 0.5)), 0))
    assert not cloud.stands_at(BASE), "a pass is under way"
    cloud.handle(says(1, 3, 3))
    assert not cloud.stands_at(BASE) and not cloud.stands_at(cloud.digest), "it has rejected"
