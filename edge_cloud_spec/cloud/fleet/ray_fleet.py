"""A fleet whose replicas are Ray actors: ``serve --replicas``.

``/metrics`` has the router's metrics and all replicas', with a label ``replica``, as vLLM labels
the engines of one server; the same queries sum over them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from ...errors import UserError
from ...loop_thread import event_of
from ...wire.channel import NO_PROXY, is_loopback
from ..serving.metrics import MetricsServer, counter, gauge
from ..serving.server import ServerSettings
from .lease import new_key
from .registry import Registry, Scaling, ScalingLimits
from .replica import MakeWorker, ReplicaActor, ReplicaReport
from .router import RouterServer

if TYPE_CHECKING:
    from prometheus_client.core import Metric

STORE_BYTES = 80 * 2**20  # Ray's minimum for its object store, which a fleet does not use
LEAST_RAY = (2, 60)  # Ray's version; before 2.52 anyone who reached its ports could run code
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0: Ray listens on 127.0.0.1 only
ASK_S = 10.0  # for Ray to refuse a client without a token
CALLS = 4  # concurrent calls per actor, so that reports do not wait for other calls
LABEL = "replica"
# The metrics of each replica; None if it did not answer.
Scrape = Mapping[str, "Sequence[Metric] | None"]
log = logging.getLogger(__name__)

REPLICA_CHECK_S = 0.05  # between two reports of a replica
REPORT_TIMEOUT_S = 0.2  # after which a report is late
LEAVE_S = 30.0  # after which a draining replica is ended, even with robots
SCRAPE_TIMEOUT_S = 2.0  # after which a replica's metrics are missing
RAY_CHECK_S = 2.0  # between two checks of Ray


class RayReplicas:
    """Starts, queries and ends Ray actors by name. Raises UserError if Ray is missing or fails."""

    def __init__(
        self, make: MakeWorker, settings: ServerSettings, key: bytes, cpus: float, gpus: float
    ) -> None:
        """settings: the router's. cpus, gpus: Ray's resources per replica.

        RAY_ADDRESS names a cluster; without it, Ray runs on this machine.
        """
        self._ray = _started_ray()
        self._make, self._key = make, key
        self._options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": -1}
        self._far = not is_loopback(settings.address)
        if self._far:
            settings = replace(settings, address="0.0.0.0:0")
        self._settings = settings
        self._actors: dict[str, Any] = {}

    @property
    def names(self) -> list[str]:
        """Replicas that were started and have not ended."""
        return list(self._actors)

    def start(self, name: str) -> None:
        """Start a replica; it reports once its models are loaded."""
        actor = self._ray.remote(**self._options, max_concurrency=CALLS)(ReplicaActor)
        self._actors[name] = actor.remote(
            self._make, self._settings, name, self._key, far=self._far
        )

    async def report(self, name: str) -> ReplicaReport:
        """The replica's report; raises LookupError with the reason if the replica is gone for
        good."""
        try:
            report: ReplicaReport = await asyncio.wrap_future(
                self._actors[name].report.remote().future()
            )
        except self._ray.exceptions.ActorDiedError as error:
            raise LookupError(str(error).strip().splitlines()[-1]) from None
        return report

    async def metrics(self, name: str) -> list[Any]:
        """The replica's metric families."""
        found: list[Any] = await asyncio.wrap_future(self._actors[name].metrics.remote().future())
        return found

    def drain(self, name: str) -> None:
        """Let the replica redirect its robots to others."""
        self._actors[name].drain.remote()

    def end(self, name: str) -> None:
        """End the replica now."""
        self._ray.kill(self._actors.pop(name))

    def lost(self) -> str:
        """Why no replica can run any more; empty if they can. Asks Ray, which may take seconds."""
        own = self._ray.get_runtime_context().get_node_id()
        try:
            if any(node["NodeID"] == own and node["Alive"] for node in self._ray.nodes()):
                return ""
        except Exception as error:  # Ray and its gRPC raise various classes
            return f"Ray does not answer ({type(error).__name__}); start the fleet again"
        return "Ray has ended on this machine, and its replicas with it; start the fleet again"

    def close(self) -> None:
        """End all replicas, and Ray itself if it was started here."""
        for name in self.names:
            self.end(name)
        self._ray.shutdown()


class Controller:
    """Keeps the wanted number of replicas running, collects their reports, and drains those that
    leave.

    Runs as one task. ``pids``: the process ids of replicas that have reported.
    """

    def __init__(
        self,
        replicas: RayReplicas,
        registry: Registry,
        scaling: Scaling,
        clock: Callable[[], float] = time.monotonic,
        unix: Callable[[], float] = time.time,
    ) -> None:
        """clock: monotonic time, s. unix: Unix time, s."""
        self._replicas, self._registry, self._scaling, self._clock = (
            replicas,
            registry,
            scaling,
            clock,
        )
        self._unix = unix
        self._leaving: dict[str, float] = {}  # since when, by name
        self._numbers = itertools.count(1)
        self.problem = ""  # why a replica last failed to start
        self.pids: dict[str, int] = {}

    async def run(self) -> None:
        """Call ``look`` repeatedly until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(REPLICA_CHECK_S)

    async def look(self) -> None:
        """Collect all reports, then start and drain replicas as wanted."""
        await asyncio.gather(*(self._collect(name) for name in self._replicas.names))
        loads = self._registry.loads
        wanted = self._scaling.look(list(loads.values()), self._clock())
        staying = [name for name in self._replicas.names if name not in self._leaving]
        for _ in range(wanted - len(staying)):
            self._replicas.start(f"replica-{next(self._numbers)}")
        if len(staying) > wanted:
            self.drain(min(staying, key=lambda name: loads[name].sessions if name in loads else 0))

    def drain(self, name: str) -> None:
        """Drain this replica; it is replaced if still needed."""
        self._leaving[name] = self._clock()
        self._registry.drain(name)
        self._replicas.drain(name)
        log.info("%s drains", name)

    async def _collect(self, name: str) -> None:
        try:
            report = await asyncio.wait_for(self._replicas.report(name), REPORT_TIMEOUT_S)
        except LookupError as error:
            self.problem = str(error)
            log.error("%s is gone: %s", name, error)
            self._forget(name)
            return
        except Exception:  # it is starting, or its machine does not answer
            self._registry.missed(name)
            return
        if name in self._leaving:
            late = self._clock() - self._leaving[name] > LEAVE_S
            if not report.streams or late:
                self._forget(name)
            return
        self.pids[name] = report.pid
        ahead_s = report.unix_s - self._unix()
        self._registry.reported(name, report.address, report.load, ahead_s)

    def _forget(self, name: str) -> None:
        self._replicas.end(name)
        self._registry.left(name)
        self._leaving.pop(name, None)
        self.pids.pop(name, None)


def _started_ray() -> Any:
    """Start a separate Ray for this fleet: replicas run any code that Ray sends them."""
    own: dict[str, Any] = {}
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default is 15, behind all other work
    os.environ["RAY_AUTH_MODE"] = "token"
    if not os.environ.get("RAY_ADDRESS"):
        own = {"include_dashboard": False, "object_store_memory": STORE_BYTES}
        os.environ.setdefault(LOOPBACK, "0")
        if not os.environ.get("RAY_AUTH_TOKEN_PATH"):  # otherwise Ray writes a world-readable token
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray

    if tuple(int(part) for part in ray.__version__.split(".")[:2]) < LEAST_RAY:
        raise UserError(
            f"Ray {ray.__version__} is too old to keep strangers out: "
            "pip install -r requirements/fleet.txt"
        )
    try:
        ray.init(log_to_driver=False, logging_level="error", **own)
    except Exception as error:
        raise UserError(f"Ray does not start: {error}") from None
    try:
        address = ray.get_runtime_context().gcs_address
        if own and os.environ[LOOPBACK] == "0" and not is_loopback(address):
            raise UserError(f"Ray listens at {address} and not on this machine alone")
        _check_refusal(address)
    except UserError:
        ray.shutdown()
        raise
    return ray


def _check_refusal(address: str) -> None:
    """Raise UserError unless Ray refuses clients without a token, since clients can run code
    there."""
    code = None
    with grpc.insecure_channel(address, NO_PROXY) as channel:
        try:
            channel.unary_unary("/ray.rpc.InternalKVGcsService/InternalKVKeys")(b"", timeout=ASK_S)
        except grpc.RpcError as error:
            code = error.code()
    if code != grpc.StatusCode.UNAUTHENTICATED:
        raise UserError(
            f"Ray at {address} does not ask for a token, so that strangers could run code: start "
            "its cluster with RAY_AUTH_MODE=token, and give its token in RAY_AUTH_TOKEN_PATH"
        )


def fleet_metrics(ask: Callable[[], Scrape], registry: Registry) -> Iterator[Metric]:
    """All replicas' metric families; a replica without an answer has ``fleet_replica_up`` 0.

    ask: scrapes all replicas; called in the thread of the HTTP request.
    """
    scrape = ask()
    up = {name: float(found is not None) for name, found in scrape.items()}
    yield gauge("fleet_replica_up", "1: the replica answered.", up, LABEL)
    text = "Robots that the router sent to this replica."
    yield counter("fleet_placements", text, dict(registry.placed), LABEL)
    families: dict[str, Any] = {}  # one for each name, its samples labelled by replica
    for replica, found in scrape.items():
        for family in found or ():
            whole = families.setdefault(family.name, family)
            own = [one._replace(labels={**one.labels, LABEL: replica}) for one in family.samples]
            whole.samples = [*([] if whole is family else whole.samples), *own]
    yield from families.values()


class Fleet:
    """A router and its replicas on Ray; belongs to one asyncio loop."""

    def __init__(
        self,
        make: MakeWorker,
        settings: ServerSettings,
        limits: ScalingLimits,
        cpus: float = 1.0,
        gpus: float = 0.0,
    ) -> None:
        """Starts Ray. cpus, gpus: per replica. Raises UserError."""
        key, self.registry = new_key(), Registry()
        self._replicas = RayReplicas(make, settings, key, cpus, gpus)
        self.controller = Controller(self._replicas, self.registry, Scaling(limits))
        self._router = RouterServer(self.registry, key, settings)
        self._controlling: asyncio.Task[None] | None = None
        self._metrics_address = settings.metrics
        self.metrics: MetricsServer | None = None

    async def start(self, count: int) -> str:
        """Start; returns the router's address once ``count`` replicas serve. Raises UserError."""
        loop = asyncio.get_running_loop()
        if self._metrics_address:

            def ask() -> Scrape:
                return asyncio.run_coroutine_threadsafe(self._scrape(), loop).result()

            collect = partial(fleet_metrics, ask, self.registry)
            self.metrics = MetricsServer(self._metrics_address, collect)
        address = await self._router.start()
        self._controlling = asyncio.ensure_future(self.controller.run())
        while len(self.registry.loads) < count:
            if self.controller.problem:
                raise UserError(f"a replica cannot start: {self.controller.problem}")
            await asyncio.sleep(REPLICA_CHECK_S)
        return address

    async def lost(self) -> str:
        """Return once no replica can run any more, with the reason."""
        while not (why := await asyncio.to_thread(self._replicas.lost)):
            await asyncio.sleep(RAY_CHECK_S)
        return why

    async def stop(self) -> None:
        """End the router and all replicas."""
        if self._controlling is not None:
            self._controlling.cancel()
        if self.metrics is not None:
            await asyncio.to_thread(self.metrics.stop)
        await self._router.stop()
        await asyncio.to_thread(self._replicas.close)

    async def _scrape(self) -> Scrape:
        names = self._replicas.names
        asked = (asyncio.wait_for(self._replicas.metrics(name), SCRAPE_TIMEOUT_S) for name in names)
        found = await asyncio.gather(*asked, return_exceptions=True)
        pairs = zip(names, found, strict=True)
        return {name: None if isinstance(one, BaseException) else one for name, one in pairs}


def serve_fleet(
    make: MakeWorker,
    settings: ServerSettings,
    limits: ScalingLimits,
    cpus: float,
    gpus: float,
    on_ready: Callable[[str], None],
) -> str:
    """Serve until SIGINT or SIGTERM; ``on_ready`` gets the address. Raises UserError.

    Returns why the fleet failed; empty if a signal ended it.
    """

    async def run() -> str:
        fleet = Fleet(make, settings, limits, cpus, gpus)
        stopped = event_of((signal.SIGINT, signal.SIGTERM))
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
