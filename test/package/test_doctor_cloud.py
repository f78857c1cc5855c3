"""`doctor --cloud` tells why a robot cannot decode with a verifier; each fault is a real one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from helpers.cloud.certificates import Authority
from helpers.cloud.grpc_cloud import Cloud, Proxy, free_port
from helpers.doctor import elsewhere_only

from edge_cloud_spec.cli import main
from edge_cloud_spec.doctor.machine import check_cloud
from edge_cloud_spec.edge.client import ClientSettings
from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.wire.channel import SERVICE


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pem"))


@pytest.fixture(scope="module")
def guarded(authority: Authority) -> Iterator[Cloud]:
    """A verifier with TLS and a token."""
    with Cloud(toy_worker(), token="secret", **authority.certificate("verifier")) as running:
        yield running


def test_a_verifier_that_takes_the_token_is_ok_and_keeps_no_session(
    guarded: Cloud, authority: Authority
) -> None:
    finding = check_cloud(ClientSettings(guarded.address, authority.path, "secret"))
    assert finding.state == "ok"
    assert all(word in finding.found for word in ("serves over TLS", "takes the token", "ms"))
    assert guarded.worker.sessions == 0


@pytest.mark.parametrize(
    ("token", "said"), [("", "asks for a token"), ("wrong", "the token is refused")]
)
def test_a_wrong_token_fails_though_the_verifier_serves(
    guarded: Cloud, authority: Authority, token: str, said: str
) -> None:
    finding = check_cloud(ClientSettings(guarded.address, authority.path, token))
    assert finding.state == "fail" and said in finding.found
    assert "--token-file" in finding.advice


def test_a_verifier_without_tls_and_token_is_said_to_have_none() -> None:
    with Cloud(toy_worker()) as open_to_all:
        finding = check_cloud(ClientSettings(open_to_all.address))
    assert finding.state == "ok" and "without TLS" in finding.found
    assert "asks for no token" in finding.found


@pytest.mark.parametrize(
    ("wrong", "said", "advice"),
    [
        ({"ends": -0.5, "begins": -2}, "has expired", "make a new one"),
        ({"begins": 0.5}, "is not valid yet", "clock"),
        ({"host": "verifier.example.org"}, "is not for 127.0.0.1", "under the name"),
    ],
)
def test_a_certificate_that_cannot_be_accepted_is_told_apart(
    authority: Authority, wrong: dict[str, object], said: str, advice: str
) -> None:
    files = authority.certificate("wrong", **wrong)  # type: ignore[arg-type]
    with Cloud(toy_worker(), token="secret", **files) as running:
        finding = check_cloud(ClientSettings(running.address, authority.path, "secret"))
    assert finding.state == "fail" and said in finding.found and "(tls)" in finding.found
    assert advice in finding.advice


def test_a_strange_authority_and_a_robot_without_tls_are_told_apart(
    guarded: Cloud, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger").path
    finding = check_cloud(ClientSettings(guarded.address, stranger, "secret"))
    assert finding.state == "fail" and f"not signed by {stranger}" in finding.found
    assert "--authority" in finding.advice
    finding = check_cloud(ClientSettings(guarded.address, "", "secret"))
    assert finding.state == "fail" and "speaks TLS, the robot not" in finding.found


def test_a_verifier_that_wants_a_client_certificate_says_so_to_a_robot_without_one(
    authority: Authority, tmp_path: Path
) -> None:
    files, mutual = authority.certificate("verifier"), {"client_authority": authority.path}
    robot = authority.certificate("robot")
    pair = robot["certificate"], robot["key"]
    stranger = Authority(tmp_path, "stranger").certificate("robot")
    with Cloud(toy_worker(), token="secret", **files, **mutual) as running:
        where = (running.address, authority.path, "secret")
        without = check_cloud(ClientSettings(*where))
        known = check_cloud(ClientSettings(*where, certificate=pair[0], key=pair[1]))
        unknown = check_cloud(
            ClientSettings(*where, certificate=stranger["certificate"], key=stranger["key"])
        )
    assert without.state == "fail" and "asks for a client certificate" in without.found
    assert "--certificate" in without.advice
    assert known.state == "ok"
    assert unknown.state == "fail" and "refuses the robot's certificate" in unknown.found


def test_tls_to_a_server_that_has_none_is_said(authority: Authority) -> None:
    with Cloud(toy_worker()) as plain:
        finding = check_cloud(ClientSettings(plain.address, authority.path))
    assert finding.state == "fail" and "speaks no TLS" in finding.found


def test_nobody_a_deaf_listener_and_an_unknown_host_are_told_apart() -> None:
    nobody = check_cloud(ClientSettings(f"127.0.0.1:{free_port()}"))
    assert nobody.state == "fail" and "nothing listens" in nobody.found
    assert "edge-cloud-spec serve" in nobody.advice
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        finding = check_cloud(ClientSettings(f"127.0.0.1:{deaf.getsockname()[1]}"), 0.5)
    assert finding.state == "fail" and "does not answer gRPC" in finding.found
    unknown = check_cloud(ClientSettings("verifier.invalid:50151"))
    assert unknown.state == "fail" and "verifier.invalid is not known" in unknown.found


@pytest.mark.parametrize("healthy", [True, False])
def test_another_grpc_server_is_no_verifier(healthy: bool) -> None:
    """One with a health service that calls ours serving (it lies), and one without any."""
    server = grpc.server(ThreadPoolExecutor(2))
    if healthy:
        liar = health.HealthServicer()
        liar.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(liar, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        finding = check_cloud(ClientSettings(f"127.0.0.1:{port}"))
    finally:
        server.stop(0).wait(60)
    assert finding.state == "fail" and "is no verifier" in finding.found


def test_a_verifier_that_is_starting_or_ending_is_not_serving() -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    ending = health.HealthServicer()
    ending.set(SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(ending, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        finding = check_cloud(ClientSettings(f"127.0.0.1:{port}"))
    finally:
        server.stop(0).wait(60)
    assert finding.state == "fail" and "does not serve" in finding.found
    assert "wait" in finding.advice


def test_a_link_that_is_cut_again_and_again_fails_and_does_not_hang() -> None:
    with Cloud(toy_worker()) as running, Proxy(running.address) as proxy:
        over = threading.Event()

        def cut() -> None:
            while not over.wait(0.001):
                proxy.cut()

        cutting = threading.Thread(target=cut)
        cutting.start()
        try:
            finding = check_cloud(ClientSettings(proxy.address))
        finally:
            over.set()
            cutting.join()
        assert finding.state in ("ok", "fail")
        assert check_cloud(ClientSettings(proxy.address)).state == "ok"


def test_the_command_takes_the_token_from_a_file_and_exits_1_where_it_is_refused(
    guarded: Cloud, authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    command = ["doctor", "--cloud", guarded.address, "--authority", authority.path]
    for written, status in (("secret\n", 0), ("secrets\n", 1)):
        token.write_text(written)
        with elsewhere_only():
            assert main([*command, "--token-file", str(token)]) == status
        assert written.strip() not in capsys.readouterr().out.replace("takes the token", "")
    assert main(["doctor", "--cloud", guarded.address, "--token-file", str(tmp_path / "no")]) == 2
    assert "cannot be read" in capsys.readouterr().err
