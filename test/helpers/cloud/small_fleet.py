"""A router in this process, and replicas with toy models in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any

from edge_cloud_spec.cloud.fleet.lease import new_key
from edge_cloud_spec.cloud.fleet.registry import Registry, ReplicaLoad
from edge_cloud_spec.cloud.fleet.replica import Replica
from edge_cloud_spec.cloud.fleet.router import RouterServer
from edge_cloud_spec.cloud.serving.access import AccessSettings
from edge_cloud_spec.cloud.serving.server import ServerSettings
from edge_cloud_spec.loop_thread import LoopThread
from edge_cloud_spec_lab.harness.toy import toy_worker

# Processes are forked from one that has imported what a replica and its first pass need, which
# takes a new one seconds. It finds no module of the tests.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["edge_cloud_spec.cloud.fleet.replica", "edge_cloud_spec_lab.harness.toy"]
)


class ReplicaProcess:
    """``address`` waits until it serves."""

    def __init__(self, name: str, key: bytes) -> None:
        self._ours, theirs = CONTEXT.Pipe()
        self._process: Any = CONTEXT.Process(target=_serve, args=(name, key, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.pid = int(self._process.pid)

    @property
    def address(self) -> str:
        return str(self._ours.recv())

    def drain(self) -> None:
        self._ours.send("drain")
        assert self._ours.recv() == "draining"

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, and its end."""
        self._process.kill()
        self._process.join()
        self._ours.close()


def _serve(name: str, key: bytes, test: Connection) -> None:
    """Says its address, then does what each message asks for: drain, or the end."""
    settings = ServerSettings(address="127.0.0.1:0", grace_s=0.1)
    replica = Replica(toy_worker(), settings, name, key)
    test.send(replica.address)
    try:
        while test.recv() == "drain":
            replica.drain()
            test.send("draining")
    except EOFError:  # the test is over
        os._exit(0)


class SmallFleet(AbstractContextManager["SmallFleet"]):
    """``names`` of replicas, each a process that can be killed."""

    def __init__(self, names: str = "ab", **access: Any) -> None:
        self.key, self.registry = new_key(), Registry()
        self._thread = LoopThread("fleet")
        chosen = AccessSettings(**{"address": "127.0.0.1:0", **access})
        self._router = RouterServer(self.registry, self.key, chosen)
        self.address = self._thread.run(self._router.start())
        self.processes = {name: ReplicaProcess(name, self.key) for name in names}
        self.addresses = {name: self._join(name) for name in names}

    def start(self, name: str) -> None:
        """One more replica, or one that was killed."""
        self.processes[name] = ReplicaProcess(name, self.key)
        self.addresses[name] = self._join(name)

    def kill(self, name: str, noticed: bool = False) -> None:
        """kill -9; the router learns of it where ``noticed``."""
        self.processes[name].kill()
        if noticed:
            self.registry.left(name)

    def drain(self, name: str) -> None:
        self.registry.drain(name)
        self.processes[name].drain()

    def _join(self, name: str) -> str:
        address = self.processes[name].address
        self.registry.reported(name, address, ReplicaLoad())
        return address

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
        self._thread.run(self._router.stop())
        self._thread.close()
