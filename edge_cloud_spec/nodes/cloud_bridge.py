"""The cloud bridge node: relays the decode topics over one gRPC stream per request.

``python -m edge_cloud_spec.nodes.cloud_bridge --ros-args ...``. It makes no decisions, but holds
the secrets that prove to the cloud that a session is this robot's.
"""

from __future__ import annotations

import math
import threading
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from edge_cloud_spec.msg import DecodeRequest, Draft, LinkState, Prediction, Verdict

from ..edge.client import SessionKey, VerifierClient
from ..edge.events import LinkLost, LinkUp
from ..edge.link.probe import ROUND_TRIP_MS
from ..edge.link.route import ClientSettings
from ..edge.link.state import LinkMonitor, LinkQuality, LinkReport
from ..edge.link.stream import ClientStream
from ..health import Health, Level
from ..lru_cache import LruCache
from ..options import bounded
from ..wire.codec import decode_client, encode_client, encode_server, read_client
from ..wire.frames import ClientFrame, ServerFrame
from ..wire.messages import Code, Fault
from .bridge_messages import to_topic
from .runtime.managed_node import ManagedNode
from .runtime.qos import DECODE, LATCHED, STEADY
from .runtime.run import spin
from .runtime.subscription_thread import SubscriptionThread

MAX_REQUESTS = 16  # open streams; one more closes the oldest
MAX_ENDED = 256  # requests that are over, whose late messages open no stream
LINK_CHECK_S = 0.1  # between two looks at the state of the link
MAX_WAITING_MESSAGES = 256  # for an earlier one; with more, that one is given up


@dataclass(frozen=True)
class BridgeSettings(ClientSettings):
    """The client's settings, and when the link counts as slow or lost."""

    startup: float = bounded(0.0, 0.0, 600.0, "the cloud has so long to appear, s", fixed=True)
    late_after: float = bounded(2.0, 0.05, 60.0, "an answer is late after this long, s", fixed=True)


class CloudBridge(ManagedNode):
    """Relays topics ``decode_request`` and ``draft`` to the cloud, and its messages to ``verdict``
    and ``prediction``."""

    def __init__(self) -> None:
        super().__init__("cloud_bridge")
        self._config = self.parameters(BridgeSettings())
        self._streams: dict[str, RequestStream] = {}
        self._ended: LruCache[str, None] = LruCache(MAX_ENDED)  # requests that are over
        self._lock = threading.Lock()
        self._counts = {"up_bytes": 0, "down_bytes": 0, "link_losses": 0, "late": 0}

    def load(self) -> None:
        """Read the address and the secrets; raises UserError."""
        self._config.value.check()  # here, not when activated, a bad file is refused
        self._verdicts = self.create_publisher(Verdict, "verdict", DECODE)
        self._predictions = self.create_publisher(Prediction, "prediction", DECODE)
        self._link_state = self.create_publisher(LinkState, "link_state", LATCHED)

    def begin(self) -> None:
        """Connect, and start to relay."""
        config = self._config.value
        self._client = self.started.enter_context(closing(VerifierClient(config)))
        first_s = max(config.startup, config.late_after)
        self._monitor = LinkMonitor(config.late_after, first_s)
        self._round_trip_s = 0.0
        self._published: tuple[LinkReport, float] | None = None
        self._found = False
        self.create_timer(LINK_CHECK_S, self._check_link, clock=STEADY)
        subscriptions = self.started.enter_context(closing(SubscriptionThread(self)))
        subscriptions.subscribe(DecodeRequest, "decode_request", self._relay, DECODE)
        subscriptions.subscribe(Draft, "draft", self._relay, DECODE)
        subscriptions.start()
        self.get_logger().info(f"looking for the verifier at {config.cloud}")

    def halt(self) -> None:
        """End all streams."""
        self.started.close()
        self._streams.clear()
        self._ended.clear()
        self._publish_link_state(LinkReport(LinkQuality.LOST, "the bridge is not active"))

    def _relay(self, message: DecodeRequest | Draft) -> None:
        request_id, payload = message.request_id, message.payload.tobytes()
        with self._lock:
            stream = self._streams.get(request_id)
            if stream is None and request_id in self._ended:
                self._counts["late"] += 1  # one that came twice, or was overtaken by the end
                return
            if stream is None:
                stream = self._streams[request_id] = self._open(request_id)
            self._counts["up_bytes"] += len(payload)
            try:
                frame = read_client(payload)
                sent = stream.send(message.sequence, frame)
            except ValueError as error:
                self._end(request_id, str(error))
                return
            last = frame.head.kind == "close"
            if sent is not None and sent.head.kind == "close":
                self._forget(request_id)
            elif last or sent is not None:  # to what is kept the cloud owes no answer
                self._monitor.sent(request_id, last=last)

    def _open(self, request_id: str) -> RequestStream:
        while len(self._streams) >= MAX_REQUESTS:
            self._end(next(iter(self._streams)), f"more than {MAX_REQUESTS} decodes at once")
        return RequestStream(self._client.open(lambda item: self._on_item(request_id, item)))

    def _end(self, request_id: str, reason: str) -> None:
        """End a request that cannot continue, with the reason; its decode fails at once."""
        self._streams[request_id].stream.close()
        self._forget(request_id)
        fault = encode_server(Fault(Code.BRIDGE, f"{reason}; the decision is made anew"))
        self._verdicts.publish(to_topic(fault, self.get_clock().now().to_msg(), request_id))
        self.get_logger().warning(reason)

    def _forget(self, request_id: str) -> None:
        self._monitor.sent(request_id, last=True)
        del self._streams[request_id]
        self._ended[request_id] = None

    def _on_item(self, request_id: str, item: ServerFrame | LinkLost | LinkUp) -> None:
        """Publish what the stream received, in the client's thread."""
        message = to_topic(item, self.get_clock().now().to_msg(), request_id)
        if isinstance(message, Prediction):
            self._predictions.publish(message)
        else:
            self._verdicts.publish(message)
        with self._lock:  # or an answer may be noted before the message that it answers
            self._monitor.received(request_id, item)
        if isinstance(item, LinkLost):
            self._counts["link_losses"] += 1
        elif isinstance(item, ServerFrame):
            self._counts["down_bytes"] += len(item)

    # The state of the link

    def _check_link(self) -> None:
        if self._monitor.check():
            self._client.probe(self._on_probe)
        self._publish_link_state(self._monitor.report)

    def _on_probe(self, found: Health) -> None:
        problem = found.message if found.severity else ""
        took = found.values.get(ROUND_TRIP_MS)
        self._round_trip_s = took / 1e3 if isinstance(took, float) else 0.0
        self._monitor.probed(problem, found.advice, self._round_trip_s, found.check)

    def _publish_link_state(self, report: LinkReport) -> None:
        if (report, self._round_trip_s) != self._published:
            self._published = report, self._round_trip_s
            if not self._found and report.quality == LinkQuality.CLOUD:
                self._found = True
                self.get_logger().info(f"relaying to the verifier at {self._client.settings.cloud}")
            message = LinkState(state=report.quality, detail=report.reason)
            message.round_trip_ms = 1e3 * self._round_trip_s or math.nan
            message.header.stamp = self.get_clock().now().to_msg()
            self._link_state.publish(message)

    def diagnose(self) -> Health:
        """The link's quality, advice, and traffic."""
        monitor = self._monitor
        values: dict[str, object] = {**self._counts, "missed_answers": monitor.state.missed_answers}
        if self._round_trip_s:
            values["round_trip_ms"] = round(self._round_trip_s * 1e3, 1)
        link = Health(_LEVELS[monitor.state.quality], str(monitor.report))
        if not monitor.starting:
            link = replace(link, advice=monitor.state.advice, check="cloud")
        return replace(link, values=values)


_LEVELS = {
    LinkQuality.CLOUD: Level.OK,
    LinkQuality.DEGRADED: Level.WARN,
    LinkQuality.LOST: Level.ERROR,
}


class RequestStream:
    """Sends one request's messages on one stream, in order.

    They arrive on two topics, in any order; ``sequence`` numbers them.
    """

    def __init__(self, stream: ClientStream) -> None:
        self.stream = stream
        self._key = SessionKey()
        self._next = 0
        self._waiting: dict[int, ClientFrame] = {}  # by sequence

    def send(self, sequence: int, frame: ClientFrame) -> ClientFrame | None:
        """Queue a message, then send all that are next in sequence; returns the last that was sent.

        None: it waits for its turn, which never comes after a restart of the bridge. ValueError:
        the request is lost, and why.
        """
        if sequence > self._next and len(self._waiting) >= MAX_WAITING_MESSAGES:
            raise ValueError("a message of this decode got lost on its way to the bridge")
        if sequence >= self._next:
            self._waiting[sequence] = frame
        sent = None
        while self._next in self._waiting:
            sent = self._waiting.pop(self._next)
            self._next += 1
            if sent.head.kind in ("open", "resume"):
                sent = encode_client(self._key.sign(decode_client(sent)))
            if sent.head.kind == "close":
                self.stream.close(sent)
                return sent
            self.stream.send(sent)
        return sent


main = partial(spin, CloudBridge)  # runs it until a signal

if __name__ == "__main__":
    main()
