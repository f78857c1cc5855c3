"""The cloud bridge node: relays between the decode topics and one gRPC stream a request.

``python -m edge_cloud_spec.nodes.cloud_bridge --ros-args ...``; it decides nothing, but holds what
proves to the cloud that a request is ours.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node

from edge_cloud_spec.msg import DecodeRequest, Draft, Prediction, Verdict

from ..bounds import check_bounds, described
from ..edge.client import ClientSettings, ClientStream, VerifierClient
from ..edge.events import LinkLost, LinkUp
from ..edge.session_key import SessionKey
from ..wire.channel import read_token
from ..wire.codec import decode_server
from ..wire.messages import Prediction as WirePrediction
from ..wire.messages import WireError
from .bridge_messages import to_prediction, to_verdict
from .dedicated_subscriptions import DedicatedSubscriptions
from .parameters import Parameters
from .run import spin

MAX_REQUESTS = 16  # streams kept open; the oldest makes room
MAX_HELD = 256  # messages of one request that wait for an earlier one


@dataclass(frozen=True)
class BridgeSettings:
    """Where the verifier is, and how it knows this robot."""

    cloud: str = described("127.0.0.1:50151", "the verifier's HOST:PORT", fixed=True)
    authority: str = described("", "PEM file of the verifier's certificate authority", fixed=True)
    token_file: str = described("", "file that holds the verifier's bearer token", fixed=True)

    def __post_init__(self) -> None:
        check_bounds(self)


class _Relay:
    """One request's stream. Two topics carry its messages: ``sequence`` puts them in order."""

    def __init__(self, stream: ClientStream) -> None:
        self._stream = stream
        self._key = SessionKey()
        self._next = 0
        self._held: dict[int, tuple[bytes, bool]] = {}

    def pass_on(self, sequence: int, payload: bytes, last: bool) -> bool:
        """Send what is in order by now; True when the request's last message went out."""
        if sequence >= self._next and len(self._held) < MAX_HELD:
            self._held[sequence] = (payload, last)
        while self._next in self._held:
            data, ends = self._held.pop(self._next)
            self._next += 1
            signed = self._key.sign(data)
            if ends:
                self._stream.close(signed)
                return True
            self._stream.send(signed)
        return False

    def close(self) -> None:
        self._stream.close()


class CloudBridge(Node):
    """Topics ``decode_request`` and ``draft`` to the cloud, ``verdict`` back."""

    def __init__(self) -> None:
        super().__init__("cloud_bridge")
        settings = Parameters(self, BridgeSettings()).value
        self._link = VerifierClient(client_settings(settings))
        self._relays: OrderedDict[str, _Relay] = OrderedDict()
        self._lock = threading.Lock()
        self._up = True
        self._counts = {"up_bytes": 0, "down_bytes": 0, "link_losses": 0}
        self._verdicts = self.create_publisher(Verdict, "verdict", 100)
        self._predictions = self.create_publisher(Prediction, "prediction", 100)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self._intake = DedicatedSubscriptions(self)
        self._intake.subscribe(DecodeRequest, "decode_request", self._on_request, 100)
        self._intake.subscribe(Draft, "draft", self._on_draft, 100)
        self._intake.start()
        self.create_timer(1.0, self._diagnose)
        self.get_logger().info(f"relaying to the verifier at {settings.cloud}")

    def close(self) -> None:
        """End all streams."""
        self._intake.close()
        self._link.close()

    def _on_request(self, message: DecodeRequest) -> None:
        last = message.kind == DecodeRequest.CLOSE
        self._pass_on(message.request_id, message.sequence, message.payload.tobytes(), last)

    def _on_draft(self, message: Draft) -> None:
        self._pass_on(message.request_id, message.sequence, message.payload.tobytes(), False)

    def _pass_on(self, request_id: str, sequence: int, payload: bytes, last: bool) -> None:
        with self._lock:
            relay = self._relays.get(request_id)
            if relay is None:
                relay = self._relays[request_id] = self._open(request_id)
            self._counts["up_bytes"] += len(payload)
            if relay.pass_on(sequence, payload, last):
                del self._relays[request_id]

    def _open(self, request_id: str) -> _Relay:
        while len(self._relays) >= MAX_REQUESTS:
            _, oldest = self._relays.popitem(last=False)
            oldest.close()
        return _Relay(self._link.open(lambda item: self._on_item(request_id, item)))

    def _on_item(self, request_id: str, item: bytes | LinkLost | LinkUp) -> None:
        """In the link's thread: one hop from the stream to the topic."""
        stamp = self.get_clock().now().to_msg()
        guess = _prediction_in(item)
        if guess is not None and isinstance(item, bytes):
            self._predictions.publish(to_prediction(guess, item, stamp, request_id))
        else:
            self._verdicts.publish(to_verdict(item, stamp, request_id))
        if isinstance(item, LinkLost):
            self._up = False
            self._counts["link_losses"] += 1
            self.get_logger().warning(f"the link to the cloud is lost: {item.reason}; trying again")
        else:
            self._up = True
            self._counts["down_bytes"] += len(item) if isinstance(item, bytes) else 0

    def _diagnose(self) -> None:
        level = DiagnosticStatus.OK if self._up else DiagnosticStatus.WARN
        text = "connected" if self._up else "the link to the cloud is lost"
        report = DiagnosticStatus(level=level, name=self.get_name(), message=text)
        report.values = [KeyValue(key=k, value=str(v)) for k, v in self._counts.items()]
        array = DiagnosticArray(status=[report])
        array.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(array)


def client_settings(settings: BridgeSettings) -> ClientSettings:
    """The link's settings from the node's; raises UserError."""
    token = read_token(settings.token_file) if settings.token_file else ""
    return ClientSettings(settings.cloud, settings.authority, token)


def _prediction_in(item: bytes | LinkLost | LinkUp) -> WirePrediction | None:
    """The message, where it is an exit's guess."""
    if isinstance(item, bytes):
        with contextlib.suppress(WireError):
            message = decode_server(item)
            return message if isinstance(message, WirePrediction) else None
    return None


def main() -> int:
    """Run the node until a signal."""
    return spin(CloudBridge)


if __name__ == "__main__":
    sys.exit(main())
