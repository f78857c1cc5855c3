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
    scored,
    session,
    split_opening,
    stale,
    verdict_of,
)

from edge_cloud_spec.cloud.session import drafts
from edge_cloud_spec.cloud.session.drafts import MAX_OWN_TOKENS, OWN_TOKENS
from edge_cloud_spec.cloud.session.events import (
    Action,
    Commit,
    Extend,
    Predicted,
    Propose,
    Proposed,
    Reply,
    Score,
)
from edge_cloud_spec.cloud.session.verification import Verification
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.split import SparseResidual, Split
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.wire.messages import (
    Close,
    DraftMessage,
    Generate,
    Generation,
    Open,
    Opened,
    Prediction,
    Resume,
    RowMessage,
    RowRequest,
    Verdict,
)

PLAIN = Open(1, "find", b"", "action first", GREEDY, "greedy")
DENSE = replace(
    PLAIN, policy=SamplingPolicy(1.0), rule="rejection", payload="dense", draft_identity="d"
)


def replies(actions: list[Action]) -> list[Any]:
    return [action.message for action in actions if isinstance(action, Reply)]


def refusal(actions: list[Action]) -> str:
    (said,) = replies(actions)
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
    assert cloud.handle(message) == [Score(message.draft)]
    said, kept = cloud.handle(says(1, 2, 5, 0))
    there = BASE.extend((1, 2, 5))
    assert said == Reply(Verdict(BASE, (0, 1), 5, verify_s=0.1, queue_s=0.2, leads_to=there.short))
    assert there.short != BASE.extend((1, 2)).short
    assert kept == Commit((0, 1), (5,))
    assert (cloud.tokens, cloud.digest) == ([1, 2, 5], there)


def test_a_verdict_is_repeated_with_its_tokens_and_never_drawn_again() -> None:
    cloud = session("rejection")
    cloud.handle(DraftMessage(BASE, Draft((1, 2), rows=(ROW, ROW)), 0))
    first = verdict_of(cloud.handle(says(3, 4, 5)))
    for other in ((1, 2), (7,)):
        again = DraftMessage(BASE, Draft(other, rows=(ROW,) * len(other)), 1)
        assert cloud.handle(again) == [Reply(first)]
    cloud = session()
    cloud.handle(draft(1, 2, 3))
    first = verdict_of(cloud.handle(says(1, 2, 5, 0)))
    assert verdict_of(cloud.handle(draft(7, 7))) == replace(first, tokens=(1, 2))


def test_a_draft_for_another_prefix_or_while_one_is_scored_is_stale() -> None:
    cloud = session()
    play(cloud, (draft(1, base=PrefixDigest(0, 1)), None), (draft(1), (1,)), (draft(2), None))
    assert stale(cloud) == 2
    play(cloud, (says(1, 2), None, {"path": (0,)}))


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
    assert cloud.handle(DraftMessage(BASE, good, 0)) == [Score(good)]


@pytest.mark.parametrize("ahead", [0, 3])  # pushed, too
@pytest.mark.parametrize(
    ("max_tokens", "good", "bad"),
    [
        (50, Draft((1,) * 8), [(Draft((1,) * 9), "at most 8 tokens here, not 9")]),
        (50, Draft((1,) * 8), [(Draft((1,) * 9, (-1,) * 9), "at most 8 tokens here, not 9")]),
        (
            7,
            Draft((1,) * 8, (-1,) * 8),  # wide, but not deep
            [(Draft((1,) * 8), "of depth 8 where the answer has room for ")],
        ),
    ],
)
def test_a_draft_too_large_or_too_deep_is_refused_with_both_numbers(
    max_tokens: int, good: Draft, bad: list[tuple[Draft, str]], ahead: int
) -> None:
    opening = replace(DENSE, policy=GREEDY, rule="greedy", payload="ids")
    cloud = opened(opening, max_tokens, draft_tokens=8)
    place = BASE.extend((1,) * ahead)
    for draft_, complaint in bad:
        room = str(max_tokens - ahead) if complaint.endswith(" ") else ""
        assert complaint + room in refusal(cloud.handle(DraftMessage(place, draft_, 0)))
    cloud.handle(DraftMessage(place, good, 0))
    assert (cloud.counters.refused, cloud.counters.judged + cloud.pushed) == (len(bad), 1)


def test_pushed_rows_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "MAX_PUSHED_BYTES", 3 * ROW.nbytes)
    cloud = opened(DENSE)
    pushed = [
        DraftMessage(BASE.extend((1,) * n), Draft((1,), rows=(ROW,)), 0) for n in (1, 2, 3, 4)
    ]
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
    assert cloud.finished == bool(finish)
    assert (cloud.handle(draft(1, base=cloud.digest)) == []) == cloud.finished


# What is asked of a server that generates, then what it answers, and whether it generates at the
# end; by the promise.
GENERATING: dict[str, tuple[list[tuple[Any, ...]], bool]] = {
    "it goes on until the end": (
        [
            (Generate(BASE), ()),
            (says(4), (), {"token": 4}),
            (says(5), (), {"token": 5}),
            (says(END), None, {"token": END}),
        ],
        False,
    ),
    "it stops at the length that was asked for": (
        [
            (Generate(BASE, Generation(until=3)), ()),
            (says(4), ()),
            (says(5), ()),
            (says(6), None),
            # It is that long already.
            (Generate(BASE.extend((4, 5, 6)), Generation(until=3)), None),
            (Generate(BASE.extend((4, 5, 6)), Generation(until=4)), ()),
            (says(7), None, {"token": 7}),
        ],
        False,
    ),
    "a draft of its own may go beyond the length that was asked for, and it stops there": (
        [
            (Generate(BASE, Generation(True, 2)), Propose((), 3)),
            (Proposed(Draft((1, 2, 3))), (1, 2, 3)),
            (says(1, 2, 3, 4), None, {"tokens": (1, 2, 3), "token": 4}),
        ],
        False,
    ),
    "asking twice does not start a second pipeline": (
        [
            (Generate(BASE, Generation(True)), Propose((), 3)),
            (Generate(BASE, Generation(True)), None),  # it proposes
            (Proposed(Draft((1,))), (1,)),
            (Generate(BASE, Generation(True)), None),  # it scores
            (draft(1), None),
            (says(1, 2), None, {"tokens": (1,)}),  # the robot's draft has taken the lead
        ],
        False,
    ),
    "nothing is answered to who stands elsewhere": (
        [
            (Resume("s", PrefixDigest(3, 3)), "unknown_prefix"),
            (Generate(PrefixDigest(3, 3)), None),
        ],
        False,
    ),
    "a closed session says nothing more": (
        [(Generate(BASE), ()), (Close(), None), (says(1), None)],
        False,
    ),
    "an answer that is finished is not generated on": (
        [(Generate(BASE), ()), (says(1), ()), (says(END), None)],
        False,
    ),
}


@pytest.mark.parametrize("script", GENERATING.values(), ids=GENERATING)
def test_what_a_server_generates(script: tuple[list[tuple[Any, ...]], bool]) -> None:
    steps, generates = script
    cloud = session()
    for step in steps:
        play(cloud, step)
        still = isinstance(step[1], (tuple, Propose)) and not isinstance(step[0], DraftMessage)
        assert not still or cloud.generating
    assert cloud.generating == generates
    assert not cloud.finished or cloud.handle(Generate(PrefixDigest(4, 4))) == []


def test_own_drafts_carry_their_tokens_even_when_nobody_listened_at_the_verdict() -> None:
    cloud = session()
    play(cloud, (Generate(BASE, Generation(True)), Propose((), 3)))
    cloud.handle(Proposed(Draft((1, 2, 3)), 0.3))
    cloud.pause()
    cloud.handle(says(1, 2, 7, 0))
    assert not cloud.generating
    fields = {"tokens": (1, 2), "token": 7, "drafted": 3, "draft_s": 0.3}
    play(cloud, (Generate(BASE, Generation(True)), Propose((1, 2, 7), 3), fields))


def test_a_pause_and_a_resumption_do_not_start_a_second_proposal() -> None:
    cloud = session()
    play(cloud, (Generate(BASE, Generation(True)), Propose((), 3)))
    cloud.pause()
    play(
        cloud,
        (Resume("s", BASE), Reply(Opened("s", b"", BASE, 0))),
        (Generate(BASE, Generation(True)), None),
        (Proposed(Draft((1,))), (1,)),
    )


def test_a_proposal_that_nobody_waits_for_any_more_is_dropped() -> None:
    cloud = session()
    cloud.handle(Generate(BASE, Generation(True)))
    cloud.pause()
    play(cloud, (Proposed(Draft(())), None), (draft(1), (1,)))


@pytest.mark.parametrize(
    ("asked", "room", "length"),
    [(0, 10, OWN_TOKENS), (3, 10, 3), (2**32 - 1, 10, 9), (2**32 - 1, 50, MAX_OWN_TOKENS)],
)
def test_a_proposal_is_never_longer_than_the_answer_has_room_for_or_is_useful(
    asked: int, room: int, length: int
) -> None:
    cloud = opened(replace(PLAIN, draft_length=asked), room, vocabulary=5)
    assert cloud.handle(Generate(BASE, Generation(True))) == [Propose((), length)]


@pytest.mark.parametrize("noticed", [True, False])
def test_asking_again_further_back_repeats_what_came_since_and_goes_on(noticed: bool) -> None:
    """Whether or not the cloud has noticed that the stream before is gone."""
    cloud = session()
    play(cloud, (Generate(BASE), ()), (says(1), ()), (says(2), ()), (Generate(BASE), None))
    if noticed:
        cloud.pause()
    cloud.handle(says(3))
    place = BASE.extend((1,))
    assert cloud.handle(Resume("s", place))[0].message.base == cloud.digest
    again = cloud.handle(Generate(place))
    assert [said.token for said in replies(again)] == [2, 3]
    assert (scored(again) is not None) == noticed  # else the next pass is under way
    play(cloud, (Generate(PrefixDigest(1, 1)), None), (says(END), None))
    assert stale(cloud) == 1
    again = cloud.handle(Generate(BASE))  # of a finished answer all is repeated, and no more made
    assert [said.finish for said in replies(again)] == ["", "", "", "end"] and len(again) == 4
    assert not cloud.generating


def test_a_robot_that_resumes_before_its_lost_stream_was_noticed_gets_what_it_missed() -> None:
    cloud = session()
    play(cloud, (Generate(BASE), ()), (says(1), ()), (says(2), ()))
    place = BASE.extend((1,))
    cloud.handle(Resume("s", place))
    assert [said.token for said in replies(cloud.handle(Generate(place)))] == [2]


def test_any_beginning_of_the_answer_is_a_place_to_resume_from_and_nothing_else() -> None:
    cloud = session()
    play(cloud, (draft(1, 2, 3), (1, 2, 3)), (says(1, 2, 5, 0), None))
    for size in range(4):
        place = BASE.extend((1, 2, 5)[:size])
        assert cloud.handle(Resume("s", place)) == [Reply(Opened("s", b"", cloud.digest, 0))]
    for place in (BASE.extend((2,)), BASE.extend((1, 2, 5, 6)), PrefixDigest(2, BASE.hash)):
        play(cloud, (Resume("s", place), "unknown_prefix"))


def test_a_prediction_is_about_the_draft_of_a_robot_that_is_being_scored() -> None:
    cloud = session()
    prediction = Predicted((0,), 5, 0.75, 2)
    play(cloud, (prediction, None), (Generate(BASE), ()), (prediction, None), (says(1), ()))
    cloud.pause()
    there = BASE.extend((1, 2))
    play(cloud, (says(2), None), (draft(3, 4, base=there), (3, 4)))
    play(cloud, (prediction, Reply(Prediction(there, (0,), 5, 0.75, 2))))
    play(cloud, (says(3, 5, 0), None), (prediction, None))


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
    actions = cloud.handle(DraftMessage(BASE, draft_, 0, open_at=open_at))
    if complaint:
        assert complaint in refusal(actions)
        assert cloud.under_way is None
    else:
        assert actions == [Score(draft_)]
        assert cloud.under_way is not None and cloud.under_way.open_at == open_at


def test_every_verdict_is_counted_once_and_every_message_that_changed_nothing() -> None:
    cloud = session()
    for event in (
        draft(1, 2),
        says(1, 2, 3),
        draft(1, 2),
        draft(9, base=PrefixDigest(7, 7)),  # no drafter was named: not kept
        draft(base=BASE.extend((1, 2, 3))),
    ):
        cloud.handle(event)
    counters = cloud.counters
    assert (counters.drafts, counters.verdicts, counters.judged, counters.repeated) == (4, 1, 1, 1)
    assert (counters.late, counters.refused, counters.accounted) == (1, 1, 4)


class Unlucky:
    """Accepts the first token, rejects the second."""

    def __init__(self) -> None:
        self.asked = 0

    def accept(self, *_: object) -> bool:
        self.asked += 1
        return self.asked == 1

    def draw(self, weights: np.ndarray, *_: object) -> int:
        return int(np.argmax(weights))


def rejected(residual: Split, max_tokens: int = 9) -> tuple[Verification, Verdict]:
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
        assert kind.residual == "sparse"
        assert (len(told.top), len(told.tail_tokens)) == (2, 4)
        assert told.tail_mass == pytest.approx(1 - dense[told.top].sum())
    elif kind.residual == "top_k":
        assert told is not None and told.ids is not None and len(told.ids) == 3
        assert told.probabilities == pytest.approx(dense[told.ids])
    else:
        assert isinstance(told, TokenDistribution)
        assert told.ids is None and told.shares == pytest.approx(dense)
    play(cloud, (Generate(cloud.digest), None))
    assert not cloud.generating


def test_a_row_is_told_of_the_last_rejection_alone_and_until_the_robot_goes_on() -> None:
    cloud, said = rejected(Split("sparse", 2, 0))
    heard = cloud.digest  # the robot's, which does not know whether its own token arrives
    for place in (BASE, heard):  # the draft's, or a robot's that brought its tokens
        (told,) = replies(cloud.handle(RowRequest(place)))
        assert told.base == place
    play(cloud, (RowRequest(PrefixDigest(0, 3)), None))
    assert stale(cloud) == 1
    again = drawn(BASE, 7)
    assert cloud.handle(again) == [Reply(replace(said, tokens=(1,)))]
    play(cloud, (drawn(heard, 6), "bad_draft"))  # it has to say which token it drew
    there = heard.extend((5,))
    went_on = play(cloud, (drawn(heard, 6, token=5), (6,)))
    assert went_on[0] == Extend((5,))
    assert (cloud.tokens, cloud.digest) == ([1, 5], there)
    assert cloud.handle(Resume("s", heard)) == [Reply(Opened("s", b"", there, 0))]
    play(cloud, (RowRequest(BASE), None))
    assert stale(cloud) == 2
    cloud.handle(says(6, 2))
    (old,) = replies(cloud.handle(again))
    assert old.residual is None  # only the last one is kept whole
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
    cloud, _ = rejected(Split("dense"))
    assert complaint in refusal(cloud.handle(drawn(cloud.digest, 6, token=resampled)))
    assert cloud.tokens == [1]
    assert cloud.counters.refused == 1


@pytest.mark.parametrize(
    ("max_tokens", "depth", "complaint"),
    [(6, 4, ""), (6, 5, "of depth 5 where the answer has room for 4"), (2, 1, "close the decode")],
)
def test_after_a_resampled_token_there_is_room_for_one_token_less(
    max_tokens: int, depth: int, complaint: str
) -> None:
    """With the last one the decode closes."""
    cloud, _ = rejected(Split("dense"), max_tokens)
    actions = cloud.handle(drawn(cloud.digest, *(1,) * depth, token=2))
    assert complaint in refusal(actions) if complaint else isinstance(actions[-1], Score)


def test_a_token_drawn_for_another_sessions_rejection_gives_the_session_up() -> None:
    """Else its robot would wait: the two have drifted apart."""
    cloud = opened(split_opening(Split("sparse", 2, 0)))
    play(cloud, (drawn(BASE, 6, token=5), "unknown_session"))


@pytest.mark.parametrize(("last", "kept"), [(END, [1, END]), (VOCABULARY, [1]), (None, [1])])
def test_the_token_that_a_robot_drew_last_comes_with_its_goodbye(
    last: int | None, kept: list[int]
) -> None:
    cloud, _ = rejected(Split("dense"))
    assert cloud.handle(Close(last)) == []
    assert cloud.tokens == kept
    assert cloud.finished


def test_a_goodbye_adds_nothing_where_nothing_was_rejected() -> None:
    cloud = session()
    play(cloud, (draft(1), (1,)), (says(1, 2), None), (Close(3), None))
    assert cloud.tokens == [1, 2]
