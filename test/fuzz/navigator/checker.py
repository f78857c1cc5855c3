"""The navigator's promises, checked from what it heard and what it did, by none of its own logic.

1. Never a command after a stop without an instruction that came after the release, and a frame that
   was taken after that instruction.
2. Never outside the limits of speed and acceleration, and of unverified motion.
3. Never later than 0.5 s after the last valid command, nor after the expiry of its decision.
4. A decision's step begins once, and not before the one under way has ended.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from fuzz.navigator.scene import Decision

from edge_cloud_spec.lab.bench.motion import MORE, OVERRUN, RATIO
from edge_cloud_spec.nav.events import (
    Announce,
    Drive,
    Effect,
    EStop,
    Event,
    Halt,
    Hold,
    Instruction,
    Show,
    Tick,
    Words,
)
from edge_cloud_spec.nav.pose import STILL, Velocity
from edge_cloud_spec.nav.settings import Settings
from edge_cloud_spec.nav.watchdog import Watchdog

PERIOD, GRACE = 0.05, OVERRUN  # s that a command is valid, and after which the base must stand
SLACK = 1e-6
NOT_TEXT = ("", "\x00", "x" * 501)


class Broken(AssertionError):
    """A promise was broken."""


@dataclass
class _Step:
    """What is under way."""

    verified: bool
    goal: float  # m of a move, else 0
    expiry: float
    path: float = 0.0


class Checker:
    """``saw`` every event with the effects that it had. Raises Broken."""

    def __init__(self, settings: Settings, decisions: dict[str, Decision]) -> None:
        self.settings, self.counts = settings, Counter[str]()
        self._decisions = decisions
        self._held: set[str] = set()
        self._armed = True  # an instruction may move the robot
        self._since = -math.inf  # when that instruction came
        self._instruction: str | None = None
        self._begun: set[str] = set()
        self._ready_since = math.inf  # when a decision was first welcome in the motion under way
        self._step: _Step | None = None
        self._last, self._last_at, self._until = STILL, -math.inf, -math.inf
        self._now = 0.0
        self._watchdog = Watchdog(lambda repeat: None, GRACE, lambda: self._now)

    @property
    def velocity(self) -> Velocity:
        """What the base was told last."""
        return self._last

    def set(self, settings: Settings, effects: list[Effect], now: float) -> None:
        """Parameters were set."""
        changed, self.settings = settings != self.settings, settings
        if changed and self._step is not None:
            self._require(any(isinstance(e, Halt) for e in effects), "motion under old parameters")
        self._carried_out(effects, now)

    def saw(self, event: Event, effects: list[Effect], now: float) -> None:
        """What the navigator did about ``event`` at ``now``."""
        self.counts[type(event).__name__] += 1
        self._require(now >= self._now, "time")
        self._overdue(now)
        self._now = now
        if self._stops(event):
            self._require(bool(effects) and isinstance(effects[0], Halt), "a stop without a halt")
        elif isinstance(event, Instruction):
            self._instructed(event.text, effects, now)
        if not isinstance(event, (Tick, Words)):
            self._require(not any(isinstance(e, Drive) for e in effects), "a command out of turn")
        self._carried_out(effects, now)

    def _overdue(self, now: float) -> None:
        """Whatever the navigator does: the watchdog stops what is not renewed."""
        if self._last == STILL or now < self._until + GRACE:
            return
        self._require(self._watchdog.due(now), "no watchdog 0.5 s after a command's end")
        self._watchdog.calm()
        self._last = STILL
        self.counts["watchdog"] += 1

    def _stops(self, event: Event) -> bool:
        if isinstance(event, EStop):
            cause, on = "e_stop", event.on
        elif isinstance(event, Hold):
            cause, on = event.cause, bool(event.why)
        elif isinstance(event, Instruction):
            cause, on = "told", event.text.strip().rstrip(".!").lower() == "stop"
        else:
            return False
        if on:
            self._held.add(cause)
            self._armed = False
            self.counts["stops"] += 1
        elif cause != "told":
            self._held.discard(cause)
        return on

    def _instructed(self, text: str, effects: list[Effect], now: float) -> None:
        if self._held - {"told"}:
            return
        other = self._instruction != text.strip()
        self._instruction = text.strip()
        if self._step is not None and other:
            self._require(
                any(isinstance(e, Halt) for e in effects), "motion for the instruction before"
            )
        if text.strip() not in NOT_TEXT and not self._armed:
            self._held.discard("told")
            self._armed, self._since = True, now

    def _carried_out(self, effects: list[Effect], now: float) -> None:
        for effect in effects:
            if isinstance(effect, Show):
                if effect.status.state == "ready":
                    self._ready_since = now
            elif isinstance(effect, Halt):
                self._step, self._last, self._last_at = None, STILL, now
                self._watchdog.calm()
            elif isinstance(effect, Announce):
                self._announced(effect, now)
            elif isinstance(effect, Drive):
                self._drove(effect, now)

    def _announced(self, effect: Announce, now: float) -> None:
        self._require(not self._held, "a decision while the robot is held")
        decision = self._decisions[effect.request]
        if effect.action.verb == "stop":
            return
        self._require(self._step is None, "a step before the end of another")
        self._require(effect.request not in self._begun, "a step that is carried out again")
        self._begun.add(effect.request)
        self.counts["steps"] += 1
        self.counts["steps decided on the move"] += decision.taken > self._ready_since
        self._ready_since = math.inf
        self.counts["unverified steps"] += not effect.verified
        self._require(self._armed, "a step after a stop without a newer instruction")
        self._require(decision.taken >= self._since, "a step on a frame from before the release")
        told = self._instruction in (None, decision.instruction)
        self._require(told, "a step for another instruction")
        self._require(effect.verified or self.settings.allow_unverified, "an unverified step")
        self._require(decision.verified or not effect.verified, "a step said to be verified")
        if not effect.verified:
            far = abs(effect.goal.distance) <= self.settings.unverified.move + SLACK
            self._require(far, "a long move on unverified words")
        lasts = effect.lasts <= self.settings.command_lifetime + SLACK
        self._require(lasts, "a step that lasts too long")
        self._step = _Step(effect.verified, abs(effect.goal.distance), now + effect.lasts)
        self._until = now

    def _drove(self, effect: Drive, now: float) -> None:
        self.counts["commands"] += 1
        step, velocity = self._step, effect.velocity
        self._require(step is not None and not self._held, "a command with no step under way")
        assert step is not None
        self._require(now - self._until <= GRACE, "a command 0.5 s after the last one's end")
        self._require(now <= step.expiry + SLACK, "a command after its step's expiry")
        end = min(now + PERIOD, step.expiry) + SLACK
        self._require(effect.until <= end, "a command that is valid for too long")
        self._in_limits(velocity, step, now)
        step.path += self._last.speed * (now - self._last_at) if self._last != STILL else 0.0
        if step.goal:
            bound = RATIO * step.goal + MORE[0]
            self._require(step.path <= bound, f"{step.path:.3f} m of a step of {step.goal} m")
        self._last, self._last_at, self._until = velocity, now, effect.until
        self._watchdog.feed(effect.until, effect.stop_by)

    def _in_limits(self, velocity: Velocity, step: _Step, now: float) -> None:
        limits, slow = self.settings.limits, self.settings.unverified
        speed, turn = limits.speed, limits.turn_speed
        aside = limits.lateral_speed
        if not step.verified:
            speed, turn = min(speed, slow.speed), min(turn, slow.turn_speed)
            aside = min(aside, slow.speed)
        time = min(now - self._last_at, 10.0) + PERIOD / 2
        for value, last, most, faster in (
            (velocity.vx, self._last.vx, speed, limits.acceleration),
            (velocity.vy, self._last.vy, aside, limits.acceleration),
            (velocity.wz, self._last.wz, turn, limits.turn_acceleration),
        ):
            self._require(abs(value) <= most + SLACK, f"{value} beyond the limit {most}")
            before = abs(last) if last * value > 0.0 else 0.0
            eased = abs(value) <= before + faster * time + SLACK
            self._require(eased, f"from {last} to {value} within {time:.3f} s")

    def _require(self, kept: bool, what: str) -> None:
        if not kept:
            raise Broken(f"{what}, at {self._now:.3f} s")
