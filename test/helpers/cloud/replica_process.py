"""A replica of a fleet with toy models, in a process of its own that can be killed."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import Any

from edge_cloud_spec.cloud.fleet.replica import Replica
from edge_cloud_spec.cloud.serving.server import ServerSettings
from edge_cloud_spec.lab.harness.toy import toy_worker

# Processes are forked from one that has imported torch, which takes a new one seconds.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "grpc.aio", __name__])


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
