"""What counts as a lost link; test_decode.py has a drafter creep."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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


def test_only_a_state_of_lost_or_a_bridge_that_is_gone_is_a_lost_link() -> None:
    link = Link()
    link.publishers = 0
    assert not link.topics.is_link_lost, "nothing was heard yet: the cloud is asked"
    link.publishers = 1
    for state in (LinkState.LOST, LinkState.DEGRADED, LinkState.LOST, LinkState.CLOUD, 0):
        link.hear(state)
        assert link.topics.is_link_lost is (state == LinkState.LOST)
    assert link.losses == ["lost"] * 2
    link.publishers = 0
    assert link.topics.is_link_lost
