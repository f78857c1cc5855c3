"""What the drafter publishes and hears on its own topics: decodes, verified words, figures."""

from __future__ import annotations

import json
import threading
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from builtin_interfaces.msg import Time
from rclpy.node import Node
from rclpy.publisher import Publisher
from std_msgs.msg import String

from edge_cloud_spec import __version__
from edge_cloud_spec.msg import (
    DecodeRequest,
    DecodeStats,
    Draft,
    Prediction,
    Verdict,
    VerifiedTokens,
)

from ...edge.events import Emit, OnReceive
from ...edge.runner import DecodeSettings, Outcome
from ...errors import UserError
from ...models.tokenizer import TextStream, TokenTexts
from ...nav.decision_loop import Decide
from ...nav.events import ENDED
from ...wire.messages import ClientMessage, DraftMessage
from ..bridge_messages import from_topic, to_draft, to_request
from ..runtime.qos import DECODE, LATCHED
from ..runtime.subscription_thread import SubscriptionThread
from .camera import CameraFrame
from .settings import WITHOUT_CLOUD, DrafterSettings


class BridgeTopics:
    """The topics that the bridge relays; a message from the cloud goes to its request's decode."""

    def __init__(self, node: Node, texts: TokenTexts) -> None:
        """``texts`` gives the words of a draft."""
        self._node = node
        self.texts = texts
        self.receivers: dict[str, OnReceive] = {}
        self.requests = node.create_publisher(DecodeRequest, "decode_request", DECODE)
        self.drafts = node.create_publisher(Draft, "draft", DECODE)

    def subscribe(self, subscriptions: SubscriptionThread) -> None:
        """Hear what the bridge says; the caller starts ``subscriptions``."""
        subscriptions.subscribe(Verdict, "verdict", self._hear, DECODE)
        subscriptions.subscribe(Prediction, "prediction", self._hear, DECODE)

    def connect(
        self, request_id: str, stamp: Time, settings: DrafterSettings, on_receive: OnReceive
    ) -> TopicTransport:
        """The transport of one decode; its messages carry ``stamp`` and the preset.

        Waits for the bridge, since the topics lose what is published before it is there. Raises
        UserError after ``patience``.
        """
        end = time.monotonic() + settings.patience
        while not (
            self.requests.get_subscription_count()
            and self.drafts.get_subscription_count()
            and self._node.count_publishers("verdict")
        ):
            if time.monotonic() > end:
                raise UserError("no cloud bridge is on the topics; start the node cloud_bridge")
            time.sleep(0.02)
        self.receivers[request_id] = on_receive
        self.restart_draft_time()
        return TopicTransport(self, request_id, stamp, settings.preset)

    def restart_draft_time(self) -> None:
        """A verdict arrived: the ``draft_time`` of the next draft counts from here."""
        self.draft_began = time.perf_counter()

    def _hear(self, message: Verdict | Prediction) -> None:
        on_receive = self.receivers.get(message.request_id)
        if on_receive is not None:
            on_receive(from_topic(message))


class TopicTransport:
    """The ``edge.transport.Transport`` of one decode over the bridge's topics."""

    def __init__(self, topics: BridgeTopics, request_id: str, stamp: Time, preset: str) -> None:
        self._topics, self._request_id, self._stamp = topics, request_id, stamp
        self._preset = preset
        self._sequence = 0

    def send(self, message: ClientMessage) -> int:
        """Publish it; returns the bytes of its payload."""
        out: Draft | DecodeRequest
        if isinstance(message, DraftMessage):
            words = self._topics.texts.of(message.draft.tokens)
            out = to_draft(message, words, time.perf_counter() - self._topics.draft_began)
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

    def close(self) -> None:
        """Receive nothing more for this request."""
        self._topics.receivers.pop(self._request_id, None)


class VerifiedWords:
    """Publishes each piece of an answer as soon as its tokens are settled."""

    def __init__(self, publisher: Publisher, tokenizer: Any, decide: Decide[CameraFrame]) -> None:
        self._publisher, self._decide = publisher, decide
        self._stream = TextStream(tokenizer)
        self._count = 0
        self._verified = True

    @property
    def answer(self) -> str:
        """All words so far."""
        return self._stream.text

    def emit(self, emit: Emit) -> None:
        """Publish the tokens that a verdict settled, with their text."""
        self._verified = emit.verified
        self._publish(emit.tokens, self._stream.add(emit.tokens))

    def finish(self, reason: str) -> None:
        """Publish that nothing follows, and why."""
        self._publish((), self._stream.add((), ended=reason == ENDED), reason)

    def _publish(self, tokens: tuple[int, ...], text: str, finish_reason: str = "") -> None:
        message = VerifiedTokens(
            request_id=self._decide.request,
            instruction=self._decide.instruction,
            stops=self._decide.stops,
            position=self._count,
            tokens=tokens,
            text=text,
            answer=self.answer,
            verified=self._verified,
            finished=bool(finish_reason),
            finish_reason=finish_reason,
        )
        message.header.stamp = self._decide.frame.stamp
        message.camera_clock_offset = self._decide.frame.clock_offset
        self._count += len(tokens)
        self._publisher.publish(message)


def to_decode_stats(
    decide: Decide[CameraFrame],
    settings: DrafterSettings,
    decode: DecodeSettings,
    outcome: Outcome,
) -> DecodeStats:
    """What a decision cost, for the topic ``decode_stats``."""
    stats, rounds = outcome.stats, outcome.stats.rounds
    message = DecodeStats(
        request_id=decide.request,
        preset=WITHOUT_CLOUD if decode.preset is settings.preset_without_cloud else settings.preset,
        rule=settings.rule,
        seed=decode.policy.seed,
        tokens=len(outcome.tokens),
        rounds=len(rounds),
        drafted=stats.drafted,
        accepted=stats.accepted,
        stale=stats.stale,
        up_bytes=stats.up_bytes,
        down_bytes=stats.down_bytes,
        tokens_per_second=len(outcome.tokens) / outcome.seconds,
        draft_ms=1e3 * sum(r.sent - r.start for r in rounds),
        verify_ms=1e3 * sum(r.verify_s for r in rounds),
        link_ms=1e3 * sum(r.link_s for r in rounds),
        total_ms=1e3 * outcome.seconds,
        overhead_ms=[1e3 * r.overhead_s for r in rounds],
        finish_reason=outcome.reason,
    )
    message.header.stamp = decide.frame.stamp
    return message


SETTINGS = (
    *("preset", "rule", "temperature", "top_k", "top_p", "seed"),
    *("grammar", "order", "explain", "max_tokens", "dialect"),
)


class RunInfo:
    """What a run's words depend on, on the latched topic ``run_info``: for bags and for people.

    JSON with both models' identities, the decoding's settings and the versions."""

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
    """The versions of this package and of the libraries that compute."""
    found = [f"edge_cloud_spec {__version__}"]
    for name in ("torch", "transformers"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)
