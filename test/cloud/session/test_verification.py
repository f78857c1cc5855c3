"""The cloud's state machine: verdicts are kept and repeated, whatever is asked and when."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.cloud.verification import (
    BASE,
    END,
    ROW,
    VOCABULARY,
    draft,
    says,
    session,
    stale,
    verdict_of,
)

from edge_cloud_spec.cloud.session.drafts import EMPTY, MAX_OWN_TOKENS, OWN_TOKENS
from edge_cloud_spec.cloud.session.events import Commit, Propose, Proposed, Reply, Score
from edge_cloud_spec.cloud.session.verification import Verification
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.split import Split
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.wire.messages import (
    Alone,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Resume,
    Verdict,
)


def test_a_draft_is_scored_and_its_path_kept() -> None:
    cloud = session()
    message = draft(1, 2, 3, round_=4)
    assert cloud.handle(message) == [Score(message.draft)]
    said, kept = cloud.handle(says(1, 2, 5, 0))
    there = BASE.extend((1, 2, 5)).short
    assert said == Reply(Verdict(BASE, (0, 1), 5, verify_s=0.1, queue_s=0.2, leads_to=there))
    assert kept == Commit((0, 1), (5,))
    assert cloud.tokens == [1, 2, 5]
    assert cloud.digest == BASE.extend((1, 2, 5))


def test_a_verdict_is_repeated_and_never_drawn_again() -> None:
    cloud = session("rejection")
    cloud.handle(DraftMessage(BASE, Draft((1, 2), rows=(ROW, ROW)), 0))
    first = verdict_of(cloud.handle(says(3, 4, 5)))
    for other in ((1, 2), (7,)):
        again = DraftMessage(BASE, Draft(other, rows=(ROW,) * len(other)), 1)
        assert cloud.handle(again) == [Reply(first)]


def test_a_verdict_is_said_again_with_the_tokens_that_it_accepts() -> None:
    cloud = session()
    cloud.handle(draft(1, 2, 3))
    first = verdict_of(cloud.handle(says(1, 2, 5, 0)))
    again = verdict_of(cloud.handle(draft(7, 7)))
    assert again == replace(first, tokens=(1, 2))


def test_a_verdict_says_which_prefix_it_leads_to() -> None:
    cloud = session()
    cloud.handle(draft(1, 2, 3))
    said = verdict_of(cloud.handle(says(1, 2, 5, 0)))
    assert said.leads_to == cloud.digest.short == BASE.extend((1, 2, 5)).short
    assert said.leads_to != BASE.extend((1, 2)).short


def test_a_draft_for_another_prefix_or_while_one_is_scored_is_stale() -> None:
    cloud = session()
    assert cloud.handle(draft(1, base=PrefixDigest(0, 1))) == []
    cloud.handle(draft(1))
    assert cloud.handle(draft(2)) == []
    assert stale(cloud) == 2
    assert verdict_of(cloud.handle(says(1, 2))).path == (0,)


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
    (said,) = cloud.handle(DraftMessage(BASE, bad, 0))
    assert isinstance(said.message, Fault)
    assert said.message.code == "bad_draft"
    assert complaint in said.message.text
    good = Draft((1,), rows=(ROW,) if rule == "rejection" else None)
    assert cloud.handle(DraftMessage(BASE, good, 0)) == [Score(good)]


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
def test_an_answer_ends_at_its_end_token_or_its_length(tokens, own, path, token, finish) -> None:
    cloud = session(max_tokens=4)
    cloud.handle(draft(*tokens))
    said = verdict_of(cloud.handle(says(*own)))
    assert (said.path, said.token, said.finish) == (path, token, finish)
    assert cloud.finished == bool(finish)
    after = draft(1, base=cloud.digest)
    assert (cloud.handle(after) == []) == cloud.finished


def test_generating_alone_goes_on_until_the_end() -> None:
    cloud = session()
    actions = cloud.handle(Generate(BASE))
    said = []
    for token in (4, 5, END):
        assert actions[-1] == Score(EMPTY)
        actions = cloud.handle(says(token))
        said.append(verdict_of(actions).token)
    assert said == [4, 5, END]
    assert not cloud.generating
    assert not any(isinstance(action, Score) for action in actions)


def test_own_drafts_carry_their_tokens_even_when_nobody_listened_at_the_verdict() -> None:
    cloud = session()
    assert cloud.handle(Generate(BASE, Alone(True))) == [Propose((), 3)]
    cloud.handle(Proposed(Draft((1, 2, 3)), 0.3))
    cloud.pause()
    cloud.handle(says(1, 2, 7, 0))
    assert not cloud.generating
    replay = cloud.handle(Generate(BASE, Alone(True)))
    said = verdict_of(replay)
    assert (said.tokens, said.token, said.drafted, said.draft_s) == ((1, 2), 7, 3, 0.3)
    assert replay[-1] == Propose((1, 2, 7), 3)


def test_asking_twice_does_not_start_a_second_pipeline() -> None:
    cloud = session()
    cloud.handle(Generate(BASE, Alone(True)))
    assert cloud.handle(Generate(BASE, Alone(True))) == []  # proposing
    cloud.pause()
    assert cloud.handle(Resume("s", BASE)) == [Reply(Opened("s", b"", BASE))]
    assert cloud.handle(Generate(BASE, Alone(True))) == []  # still the same proposal
    proposed = Draft((1,))
    assert cloud.handle(Proposed(proposed)) == [Score(proposed)]
    assert cloud.handle(Generate(BASE, Alone(True))) == []  # scoring
    assert cloud.handle(draft(1)) == []
    assert verdict_of(cloud.handle(says(1, 2))).tokens == (1,)


def test_a_proposal_that_nobody_waits_for_any_more_is_dropped() -> None:
    cloud = session()
    cloud.handle(Generate(BASE, Alone(True)))
    cloud.pause()
    assert cloud.handle(Proposed(EMPTY)) == []
    message = draft(1)
    assert cloud.handle(message) == [Score(message.draft)]


def test_a_robot_that_stands_elsewhere_is_told_so() -> None:
    cloud = session()
    (said,) = cloud.handle(Resume("s", PrefixDigest(3, 3)))
    assert said.message.code == "unknown_prefix"
    assert cloud.handle(Generate(PrefixDigest(3, 3))) == []
    assert stale(cloud) == 1


def test_a_closed_session_says_nothing_more() -> None:
    cloud = session()
    cloud.handle(Generate(BASE))
    assert cloud.handle(Close()) == []
    assert not any(isinstance(action, Score) for action in cloud.handle(says(1)))
    assert cloud.finished


@pytest.mark.parametrize(("asked", "length"), [(0, OWN_TOKENS), (3, 3), (2**32 - 1, 9)])
def test_a_proposal_is_never_longer_than_what_the_answer_has_room_for(
    asked: int, length: int
) -> None:
    opening = Open(1, "find", b"", "action first", GREEDY, "greedy", draft_length=asked)
    cloud = Verification("s", opening, BASE, end_tokens=(END,), max_tokens=10, vocabulary=5)
    assert cloud.handle(Generate(BASE, Alone(True))) == [Propose((), length)]


def test_a_proposal_does_not_hold_up_others_for_longer_than_is_useful() -> None:
    opening = Open(1, "find", b"", "action first", GREEDY, "greedy", draft_length=2**32 - 1)
    cloud = Verification("s", opening, BASE, end_tokens=(END,), max_tokens=50, vocabulary=5)
    assert cloud.handle(Generate(BASE, Alone(True))) == [Propose((), MAX_OWN_TOKENS)]


def test_a_place_where_the_robot_resamples_is_not_drawn_again() -> None:
    opening = Open(
        1,
        "find",
        b"",
        "action first",
        SamplingPolicy(1.0),
        "rejection",
        payload="probabilities",
        draft_identity="d",
        split=Split("dense"),
    )
    cloud = Verification("s", opening, BASE, end_tokens=(END,), max_tokens=50, vocabulary=5)
    cloud.handle(DraftMessage(BASE, Draft((1,), values=(1.0,)), 0))
    rejected = verdict_of(cloud.handle(says(3, 3)))
    assert rejected.residual is not None and rejected.token is None
    assert not any(isinstance(action, Score) for action in cloud.handle(Generate(BASE)))
    assert not cloud.generating
