"""The drafter's topics: decode requests, drafts, verified words, statistics."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from rclpy.node import Node
from rclpy.time import Time
from std_msgs.msg import String

from edge_cloud_spec import __version__
from edge_cloud_spec.msg import (
    DecodeRequest,
    DecodeStats,
    Draft,
    InstructionStatus,
    LinkState,
    Prediction,
    Verdict,
    VerifiedTokens,
)

from ...edge.decode_options import DecodeOptions
from ...edge.events import OnReceive
from ...errors import UserError, installed_version
from ...nav.events import Words
from ...nav.status import GoalStatus
from ...options import flat_fields
from ...pilot.decision_loop import Decide
from ...pilot.pilot import Decided
from ...pilot.settings import WITHOUT_CLOUD, DrafterSettings
from ...throttle import Reports
from ...wire.messages import FAILED, ClientMessage, DraftMessage, Open, WireError
from ..bridge_messages import from_topic, to_draft, to_request
from ..nav_messages import to_free_space, to_reading
from ..runtime.qos import DECODE, LATCHED, RELIABLE
from ..runtime.subscription_thread import SubscriptionThread

LINK_STATE = "link_state"


class DrafterTopics:
    """The drafter's publishers, and the transport of its decodes over the bridge's topics.

    ``settings``: of the current decision.
    """

    def __init__(self, node: Node, tokenizer: Any) -> None:
        self._node, self._text = node, cache(lambda token: tokenizer.decode([token]))
        self._published: GoalStatus | None = None
        self._unreadable = Reports(node.get_logger().warning)
        self._has_link_state, self._link_problem = False, ""
        self.settings = DrafterSettings()
        self.receivers: dict[str, OnReceive] = {}
        self.requests = node.create_publisher(DecodeRequest, "decode_request", DECODE)
        self.drafts = node.create_publisher(Draft, "draft", DECODE)
        self.stats = node.create_publisher(DecodeStats, "decode_stats", RELIABLE)
        self._verified_tokens = node.create_publisher(VerifiedTokens, "verified_tokens", DECODE)
        self._instruction_status = node.create_publisher(
            InstructionStatus, "instruction_status", LATCHED
        )

    def subscribe(
        self, subscriptions: SubscriptionThread, on_link_lost: Callable[[], None]
    ) -> None:
        """Subscribe to the bridge's topics; the caller starts ``subscriptions``."""
        subscriptions.subscribe(Verdict, "verdict", self._receive, DECODE)
        subscriptions.subscribe(Prediction, "prediction", self._receive, DECODE)

        def on_link_state(message: LinkState) -> None:
            is_lost = message.state == LinkState.LOST
            problem = f"the link is lost: {message.detail}" if is_lost else ""
            self._has_link_state, self._link_problem = True, problem
            if self._link_problem:
                on_link_lost()

        subscriptions.subscribe(LinkState, LINK_STATE, on_link_state, LATCHED)

    @property
    def link_problem(self) -> str:
        """Why the link is lost, by the bridge or because that is gone; empty if it is not."""
        topic = self._node.resolve_topic_name(LINK_STATE)
        gone = self._has_link_state and not self._node.count_publishers(topic)
        return self._link_problem or ("the cloud bridge is gone" if gone else "")

    def connect(self, decide: Decide, on_receive: OnReceive) -> TopicTransport:
        """The transport of one decision, whose messages carry the frame's stamp and the preset.

        Waits for the bridge's subscriptions, since earlier messages would be lost. Raises UserError
        after ``reply_timeout``.
        """
        end = time.monotonic() + self.settings.reply_timeout
        while not (
            self.requests.get_subscription_count()
            and self.drafts.get_subscription_count()
            and self._node.count_publishers("verdict")
        ):
            if time.monotonic() > end:
                raise UserError("no cloud bridge is on the topics; start the node cloud_bridge")
            time.sleep(0.02)
        self.receivers[decide.request] = on_receive
        self._draft_began = time.perf_counter()
        return TopicTransport(self, decide)

    def to_draft(self, message: DraftMessage) -> Draft:
        """The topic's message of a draft, with its words and the time since the last verdict."""
        words = [self._text(token) for token in message.draft.tokens]
        return to_draft(message, words, time.perf_counter() - self._draft_began)

    def publish_words(self, words: Words) -> None:
        """Publish a piece of an answer."""
        message = VerifiedTokens(
            request_id=words.request,
            goal_id=words.goal_id,
            instruction=words.instruction,
            stops=words.stops,
            position=words.position,
            tokens=words.tokens,
            text=words.text,
            answer=words.answer,
            verified=words.verified,
            finished=words.finished,
            finish_reason=words.finish_reason,
            camera_clock_offset=words.camera_offset,
            **to_reading(words.reading),
        )
        message.header.stamp = Time(nanoseconds=words.stamp).to_msg()
        self._verified_tokens.publish(message)
        self._draft_began = time.perf_counter()

    def publish_status(self, status: GoalStatus) -> None:
        """Publish on ``instruction_status``; logs all changes except those of the detail."""
        before, self._published = self._published, status
        if before is None or replace(before, detail=status.detail) != status:
            self._node.get_logger().info(f"instruction_status: {status}")
        message = InstructionStatus(**status.fields)
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._instruction_status.publish(message)

    def _receive(self, message: Verdict | Prediction) -> None:
        on_receive = self.receivers.get(message.request_id)
        if on_receive is None:
            return
        try:
            on_receive(from_topic(message))
        except WireError as error:
            self._unreadable.add(f"what the bridge sent is dropped: {error}", time.monotonic())


class TopicTransport:
    """The ``edge.events.Transport`` of one decode over the bridge's topics."""

    def __init__(self, topics: DrafterTopics, decide: Decide) -> None:
        self._topics, self._decide = topics, decide
        self._preset = topics.settings.preset
        self._sequence = 0

    def send(self, message: ClientMessage) -> int:
        """Publish a message; returns its payload's size in bytes."""
        out: Draft | DecodeRequest
        if isinstance(message, DraftMessage):
            out, publisher = self._topics.to_draft(message), self._topics.drafts
        else:
            out, publisher = to_request(message, self._preset), self._topics.requests
            if isinstance(message, Open):
                out.instruction = self._decide.instruction
                out.free_space = to_free_space(self._decide.free_space)
        out.header.stamp = Time(nanoseconds=self._decide.frame.stamp).to_msg()
        out.request_id = self._decide.request
        out.sequence = self._sequence
        self._sequence += 1
        publisher.publish(out)
        return len(out.payload)

    def close(self) -> None:
        """Stop receiving for this request."""
        self._topics.receivers.pop(self._decide.request, None)


def to_decode_stats(decided: Decided, settings: DrafterSettings) -> DecodeStats:
    """A decision's statistics for the topic ``decode_stats``."""
    decide, outcome = decided.decide, decided.outcome
    if outcome is None:
        return DecodeStats(request_id=decide.request, finish_reason=FAILED)
    stats, rounds = outcome.stats, outcome.stats.rounds
    message = DecodeStats(
        request_id=decide.request,
        preset=WITHOUT_CLOUD if decided.alone else settings.preset,
        rule=settings.rule,
        seed=decided.seed,
        tokens=len(outcome.tokens),
        rounds=len(rounds),
        drafted=stats.drafted,
        accepted=stats.accepted,
        stale=stats.stale,
        up_bytes=stats.up_bytes,
        down_bytes=stats.down_bytes,
        tokens_per_second=len(outcome.tokens) / outcome.seconds if outcome.seconds else 0.0,
        draft_ms=1e3 * sum(r.sent - r.start for r in rounds),
        verify_ms=1e3 * sum(r.verify_s for r in rounds),
        link_ms=1e3 * sum(r.link_s for r in rounds),
        total_ms=1e3 * outcome.seconds,
        overhead_ms=[1e3 * r.overhead_s for r in rounds],
        finish_reason=outcome.reason,
    )
    message.header.stamp = Time(nanoseconds=decide.frame.stamp).to_msg()
    return message


# What answers depend on.
PUBLISHED_SETTINGS = (*flat_fields(DecodeOptions()), "explain", "history")


class RunInfo:
    """Publishes what the answers of a run depend on, on the latched topic ``run_info``.

    JSON with both models' identities, the decoding's settings, and the versions.
    """

    def __init__(self, node: Node) -> None:
        self._publisher = node.create_publisher(String, "run_info", LATCHED)
        self._target = self._drafter = self._text = ""
        self._lock = threading.Lock()  # the executor and the model's thread both update

    def update(self, settings: DrafterSettings, *, drafter: str = "", target: str = "") -> None:
        """Publish if something changed, once the draft model is known; what is not given stays as
        before."""
        with self._lock:
            self._drafter, self._target = drafter or self._drafter, target or self._target
            declared = flat_fields(settings)
            chosen = {name: declared[name][0] for name in PUBLISHED_SETTINGS}
            models = {"target": self._target, "drafter": self._drafter, "versions": versions()}
            text = json.dumps({**models, **chosen})
            if self._drafter and text != self._text:
                self._text = text
                self._publisher.publish(String(data=text))


@cache
def versions() -> str:
    """The versions of this package, and of torch and transformers where they are installed."""
    found = {name: installed_version(name) for name in ("torch", "transformers")}
    known = (f"{name} {version}" for name, version in found.items() if version)
    return ", ".join([f"edge_cloud_spec {__version__}", *known])
