"""A scripted robot, cloud and link in virtual time.

Runner, worker and codec are the real ones. Virtual time only skips the waiting: the robot's thread
advances the clock, and while it drafts or waits, everything else that is due runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from edge_cloud_spec.cloud.model_thread.sessions import WorkerLimits
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.edge.events import Connect, Inbox
from edge_cloud_spec.edge.runner import DecodeRunner, DecodeSettings, Outcome

from .cost_profiles import CostProfile
from .emulated_link import LinkProfile
from .scripted.model import (
    CALIBRATED,
    BusyTime,
    DraftVlm,
    ModelPass,
    ScriptedPair,
    Sleep,
    own_answer,
    request_of,
    scripted_worker,
)
from .virtual_time import (
    ProfileImpairments,
    Timeline,
    VirtualCloud,
    VirtualInbox,
    VirtualLink,
)

REPLY_TIMEOUT = 60.0  # s


def seeded_rule(temperature: float) -> str:
    """The rule whose answer does not depend on drafts: greedy at temperature 0, else coupled."""
    return "coupled" if temperature else "greedy"


@dataclass(frozen=True)
class DecodedAnswer:
    """A decode's outcome, and the target's answer ``own``."""

    outcome: Outcome
    own: tuple[int, ...]

    @property
    def equal(self) -> bool:
        """Whether it is complete and equals the target's answer."""
        return self.outcome.completed and self.outcome.tokens == self.own


def with_cost_profile_length(preset: Preset, cost_profile: CostProfile) -> Preset:
    """The preset with chains of the cost profile's length."""
    return replace(preset, draft_length=cost_profile.gamma) if preset.draft_length else preset


class ScriptedRobot:
    """Decodes with a cost profile's draft model, one answer after the other."""

    def __init__(
        self,
        cost_profile: CostProfile,
        connect: Connect,
        clock: Callable[[], float],
        sleep: Sleep,
        reply_timeout: float = REPLY_TIMEOUT,
        inbox: Callable[[], Inbox] = Inbox,
        pair: ScriptedPair = CALIBRATED,
    ) -> None:
        """reply_timeout: seconds within which the cloud must reply, outages included."""
        self.cost_profile = cost_profile
        self.connect, self._inbox, self._reply_timeout = connect, inbox, reply_timeout
        self._nonce = 0
        self.busy = BusyTime(sleep)
        vlm: Any = DraftVlm(cost_profile, self.busy, pair.drafter)
        self.runner = DecodeRunner(vlm, pair.spec, clock, instructions=pair.instructions)
        self.runner.remember(pair.spec.to_bytes())  # as after any first decode

    def decode(
        self, preset: Preset, tokens: int, seed: int, policy: SamplingPolicy = GREEDY
    ) -> DecodedAnswer:
        """Decode ``tokens`` tokens of the answer with this seed; chains have the profile's
        length."""
        preset = with_cost_profile_length(preset, self.cost_profile)
        rule = seeded_rule(policy.temperature)
        settings = DecodeSettings(preset, rule, policy, tokens, self._reply_timeout)
        self._nonce += 1
        outcome = self.runner.run(
            request_of(seed),
            settings,
            self._nonce,
            self.connect,
            inbox=self._inbox(),
        )
        return DecodedAnswer(outcome, own_answer(seed, policy, tokens))


class VirtualHarness:
    """A cost profile's robot and cloud on an emulated link, in virtual time."""

    def __init__(
        self,
        cost_profile: CostProfile,
        profile: LinkProfile,
        seed: int = 0,
        limits: WorkerLimits | None = None,
        cloud_drafts: bool = False,
        pair: ScriptedPair = CALIBRATED,
    ) -> None:
        """cloud_drafts: the cloud has a draft model, too."""
        self.timeline = timeline = Timeline()
        self.passes: list[ModelPass] = []  # of the target
        make_worker = partial(
            scripted_worker,
            cost_profile,
            limits=limits,
            drafts=cloud_drafts,
            pair=pair,
            passes=self.passes,
        )
        cloud = VirtualCloud(timeline, make_worker)
        self.worker, self.cloud_busy = cloud.worker, cloud.busy
        self.link = VirtualLink(timeline, cloud, ProfileImpairments(profile, seed))
        inbox: Any = partial(VirtualInbox, timeline)
        reply_timeout = REPLY_TIMEOUT + profile.longest_outage_s
        self.robot = ScriptedRobot(
            cost_profile,
            self.link.connect,
            timeline.clock,
            timeline.sleep,
            reply_timeout,
            inbox,
            pair,
        )
