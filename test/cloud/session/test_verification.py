"""The cloud's state machine: verdicts are kept and repeated, whatever is asked and when; of drafts
that were pushed ahead the first for a place stands; no message of a robot is out of turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np
import pytest
from helpers.cloud.verification import (
    BASE,
    END,
    ROW,
    VOCABULARY,
    cloud_of,
    draft,
    opened,
    play,
    says,
    session,
    split_opening,
    verdict_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.cloud.session import drafts
from edge_cloud_spec.cloud.session import session as cloud_session
from edge_cloud_spec.cloud.session.counters import Counters
from edge_cloud_spec.cloud.session.events import (
    Commit,
    DuePass,
    Effect,
    Proposed,
    Scored,
)
from edge_cloud_spec.cloud.session.session import CloudSession, SessionStatus, SessionTrigger
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import MAX_PUSHED, Draft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.split import SparseResidual, Split
from edge_cloud_spec.decoding.target_rows import LogitRows
from edge_cloud_spec.decoding.transitions import OutOfTurn
from edge_cloud_spec.edge import rounds
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec.wire.messages import (
    Close,
    DraftMessage,
    Generate,
    Generation,
    Open,
    Opened,
    Resume,
    RowMessage,
    RowRequest,
    ServerMessage,
    Verdict,
)

after = BASE.extend


def accounted(counters: Counters) -> int:
    """The received drafts that do not wait."""
    settled = counters.verified + counters.repeated + counters.late
    return settled + counters.unused + counters.refused


PLAIN = Open(1, CLAUSES.request("find", b""), GREEDY, "greedy")
DENSE = replace(
    PLAIN, policy=SamplingPolicy(1.0), rule="rejection", payload="dense", draft_identity="d"
)


def replies(effects: list[Effect]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, ServerMessage)]


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
    assert cloud.handle(says(1, 2, 5, 0)) == [said, Commit((0, 1), (5,))]
    assert (cloud.tokens, cloud.digest) == ([1, 2, 5], after((1, 2, 5)))


def test_a_verdict_is_never_drawn_again() -> None:
    cloud = session("rejection")
    cloud.handle(DraftMessage(BASE, Draft((1, 2), rows=(ROW, ROW)), 0))
    first = verdict_of(cloud.handle(says(3, 4, 5)))
    for other in ((1, 2), (7,)):
        again = DraftMessage(BASE, Draft(other, rows=(ROW,) * len(other)), 1)
        assert cloud.handle(again) == [first]


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
    assert (cloud.counters.refused, cloud.counters.verified + cloud.pushed) == (1, 1)


def test_pushed_rows_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "MAX_PUSHED_BYTES", 3 * ROW.nbytes)
    cloud = opened(DENSE)
    pushed = [DraftMessage(after((1,) * n), Draft((1,), rows=(ROW,)), 0) for n in range(1, 5)]
    play(cloud, *((message, None) for message in pushed[:3]))
    assert "push fewer" in refusal(cloud.handle(pushed[3]))
    assert cloud.pushed == 3


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
        assert complaint in refusal(effects) and cloud.status is SessionStatus.WAITING
    else:
        due = DuePass(draft_, len(draft_), awaited=True, exits=True, open_at=open_at)
        assert effects == [due] and cloud.status is SessionStatus.SCORING


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
        (again, replace(said, tokens=(1,))),
        (drawn(heard, 6), "bad_draft"),  # it has to say which token it drew
    )
    assert play(cloud, (drawn(heard, 6, token=5), (6,)))[0] == Commit((), (5,))
    assert (cloud.tokens, cloud.digest) == ([1, 5], there)
    play(cloud, (Resume("s", heard), Opened("s", b"", there, 0)), (RowRequest(BASE), None))
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


@pytest.mark.parametrize(("last", "kept"), [(END, [1, END]), (VOCABULARY, [1]), (None, [1])])
def test_the_token_that_a_robot_drew_last_comes_with_its_goodbye(
    last: int | None, kept: list[int]
) -> None:
    cloud, _ = rejected(Split("dense"))
    assert cloud.handle(Close(last)) == []
    assert cloud.tokens == kept
    assert cloud.status is SessionStatus.FINISHED


def test_a_robot_that_resamples_comes_back_only_where_nothing_was_judged_or_is_being() -> None:
    """Elsewhere the session could not give it the row that it may ask for: it is opened anew."""
    cloud = opened(split_opening(Split("dense")), 9, random_source=Unlucky())
    assert cloud.can_resume_at(BASE)
    cloud.handle(DraftMessage(BASE, Draft((1, 2), values=(0.5, 0.5)), 0))
    assert not cloud.can_resume_at(BASE), "a pass is under way"
    cloud.handle(says(1, 3, 3))
    assert not cloud.can_resume_at(BASE) and not cloud.can_resume_at(cloud.digest), (
        "it has rejected"
    )


# Drafts that were pushed ahead

OWN = tuple((3 * n + 1) % 8 for n in range(60))  # the target's answer; it never ends by itself


def place(size: int, stray: int | None = None) -> PrefixDigest:
    """After so much of the answer; ``stray``: its last token is this one instead."""
    prefix = OWN[:size] if stray is None or not size else (*OWN[: size - 1], stray)
    return BASE.extend(prefix)


class Talk:
    """A session, the target that it asks, and all that was said to it."""

    def __init__(self) -> None:
        opening = Open(1, CLAUSES.request("find", b""), GREEDY, "greedy", draft_identity="small")
        self.cloud = opened(opening, 40)
        self.scoring: Draft | None = None
        self.pushed: list[DraftMessage] = []  # while the answer was before their place

    def say(self, base: PrefixDigest, draft: Draft) -> None:
        """A draft for this place."""
        message = DraftMessage(base, draft, len(self.pushed))
        here = self.cloud.digest
        if base.length > here.length and self.cloud.status is not SessionStatus.FINISHED:
            self.pushed.append(message)
        self._follow(self.cloud.handle(message))
        self.check()

    def decide(self) -> None:
        """The pass under way ends; what the cloud goes straight on with is what was pushed."""
        assert self.scoring is not None
        here = self.cloud.digest.length
        scored = says(*OWN[here : here + len(self.scoring) + 1])
        self.scoring = None
        self._follow(self.cloud.handle(scored))
        after = self.cloud.digest
        assert after == place(after.length) and after.length > here
        fitting = [message.draft for message in self.pushed if message.base == after]
        first = fitting[0] if fitting and self.cloud.status is not SessionStatus.FINISHED else None
        assert self.scoring is first, "it did not go on with the first draft for its place"
        self.check()

    def check(self) -> None:
        """Kept are the drafts for places ahead, one for each; every draft that came is counted."""
        here, counters = self.cloud.digest.length, self.cloud.counters
        ahead = {message.base for message in self.pushed if message.base.length > here}
        assert self.cloud.pushed == len(ahead)
        assert accounted(counters) + self.cloud.pushed == counters.drafts

    def _follow(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, DuePass):
                assert self.scoring is None, "two passes at once"
                self.scoring = effect.draft


# A draft so far beyond the answer (0: at it), how many right tokens it has before a wrong one, and
# the last token of its place, where that is another than the answer's.
WORDS = st.tuples(st.integers(-3, 6), st.integers(0, 4), st.sampled_from([None, None, None, 8]))
DECIDE = st.none()  # the pass under way ends


@settings(max_examples=300)
@given(steps=st.lists(DECIDE | WORDS, max_size=31))
def test_the_first_draft_for_a_place_stands_and_none_outlives_its_place(
    steps: list[tuple[int, int, int | None] | None],
) -> None:
    talk = Talk()
    for step in steps:
        if step is not None:
            ahead, right, stray = step
            size = max(0, talk.cloud.digest.length + ahead)
            talk.say(place(size, stray), Draft((*OWN[size : size + right], 8)))
        elif talk.scoring is not None:
            talk.decide()
    while talk.scoring is not None:
        talk.decide()
    talk.cloud.handle(Close())
    talk.pushed.clear()
    talk.check()


def test_a_robot_that_pushes_for_ever_keeps_the_newest_and_no_more() -> None:
    talk = Talk()
    talk.say(BASE, Draft(OWN[:3]))
    for number in range(10 * MAX_PUSHED):
        talk.cloud.handle(DraftMessage(PrefixDigest(4, number), Draft((1,)), 0))
        assert talk.cloud.pushed == min(number + 1, MAX_PUSHED)
    talk.cloud.handle(DraftMessage(place(4), Draft((2,)), 0))  # the newest is among the kept
    talk.cloud.handle(says(*OWN[:4]))
    counters = talk.cloud.counters
    assert (talk.cloud.pushed, counters.verified) == (0, 2)
    assert accounted(counters) == counters.drafts


@pytest.mark.parametrize("seed", range(8))
def test_what_is_pushed_for_a_place_where_the_robot_resamples_is_not_taken(seed: int) -> None:
    """Only the robot knows the next token there."""
    cloud = opened(split_opening(Split("dense")), 40)
    logits = np.random.default_rng(seed).standard_normal((5, VOCABULARY)).astype(np.float32)
    tokens = tuple(int(row.argmin()) for row in logits[:4])
    for size in range(5):
        drafted = tokens if not size else (1,)
        message = DraftMessage(
            BASE.extend(tokens[:size]), Draft(drafted, values=(0.9,) * len(drafted)), 0
        )
        cloud.handle(message)
    effects = cloud.handle(Scored(LogitRows(logits)))
    assert verdict_of(effects).residual is not None
    late = DraftMessage(cloud.digest, Draft((1,), values=(0.5,)), 9)
    assert not any(isinstance(effect, DuePass) for effect in (*effects, *cloud.handle(late)))
    assert cloud.pushed == 4 - cloud.digest.length
    assert accounted(cloud.counters) + cloud.pushed == cloud.counters.drafts


# The tables of robot and cloud: each pair is listed or refused

TABLES: dict[str, tuple[Any, type[Enum], type[Enum], Enum]] = {
    "robot": (rounds.TRANSITIONS, rounds.Mode, rounds.Trigger, rounds.Mode.READING),
    "cloud": (cloud_session.TRANSITIONS, SessionStatus, SessionTrigger, SessionStatus.FINISHED),
}


@pytest.mark.parametrize("side", TABLES)
def test_status_every_one_is_reached_and_left_and_every_trigger_is_used(side: str) -> None:
    table, states, triggers, end = TABLES[side]
    assert set(table) == set(states) and all(end in row.values() for row in table.values())
    assert {then for row in table.values() for then in row.values()} == set(states)
    assert {trigger for row in table.values() for trigger in row} == set(triggers)


def told(*events: Any, cloud: CloudSession | None = None) -> CloudSession:
    cloud = cloud or cloud_of()
    for event in events:
        cloud.handle(event)
    return cloud


def blocked() -> CloudSession:
    cloud = told(draft(1, 2))
    cloud.turn(SessionTrigger.PASS_BLOCKED)
    return cloud


def resampling() -> CloudSession:
    cloud = opened(split_opening(Split("dense")), 40)
    return told(RowRequest(BASE), says(1), cloud=cloud)


IN: dict[SessionStatus, Callable[[], CloudSession]] = {
    SessionStatus.WAITING: cloud_of,
    SessionStatus.DRAFTING: lambda: told(Generate(BASE, Generation(speculative=True))),
    SessionStatus.SCORING: lambda: told(draft(1, 2)),
    SessionStatus.BLOCKED: blocked,
    SessionStatus.RESAMPLING: resampling,
    SessionStatus.FINISHED: lambda: told(Close()),
}
DRAWN = Draft((3,), values=(0.9,))
MESSAGES: dict[str, Callable[[PrefixDigest], Any]] = {
    "draft": lambda here: draft(3, base=here),
    "hint": lambda here: DraftMessage(here, Draft((3,)), 1, hint=True),
    "pushed": lambda here: draft(3, base=here.extend((5, 6))),
    "resampled": lambda here: DraftMessage(here.extend((4,)), DRAWN, 1, resampled=4),
    "elsewhere": lambda here: draft(3, base=BASE.extend((8, 8, 8))),
    "generate": Generate,
    "resume": lambda here: Resume("s", here),
    "row request": RowRequest,
    "close": lambda here: Close(4),
}


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("status", SessionStatus)
def test_status_no_message_of_a_robot_is_out_of_turn(status: SessionStatus, message: str) -> None:
    """Twice, and then all others: they are answered, kept, counted or refused with a fault."""
    cloud = IN[status]()
    assert cloud.status is status
    for kind in (message, message, *MESSAGES):
        cloud.handle(MESSAGES[kind](cloud.digest))
    assert cloud.status is SessionStatus.FINISHED


@pytest.mark.parametrize("status", SessionStatus)
def test_status_what_the_worker_reports_is_awaited_or_refused(status: SessionStatus) -> None:
    rows, proposed = says(*[1] * 3), Proposed(Draft((1, 2)))
    for event, awaited in ((rows, SessionStatus.SCORING), (proposed, SessionStatus.DRAFTING)):
        cloud = IN[status]()
        if status is awaited:
            assert cloud.handle(event)
            continue
        tokens = list(cloud.tokens)
        with pytest.raises(OutOfTurn):
            cloud.handle(event)
        assert (cloud.status, cloud.tokens) == (status, tokens)
