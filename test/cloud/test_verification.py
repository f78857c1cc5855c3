"""The cloud's state machine: verdicts are kept and repeated, whatever is asked and when."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from edge_cloud_spec.cloud import pushed_drafts
from edge_cloud_spec.cloud.events import Commit, Propose, Proposed, Score, Scored, Send
from edge_cloud_spec.cloud.verification import EMPTY, MAX_OWN, Verification
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.split import Split
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.wire.messages import (
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Resume,
    Verdict,
)

BASE = PrefixDigest(0, 77)
VOCABULARY = 10
END = 9
ROW = TokenDistribution(np.full(VOCABULARY, 0.1, np.float32))


def session(rule: str = "greedy", max_tokens: int = 50) -> Verification:
    policy = GREEDY if rule == "greedy" else SamplingPolicy(1.0)
    payload = "dense" if rule == "rejection" else "ids"
    opening = Open(1, "find", b"", "action first", policy, rule, payload, draft_length=3)
    return Verification(
        "s", opening, BASE, end_tokens=(END,), max_tokens=max_tokens, vocabulary=VOCABULARY
    )


def says(*tokens: int) -> Scored:
    """Logits whose argmax are these tokens, row by row."""
    logits = np.zeros((len(tokens), VOCABULARY), np.float32)
    logits[range(len(tokens)), tokens] = 5
    return Scored(logits, verify_s=0.1, queue_s=0.2)


def draft(*tokens: int, base: PrefixDigest = BASE, round_: int = 0) -> DraftMessage:
    return DraftMessage(base, Draft(tokens), round_)


def verdict_of(actions: list) -> Verdict:
    (said,) = [a.message for a in actions if isinstance(a, Send) and isinstance(a.message, Verdict)]
    return said


def test_a_draft_is_scored_and_its_path_kept() -> None:
    cloud = session()
    message = draft(1, 2, 3, round_=4)
    assert cloud.handle(message) == [Score(message.draft)]
    said, kept = cloud.handle(says(1, 2, 5, 0))
    there = BASE.extend((1, 2, 5)).short
    assert said == Send(Verdict(BASE, (0, 1), 5, verify_s=0.1, queue_s=0.2, leads_to=there))
    assert kept == Commit((0, 1), (5,))
    assert cloud.tokens == [1, 2, 5]
    assert cloud.digest == BASE.extend((1, 2, 5))


def test_a_verdict_is_repeated_and_never_drawn_again() -> None:
    cloud = session("rejection")
    cloud.handle(DraftMessage(BASE, Draft((1, 2), rows=(ROW, ROW)), 0))
    first = verdict_of(cloud.handle(says(3, 4, 5)))
    for other in ((1, 2), (7,)):
        again = DraftMessage(BASE, Draft(other, rows=(ROW,) * len(other)), 1)
        assert cloud.handle(again) == [Send(first)]


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
    assert cloud.stale == 2
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
    assert cloud.handle(Generate(BASE, True)) == [Propose((), 3)]
    cloud.handle(Proposed(Draft((1, 2, 3)), 0.3))
    cloud.pause()
    cloud.handle(says(1, 2, 7, 0))
    assert not cloud.generating
    replay = cloud.handle(Generate(BASE, True))
    said = verdict_of(replay)
    assert (said.tokens, said.token, said.drafted, said.draft_s) == ((1, 2), 7, 3, 0.3)
    assert replay[-1] == Propose((1, 2, 7), 3)


def test_asking_twice_does_not_start_a_second_pipeline() -> None:
    cloud = session()
    cloud.handle(Generate(BASE, True))
    assert cloud.handle(Generate(BASE, True)) == []  # proposing
    cloud.pause()
    assert cloud.handle(Resume("s", BASE)) == [Send(Opened("s", b"", BASE))]
    assert cloud.handle(Generate(BASE, True)) == []  # still the same proposal
    proposed = Draft((1,))
    assert cloud.handle(Proposed(proposed)) == [Score(proposed)]
    assert cloud.handle(Generate(BASE, True)) == []  # scoring
    assert cloud.handle(draft(1)) == []
    assert verdict_of(cloud.handle(says(1, 2))).tokens == (1,)


def test_a_proposal_that_nobody_waits_for_any_more_is_dropped() -> None:
    cloud = session()
    cloud.handle(Generate(BASE, True))
    cloud.pause()
    assert cloud.handle(Proposed(EMPTY)) == []
    message = draft(1)
    assert cloud.handle(message) == [Score(message.draft)]


def test_a_resumed_robot_gets_what_it_missed_from_where_it_stands() -> None:
    cloud = session()
    cloud.handle(Generate(BASE))
    for token in (1, 2, 3):
        cloud.handle(says(token))
    cloud.pause()
    cloud.handle(says(4))
    place = BASE.extend((1, 2))
    assert cloud.handle(Resume("s", place))[0].message.base == cloud.digest
    missed = [a.message.token for a in cloud.handle(Generate(place)) if isinstance(a, Send)]
    assert missed == [3, 4]


class Unlucky:
    """Accepts the first token, rejects the second."""

    def __init__(self) -> None:
        self.asked = 0

    def accept(self, *_: object) -> bool:
        self.asked += 1
        return self.asked == 1

    def draw(self, weights: np.ndarray, *_: object) -> int:
        return int(np.argmax(weights))


def split_session() -> Verification:
    """Its robot has heard a rejection after one accepted token, and is to resample."""
    opening = Open(
        1,
        "find",
        b"",
        "action first",
        SamplingPolicy(1.0),
        "rejection",
        "probabilities",
        split=Split("dense"),
        draft_identity="a drafter",
    )
    cloud = Verification(
        "s",
        opening,
        BASE,
        end_tokens=(END,),
        max_tokens=20,
        vocabulary=VOCABULARY,
        random_source=Unlucky(),
    )
    cloud.handle(DraftMessage(BASE, Draft((1, 2), values=(0.5, 0.5)), 0))
    cloud.handle(says(3, 4, 5))
    assert cloud.tokens == [1]
    return cloud


def test_a_split_session_resumes_from_the_place_before_the_token_that_it_adopted() -> None:
    cloud = split_session()
    heard = cloud.digest  # the robot's, which does not know whether its own token arrived
    there = heard.extend((3,))
    cloud.handle(DraftMessage(there, Draft((1,), values=(0.5,)), 1, resampled=3))
    assert cloud.handle(Resume("s", heard)) == [Send(Opened("s", b"", there))]


def test_any_beginning_of_the_answer_is_a_place_to_resume_from_and_nothing_else() -> None:
    cloud = session()
    cloud.handle(draft(1, 2, 3))
    cloud.handle(says(1, 2, 5, 0))
    for size in range(4):
        place = BASE.extend((1, 2, 5)[:size])
        assert cloud.handle(Resume("s", place)) == [Send(Opened("s", b"", cloud.digest))]
    for place in (BASE.extend((2,)), BASE.extend((1, 2, 5, 6)), PrefixDigest(2, BASE.hash)):
        (said,) = cloud.handle(Resume("s", place))
        assert said.message.code == "unknown_prefix"


@pytest.mark.parametrize(("drawn", "kept"), [(END, [1, END]), (VOCABULARY, [1]), (None, [1])])
def test_the_token_that_a_robot_drew_last_comes_with_its_goodbye(
    drawn: int | None, kept: list[int]
) -> None:
    cloud = split_session()
    assert cloud.handle(Close(drawn)) == []
    assert cloud.tokens == kept
    assert cloud.finished


def test_a_goodbye_adds_nothing_where_nothing_was_rejected() -> None:
    cloud = session()
    cloud.handle(draft(1))
    cloud.handle(says(1, 2))
    cloud.handle(Close(3))
    assert cloud.tokens == [1, 2]


def test_a_robot_that_stands_elsewhere_is_told_so() -> None:
    cloud = session()
    (said,) = cloud.handle(Resume("s", PrefixDigest(3, 3)))
    assert said.message.code == "unknown_prefix"
    assert cloud.handle(Generate(PrefixDigest(3, 3))) == []
    assert cloud.stale == 1


def test_a_closed_session_says_nothing_more() -> None:
    cloud = session()
    cloud.handle(Generate(BASE))
    assert cloud.handle(Close()) == []
    assert not any(isinstance(action, Score) for action in cloud.handle(says(1)))
    assert cloud.finished


@pytest.mark.parametrize(("asked", "length"), [(0, 1), (3, 3), (2**32 - 1, 9)])
def test_a_proposal_is_never_longer_than_what_the_answer_has_room_for(
    asked: int, length: int
) -> None:
    opening = Open(1, "find", b"", "action first", GREEDY, "greedy", draft_length=asked)
    cloud = Verification("s", opening, BASE, end_tokens=(END,), max_tokens=10, vocabulary=5)
    assert cloud.handle(Generate(BASE, True)) == [Propose((), length)]


def test_a_proposal_does_not_hold_up_others_for_longer_than_is_useful() -> None:
    opening = Open(1, "find", b"", "action first", GREEDY, "greedy", draft_length=2**32 - 1)
    cloud = Verification("s", opening, BASE, end_tokens=(END,), max_tokens=50, vocabulary=5)
    assert cloud.handle(Generate(BASE, True)) == [Propose((), MAX_OWN)]


# What a draft may be

PUSHES = Open(1, "find", b"", "action first", SamplingPolicy(1.0), "rejection", "dense", b"", "d")


def sized(draft_tokens: int, max_tokens: int = 50) -> Verification:
    return Verification(
        "s",
        replace(PUSHES, policy=GREEDY, rule="greedy", payload="ids"),
        BASE,
        end_tokens=(END,),
        max_tokens=max_tokens,
        vocabulary=VOCABULARY,
        draft_tokens=draft_tokens,
    )


def refusal(actions: list) -> str:
    (said,) = actions
    assert isinstance(said, Send)
    assert isinstance(said.message, Fault)
    assert said.message.code == "bad_draft"
    return said.message.text


@pytest.mark.parametrize("ahead", [0, 3])  # pushed, too
def test_a_draft_of_more_tokens_than_the_cloud_takes_is_refused_with_both_numbers(
    ahead: int,
) -> None:
    cloud = sized(draft_tokens=8)
    base = BASE.extend((1,) * ahead)
    bush = Draft((1,) * 9, (-1,) * 9)
    for large in (Draft((1,) * 9), bush):
        assert re.search("at most 8 tokens here, not 9", refusal(cloud.handle(after(base, large))))
    assert isinstance(cloud.handle(after(base, Draft((1,) * 8))), list)
    assert cloud.tally.refused == 2
    assert cloud.tally.judged + cloud.pushed == 1


@pytest.mark.parametrize("ahead", [0, 3])
def test_a_draft_deeper_than_the_answer_has_room_for_is_refused_with_both_numbers(
    ahead: int,
) -> None:
    cloud = sized(draft_tokens=64, max_tokens=10)
    base = BASE.extend((1,) * ahead)
    text = refusal(cloud.handle(after(base, Draft((1,) * (11 - ahead)))))
    assert f"of depth {11 - ahead} where the answer has room for {10 - ahead}" in text
    wide = Draft((1,) * 20, (-1,) * 20)  # not deep
    cloud.handle(after(base, wide))
    assert cloud.tally.judged + cloud.pushed == 1


def test_after_a_resampled_token_there_is_room_for_one_token_less() -> None:
    split = replace(PUSHES, payload="probabilities", split=Split("dense"))
    for depth, judged in ((4, 1), (5, 0)):
        cloud = Verification(
            "s", split, BASE, end_tokens=(END,), max_tokens=5, vocabulary=VOCABULARY
        )
        cloud.handle(DraftMessage(BASE, Draft((1,), values=(0.9,)), 0))
        logits = np.full((2, VOCABULARY), -50, np.float32)
        logits[:, 2] = 50
        assert verdict_of(cloud.handle(Scored(logits))).residual is not None
        draft = Draft((1,) * depth, values=(0.9,) * depth)
        cloud.handle(DraftMessage(BASE.extend((2,)), draft, 1, resampled=2))
        assert cloud.tally.judged == 1 + judged


def test_pushed_rows_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushed_drafts, "MAX_PUSHED_BYTES", 3 * ROW.nbytes)
    cloud = Verification("s", PUSHES, BASE, end_tokens=(END,), max_tokens=50, vocabulary=VOCABULARY)
    pushed = [after(BASE.extend((1,) * n), Draft((1,), rows=(ROW,))) for n in range(1, 5)]
    for message in pushed[:3]:
        assert cloud.handle(message) == []
    assert "push fewer" in refusal(cloud.handle(pushed[3]))
    assert cloud.pushed == 3


def after(base: PrefixDigest, draft: Draft) -> DraftMessage:
    return DraftMessage(base, draft, 0)
