"""The simulated robot on a timeline: physics, odometry and the real navigator, at 20 Hz."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from edge_cloud_spec.nav.events import (
    Announce,
    Event,
    GoAround,
    Odometry,
    Published,
    Scan,
    Show,
    Tick,
)
from edge_cloud_spec.nav.navigator import Navigator
from edge_cloud_spec.nav.performer import Performer
from edge_cloud_spec.nav.pose import Pose, Velocity
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.nav.status import NavigatorStatus

from ...sim.bases import Base, scanned_rays
from ..virtual_time import Timeline

BASE_CYCLE_S = 0.05  # s between two velocity commands
MOMENT = 2.0**-20  # s; differences of times that are whole moments have no rounding


class VirtualBase:
    """Runs the base at 20 Hz while others wait, until ``close``.

    Each motion restarts the cycle, and times are whole moments, so that a motion from rest is the
    same whenever it begins. ``moves``: begin and end of each motion, s; ``ways``: how many ways
    around something were taken. ``scan_cycles``: of the base for one scan.
    """

    def __init__(
        self,
        timeline: Timeline,
        world: Base,
        settings: NavigatorSettings,
        on_status: Callable[[NavigatorStatus], None],
        on_cycle: Callable[[], None],
        scan_cycles: int = 1,
    ) -> None:
        self.world = world
        self.navigator = Navigator(settings)
        self.moves: list[tuple[float, float]] = []
        self.contacts = self.ways = 0
        self._timeline, self._on_status, self._on_cycle = timeline, on_status, on_cycle
        stand = partial(world.command, 0.0, 0.0, 0.0)
        self._performer = Performer(self._command, stand, self._publish)
        self._moving_since: float | None = None
        self._scan_cycles, self._scanned = scan_cycles, 0
        self._beat = 0  # of the cycle under way; those of others are over
        self._stepped = self._now()
        self._begin_cycle(self._stepped)

    @property
    def first_motion(self) -> float | None:
        """When the base first moved, s; None: never."""
        return self.moves[0][0] if self.moves else self._moving_since

    def close(self) -> None:
        """Stop the base's cycle."""
        self._end_move()
        self._beat += 1

    def on(self, event: Event) -> None:
        """Pass an event to the navigator now."""
        now = self._now()
        effects = self.navigator.on(event, now)
        if any(isinstance(effect, Announce) for effect in effects):
            self._step(now)
            self._begin_cycle(now)
        self._performer.carry_out(effects)

    def _now(self) -> float:
        return math.ceil(self._timeline.now / MOMENT) * MOMENT

    def _begin_cycle(self, begin: float) -> None:
        self._beat += 1
        self._schedule(self._beat, begin, 1)

    def _schedule(self, beat: int, begin: float, number: int) -> None:
        time = begin + round(number * BASE_CYCLE_S / MOMENT) * MOMENT

        def cycle() -> None:
            if beat != self._beat:
                return
            self._schedule(beat, begin, number + 1)
            self._step(time)
            self._receive_odometry(time)
            self._performer.carry_out(self.navigator.on(Tick(), time))
            self._on_cycle()

        self._timeline.at(time, cycle)

    def _step(self, now: float) -> None:
        world, touched = self.world, self.world.contact
        world.step(now - self._stepped)
        self.contacts += world.contact and not touched
        self._stepped = now
        if world.resting:
            self._end_move()

    def _end_move(self) -> None:
        if self._moving_since is not None:
            self.moves.append((self._moving_since, self._stepped))
            self._moving_since = None

    def _receive_odometry(self, now: float) -> None:
        reading = self.world.odometry
        pose = Pose(reading.x, reading.y, reading.yaw)
        self.navigator.on(Odometry(pose, stamp_of(now)), now)
        self._scanned += 1
        if self.navigator.settings.obstacles.scan and not self._scanned % self._scan_cycles:
            self.navigator.on(Scan("scan", stamp_of(now), rays=scanned_rays(self.world)), now)

    def _command(self, velocity: Velocity) -> None:
        self.world.command(velocity.vx, velocity.vy, velocity.wz)
        if not self.world.resting and self._moving_since is None:
            self._moving_since = self._stepped

    def _publish(self, published: Published) -> None:
        self.ways += isinstance(published, GoAround)
        if isinstance(published, Show):
            self._on_status(published.status)


def stamp_of(seconds: float) -> int:
    """Seconds of the timeline as a stamp, ns."""
    return round(seconds * 1e9)
