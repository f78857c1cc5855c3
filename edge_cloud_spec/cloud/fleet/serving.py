"""``serve --replicas``: the front and its replicas, until a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from ...errors import UserError
from ..serving.metrics import MetricsServer
from ..serving.server import ServerSettings
from .controller import LOOK_S, Controller
from .fleet_metrics import FleetCollector, Scrape
from .front_server import FrontServer
from .lease import new_key
from .ray_replicas import RayReplicas, ReplicaShare
from .replica_actor import MakeWorker
from .roster import Roster
from .scaling import Scaling, ScalingLimits

log = logging.getLogger(__name__)

SCRAPE_S = 2.0  # in which a replica says what it counts
LOST_S = 2.0  # between two looks at whether Ray is there


class Fleet:
    """A front with its replicas on Ray; lives on one asyncio loop, once it is made."""

    def __init__(
        self,
        make: MakeWorker,
        settings: ServerSettings,
        limits: ScalingLimits,
        share: ReplicaShare | None = None,
    ) -> None:
        """Starts Ray. Raises UserError."""
        key, self.roster = new_key(), Roster()
        self._replicas = RayReplicas(make, settings, key, share or ReplicaShare())
        self.controller = Controller(self._replicas, self.roster, Scaling(limits))
        self._front = FrontServer(self.roster, key, settings)
        self._controlling: asyncio.Task[None] | None = None
        self._metrics_address = settings.metrics
        self.metrics: MetricsServer | None = None

    async def start(self, count: int) -> str:
        """The front's address, once so many replicas serve. Raises UserError."""
        loop = asyncio.get_running_loop()
        if self._metrics_address:

            def ask() -> Scrape:
                return asyncio.run_coroutine_threadsafe(self._scrape(), loop).result()

            collector = FleetCollector(ask, self.roster)
            self.metrics = MetricsServer(self._metrics_address, collector)
        address = await self._front.start()
        self._controlling = asyncio.ensure_future(self.controller.run())
        while len(self.roster.loads) < count:
            if self.controller.problem:
                raise UserError(f"a replica cannot start: {self.controller.problem}")
            await asyncio.sleep(LOOK_S)
        return address

    async def lost(self) -> str:
        """Why no replica can run any more, once that is so: robots would wait for ever."""
        while not (why := await asyncio.to_thread(self._replicas.lost)):
            await asyncio.sleep(LOST_S)
        return why

    async def stop(self) -> None:
        """End the front and all replicas."""
        if self._controlling is not None:
            self._controlling.cancel()
        if self.metrics is not None:
            await asyncio.to_thread(self.metrics.stop)
        await self._front.stop()
        await asyncio.to_thread(self._replicas.close)

    async def _scrape(self) -> Scrape:
        names = self._replicas.names
        asked = (asyncio.wait_for(self._replicas.metrics(name), SCRAPE_S) for name in names)
        found = await asyncio.gather(*asked, return_exceptions=True)
        pairs = zip(names, found, strict=True)
        return {name: None if isinstance(one, BaseException) else one for name, one in pairs}


def serve_fleet(
    make: MakeWorker,
    settings: ServerSettings,
    limits: ScalingLimits,
    share: ReplicaShare,
    on_ready: Callable[[str], None],
) -> str:
    """Serve until SIGINT or SIGTERM; ``on_ready`` gets the address. Raises UserError.

    Returns why it could not go on; empty: it was told to end.
    """

    async def run() -> str:
        fleet = Fleet(make, settings, limits, share)
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        try:
            starting = asyncio.ensure_future(fleet.start(1))
            ending = asyncio.ensure_future(stopped.wait())
            losing = asyncio.ensure_future(fleet.lost())
            ends = {ending, losing}
            await asyncio.wait({starting, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                on_ready(await starting)
                if fleet.metrics is not None:
                    log.info("metrics on http://%s/metrics", fleet.metrics.address)
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return "" if ending.done() else await losing
        finally:
            await fleet.stop()

    return asyncio.run(run())
