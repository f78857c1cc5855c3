"""The running graph's messages: all of them, while drawing takes long; or it is said how many.

That a running graph is shown and saved until a signal is in test/nodes/test_running_topics.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("rerun", reason="Rerun has no build for this Python")
from helpers.cloud.grpc_cloud import until
from helpers.graph.peer import Peer
from helpers.graph.ros_domain import ros_domain
from hypothesis import given
from hypothesis import strategies as st
from rclpy.publisher import Publisher

from edge_cloud_spec.msg import VerifiedTokens
from edge_cloud_spec.nodes.topics import TOPICS
from edge_cloud_spec_lab.view import live_messages
from edge_cloud_spec_lab.view.live_messages import Backlog

PICTURES = ("camera/image_raw/compressed", "camera/image_raw")
COUNT, BATCH = 1000, 50  # messages; the queue of a subscription has more than a batch, and less


@given(st.lists(st.sampled_from(["words", "verdict", *PICTURES]), max_size=40), st.integers(1, 10))
def test_words_wait_in_order_and_of_pictures_the_newest(said: list[str], size: int) -> None:
    backlog = Backlog(size)
    for number, topic in enumerate(said):
        backlog.put(float(number), topic, number)
    taken = backlog.take()
    assert taken == sorted(taken) and all(said[number] == topic for _, topic, number in taken)
    assert len(said) == backlog.received
    for picture in PICTURES:
        of_it = [number for number, topic in enumerate(said) if topic == picture]
        assert [number for _, topic, number in taken if topic == picture] == of_it[-1:]
    small = [number for number, topic in enumerate(said) if topic in ("words", "verdict")]
    first = [number for _, topic, number in taken if topic in ("words", "verdict")]
    assert first == small[: len(first)] and len(small) - len(first) == backlog.missed
    assert not backlog.missed or len(taken) >= size
    assert not backlog.take()


@pytest.fixture
def words() -> Iterator[Publisher]:
    with ros_domain(), Peer("drafter") as node:
        yield node.create_publisher(VerifiedTokens, "verified_tokens", TOPICS["verified_tokens"][1])


@pytest.fixture
def backlogs(monkeypatch: pytest.MonkeyPatch) -> list[Backlog]:
    """Those that were made."""
    made: list[Backlog] = []

    def make(size: int) -> Backlog:
        made.append(Backlog(size))
        return made[-1]

    monkeypatch.setattr(live_messages, "Backlog", make)
    return made


def test_every_word_that_came_while_nothing_was_drawn_is_there_in_order(
    words: Publisher, backlogs: list[Backlog]
) -> None:
    def publish_until_it_is_heard() -> None:
        words.publish(VerifiedTokens(finished=True))

    with closing(live_messages.live_messages("", publish_until_it_is_heard)) as messages:
        taken = [next(messages)]
        before = backlogs[0].received
        for position in range(COUNT):  # meanwhile nothing is taken
            if position % BATCH == 0:
                until(lambda p=position: backlogs[0].received >= before + p)
            words.publish(VerifiedTokens(position=position))
        while taken[-1][2].position < COUNT - 1:
            taken.append(next(messages))
    heard = [message.position for _, _, message in taken if not message.finished]
    assert heard == list(range(COUNT))
    assert {topic for _, topic, _ in taken} == {"verified_tokens"}
    assert not backlogs[0].missed


def test_what_was_missed_is_said_and_a_signal_ends_it(
    words: Publisher,
    backlogs: list[Backlog],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def publish_until_it_is_missed() -> None:
        words.publish(VerifiedTokens())
        if backlogs[0].missed:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(live_messages, "MAX_BACKLOG_MESSAGES", 0)
    assert not list(live_messages.live_messages("", publish_until_it_is_missed))
    assert "messages missed: they come faster than they can be shown" in capsys.readouterr().out
