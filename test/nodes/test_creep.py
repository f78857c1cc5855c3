"""What counts as a lost link, and which graph may creep; test_decode.py has it creep."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge_cloud_spec.bringup.graph import GraphSettings
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.msg import LinkState
from edge_cloud_spec.nodes.drafting.topics import DrafterTopics


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
