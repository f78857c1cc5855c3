"""The cloud bridge node: relays between the decode topics and one gRPC stream a request.

``python -m edge_cloud_spec.nodes.cloud_bridge --ros-args ...``; it decides nothing, but holds the
secrets that prove to the cloud that a session is this robot's.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass

from edge_cloud_spec.msg import DecodeRequest, Draft, Prediction, Verdict

from ..bounds import check_bounds, described
from ..edge.client import ClientSettings, ClientStream, VerifierClient
from ..edge.events import LinkLost, LinkUp
from ..edge.session_key import SessionKey
from ..wire.channel import DEFAULT_ADDRESS, read_token
from .bridge_messages import to_topic
from .runtime.managed_node import ManagedNode
from .runtime.qos import DECODE
from .runtime.run import spin
from .runtime.subscription_thread import SubscriptionThread

MAX_REQUESTS = 16  # open streams; one more closes the oldest
MAX_WAITING = 256  # messages of one request that wait for an earlier one; more are dropped


@dataclass(frozen=True)
class BridgeSettings:
    """Where the verifier is, and how robot and verifier authenticate each other."""

    cloud: str = described(DEFAULT_ADDRESS, "the verifier's HOST:PORT", fixed=True)
    authority: str = described("", "PEM file of the verifier's certificate authority", fixed=True)
    token_file: str = described("", "file that holds the verifier's bearer token", fixed=True)

    def __post_init__(self) -> None:
        check_bounds(self)


class _RequestStream:
    """One request's stream. Its messages arrive on two topics; ``sequence`` is their order."""

    def __init__(self, stream: ClientStream) -> None:
        self._stream = stream
        self._key = SessionKey()
        self._next = 0
        self._waiting: dict[int, tuple[bytes, bool]] = {}  # payload, and whether it is the last

    def send(self, sequence: int, payload: bytes, last: bool) -> bool:
        """Send all messages whose turn it is; True when the request's last one was sent."""
        if sequence >= self._next and len(self._waiting) < MAX_WAITING:
            self._waiting[sequence] = (payload, last)
        while self._next in self._waiting:
            data, ends = self._waiting.pop(self._next)
            self._next += 1
            signed = self._key.sign(data)
            if ends:
                self._stream.close(signed)
                return True
            self._stream.send(signed)
        return False

    def close(self) -> None:
        self._stream.close()


class CloudBridge(ManagedNode):
    """Topics ``decode_request`` and ``draft`` to the cloud, ``verdict`` back."""

    def __init__(self) -> None:
        super().__init__("cloud_bridge")
        self._config = self.parameters(BridgeSettings())
        self._streams: OrderedDict[str, _RequestStream] = OrderedDict()
        self._lock = threading.Lock()
        self._up = True
        self._counts = {"up_bytes": 0, "down_bytes": 0, "link_losses": 0}

    def load(self) -> None:
        """Read the address and the secrets; raises UserError."""
        self._client_settings = client_settings(self._config.value)
        self._verdicts = self.create_publisher(Verdict, "verdict", DECODE)
        self._predictions = self.create_publisher(Prediction, "prediction", DECODE)

    def begin(self) -> None:
        """Relay from now on."""
        self._up = True
        self._client = VerifierClient(self._client_settings)
        subscriptions = self._subscription_thread = SubscriptionThread(self)
        subscriptions.subscribe(DecodeRequest, "decode_request", self._on_request, DECODE)
        subscriptions.subscribe(Draft, "draft", self._on_draft, DECODE)
        subscriptions.start()
        self.get_logger().info(f"relaying to the verifier at {self._client_settings.address}")

    def halt(self) -> None:
        """End all streams."""
        self._subscription_thread.close()
        self._client.close()
        self._streams.clear()

    def _on_request(self, message: DecodeRequest) -> None:
        last = message.kind == DecodeRequest.CLOSE
        self._send(message.request_id, message.sequence, message.payload.tobytes(), last)

    def _on_draft(self, message: Draft) -> None:
        self._send(message.request_id, message.sequence, message.payload.tobytes(), False)

    def _send(self, request_id: str, sequence: int, payload: bytes, last: bool) -> None:
        with self._lock:
            stream = self._streams.get(request_id)
            if stream is None:
                stream = self._streams[request_id] = self._open(request_id)
            self._counts["up_bytes"] += len(payload)
            if stream.send(sequence, payload, last):
                del self._streams[request_id]

    def _open(self, request_id: str) -> _RequestStream:
        while len(self._streams) >= MAX_REQUESTS:
            _, oldest = self._streams.popitem(last=False)
            oldest.close()
        return _RequestStream(self._client.open(lambda item: self._on_item(request_id, item)))

    def _on_item(self, request_id: str, item: bytes | LinkLost | LinkUp) -> None:
        """Publish what the stream received, in the client's thread."""
        message = to_topic(item, self.get_clock().now().to_msg(), request_id)
        if isinstance(message, Prediction):
            self._predictions.publish(message)
        else:
            self._verdicts.publish(message)
        if isinstance(item, LinkLost):
            self._up = False
            self._counts["link_losses"] += 1
            self.get_logger().warning(f"the link to the cloud is lost: {item.reason}; trying again")
        else:
            self._up = True
            self._counts["down_bytes"] += len(item) if isinstance(item, bytes) else 0

    def diagnose(self) -> None:
        """Publish whether the link is up, and what went over it."""
        message = "connected" if self._up else "the link to the cloud is lost"
        self.diagnostics.publish(message, self._counts, warning=not self._up)


def client_settings(settings: BridgeSettings) -> ClientSettings:
    """The client's settings from the node's; raises UserError."""
    token = read_token(settings.token_file) if settings.token_file else ""
    return ClientSettings(settings.cloud, settings.authority, token)


def main() -> int:
    """Run the node until a signal."""
    return spin(CloudBridge)


if __name__ == "__main__":
    sys.exit(main())
