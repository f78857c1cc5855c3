"""An SROS2 policy file, as what each node may do."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

_KINDS = {
    ("topics", "publish"): "publish",
    ("topics", "subscribe"): "subscribe",
    ("services", "reply"): "reply",
    ("services", "request"): "request",
    ("actions", "execute"): "execute",
    ("actions", "call"): "call",
}


class Policy:
    """``nodes``: node -> what it may (publish, subscribe, ...) -> names as the file has them."""

    def __init__(self, path: Path) -> None:
        self.nodes: dict[str, dict[str, set[str]]] = {}
        for profile in ElementTree.parse(path).getroot().iter("profile"):
            allowed = self.nodes.setdefault(
                profile.attrib["node"], {kind: set() for kind in _KINDS.values()}
            )
            for group in profile:
                for verb, rule in group.attrib.items():
                    assert rule == "ALLOW"
                    allowed[_KINDS[group.tag, verb]] |= {str(item.text) for item in group}

    @property
    def topics(self) -> set[str]:
        """All topics that are named."""
        return {
            topic
            for allowed in self.nodes.values()
            for topic in allowed["publish"] | allowed["subscribe"]
        }

    def who(self, verb: str, topic: str) -> set[str]:
        """The nodes that may do this with a topic."""
        return {node for node, allowed in self.nodes.items() if topic in allowed[verb]}

    def refused(self, node: str, verb: str, names: set[str]) -> set[str]:
        """Which of these resolved names the node may not use so; an action allows its parts."""
        allowed = {_resolved(node, name) for name in self.nodes[node][verb]}
        actions = self.nodes[node]["execute"] | self.nodes[node]["call"]
        return {
            name
            for name in names
            if name not in allowed and name.strip("/").split("/_action/")[0] not in actions
        }


def _resolved(node: str, name: str) -> str:
    """A name in the root namespace; ``~name`` is the node's own."""
    return f"/{node}/{name[1:]}" if name.startswith("~") else f"/{name.lstrip('/')}"
