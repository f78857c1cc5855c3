"""Where a session is resumed from, and the token that a robot drew itself."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.cloud.verification import BASE, END, VOCABULARY, draft, says, session

from edge_cloud_spec.cloud.session.events import Reply
from edge_cloud_spec.cloud.session.verification import Verification
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.split import Split
from edge_cloud_spec.wire.messages import Close, DraftMessage, Generate, Open, Opened, Resume


@pytest.mark.parametrize("noticed", [True, False])
def test_a_resumed_robot_gets_what_it_missed_from_where_it_stands(noticed: bool) -> None:
    """Whether or not the cloud has noticed that the stream before is gone."""
    cloud = session()
    cloud.handle(Generate(BASE))
    for token in (1, 2, 3):
        cloud.handle(says(token))
    if noticed:
        cloud.pause()
    cloud.handle(says(4))
    place = BASE.extend((1, 2))
    assert cloud.handle(Resume("s", place))[0].message.base == cloud.digest
    missed = [a.message.token for a in cloud.handle(Generate(place)) if isinstance(a, Reply)]
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
        payload="probabilities",
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
    assert cloud.handle(Resume("s", heard)) == [Reply(Opened("s", b"", there))]


def test_any_beginning_of_the_answer_is_a_place_to_resume_from_and_nothing_else() -> None:
    cloud = session()
    cloud.handle(draft(1, 2, 3))
    cloud.handle(says(1, 2, 5, 0))
    for size in range(4):
        place = BASE.extend((1, 2, 5)[:size])
        assert cloud.handle(Resume("s", place)) == [Reply(Opened("s", b"", cloud.digest))]
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
