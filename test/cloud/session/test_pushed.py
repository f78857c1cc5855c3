"""Drafts that were pushed ahead: the first for a place stands, none outlives its place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from helpers.cloud.verification import BASE, VOCABULARY, opened, split_opening, verdict_of
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.cloud.session.events import DuePass, Effect, Scored
from edge_cloud_spec.cloud.session.session import Status
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import MAX_PUSHED, Draft
from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.decoding.split import Split
from edge_cloud_spec.decoding.target_rows import LogitRows
from edge_cloud_spec.wire.messages import Close, DraftMessage, Open

OWN = tuple((3 * n + 1) % 8 for n in range(60))  # the target's answer; it never ends by itself


def place(size: int, stray: int | None = None) -> PrefixDigest:
    """After so much of the answer; ``stray``: its last token is this one instead."""
    prefix = OWN[:size] if stray is None or not size else (*OWN[: size - 1], stray)
    return BASE.extend(prefix)


class Talk:
    """A session, the target that it asks, and all that was said to it."""

    def __init__(self, max_tokens: int = 40) -> None:
        opening = Open(1, "find", b"", "action first", GREEDY, "greedy", draft_identity="small")
        self.cloud = opened(opening, max_tokens)
        self.scoring: Draft | None = None
        self.pushed: list[DraftMessage] = []  # while the answer was before their place

    def say(self, base: PrefixDigest, draft: Draft) -> None:
        """A draft for this place."""
        message = DraftMessage(base, draft, len(self.pushed))
        here = self.cloud.digest
        if base.length > here.length and self.cloud.status is not Status.FINISHED:
            self.pushed.append(message)
        self._follow(self.cloud.handle(message))
        self.check()

    def decide(self) -> None:
        """The pass under way ends; what the cloud goes straight on with is what was pushed."""
        assert self.scoring is not None
        here = self.cloud.digest.length
        rows = self.rows(here, self.scoring)
        self.scoring = None
        self._follow(self.cloud.handle(rows))
        after = self.cloud.digest
        assert after == place(after.length) and after.length > here
        fitting = [message.draft for message in self.pushed if message.base == after]
        first = fitting[0] if fitting and self.cloud.status is not Status.FINISHED else None
        assert self.scoring is first, "it did not go on with the first draft for its place"
        self.check()

    def check(self) -> None:
        """Kept are the drafts for places ahead, one for each; every draft that came is counted."""
        here, counters = self.cloud.digest.length, self.cloud.counters
        ahead = {message.base for message in self.pushed if message.base.length > here}
        assert self.cloud.pushed == len(ahead)
        assert counters.accounted + self.cloud.pushed == counters.drafts

    def _follow(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, DuePass):
                assert self.scoring is None, "two passes at once"
                self.scoring = effect.draft

    def rows(self, here: int, draft: Draft) -> Scored:
        logits = np.zeros((len(draft) + 1, VOCABULARY), np.float32)
        for row in range(len(draft) + 1):  # chains only: node n stands n + 1 beyond the prefix
            logits[row, OWN[here + row]] = 5
        return Scored(LogitRows(logits))


@dataclass(frozen=True)
class Word:
    """A draft of ``right`` right tokens and a wrong one, so far beyond the answer (0: at it)."""

    ahead: int
    right: int
    stray: int | None


words = st.builds(
    Word, st.integers(-3, 6), st.integers(0, 4), st.sampled_from([None, None, None, 8])
)


@settings(max_examples=300)
@given(steps=st.lists(st.one_of(words, st.just("decide")), max_size=31))
def test_the_first_draft_for_a_place_stands_and_none_outlives_its_place(
    steps: list[Word | str],
) -> None:
    talk = Talk()
    for step in steps:
        if isinstance(step, str):
            if talk.scoring is not None:
                talk.decide()
            continue
        size = max(0, talk.cloud.digest.length + step.ahead)
        tokens = (*OWN[size : size + step.right], 8)
        talk.say(place(size, step.stray), Draft(tokens))
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
    talk.cloud.handle(talk.rows(0, Draft(OWN[:3])))
    counters = talk.cloud.counters
    assert (talk.cloud.pushed, counters.judged) == (0, 2)
    assert counters.accounted == counters.drafts


def test_an_answer_that_ended_takes_nothing_more() -> None:
    talk = Talk(max_tokens=6)
    for size, tokens in ((0, OWN[:6]), (4, (1,)), (5, (1,))):
        talk.say(place(size), Draft(tokens))
    talk.decide()
    talk.say(place(6), Draft((1,)))
    assert talk.cloud.status is Status.FINISHED and talk.scoring is None
    assert (talk.cloud.pushed, talk.cloud.counters.late) == (0, 1)


def test_a_draft_that_was_pushed_goes_on_as_it_said() -> None:
    """Its verdict is left open after the leaf that it named, so that what follows it fits too."""
    talk = Talk()
    talk.say(BASE, Draft(OWN[:3]))
    talk.cloud.handle(DraftMessage(place(4), Draft(OWN[4:6]), 1, open_at=1))
    talk.cloud.handle(talk.rows(0, Draft(OWN[:3])))
    said = verdict_of(talk.cloud.handle(talk.rows(4, Draft(OWN[4:6]))))
    assert (said.path, said.token) == ((0, 1), None)
    assert talk.cloud.digest == place(6)


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
    assert cloud.counters.accounted + cloud.pushed == cloud.counters.drafts
