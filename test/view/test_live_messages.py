"""The running graph's messages: all of them, while drawing takes long; or it is said how many."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("rerun", reason="Rerun has no build for this Python")
from helpers.cloud.grpc_cloud import until
from helpers.graph.peer import Peer
from helpers.graph.ros_domain import ros_domain
from helpers.rerun_file import lines, read_rows
from rclpy.publisher import Publisher

from edge_cloud_spec.cli import main
from edge_cloud_spec.msg import VerifiedTokens
from edge_cloud_spec.nodes.topics import TOPICS
from edge_cloud_spec.view import live_messages
from edge_cloud_spec.view.live_messages import Backlog

REPLY_TIMEOUT = 60.0  # s; only a hung test takes that long
COUNT, BATCH = 5000, 50  # messages; a batch is less than the queue of a subscription


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


def publish_and_end(words: Publisher, ended: Callable[[], object]) -> threading.Thread:
    """Publish until then, and end the program by a signal."""

    def publish() -> None:
        until(words.get_subscription_count)
        while not ended():
            words.publish(VerifiedTokens(text="left", tokens=[1], position=0))
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    return thread


def test_every_word_that_came_while_nothing_was_drawn_is_there_in_order(
    words: Publisher, backlogs: list[Backlog]
) -> None:
    def publish() -> None:
        until(lambda: backlogs)
        while not backlogs[0].received:  # both sides have found each other
            words.publish(VerifiedTokens(finished=True))
            time.sleep(0.01)
        time.sleep(0.5)  # what is still on its way
        before = backlogs[0].received
        for position in range(COUNT):
            if position % BATCH == 0:
                until(lambda p=position: backlogs[0].received >= before + p)
            words.publish(VerifiedTokens(position=position))
        until(lambda: backlogs[0].received >= before + COUNT)

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    with closing(live_messages.live_messages("", lambda: None)) as messages:
        taken = [next(messages)]
        thread.join(REPLY_TIMEOUT)  # meanwhile nothing is taken
        while taken[-1][2].position < COUNT - 1:
            taken.append(next(messages))
    heard = [message.position for _, _, message in taken if not message.finished]
    assert heard == list(range(COUNT))
    assert {topic for _, topic, _ in taken} == {"verified_tokens"}
    assert not backlogs[0].missed


def test_the_running_graph_is_saved_until_a_signal(
    words: Publisher, backlogs: list[Backlog], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    thread = publish_and_end(words, lambda: backlogs[0].received > 3)
    assert main(["view", "--save", str(tmp_path / "run.rrd")]) == 0
    thread.join(REPLY_TIMEOUT)
    assert set(lines(read_rows(tmp_path / "run.rrd")["/tokens"])) == {("not verified", "left")}
    assert f"{backlogs[0].received} messages shown" in capsys.readouterr().out


def test_what_was_missed_is_said(
    words: Publisher,
    backlogs: list[Backlog],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(live_messages, "WAITING", 0)
    thread = publish_and_end(words, lambda: backlogs[0].missed)
    assert main(["view", "--save", str(tmp_path / "run.rrd")]) == 0
    thread.join(REPLY_TIMEOUT)
    assert "messages missed: they come faster than they can be shown" in capsys.readouterr().out
