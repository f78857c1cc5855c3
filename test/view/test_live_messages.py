"""The running graph's messages: all of them, while drawing takes long; or it is said how many."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("rerun", reason="Rerun has no build for this Python")
from helpers.graph.peer import Peer
from helpers.graph.ros_domain import ros_domain
from helpers.rerun_file import lines, read_rows
from rclpy.publisher import Publisher

from edge_cloud_spec.cli import main
from edge_cloud_spec.msg import VerifiedTokens
from edge_cloud_spec.nodes.topics import TOPICS
from edge_cloud_spec.view import live_messages
from edge_cloud_spec.view.entities import Entities
from edge_cloud_spec.view.live_messages import LiveMessages

PATIENCE = 60.0  # s; only a hung test takes that long
COUNT, BATCH = 5000, 50  # messages; a batch is less than the queue of a subscription


@pytest.fixture
def words() -> Iterator[Publisher]:
    with ros_domain(), Peer("drafter") as node:
        yield node.create_publisher(VerifiedTokens, "verified_tokens", TOPICS["verified_tokens"][1])


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_every_word_that_came_while_nothing_was_drawn_is_there_in_order(words: Publisher) -> None:
    with LiveMessages() as live:
        until(words.get_subscription_count)
        for position in range(COUNT):
            if position % BATCH == 0:
                until(lambda p=position: live.backlog.received == p)
            words.publish(VerifiedTokens(position=position))
        until(lambda: live.backlog.received == COUNT)
        taken = list(live.take())
    assert [message.position for _, _, message in taken] == list(range(COUNT))
    assert {topic for _, topic, _ in taken} == {"verified_tokens"}
    assert (live.backlog.missed, live.backlog.left_out) == (0, 0)


def test_what_was_missed_is_said_and_stands_in_the_log(
    words: Publisher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said, missed = threading.Event(), Entities.missed

    def tell(*arguments: object) -> object:
        said.set()
        return missed(*arguments)  # type: ignore[arg-type]

    def publish() -> None:
        until(words.get_subscription_count)
        while not said.wait(0.01):
            words.publish(VerifiedTokens())
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(live_messages, "WAITING", 0)
    monkeypatch.setattr(Entities, "missed", tell)
    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    assert main(["view", "--save", str(tmp_path / "run.rrd")]) == 0
    thread.join(PATIENCE)
    assert "messages missed: they come faster than they can be shown" in capsys.readouterr().out
    told = lines(read_rows(tmp_path / "run.rrd")["/log/viewer"])
    assert told and all(level == "ERROR" and "missed" in text for level, text in told)
