"""A robot for a gRPC verifier: a draft model's runner, and a channel; and what it decides."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.dialects import ours
from edge_cloud_spec.edge.client import VerifierClient
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.edge.link.route import ClientSettings
from edge_cloud_spec.edge.runner import DecodeRunner, Outcome
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.prompt import PromptSpec
from edge_cloud_spec.nav.history import HistorySpec
from edge_cloud_spec.pilot.memory import MissionMemory
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.request import Request

from ..tokens import ANSWER_TOKENS
from .server import InProcessServer

if TYPE_CHECKING:
    from edge_cloud_spec.models.vlm import Vlm


class GrpcRobot(ExitStack):
    """Decodes one request after another, until ``close``."""

    def __init__(self, address: str, model: Any, spec: PromptSpec, token: str = "") -> None:
        """model: a ``Vlm``, or a fake one, that drafts. token: the verifier's, if it wants one."""
        super().__init__()
        settings = ClientSettings(address, token=token)
        self.client = self.enter_context(closing(VerifierClient(settings)))
        self.runner = DecodeRunner(model, spec)

    def decode(self, request: Request, settings: DecodeSettings) -> Outcome:
        """Decode one request."""
        return self.runner.run(request, settings, secrets.randbits(64), self.client.connect)


Decide = Callable[[str, str, bytes, str], tuple[Request, Outcome, str]]
"""Decides for the instruction of a mission, named first, on a frame, with the clauses in an order;
returns the request, the outcome, and the answer."""


@contextmanager
def remembering_robot(
    target: Vlm, drafter: Vlm, spec: PromptSpec, preset: str, history: HistorySpec
) -> Iterator[Decide]:
    """A context with the decisions of a robot, which remembers so much, and a verifier in this
    process. UserError: a decision has failed."""
    settings, memory = DecodeSettings(load_preset(preset)), MissionMemory()
    dialect = replace(ours(), history=history)

    def decide(
        mission: str, instruction: str, jpeg: bytes, order: str
    ) -> tuple[Request, Outcome, str]:
        request = dialect.request(instruction, jpeg, order, memory.turns(mission, history))
        outcome = robot.decode(request, settings)
        if not outcome.completed:
            raise UserError(f"a decision has failed: {outcome.text}")
        text = target.tokenizer.decode(outcome.tokens, skip_special_tokens=True)
        memory.add(mission, history, jpeg, text)
        return request, outcome, text

    with (
        InProcessServer(Worker(target, spec)) as cloud,
        GrpcRobot(cloud.address, drafter, spec) as robot,
    ):
        robot.runner.remember(spec.to_bytes())
        yield decide


def verifier_options(
    target: str = str(EMBEDDED / "target"),
    drafter: str = str(EMBEDDED / "drafter"),
    engine: str = "",
) -> list[str]:
    """Options of ``serve`` for this pair, with one torch thread, or with ``engine`` for a vLLM
    server of this target, which has no draft model; an empty ``drafter``: none."""
    options = ["--target", engine or target, "--threads", "1", "--max-tokens", str(ANSWER_TOKENS)]
    if engine:
        return [*options, "--checkpoint", target]
    return [*options, "--drafter", drafter] if drafter else options
