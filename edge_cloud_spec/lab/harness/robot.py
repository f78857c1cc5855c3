"""The scripted robot of both harnesses, which decodes over the link and clock that it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ...decoding.policy import GREEDY, SamplingPolicy, seeded_rule
from ...decoding.preset import Preset
from ...edge.runner import DecodeRunner, DecodeSettings, Outcome
from ...edge.transport import Connect, Inbox, OnReceive, Transport
from ...wire.messages import ClientMessage, DraftMessage
from .regimes import Regime
from .scripted.pair import SPEC, BusyTime, DraftVlm, Sleep, own_answer, request_of

PATIENCE = 60.0  # s


@dataclass(frozen=True)
class DecodedAnswer:
    """A decode's outcome, and the target's own tokens."""

    outcome: Outcome
    own: tuple[int, ...]
    drafts_sent: int

    @property
    def equal(self) -> bool:
        """Whether it is complete and has exactly the target's own tokens."""
        return self.outcome.completed and self.outcome.tokens == self.own


def with_regime_length(preset: Preset, regime: Regime) -> Preset:
    """The preset with chains of the regime's length."""
    return replace(preset, draft_length=regime.gamma) if preset.draft_length else preset


class ScriptedRobot:
    """Decodes with the draft model of a regime, one answer after the other."""

    def __init__(
        self,
        regime: Regime,
        connect: Connect,
        clock: Callable[[], float],
        sleep: Sleep,
        patience: float = PATIENCE,
        inbox: Callable[[], Inbox] = Inbox,
    ) -> None:
        """patience: seconds that the cloud may take to reply, outages included."""
        self.regime = regime
        self._connect, self._inbox, self._patience = connect, inbox, patience
        self._nonce = 0
        self.busy = BusyTime(sleep)
        vlm: Any = DraftVlm(regime, self.busy)
        self.runner = DecodeRunner(vlm, SPEC, clock)
        self.runner.remember(SPEC.to_bytes())  # as after any first decode

    def decode(
        self, preset: Preset, tokens: int, seed: int, policy: SamplingPolicy = GREEDY
    ) -> DecodedAnswer:
        """Decode the answer of this seed to this many tokens; chains have the regime's length."""
        preset = with_regime_length(preset, self.regime)
        rule = seeded_rule(policy.temperature)
        settings = DecodeSettings(preset, rule, policy, tokens, self._patience)
        counted = _Counted(self._connect)
        self._nonce += 1
        outcome = self.runner.run(
            request_of(seed), settings, self._nonce, counted.connect, inbox=self._inbox()
        )
        own = own_answer(seed, policy, tokens)
        return DecodedAnswer(outcome, own, counted.drafts)


class _Counted:
    """A transport that counts the drafts that are sent."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self.drafts = 0

    def connect(self, on_receive: OnReceive) -> Transport:
        self._transport = self._connect(on_receive)
        return self

    def send(self, message: ClientMessage) -> int:
        self.drafts += isinstance(message, DraftMessage)
        return self._transport.send(message)

    def close(self) -> None:
        self._transport.close()
