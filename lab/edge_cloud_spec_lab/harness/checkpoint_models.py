"""The models of a checkpoint in virtual time: their passes are real, and take the time that is
said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.models.checkpoint import checkpoint_directory
from edge_cloud_spec.models.draft_head import DraftHead, has_head
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import Prompt, PromptSpec
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.request import Message, Picture, Request, with_pictures

from ..sim.camera import encode_jpeg
from .reference import generate, load_reference
from .scripted.model import Sleep
from .toy import PROMPT_S

NOISE_PICTURE_PX = 56  # of a side of the pictures, which are noise


@dataclass(frozen=True)
class CheckpointModels:
    """A target and a draft model of it, by their directories (``Models``).

    max_tokens: of an answer. draft_pass_s: a pass of the robot's draft model, s; the cloud's passes
    take no time.
    """

    target: str
    drafter: str
    max_tokens: int
    draft_pass_s: float

    @property
    def spec(self) -> PromptSpec:
        """Of the target, with the vocabulary of both."""
        spec, drafter = _loaded(self.target, 0).spec(self.max_tokens), _loaded(self.drafter, 0)
        return replace(spec, vocabulary=min(spec.vocabulary, drafter.vocabulary))

    def request(self, request: Request) -> Request:
        """The same with real pictures, or none if the target reads text alone."""
        if _loaded(self.target, 0).reads_pictures:
            return replace(request, messages=with_pictures(request.messages, _real))
        messages = (Message(each.role, (each.text,)) for each in request.messages)
        return replace(request, messages=tuple(messages))

    def draft_model(self, sleep: Sleep) -> Any:
        """The robot's draft model, which has read nothing yet."""
        model = _loaded(self.drafter, 0)
        model.use_memory(KvMemory())
        return _TimedDrafter(model, self.draft_pass_s, sleep)

    def worker(self, clock: Callable[[], float], sleep: Sleep, verifier: int = 0) -> Worker:
        """A worker; each verifier has models of its own, where the target has a head, that."""
        target = _loaded(self.target, 1 + verifier)
        directory = checkpoint_directory(self.target)
        head = DraftHead.load(directory, target) if has_head(directory) else None
        drafter = None if head else _loaded(self.drafter, 3 + verifier)
        return Worker(target, self.spec, drafter, WorkerLimits(sessions=1000), clock, head=head)

    def own_answer(
        self, request: Request, policy: SamplingPolicy, longest: int
    ) -> tuple[list[int], str]:
        """The target's answer by transformers' ``generate``, and why it ends."""
        tokens = _own_answer(self.target, request, policy, replace(self.spec, max_tokens=longest))
        return list(tokens), "end" if tokens[-1] in self.spec.end_ids else "length"


@cache
def _loaded(directory: str, number: int) -> Vlm:
    """A model of a directory; those of different numbers share nothing: 0 is the robot's, 1 and 2
    are the verifiers' targets, 3 and 4 their drafters."""
    return load(directory, threads=1)


@cache
def _reference(directory: str) -> Any:
    return load_reference(directory, _loaded(directory, 0))


@lru_cache(1000)  # of those that are greedy
def _own_answer(
    directory: str, request: Request, policy: SamplingPolicy, spec: PromptSpec
) -> tuple[int, ...]:
    prompt = _loaded(directory, 0).prompt(request, spec)
    return generate(_reference(directory), prompt, spec, policy)


@cache
def _real(picture: Picture) -> Picture:
    rng = np.random.default_rng([*picture.data])
    return Picture.of(
        encode_jpeg(rng.integers(0, 255, (NOISE_PICTURE_PX, NOISE_PICTURE_PX, 3), np.uint8), 90)
    )


class _TimedDrafter:
    """A draft model whose passes take time."""

    def __init__(self, model: Vlm, pass_s: float, sleep: Sleep) -> None:
        self._model, self._pass_s, self._sleep = model, pass_s, sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def prompt(self, request: Request, spec: PromptSpec) -> Prompt:
        """As ``Drafter``."""
        self._sleep(PROMPT_S)
        return self._model.prompt(request, spec)

    def prefill(self, prompt: Prompt) -> Any:
        """As ``Drafter``; its steps and the passes of its session take time."""
        prefill = self._model.prefill(prompt)
        prefill.step = self._timed(prefill.step)  # type: ignore[method-assign]
        session = prefill._session  # known before it is read
        session.grow = self._timed(session.grow)  # type: ignore[method-assign]
        session.logits_after = self._timed(session.logits_after)  # type: ignore[method-assign]
        return prefill

    def _timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            self._sleep(self._pass_s)
            return work(*arguments, **named)

        return timed
