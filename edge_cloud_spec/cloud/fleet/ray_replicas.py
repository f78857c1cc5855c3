"""The replicas of a fleet as actors of Ray, which is imported here and nowhere else."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, replace
from typing import Any

from ...errors import UserError
from ...wire.channel import is_loopback
from ..serving.server import ServerSettings
from .replica_actor import MakeWorker, ReplicaActor, ReplicaReport

STORE_BYTES = 80 * 2**20  # of Ray's object store, which a fleet does not use; Ray's own least
CALLS = 4  # of an actor at a time: a report does not wait for another


@dataclass(frozen=True)
class ReplicaShare:
    """What one replica takes of Ray's machines."""

    cpus: float = 1.0
    gpus: float = 0.0


class RayReplicas:
    """Starts, asks and ends actors by name. Raises UserError where Ray is missing or fails."""

    def __init__(
        self, make: MakeWorker, settings: ServerSettings, key: bytes, share: ReplicaShare
    ) -> None:
        """settings: the front's. RAY_ADDRESS names a cluster; without it, Ray runs on this one."""
        self._ray = _started_ray()
        self._make, self._key, self._share = make, key, share
        self._far = not is_loopback(settings.address)
        if self._far:
            settings = replace(settings, address="0.0.0.0:0")
        self._settings = settings
        self._actors: dict[str, Any] = {}

    @property
    def names(self) -> list[str]:
        """Those that were started and not ended."""
        return list(self._actors)

    def start(self, name: str) -> None:
        """Have one more; it reports once its models are loaded."""
        actor = self._ray.remote(
            num_cpus=self._share.cpus,
            num_gpus=self._share.gpus,
            max_restarts=-1,
            max_concurrency=CALLS,
        )(ReplicaActor)
        self._actors[name] = actor.remote(
            self._make, self._settings, name, self._key, far=self._far
        )

    async def report(self, name: str) -> ReplicaReport:
        """What it says; LookupError where it is gone for good, with why."""
        try:
            report: ReplicaReport = await asyncio.wrap_future(
                self._actors[name].report.remote().future()
            )
        except self._ray.exceptions.ActorDiedError as error:
            raise LookupError(str(error).strip().splitlines()[-1]) from None
        return report

    async def metrics(self, name: str) -> list[Any]:
        """What it counts."""
        found: list[Any] = await asyncio.wrap_future(self._actors[name].metrics.remote().future())
        return found

    def drain(self, name: str) -> None:
        """Let it send its robots elsewhere."""
        self._actors[name].drain.remote()

    def end(self, name: str) -> None:
        """End it now."""
        self._ray.kill(self._actors.pop(name))

    def close(self) -> None:
        """End all, and what of Ray was started here."""
        for name in self.names:
            self.end(name)
        self._ray.shutdown()


def _started_ray() -> Any:
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # its own is 15: behind all other work
        import ray
    except ImportError:
        raise UserError(
            "--replicas needs Ray; install the extra: pip install 'edge-cloud-spec[fleet]'"
        ) from None
    own: dict[str, Any] = {"include_dashboard": False, "object_store_memory": STORE_BYTES}
    try:
        ray.init(
            log_to_driver=False,
            logging_level="error",
            **({} if os.environ.get("RAY_ADDRESS") else own),
        )
    except Exception as error:
        raise UserError(f"Ray does not start: {error}") from None
    return ray
