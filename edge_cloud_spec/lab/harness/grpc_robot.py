"""A robot for a gRPC verifier: a draft model's runner, and a channel."""

from __future__ import annotations

import secrets
from contextlib import ExitStack, closing
from typing import Any

from ...edge.client import ClientSettings, VerifierClient
from ...edge.runner import DecodeRunner, DecodeSettings, Outcome
from ...models import EMBEDDED
from ...models.prompt import PromptSpec, Request


class GrpcRobot(ExitStack):
    """Decodes one request after another, until ``close``."""

    def __init__(self, address: str, model: Any, spec: PromptSpec) -> None:
        """model: a ``Vlm``, or a fake one, that drafts."""
        super().__init__()
        self.client = self.enter_context(closing(VerifierClient(ClientSettings(address))))
        self.runner = DecodeRunner(model, spec)

    def decode(self, request: Request, settings: DecodeSettings) -> Outcome:
        """Decode one request."""
        return self.runner.run(request, settings, secrets.randbits(64), self.client.connect)


def verifier_options(
    max_tokens: int,
    target: str = str(EMBEDDED / "target"),
    drafter: str = str(EMBEDDED / "drafter"),
) -> list[str]:
    """Options of ``serve`` for this pair, with one torch thread; an empty ``drafter``: none."""
    options = ["--target", target, "--threads", "1", "--max-tokens", str(max_tokens)]
    return [*options, "--drafter", drafter] if drafter else options


def engine_options(max_tokens: int, target: str, drafter: str, engine: str = "") -> list[str]:
    """Options of ``serve`` for our own engine or, with ``engine``, for a vLLM server of this
    target, which has no draft model."""
    if not engine:
        return verifier_options(max_tokens, target, drafter)
    return [*verifier_options(max_tokens, engine, ""), "--checkpoint", target]
