"""The drafter's side of the topics that the cloud bridge relays."""

from __future__ import annotations

import time

from builtin_interfaces.msg import Time
from rclpy.node import Node

from edge_cloud_spec.msg import DecodeRequest, Draft, Prediction, Verdict

from ...edge.events import OnReceive
from ...errors import UserError
from ...models.tokenizer import TokenTexts
from ...wire.messages import ClientMessage, DraftMessage
from ..bridge.bridge_messages import from_verdict, to_draft, to_request
from ..runtime.qos import DECODE
from ..runtime.subscription_thread import SubscriptionThread


class BridgeTopics:
    """The topics of all decodes; each message from the cloud is given to its request's decode."""

    def __init__(self, node: Node, texts: TokenTexts) -> None:
        """``texts`` gives the words of a draft."""
        self._node = node
        self.texts = texts
        self._receivers: dict[str, OnReceive] = {}
        self.requests = node.create_publisher(DecodeRequest, "decode_request", DECODE)
        self.drafts = node.create_publisher(Draft, "draft", DECODE)

    def subscribe(self, subscriptions: SubscriptionThread) -> None:
        """Hear what the bridge says; the caller starts ``subscriptions``."""
        subscriptions.subscribe(Verdict, "verdict", self._on_verdict, DECODE)
        subscriptions.subscribe(Prediction, "prediction", self._on_prediction, DECODE)

    def wait_for_bridge(self, seconds: float) -> None:
        """Wait until the bridge is on the topics, which lose what is published before that.

        Raises UserError after this many seconds.
        """
        end = time.monotonic() + seconds
        while not (
            self.requests.get_subscription_count()
            and self.drafts.get_subscription_count()
            and self._node.count_publishers("verdict")
        ):
            if time.monotonic() > end:
                raise UserError("no cloud bridge is on the topics; start the node cloud_bridge")
            time.sleep(0.02)

    def connect(
        self, request_id: str, stamp: Time, preset: str, on_receive: OnReceive
    ) -> TopicTransport:
        """The transport of one decode; its messages carry ``stamp`` and ``preset``."""
        self._receivers[request_id] = on_receive
        return TopicTransport(self, request_id, stamp, preset)

    def disconnect(self, request_id: str) -> None:
        """Drop what arrives for this request from now on."""
        self._receivers.pop(request_id, None)

    def _on_verdict(self, message: Verdict) -> None:
        on_receive = self._receivers.get(message.request_id)
        if on_receive is not None:
            on_receive(from_verdict(message))

    def _on_prediction(self, message: Prediction) -> None:
        on_receive = self._receivers.get(message.request_id)
        if on_receive is not None:
            on_receive(message.payload.tobytes())


class TopicTransport:
    """The ``edge.transport.Transport`` of one decode over the bridge's topics."""

    def __init__(self, topics: BridgeTopics, request_id: str, stamp: Time, preset: str) -> None:
        self._topics, self._request_id, self._stamp = topics, request_id, stamp
        self._preset = preset
        self._sequence = 0
        self._draft_began = time.perf_counter()

    def send(self, message: ClientMessage) -> int:
        """Publish it; returns the bytes of its payload."""
        out: Draft | DecodeRequest
        if isinstance(message, DraftMessage):
            words = self._topics.texts.of(message.draft.tokens)
            out = to_draft(message, words, time.perf_counter() - self._draft_began)
            publisher = self._topics.drafts
        else:
            out = to_request(message, self._preset)
            publisher = self._topics.requests
        out.header.stamp = self._stamp
        out.request_id = self._request_id
        out.sequence = self._sequence
        self._sequence += 1
        publisher.publish(out)
        return len(out.payload)

    def restart_draft_time(self) -> None:
        """A verdict arrived: the ``draft_time`` of the next draft counts from here."""
        self._draft_began = time.perf_counter()

    def close(self) -> None:
        """Receive nothing more for this request."""
        self._topics.disconnect(self._request_id)
