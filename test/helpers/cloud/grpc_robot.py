"""Robots on a real gRPC stream: one decodes with toy models, one is driven by hand."""

from __future__ import annotations

import io
import queue
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from typing import Any

from PIL import Image

from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.dialects import ours
from edge_cloud_spec.edge.client import VerifierClient
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.edge.events import Emit, LinkLost, LinkUp
from edge_cloud_spec.edge.link.route import ClientSettings
from edge_cloud_spec.edge.runner import DecodeRunner, Outcome
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec.nav.history import Turn
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.codec import decode_server, encode_client
from edge_cloud_spec.wire.frames import ClientFrame, Head, ServerFrame
from edge_cloud_spec.wire.messages import Open
from edge_cloud_spec_lab.harness.toy import ToyVlm, own_answer, spec_of

POLICIES = {
    "greedy": GREEDY,
    "coupled": SamplingPolicy(0.8, seed=5),
    "rejection": SamplingPolicy(0.8),
}
_FRAME = io.BytesIO()
Image.effect_noise((224, 224), 60).save(_FRAME, "JPEG")
FRAME = _FRAME.getvalue()
REQUEST = ours().request("find the silver bottle", FRAME)


def settings(preset: str = "dsd", rule: str = "greedy", **changes: Any) -> DecodeSettings:
    return DecodeSettings(load_preset(preset), rule, POLICIES[rule], reply_timeout=150.0, **changes)


def toy_robot() -> DecodeRunner:
    return DecodeRunner(ToyVlm(1, 0.5), spec_of(60))  # type: ignore[arg-type]


def decode_at(
    address: str,
    how: str | DecodeSettings = "dsd",
    nonce: int = 1,
    reply_timeout: float = 150.0,
    on_emit: Callable[[Emit], None] = lambda emit: None,
    on_item: Callable[[Any], None] = lambda item: None,
    **client: Any,
) -> Outcome:
    """One decode of a toy robot at this verifier. how: a preset, which is then coupled, or more.

    on_item: of all that its link receives, before the robot has it. client: of the link.
    """
    chosen = settings(how, "coupled") if isinstance(how, str) else how
    chosen = replace(chosen, reply_timeout=reply_timeout)
    with closing(VerifierClient(ClientSettings(address, **client))) as link:

        def connect(on_receive: Callable[[Any], None]) -> Any:
            def tee(item: Any) -> None:
                on_item(item)
                on_receive(item)

            return link.connect(tee)

        return toy_robot().run(REQUEST, chosen, nonce, connect, on_emit)


OWN = tuple(own_answer(ToyVlm(1), POLICIES["coupled"], 60)[0])


class Talk(AbstractContextManager["Talk"]):
    """A robot that says what a test wants.

    Like any robot it says again what was lost where the first connection was late, which a loaded
    machine's is; a test hears nothing of that.
    """

    def __init__(self, address: str, **changes: Any) -> None:
        self.heard: queue.Queue[Any] = queue.Queue()
        self._said: list[ClientFrame] = []
        self._late = False
        self.link = VerifierClient(ClientSettings(address, **changes))
        self.stream = self.link.open(self._on_receive)

    def say(self, message: Any) -> None:
        raw = isinstance(message, bytes)
        frame = ClientFrame(Head(""), message) if raw else encode_client(message)
        self._said.append(frame)
        self.stream.send(frame)

    def _on_receive(self, item: Any) -> None:
        if isinstance(item, LinkLost) and item.reason.startswith("cannot reach"):
            self._late = True
        elif isinstance(item, LinkUp) and self._late:
            self._late = False
            for frame in self._said:
                self.stream.send(frame)
        else:
            self.heard.put(item)

    def hear(self) -> Any:
        item = self.heard.get(timeout=150)
        return decode_server(item) if isinstance(item, ServerFrame) else item

    def ask(self, message: Any) -> Any:
        """Say this; what is heard next."""
        self.say(message)
        return self.hear()

    def __exit__(self, *_: object) -> None:
        self.link.close()


def opening(
    nonce: int = 1, jpeg: bytes = b"jpeg", turns: Sequence[Turn] = (), **changes: Any
) -> Open:
    """What a robot asks with; turns: its mission's earlier ones, of which it says all."""
    request = replace(CLAUSES.request("find", jpeg, turns=turns), continues=bool(turns))
    message = Open(nonce, request, POLICIES["coupled"], "coupled")
    return replace(message, tokenizer_digest=ToyVlm.tokenizer_digest, **changes)
