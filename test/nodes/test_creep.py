"""A lost link: by default nothing is decided; under creep the drafter alone, and it says so."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.graph.decode_graph import INSTRUCTION, Cloud, Watcher, node_process

from edge_cloud_spec.bringup.graph import GraphSettings
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.lab.harness.random_checkpoint import make_checkpoint
from edge_cloud_spec.msg import LinkState
from edge_cloud_spec.nodes.drafting.topics import DrafterTopics

COMPLETE = ("end", "length")


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[tuple[Watcher, Cloud]]:
    target, drafter = (make_checkpoint(tmp_path / name, seed=i) for i, name in enumerate("td"))
    cloud = Cloud(target)
    given = {"model.path": drafter, "reply_timeout": 30.0, "retry": 0.1, "max_tokens": 12}
    processes = [
        node_process("cloud_bridge", cloud=cloud.address),
        node_process("drafter", when_lost="creep", **given),
    ]
    with Watcher() as watcher:
        yield watcher, cloud
    for process in processes:
        process.send_signal(signal.SIGINT)
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    assert cloud.end() == 0


def complete(watcher: Watcher, verified: bool) -> list[Any]:
    finished = [m for m in watcher.finished() if m.finish_reason in COMPLETE]
    return [m for m in finished if m.verified == verified]


def test_under_creep_the_drafter_decides_alone_and_goes_back_to_the_cloud_by_itself(
    graph: tuple[Watcher, Cloud],
) -> None:
    """Timeout is 30 s: the decision that was under way in the cloud is not waited for."""
    watcher, cloud = graph
    watcher.ask(INSTRUCTION)
    watcher.until(lambda: complete(watcher, verified=True))
    assert not complete(watcher, verified=False)
    cloud.end(signal.SIGKILL)
    watcher.heard["verified_tokens"].clear()
    watcher.heard["decode_stats"].clear()
    watcher.until(lambda: len(complete(watcher, verified=False)) >= 2)
    alone = {m.request_id for m in complete(watcher, verified=False)}
    words = [m for m in watcher.heard["verified_tokens"] if m.request_id in alone]
    assert words and not any(m.verified for m in words)  # every single one
    watcher.until(lambda: any(s.preset == "edge_only" for s in watcher.heard["decode_stats"]))
    cloud.start()
    watcher.heard["verified_tokens"].clear()
    watcher.until(lambda: complete(watcher, verified=True))
    pieces = [m for m in watcher.heard["verified_tokens"] if m.tokens]
    mixed = {m.request_id for m in pieces if m.verified} & {
        m.request_id for m in pieces if not m.verified
    }
    assert not mixed


class Link:
    """The drafter's topics on a node of which only the publishers count."""

    def __init__(self) -> None:
        self.losses, self.publishers = list[str](), 1
        node: Any = SimpleNamespace(
            create_publisher=lambda *given: None,
            count_publishers=lambda topic: self.publishers if topic == "/link" else 1,
            resolve_topic_name=lambda topic: "/link",
        )
        self.topics = DrafterTopics(node, None)
        callbacks: dict[str, Any] = {}
        subscriptions: Any = SimpleNamespace(
            subscribe=lambda kind, topic, callback, qos: callbacks.update({topic: callback})
        )
        self.topics.subscribe(subscriptions, lambda: self.losses.append("lost"))
        self.hear = lambda state: callbacks["link_state"](LinkState(state=state))


@pytest.mark.parametrize(
    ("state", "lost"),
    [(LinkState.LOST, True), (LinkState.DEGRADED, False), (LinkState.CLOUD, False), (0, False)],
)
def test_only_a_state_of_lost_is_a_lost_link(state: int, lost: bool) -> None:
    link = Link()
    link.publishers = 0
    assert not link.topics.is_link_lost, "nothing was heard yet: the cloud is asked"
    link.publishers = 1
    link.hear(state)
    assert link.topics.is_link_lost is lost and bool(link.losses) is lost
    link.hear(LinkState.CLOUD)
    assert not link.topics.is_link_lost


def test_a_bridge_that_is_gone_is_a_lost_link() -> None:
    link = Link()
    link.hear(LinkState.CLOUD)
    assert not link.topics.is_link_lost
    link.publishers = 0
    assert link.topics.is_link_lost


@pytest.mark.parametrize(
    ("when_lost", "allow", "refused"),
    [
        ("creep", "false", True),
        ("creep", "true", False),
        ("stop", "false", False),
        ("creep", None, True),
    ],
)
def test_the_graph_refuses_creep_without_allow_unverified(
    tmp_path: Path, when_lost: str, allow: str | None, refused: bool
) -> None:
    file = tmp_path / "mine.yaml"
    text = f"/**/drafter: {{ros__parameters: {{when_lost: {when_lost}}}}}\n"
    if allow is not None:
        text += f"/**/navigator: {{ros__parameters: {{allow_unverified: {allow}}}}}\n"
    file.write_text(text)
    if not refused:
        GraphSettings(parameters=str(file))
        return
    with pytest.raises(UserError, match="allow_unverified is true; set it too"):
        GraphSettings(parameters=str(file))
