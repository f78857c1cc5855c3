"""Sessions by their scripts: a server that generates by itself and what it drafts for that, the
robot's drafts beside it, and what is said again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from helpers.cloud.verification import (
    BASE,
    END,
    OPENING,
    PAUSE,
    VOCABULARY,
    cloud_of,
    draft,
    measured,
    opened,
    play,
    says,
    session,
    split_opening,
    verdict_of,
)

from edge_cloud_spec.cloud.session.drafts import EMPTY, MAX_OWN_TOKENS, SERVER_TOKENS
from edge_cloud_spec.cloud.session.events import Propose, Proposed
from edge_cloud_spec.cloud.session.session import CloudSession, SessionStatus
from edge_cloud_spec.decoding.accept import ExitPrediction
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import MAX_PUSHED, Draft
from edge_cloud_spec.decoding.split import Split
from edge_cloud_spec.lookup import Lookups
from edge_cloud_spec.wire.messages import (
    Close,
    DraftMessage,
    Generate,
    Generation,
    Opened,
    Prediction,
    Resume,
    Verdict,
)

TREE = Draft((1, 2, 3, 4, 5), (-1, 0, 0, 2, 2), looked_up=1)
DRAFTS, MAY = Generation(True), Generation(may_speculate=True)
after = BASE.extend


def hint(*tokens: int, at: tuple[int, ...] = (), **changes: Any) -> DraftMessage:
    return replace(draft(*tokens, base=after(at)), hint=True, **changes)


def looked_up(*answers: tuple[int, ...], **changes: Any) -> Callable[[], CloudSession]:
    """A session whose server has said these answers before."""

    def made() -> CloudSession:
        found = Lookups(1000, 4, None, lambda rows: 1.0).of("", OPENING)
        assert found is not None
        for answer in answers:
            found.learn(answer)
        return cloud_of(found, replace(OPENING, **changes))

    return made


def verdict(path: tuple[int, ...], tokens: tuple[int, ...], token: int) -> dict[str, Any]:
    return {"path": path, "tokens": tokens, "token": token}


def owns_model() -> CloudSession:
    """Its server has a draft model, which has paid."""
    return cloud_of(server_drafting=measured(3, 1))


proposing = partial(cloud_of, opening=replace(OPENING, draft_length=3))
GENERATE = Generate(BASE), ()
OWN = partial(Propose, length=SERVER_TOKENS, needed=False)
PROPOSES = [(Generate(BASE, MAY), ()), (says(1), OWN((1,)))]
PREDICTED = ExitPrediction((0,), 5, 0.75)
SETTLED = [(draft(1, 2, 3), (1, 2, 3)), (says(1, 2, 5, 0), None, {"tokens": ()})]
HERE = after((1,))
# Whatever waits as the robot takes the lead at HERE, while a proposal for it waits, too.
WAITS: dict[str, list[tuple[Any, ...]]] = {
    "late": [(draft(7, 7), None)],  # sent before the robot heard of the first token
    "hint": [(hint(4, 5, at=(1,)), None)],
    "pushes": [(draft(1, base=HERE.extend((token,))), None) for token in range(MAX_PUSHED)],
    # The stream was lost; the robot drafts again.
    "pause": [(PAUSE, None), (Resume("", HERE), Opened("s", b"", HERE, 0))],
}


def said_again(path: tuple[int, ...], tokens: tuple[int, ...], token: int) -> Verdict:
    """The verdict on the first draft, which has its tokens this time."""
    leads_to = after((*tokens, token)).short
    return Verdict(BASE, path, token, verify_s=0.1, queue_s=0.2, tokens=tokens, leads_to=leads_to)


# By the promise that each holds: a session, what it is told and what it scores then, and what is
# true of it or of its counts at the end.
SCRIPTS: dict[str, tuple[Callable[[], CloudSession], list[tuple[Any, ...]], dict[str, Any]]] = {
    "it goes on until the end": (
        session,
        [
            GENERATE,
            (says(4), (), {"token": 4}),
            (says(5), (), {"token": 5}),
            (Generate(BASE), None),  # it generates already
            (says(END), None, {"token": END}),
            (Generate(PrefixDigest(4, 4)), None),
        ],
        {"generating": False, "status": SessionStatus.FINISHED},
    ),
    "it ends at its limit": (
        session,
        [GENERATE, *[(says(1), ())] * 49, (says(1), None, {"finish": "length"})],
        {"generating": False},
    ),
    "its own drafts carry their tokens even when nobody listened at the verdict": (
        session,
        [
            (Generate(BASE, DRAFTS), Propose((), 3)),
            (Proposed(Draft((1, 2, 3)), 0.3), (1, 2, 3)),
            (PAUSE, None),
            (says(1, 2, 7, 0), None),
            (
                Generate(BASE, DRAFTS),
                Propose((1, 2, 7), 3),
                verdict((0, 1), (1, 2), 7) | {"drafted": 3, "draft_s": 0.3},
            ),
        ],
        {"generating": True},
    ),
    "asking twice does not start a second pipeline": (
        session,
        [
            (Generate(BASE, DRAFTS), Propose((), 3)),
            (Generate(BASE, DRAFTS), None),  # it proposes
            (Proposed(Draft((1,))), (1,)),
            (Generate(BASE, DRAFTS), None),  # it scores
            (draft(1), None),
            (says(1, 2), None, {"tokens": (1,)}),  # the robot's draft has taken the lead
        ],
        {"generating": False},
    ),
    "nor do a pause and a resumption": (
        session,
        [
            (Generate(BASE, DRAFTS), Propose((), 3)),
            (PAUSE, None),
            (Resume("s", BASE), Opened("s", b"", BASE, 0)),
            (Generate(BASE, DRAFTS), None),
            (Proposed(Draft((1,))), (1,)),
        ],
        {"generating": True},
    ),
    "a proposal that nobody waits for any more is dropped": (
        session,
        [
            (Generate(BASE, DRAFTS), Propose((), 3)),
            (PAUSE, None),
            (Proposed(EMPTY), None),
            (draft(1), (1,)),
        ],
        {"generating": False},
    ),
    "nothing is answered to who stands elsewhere": (
        session,
        [
            (Resume("s", PrefixDigest(3, 3)), "unknown_session"),
            (Generate(PrefixDigest(3, 3)), None),
        ],
        {"generating": False},
    ),
    "a closed session says nothing more": (
        session,
        [GENERATE, (Close(), None), (Generate(BASE), None)],
        {"generating": False},
    ),
    "a prediction is about the draft of a robot that is being scored": (
        session,
        [
            (PREDICTED, None),
            GENERATE,
            (PREDICTED, None),
            (says(1), ()),
            (PAUSE, None),
            (says(2), None),
            (draft(3, 4, base=after((1, 2))), (3, 4)),
            (PREDICTED, Prediction(after((1, 2)), (0,), 5, 0.75)),
            (says(3, 5, 0), None),
            (PREDICTED, None),
        ],
        {},
    ),
    "exits are left out where the robot says so": (
        session,
        [
            (replace(draft(1, 2), without_exits=True), (1, 2)),
            (PREDICTED, None),
            (says(1, 2, 3), None),
            (draft(4, base=after((1, 2, 3))), (4,)),
            (PREDICTED, Prediction(after((1, 2, 3)), (0,), 5, 0.75)),
        ],
        {},
    ),
    # Hints
    "of hints that the answer has passed the one for the last place counts": (
        cloud_of,
        [
            GENERATE,
            (hint(2, 3, at=(1,)), None),
            (says(1), (2, 3)),
            (hint(2, 3, 4, 6, at=(1,)), None),
            (hint(3, 4, 5, at=(1, 2)), None),
            (says(2, 3, 4), (5,)),
        ],
        {"generating": True},
    ),
    "a hint for this very place is used when the pass under way ends": (
        cloud_of,
        [
            GENERATE,
            (hint(1, 2, 3), None),
            (says(1), (2, 3)),
            (says(2, 3, 4), (), verdict((0, 1), (2, 3), 4) | {"drafted": 2}),
        ],
        {"verified": 1, "drafts": 1, "generating": True},
    ),
    "an early hint is used where the answer reaches its place": (
        cloud_of,
        [GENERATE, (hint(3, 4, at=(1, 2)), None), (says(1), ()), (says(2), (3, 4))],
        {"generating": True},
    ),
    "an early hint whose place is in the middle of an accepted path is taken there": (
        cloud_of,
        [
            GENERATE,
            (hint(2, 3, at=(1,)), None),
            (hint(4, 5, 6, at=(1, 2, 3)), None),
            (says(1), (2, 3)),
            (says(2, 3, 4), (5, 6)),
        ],
        {"generating": True},
    ),
    "a late hint is counted late where it does not fit": (
        cloud_of,
        [
            GENERATE,
            (says(1), ()),
            (says(2), ()),
            *((hint(*tokens), None) for tokens in ((1, 7, 3), (7,), (1, 2))),
        ],
        {"late": 3, "generating": True},
    ),
    "a late hint is used from where the answer is": (
        cloud_of,
        [GENERATE, (says(1), ()), (says(2), ()), (hint(1, 2, 3, 4), None), (says(3), (4,))],
        {"late": 0, "generating": True},
    ),
    "of several the one for the last place is taken and wrong ones are dropped": (
        cloud_of,
        [
            GENERATE,
            (hint(1, 2, 6), None),
            (hint(2, 5, at=(1,)), None),
            (hint(8, 8, at=(3,)), None),
            (says(1), (2, 5)),
            (says(2, 7, 0), ()),
            (Close(), None),
        ],
        {"drafts": 3, "unused": 2, "verified": 1, "late": 0, "generating": False},
    ),
    "a tree is taken apart where the answer walked along": (
        cloud_of,
        [
            GENERATE,
            (DraftMessage(BASE, TREE, 0, hint=True), None),
            (says(1), Draft((2, 3, 4, 5), (-1, -1, 1, 1), looked_up=1)),
            (says(3, 0, 5, 0, 6), (), verdict((1, 3), (3, 5), 6)),
        ],
        {"generating": True},
    ),
    "no exits predict for what nobody waits for": (
        cloud_of,
        [GENERATE, (hint(1, 2, 3), None), (says(1), (2, 3)), (PREDICTED, None)],
        {"generating": True},
    ),
    "a draft that is no hint takes the lead and is used though the robot is behind": (
        cloud_of,
        [
            GENERATE,
            (draft(1, 2, 3), None),
            (says(1), (2, 3), {"tokens": ()}),
            (says(2, 7, 0), None, verdict((0,), (2,), 7)),  # the robot drafts next
            (draft(4, base=after((1, 2, 7))), (4,)),
            (says(4, 5), None, {"tokens": ()}),  # the robot knows its own draft
        ],
        {"generating": False},
    ),
    "a draft that takes the lead and does not fit leaves the robot the verdict": (
        cloud_of,
        [
            GENERATE,
            (draft(8, 8), None),
            (says(1), None, {"token": 1}),
            (draft(4, base=after((1,))), (4,)),
        ],
        {"generating": False},
    ),
    **{
        f"a bad draft beside it is refused and it goes on, lead: {lead}": (
            cloud_of,
            [
                GENERATE,
                (replace(hint(VOCABULARY), hint=not lead), "bad_draft"),
                (DraftMessage(BASE, Draft((1,), (-1, 0)), 0, hint=True), "bad_draft"),
                (says(1), (), {"token": 1}),
            ],
            {"refused": 2, "generating": True},
        )
        for lead in (False, True)
    },
    "where the robot leads a hint is nothing and is not answered": (
        cloud_of,
        [
            (hint(1, 2), None),
            (draft(1, 2), (1, 2)),
            (says(1, 2, 3), None),
            (hint(1, 2), None),  # it has had this verdict
            (hint(3, at=(1, 2, 3)), None),
        ],
        {"late": 3, "repeated": 0, "pushed": 0},
    ),
    "what was kept is dropped where the lead changes": (
        cloud_of,
        [
            GENERATE,
            (hint(6, 7, at=(1, 4)), None),
            (draft(5, base=after((3, 8))), None),  # takes the lead
            (says(3), None),
        ],
        {"unused": 1, "pushed": 1},
    ),
    "a pushed draft is used while it generates, and its robot awaited the verdict": (
        cloud_of,
        [
            (draft(1), (1,)),
            (draft(3, 4, base=after((1, 2))), None),
            (PAUSE, None),
            (says(1, 2), (3, 4)),
            (Generate(after((1, 2))), None),
            (says(3, 4, 5), (), {"tokens": ()}),
        ],
        {"generating": True},
    ),
    "a hint waits for a proposal, which is then dropped": (
        proposing,
        [
            (Generate(BASE, DRAFTS), Propose((), 3)),
            (hint(1, 2), None),
            (Proposed(Draft((5, 5, 5))), (1, 2)),
        ],
        {"generating": True},
    ),
    "a draft that leads does not wait for a proposal": (
        proposing,
        [
            (Generate(BASE, DRAFTS), Propose((), 3)),
            (draft(1, 2), (1, 2)),
        ],
        {"generating": False},
    ),
    # A draft model of its own, that drafts where it pays
    "it drafts where its robot allows that": (owns_model, PROPOSES, {}),
    "it does not where its robot does not": (owns_model, [GENERATE, (says(1), ())], {}),
    "what it drafted is scored and judged": (
        owns_model,
        [
            *PROPOSES,
            (Proposed(Draft((1, 2, 3)), 0.3), (1, 2, 3)),
            (
                says(1, 2, 5, 0),
                OWN((1, 1, 2, 5)),
                {"tokens": (1, 2), "token": 5, "draft_s": 0.3},
            ),
        ],
        {},
    ),
    "where it fails the answer goes on without it, and it is not asked again": (
        owns_model,
        [
            *PROPOSES,
            (Proposed(EMPTY, failed=True), ()),
            *((says(token), ()) for token in (1, 2, 3)),
        ],
        {},
    ),
    "what is left of a hint for an earlier place is scored in its stead": (
        owns_model,
        [*PROPOSES, (hint(1, 2, 3), None), (Proposed(Draft((5, 5))), (2, 3))],
        {},
    ),
    "where it was in the way it is asked again": (
        owns_model,
        [*PROPOSES, (Proposed(EMPTY), ()), (says(2), OWN((1, 2)))],
        {},
    ),
    **{
        f"no draft that waits is in the way of the one that leads, {name}": (
            owns_model,
            [*PROPOSES, *waits, (draft(4, 5, base=HERE), (4, 5))],
            {"status": SessionStatus.SCORING},
        )
        for name, waits in WAITS.items()
    },
    # A robot that leads
    "a verdict is repeated with its tokens": (
        session,
        [*SETTLED, (draft(7, 7), said_again((0, 1), (1, 2), 5))],
        {"tokens": [1, 2, 5]},
    ),
    "any beginning of the answer is a place to resume from and nothing else": (
        session,
        [
            *SETTLED,
            *(
                (Resume("s", after((1, 2, 5)[:size])), Opened("s", b"", after((1, 2, 5)), 0))
                for size in range(4)
            ),
            *(
                (Resume("s", place), "unknown_session")
                for place in (after((2,)), after((1, 2, 5, 6)), PrefixDigest(2, BASE.hash))
            ),
        ],
        {},
    ),
    **{
        f"an answer ends at its end token or its length, {tokens} where it is {own}": (
            partial(session, max_tokens=4),
            [
                (draft(*tokens), tokens),
                (says(*own), None, {"path": path, "token": token, "finish": finish}),
            ],
            {"status": SessionStatus.FINISHED if finish else SessionStatus.WAITING},
        )
        for tokens, own, path, token, finish in (
            ((1, END, 3), (1, END, 3, 4), (0, 1), None, "end"),
            ((1, 2, 3), (1, 2, END, 4), (0, 1), END, "end"),
            ((1, 2, 3), (1, 2, 3, END), (0, 1, 2), END, "end"),
            ((1, 2, 3, 4), (1, 2, 3, 4, 5), (0, 1, 2, 3), None, "length"),
            ((1, 2, 3), (1, 2, 3, 4), (0, 1, 2), 4, "length"),
            ((1, 2, 3), (1, 2, 8, 4), (0, 1), 8, ""),
        )
    },
    "every verdict is counted once and every message that changed nothing": (
        session,
        [
            (draft(9, base=PrefixDigest(7, 7)), None),  # no drafter was named: not kept
            (draft(1, 2), (1, 2)),
            (draft(2), None),
            (says(1, 2, 3), None),
            (draft(1, 2), said_again((0, 1), (1, 2), 3)),
            (draft(9, base=PrefixDigest(7, 7)), None),
            (draft(base=after((1, 2, 3))), "bad_draft"),
        ],
        {"drafts": 6, "verdicts": 1, "verified": 1, "repeated": 1}
        | {"late": 3, "refused": 1, "unused": 0},
    ),
    "a pushed draft goes on after the leaf that it named, so that what follows it fits too": (
        cloud_of,
        [
            (draft(1, 2, 3), (1, 2, 3)),
            (DraftMessage(after((1, 2, 3, 4)), Draft((5, 6)), 1, open_at=1), None),
            (says(1, 2, 3, 4), (5, 6)),
            (says(5, 6, 7), None, {"path": (0, 1), "token": None}),
        ],
        {"digest": after((1, 2, 3, 4, 5, 6))},
    ),
    "an answer that ended takes nothing more": (
        partial(opened, OPENING, 6),
        [
            (draft(*[1] * 6), (1,) * 6),
            *((draft(1, base=after((1,) * size)), None) for size in (4, 5)),
            (says(*[1] * 7), None, {"finish": "length"}),
            (draft(1, base=after((1,) * 6)), None),
        ],
        {"pushed": 0, "late": 1, "status": SessionStatus.FINISHED},
    ),
    # Its robot would wait, since the two have drifted apart: the session is given up.
    "a token drawn for a rejection that was not here changes no answer": (
        partial(opened, split_opening(Split("sparse", 2, 0))),
        [(replace(draft(6, base=after((5,))), resampled=5), "unknown_session")],
        {"tokens": []},
    ),
    "nor does one that comes with a goodbye": (
        session,
        [(draft(1), (1,)), (says(1, 2), None), (Close(3), None)],
        {"tokens": [1, 2]},
    ),
    **{
        f"a proposal is no longer than is useful or the answer has room for, {asked} of {room}": (
            partial(session, max_tokens=room, draft_length=asked),
            [(Generate(BASE, DRAFTS), Propose((), length))],
            {"generating": True},
        )
        for asked, room, length in (
            (0, 10, SERVER_TOKENS),
            (3, 10, 3),
            (2**32 - 1, 10, 9),
            (2**32 - 1, 50, MAX_OWN_TOKENS),
        )
    },
    # What was said before
    "it drafts what was said before once the first token is there": (
        looked_up((1, 2, 3, 4)),
        [
            GENERATE,  # the row after the prompt is known
            (says(1), (2, 3, 4)),
            (says(2, 3, 7, 0), (), verdict((0, 1), (2, 3), 7) | {"drafted": 3}),
        ],
        {},
    ),
    "where it generates at once the prompt's last pass scores what was said first": (
        looked_up((1, 2, 3, 4), generation=Generation()),
        [(Generate(BASE), (1, 2, 3, 4))],
        {},
    ),
    "a looked-up draft comes before one of the cloud's own draft model": (
        looked_up((1, 2, 3), draft_length=3),
        [
            (Generate(BASE, DRAFTS), Propose((), 3)),
            (Proposed(EMPTY), ()),
            (says(1), (2, 3)),
            (says(7, 0, 0), Propose((1, 7), 3)),
        ],
        {},
    ),
    "the robot's draft gets looked-up branches and then a complete verdict": (
        looked_up((1, 2, 3, 4)),
        [
            (draft(1, 5), Draft((1, 5, 2, 3, 4), (-1, 0, 0, 2, 3), looked_up=3)),
            # A prediction goes as far as the robot's nodes do.
            (ExitPrediction((0, 2), 3, 0.9), Prediction(BASE, (0,), 2, 0.9)),
            (
                says(1, 2, 0, 3, 4, 6),
                None,
                verdict((0, 2, 3, 4), (1, 2, 3, 4), 6) | {"drafted": 5},
            ),
        ],
        {"drafted": {"robot": 2, "lookup": 3}, "accepted": {"robot": 1, "lookup": 3}},
    ),
    "a draft to which nothing is added has a verdict as ever": (
        looked_up((1, 2)),
        [
            (draft(1, 2), Draft((1, 2))),
            (says(1, 2, 3), None, {"path": (0, 1), "tokens": (), "drafted": 0}),
        ],
        {},
    ),
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_session_by_its_script(
    script: tuple[Callable[[], CloudSession], list[tuple[Any, ...]], dict[str, Any]],
) -> None:
    made, steps, ends = script
    cloud = made()
    play(cloud, *steps)
    for name, value in ends.items():
        holders = (one for one in (cloud, cloud.counters, cloud.counters.answers))
        assert next(getattr(one, name) for one in holders if hasattr(one, name)) == value, name


@pytest.mark.parametrize("noticed", [True, False])
def test_asking_again_further_back_repeats_what_came_since_and_draws_none_again(
    noticed: bool,
) -> None:
    """Whether or not the cloud has noticed that the stream before is gone."""
    cloud = cloud_of()
    play(cloud, GENERATE, (hint(1, 2, 3), None))
    said = [verdict_of(cloud.handle(rows)) for rows in (says(1), says(2, 3, 4), says(5))]
    if noticed:
        cloud.pause()
    play(cloud, (Resume("s", after((1,))), Opened("s", b"", cloud.digest, 0)))
    for back, missed in ((BASE.extend((1,)), said[1:]), (BASE, said)):
        again = cloud.handle(Generate(back))
        assert again == missed  # one pass is under way
        cloud.pause()
    play(cloud, (Generate(PrefixDigest(1, 1)), None), (says(END), None))
    again = cloud.handle(Generate(BASE))  # of a finished answer all is repeated, and no more made
    assert [effect.finish for effect in again] == ["", "", "", "end"]
    assert not cloud.generating
