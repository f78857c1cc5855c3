"""The secret of a session goes from the bridge to the cloud, and is on no topic."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from helpers.cloud.grpc_cloud import Cloud, Proxy
from helpers.graph.decode_graph import INSTRUCTION, Watcher
from rcl_interfaces.msg import Log
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.lab.harness.random_checkpoint import make_checkpoint
from edge_cloud_spec.models.load import load
from edge_cloud_spec.msg import (
    DecodeRequest,
    DecodeStats,
    Draft,
    Prediction,
    Verdict,
    VerifiedTokens,
)
from edge_cloud_spec.nodes.runtime.qos import SENSOR_DATA
from edge_cloud_spec.wire.codec import decode_client, encode_client
from edge_cloud_spec.wire.messages import DraftMessage, Open, Resume

TOPICS = {
    "decode_request": DecodeRequest,
    "draft": Draft,
    "verdict": Verdict,
    "prediction": Prediction,
    "verified_tokens": VerifiedTokens,
    "decode_stats": DecodeStats,
    "instruction_status": String,
    "/diagnostics": DiagnosticArray,
    "/rosout": Log,
}


class Tapped:
    """A verifier in this process: what it is sent, and a link that breaks at the first draft."""

    def __init__(self, folder: Path) -> None:
        target = load(make_checkpoint(folder / "t", seed=1), threads=1)
        self.worker = Worker(target, target.spec("You guide a robot.", 24))
        self.heard: list[Any] = []
        self._receive: Any = self.worker.receive
        self.worker.receive = self._tap  # type: ignore[method-assign]
        self._cut = False
        self.proxy: Proxy | None = None

    def _tap(self, stream: Any, data: bytes) -> None:
        message = decode_client(data)
        self.heard.append(message)
        if isinstance(message, DraftMessage) and not self._cut and self.proxy is not None:
            self._cut = True
            threading.Thread(target=self.proxy.cut).start()
        else:
            self._receive(stream, data)

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]


@pytest.fixture
def nodes(
    tmp_path: Path,
) -> Iterator[tuple[Tapped, Watcher, list[bytes]]]:
    tapped = Tapped(tmp_path)
    drafter = make_checkpoint(tmp_path / "d", seed=2)
    with Cloud(tapped.worker) as cloud, Proxy(cloud.address) as proxy:
        tapped.proxy = proxy
        given = {
            "cloud_bridge": [f"cloud:={proxy.address}"],
            "drafter": [f"model.path:={drafter}", "preset:=dsd"],
        }
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", f"edge_cloud_spec.nodes.{name}", "--ros-args"]
                + [part for value in values for part in ("-p", value)]
            )
            for name, values in given.items()
        ]
        watcher = Watcher()
        recorded: list[bytes] = []
        for topic, kind in TOPICS.items():
            watcher.create_subscription(kind, topic, recorded.append, 200, raw=True)
        watcher.create_subscription(
            CompressedImage,
            "camera/image_raw/compressed",
            recorded.append,
            SENSOR_DATA,
            raw=True,
        )
        yield tapped, watcher, recorded
        watcher.close()
        for process in processes:
            process.send_signal(signal.SIGINT)
        assert [process.wait(timeout=120) for process in processes] == [0, 0]


def test_the_secret_of_a_session_is_on_no_topic(
    nodes: tuple[Tapped, Watcher, list[bytes]],
) -> None:
    tapped, watcher, recorded = nodes
    watcher.ask(INSTRUCTION)
    watcher.until(lambda: tapped.of(Resume))
    watcher.until(watcher.finished)
    watcher.until(lambda: watcher.heard["decode_stats"])
    secret = tapped.of(Resume)[0].secret
    opening = tapped.of(Open)[0]
    assert len(secret) == 16
    assert opening.key
    assert opening.secret == b""
    assert watcher.finished()[0].finish_reason in ("end", "length")  # the owner's Resume was good
    everything = b"".join(recorded)
    topics = [message for message in recorded if opening.instruction.encode() in message]
    assert topics  # it was recorded
    assert opening.nonce.to_bytes(8, "little") in everything  # and the Open with it
    for hidden in (secret, opening.key, secret.hex().encode()):
        assert hidden not in everything
    stripped = encode_client(tapped.of(DraftMessage)[0])
    assert stripped in everything  # as bytes of one piece: so would the secret be
