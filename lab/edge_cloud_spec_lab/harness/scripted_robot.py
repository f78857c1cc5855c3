"""A robot whose models have a cost profile's times, in virtual and in real time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.edge.events import Connect, Inbox
from edge_cloud_spec.edge.runner import DecodeRunner, Outcome
from edge_cloud_spec.presets import load_preset

from .cost_profiles import CostProfile
from .emulated_link import LinkProfile
from .scripted.model import BusyTime, ScriptedModels, Sleep, own_answer, request_of
from .virtual import VirtualHarness
from .virtual_time import ProfileImpairments

SCRIPTED_REPLY_TIMEOUT_S = 60.0
CLOUD_MTP = "cloud_mtp"  # cloud_sd, whose drafter is the head of the cost profile's target


def lab_preset(name: str) -> Preset:
    """The preset of this name, which may be ``cloud_mtp``; raises UserError."""
    if name == CLOUD_MTP:
        return replace(load_preset("cloud_sd"), name=CLOUD_MTP)
    return load_preset(name)


def draft_model_in_cloud(
    cost_profile: CostProfile, preset: Preset, others: Iterable[Preset] = ()
) -> bool:
    """Whether the cloud has a draft model under this preset.

    A cloud that has one for ``cloud_sd``, among ``others``, has it for all, unless its target has a
    head.
    """
    if preset.name == CLOUD_MTP or preset.drafter == "cloud":
        return preset.name != CLOUD_MTP
    return cost_profile.head is None and any(each.drafter == "cloud" for each in others)


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
    """Decodes one answer after the other. ``busy``: the total time of its draft model's passes."""

    def __init__(
        self,
        models: ScriptedModels,
        connect: Connect,
        clock: Callable[[], float],
        sleep: Sleep,
        reply_timeout: float = SCRIPTED_REPLY_TIMEOUT_S,
        make_inbox: Callable[[], Inbox] = Inbox,
    ) -> None:
        """reply_timeout: seconds within which the cloud must reply, outages included."""
        self.connect = connect
        self._cost_profile = models.cost_profile
        self._reply_timeout, self._make_inbox = reply_timeout, make_inbox
        self._nonces = count(1)
        self.busy = BusyTime(sleep)
        drafter: Any = models.draft_model(self.busy)
        self.runner = DecodeRunner(drafter, models.spec, clock, instructions=models.instructions)
        self.runner.remember(models.spec.to_bytes())  # as after any first decode

    def decode(
        self, preset: Preset, tokens: int, seed: int, policy: SamplingPolicy = GREEDY
    ) -> DecodedAnswer:
        """Decode ``tokens`` tokens of the calibrated pair's answer with this seed; chains have the
        profile's length."""
        preset = with_cost_profile_length(preset, self._cost_profile)
        rule = seeded_rule(policy.temperature)
        settings = DecodeSettings(preset, rule, policy, tokens, self._reply_timeout)
        request, inbox = request_of(seed), self._make_inbox()
        outcome = self.runner.run(request, settings, next(self._nonces), self.connect, inbox=inbox)
        return DecodedAnswer(outcome, own_answer(seed, policy, tokens))


class ScriptedHarness(VirtualHarness):
    """A scripted robot and its verifier on an emulated link."""

    def __init__(self, models: ScriptedModels, profile: LinkProfile, seed: int = 0) -> None:
        super().__init__(models, ProfileImpairments(profile, seed))
        self.robot = ScriptedRobot(
            models,
            self.link.connect,
            self.timeline.clock,
            self.timeline.sleep,
            SCRIPTED_REPLY_TIMEOUT_S + profile.longest_outage_s,
            self.make_inbox,
        )
