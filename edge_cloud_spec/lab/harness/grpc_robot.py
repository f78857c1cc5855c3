"""A robot at a verifier: its draft model's runner, and its channel."""

from __future__ import annotations

import secrets
from typing import Any

from ...edge.client import ClientSettings, VerifierClient
from ...edge.runner import DecodeRunner, DecodeSettings, Outcome
from ...models import EMBEDDED
from ...models.prompt import PromptSpec, Request


class GrpcRobot:
    """Decodes one request after another; a context manager, which ends the channel."""

    def __init__(self, address: str, model: Any, spec: PromptSpec, token: str = "") -> None:
        """model: a ``Vlm``, or a fake one, that drafts."""
        self.client = VerifierClient(ClientSettings(address, token=token))
        self.runner = DecodeRunner(model, spec)

    def decode(self, request: Request, settings: DecodeSettings) -> Outcome:
        """One answer."""
        return self.runner.run(request, settings, secrets.randbits(64), self.client.connect)

    def close(self) -> None:
        """End the channel."""
        self.client.close()

    def __enter__(self) -> GrpcRobot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def verifier_options(
    max_tokens: int,
    target: str = str(EMBEDDED / "target"),
    drafter: str = str(EMBEDDED / "drafter"),
) -> list[str]:
    """Options of ``serve`` for this pair, on one thread of torch; no drafter where it is empty."""
    options = ["--target", target, "--threads", "1", "--max-tokens", str(max_tokens)]
    return [*options, "--drafter", drafter] if drafter else options


def engine_options(max_tokens: int, target: str, drafter: str, engine: str = "") -> list[str]:
    """Those of a verifier with our own engine, or of one before a vLLM server of this target,
    which has no draft model."""
    if not engine:
        return verifier_options(max_tokens, target, drafter)
    return [*verifier_options(max_tokens, engine, ""), "--checkpoint", target]
