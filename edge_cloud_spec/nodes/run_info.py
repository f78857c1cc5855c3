"""What a run's words depend on, on the latched topic ``run_info``: for bags and for people."""

from __future__ import annotations

import json
import threading
from importlib.metadata import PackageNotFoundError, version

from rclpy.node import Node
from std_msgs.msg import String

from .. import __version__
from .drafter_settings import DrafterSettings
from .runtime.qos import LATCHED

SETTINGS = ("preset", "rule", "temperature", "top_k", "top_p", "seed", "order", "max_tokens")


class RunInfo:
    """JSON with both models' identities, the decoding's settings and the versions."""

    def __init__(self, node: Node, drafter: str) -> None:
        """drafter: the draft model's identity."""
        self._publisher = node.create_publisher(String, "run_info", LATCHED)
        self._fixed = {"drafter": drafter, "versions": versions()}
        self._text = ""
        self._lock = threading.Lock()  # the executor and the model's thread both update

    def update(self, settings: DrafterSettings, target: str) -> None:
        """Publish what changed. target: the target's identity; empty where it is not known yet."""
        chosen = {name: getattr(settings, name) for name in SETTINGS}
        text = json.dumps({"target": target, **self._fixed, **chosen})
        with self._lock:
            if text != self._text:
                self._text = text
                self._publisher.publish(String(data=text))


def versions() -> str:
    """Of this package, and of what computes."""
    found = [f"edge_cloud_spec {__version__}"]
    for name in ("torch", "transformers"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)
