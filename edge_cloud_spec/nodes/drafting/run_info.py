"""What a run's words depend on, on the latched topic ``run_info``: for bags and for people."""

from __future__ import annotations

import json
import threading
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from rclpy.node import Node
from std_msgs.msg import String

from ... import __version__
from ..runtime.qos import LATCHED
from .drafter_settings import DrafterSettings

SETTINGS = (
    *("preset", "rule", "temperature", "top_k", "top_p", "seed"),
    *("grammar", "order", "explain", "max_tokens"),
)


class RunInfo:
    """JSON with both models' identities, the decoding's settings and the versions."""

    def __init__(self, node: Node) -> None:
        self._publisher = node.create_publisher(String, "run_info", LATCHED)
        self._target = self._drafter = self._text = ""
        self._lock = threading.Lock()  # the executor and the model's thread both update

    def update(self, settings: DrafterSettings, *, drafter: str = "", target: str = "") -> None:
        """Publish what changed, once the draft model is known; identities stay where not given."""
        with self._lock:
            self._drafter, self._target = drafter or self._drafter, target or self._target
            chosen = {name: getattr(settings, name) for name in SETTINGS}
            models = {"target": self._target, "drafter": self._drafter, "versions": versions()}
            text = json.dumps({**models, **chosen})
            if self._drafter and text != self._text:
                self._text = text
                self._publisher.publish(String(data=text))


@cache
def versions() -> str:
    """Of this package, and of what computes."""
    found = [f"edge_cloud_spec {__version__}"]
    for name in ("torch", "transformers"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)
