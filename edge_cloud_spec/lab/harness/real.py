"""Robot, cloud and link in real time: threads, gRPC on loopback and a proxy that delays it."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future

from ...cloud.model_thread.sessions import WorkerLimits
from ...edge.client import ClientSettings, VerifierClient
from .emulated_link import LinkProfile
from .proxy import Proxy
from .regimes import Regime
from .robot import PATIENCE, ScriptedRobot
from .scripted.pair import BusyTime, scripted_worker
from .server import InProcessServer

MAX_LATE = 0.01  # seconds


class PunctualSleep:
    """``time.sleep``, shortened by as much as the call before it was late."""

    def __init__(self) -> None:
        self._late = 0.0

    def __call__(self, seconds: float) -> None:
        due = time.perf_counter() + seconds - self._late
        time.sleep(max(0.0, due - time.perf_counter()))
        self._late = min(MAX_LATE, time.perf_counter() - due)


class RealHarness:
    """A robot and a cloud of a regime; their models sleep as long as real ones would compute."""

    def __init__(
        self,
        regime: Regime,
        profile: LinkProfile,
        seed: int = 0,
        limits: WorkerLimits | None = None,
        cloud_drafts: bool = False,
    ) -> None:
        """cloud_drafts: it has a draft model, too."""
        self._started = time.perf_counter()
        self.cloud_busy = BusyTime(PunctualSleep())
        self.worker = scripted_worker(
            regime, time.perf_counter, self.cloud_busy, limits, drafts=cloud_drafts
        )
        self._cloud = InProcessServer(self.worker)
        self._proxy = Proxy(self._cloud.address, profile, seed)
        self._client = VerifierClient(ClientSettings(self._proxy.address))
        patience = PATIENCE + profile.outage_s
        self.robot = ScriptedRobot(
            regime, self._client.connect, time.perf_counter, PunctualSleep(), patience
        )

    def clock(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._started

    def rest(self, seconds: float) -> None:
        """Let this much time pass."""
        time.sleep(seconds)

    def tasks(self) -> int:
        """How many asyncio tasks there are, at both ends."""
        counted: Future[int] = Future()
        self._client.run_soon(lambda: counted.set_result(len(asyncio.all_tasks())))
        return counted.result() + len(asyncio.all_tasks(self._cloud.loop))

    def close(self) -> None:
        """End everything; no thread stays."""
        self._client.close()
        self._proxy.close()
        self._cloud.stop()
