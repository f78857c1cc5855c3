"""The topic link_state of a real bridge beside real verifiers, and ones that are not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from helpers.cloud.grpc_cloud import Cloud, Proxy, free_port
from helpers.cloud.grpc_robot import opening
from helpers.graph.running_bridge import Hearer, running_bridge

from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.msg import Verdict
from edge_cloud_spec.nodes.bridge_messages import to_request


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    with Cloud(toy_worker()) as running:
        yield running


def ask(hearer: Hearer, request: str = "a") -> None:
    message = to_request(opening(), "dsd")
    message.request_id = request
    hearer.requests.publish(message)


def level_of(hearer: Hearer) -> tuple[Any, str]:
    newest = hearer.diagnostics[-1]
    return newest.level, newest.message


def test_it_is_cloud_while_the_verifier_answers_and_lost_without_it(cloud: Cloud) -> None:
    """A late subscriber receives it too; back by itself when the verifier is."""
    with Proxy(cloud.address) as proxy:
        with running_bridge(cloud=proxy.address) as hearer:
            hearer.until(lambda: hearer.now("cloud"))
            assert hearer.states[-1] == "cloud"
            hearer.until(lambda: hearer.diagnostics)
            ask(hearer)
            hearer.until(lambda: any(v.kind == Verdict.OPENED for v in hearer.verdicts))
            proxy.set_out(True)
            hearer.until(lambda: hearer.now("lost"))
            assert len(hearer.states[-1].split()) > 1  # and why
            hearer.diagnostics.clear()
            hearer.until(lambda: hearer.diagnostics)
            assert level_of(hearer)[0] == DiagnosticStatus.ERROR
            proxy.set_out(False)
            hearer.until(lambda: hearer.now("cloud"))
        states = [state.split()[0] for state in hearer.states]
        assert ("lost", "cloud") not in set(pairwise(states))  # by way of degraded


@pytest.mark.parametrize("what", ["nothing", "silence", "wrong token"])
def test_it_is_never_cloud_where_nobody_serves(what: str, tmp_path: Path) -> None:
    """A wrong address; a port that takes connections and is silent; a token that is refused."""
    given: dict[str, object] = {"cloud": f"127.0.0.1:{free_port()}"}
    server = socket.create_server(("127.0.0.1", 0))
    token = tmp_path / "token"
    token.write_text("wrong")
    with Cloud(toy_worker(), token="secret") as guarded:
        if what == "silence":
            given = {"cloud": f"127.0.0.1:{server.getsockname()[1]}"}
        elif what == "wrong token":
            given = {"cloud": guarded.address, "token_file": str(token)}
        with running_bridge(**given) as hearer:
            hearer.until(lambda: hearer.now("lost"))
            hearer.until(lambda: "token is refused" in hearer.states[-1] or what != "wrong token")
            hearer.until(
                lambda: (
                    hearer.diagnostics
                    and level_of(hearer)[0] == DiagnosticStatus.ERROR
                    and hearer.bridge._monitor.advice
                )
            )
            ask(hearer)  # the stream's own report of it is no answer either
            hearer.until(lambda: hearer.verdicts)
    server.close()
    assert not any(state.startswith("cloud") for state in hearer.states)


def test_a_verifier_whose_model_hangs_is_lost_though_it_can_be_connected_to(cloud: Cloud) -> None:
    """It answers health checks; a decode under way gets no answer."""
    release = threading.Event()
    with running_bridge(cloud=cloud.address, reply_deadline=0.2) as hearer:
        hearer.until(lambda: hearer.now("cloud"))
        receive: Any = cloud.worker.receive

        def hang(stream: Any, data: bytes) -> None:
            if release.is_set():
                receive(stream, data)

        cloud.worker.receive = hang  # type: ignore[method-assign]
        ask(hearer)
        hearer.until(lambda: hearer.now("lost"))
        assert "no answer within 0.2 s" in hearer.states[-1]
        release.set()
        ask(hearer, "b")
        hearer.until(lambda: any(v.request_id == "b" for v in hearer.verdicts))


def test_the_clouds_clock_is_in_the_diagnostics(cloud: Cloud) -> None:
    with running_bridge(cloud=cloud.address) as hearer:
        hearer.until(lambda: hearer.now("cloud"))  # what is said before a late link is lost
        ask(hearer)
        hearer.until(lambda: hearer.bridge._client.clock_offset)
        hearer.until(
            lambda: any(
                pair.key == "clock_offset_ms" for s in hearer.diagnostics for pair in s.values
            )
        )
        values = {pair.key: pair.value for pair in hearer.diagnostics[-1].values}
    assert abs(float(values["clock_offset_ms"])) <= float(values["clock_uncertainty_ms"]) + 1e-3
