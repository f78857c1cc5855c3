"""One harness in virtual time: robots' links and their verifiers, with any models and impairments.

Runner, worker and codec are the real ones. Virtual time only skips the waiting: the robot's thread
advances the clock, and while it drafts or waits, everything else that is due runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.models.prompt import PromptSpec

from .scripted.model import FakeVlm, Sleep
from .virtual_time import Impairments, Timeline, VirtualCloud, VirtualInbox, VirtualLink


class Models(Protocol):
    """The models of a robot and of its verifiers, which are prompted by ``spec``."""

    @property
    def spec(self) -> PromptSpec:
        """The prompt specification."""

    def draft_model(self, sleep: Sleep) -> FakeVlm:
        """A robot's draft model, which spends the time of its passes by ``sleep``."""

    def worker(self, clock: Callable[[], float], sleep: Sleep, verifier: int = 0) -> Worker:
        """The worker of the verifier with this number, on this clock."""


class VirtualHarness:
    """Links with these impairments to ``verifiers`` verifiers, all in virtual time."""

    def __init__(
        self,
        models: Models,
        *impairments: Impairments,
        verifiers: int = 1,
        job_s: float = 0.0,
        max_steps: float = math.inf,
    ) -> None:
        """job_s: see ``VirtualCloud``. max_steps: see ``Timeline``."""
        self.timeline = timeline = Timeline(max_steps)
        self.clouds = [
            VirtualCloud(timeline, partial(models.worker, verifier=number), job_s, self.on_job)
            for number in range(verifiers)
        ]
        self.links = [VirtualLink(timeline, each, *self.clouds) for each in impairments]
        self.make_inbox = partial(VirtualInbox, timeline)

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.timeline.now

    @property
    def link(self) -> VirtualLink:
        """The link of the first robot."""
        return self.links[0]

    @property
    def worker(self) -> Worker:
        """The worker of the verifier that the first robot uses now."""
        return self.link.cloud.worker

    def on_job(self) -> None:
        """Called after each job of a verifier."""
