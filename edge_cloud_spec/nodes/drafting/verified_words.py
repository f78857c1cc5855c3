"""The settled words of one request, on the topic ``verified_tokens``."""

from __future__ import annotations

from typing import Any

from rclpy.publisher import Publisher

from edge_cloud_spec.msg import VerifiedTokens

from ...edge.events import Emit
from ...models.tokenizer import TextStream
from .decision_gate import DecisionTask


class VerifiedWords:
    """Publishes each piece of an answer as soon as its tokens are settled."""

    def __init__(
        self, publisher: Publisher, tokenizer: Any, request_id: str, task: DecisionTask
    ) -> None:
        self._publisher, self._request_id, self._task = publisher, request_id, task
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
        self._publish((), "", reason)

    def _publish(self, tokens: tuple[int, ...], text: str, finish_reason: str = "") -> None:
        message = VerifiedTokens(
            request_id=self._request_id,
            instruction=self._task.instruction,
            stops=self._task.stops,
            position=self._count,
            tokens=tokens,
            text=text,
            answer=self.answer,
            verified=self._verified,
            finished=bool(finish_reason),
            finish_reason=finish_reason,
        )
        message.header.stamp = self._task.frame.stamp
        message.camera_clock_offset = self._task.frame.clock_offset
        self._count += len(tokens)
        self._publisher.publish(message)
