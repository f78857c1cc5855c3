"""A scripted robot and cloud in real time, over gRPC and a proxy: what virtual time is held to."""

from __future__ import annotations

import time

from edge_cloud_spec.cloud.model_thread.sessions import WorkerLimits
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.lab.harness.cost_profiles import CostProfile
from edge_cloud_spec.lab.harness.emulated_link import LinkProfile
from edge_cloud_spec.lab.harness.proxy import Proxy
from edge_cloud_spec.lab.harness.scripted.model import BusyTime, scripted_worker
from edge_cloud_spec.lab.harness.server import InProcessServer
from edge_cloud_spec.lab.harness.virtual import REPLY_TIMEOUT, ScriptedRobot

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
    """A robot and a cloud of a cost profile; a model sleeps as long as a real one computes."""

    def __init__(
        self,
        cost_profile: CostProfile,
        profile: LinkProfile,
        seed: int = 0,
        limits: WorkerLimits | None = None,
        cloud_drafts: bool = False,
    ) -> None:
        """cloud_drafts: it has a draft model, too."""
        self.cloud_busy = BusyTime(PunctualSleep())
        self.worker = scripted_worker(
            cost_profile, time.perf_counter, self.cloud_busy, limits, drafts=cloud_drafts
        )
        self._cloud = InProcessServer(self.worker)
        self._proxy = Proxy(self._cloud.address, profile, seed)
        self._client = VerifierClient(ClientSettings(self._proxy.address))
        reply_timeout = REPLY_TIMEOUT + profile.longest_outage_s
        self.robot = ScriptedRobot(
            cost_profile, self._client.connect, time.perf_counter, PunctualSleep(), reply_timeout
        )

    def close(self) -> None:
        """End everything; no thread stays."""
        self._client.close()
        self._proxy.close()
        self._cloud.stop()
