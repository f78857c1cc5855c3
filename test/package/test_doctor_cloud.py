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
from edge_cloud_spec.edge.probe import TIMEOUT_S
from edge_cloud_spec.health import Level
from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.wire.channel import SERVICE

OK, ERROR = Level.OK, Level.ERROR


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pem"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="module")
def guarded(authority: Authority) -> Iterator[Cloud]:
    """A verifier with TLS and a token."""
    with Cloud(toy_worker(), token="secret", **authority.certificate("verifier")) as running:
        yield running


def expect(settings: ClientSettings, level: Level, *said: str, timeout: float = TIMEOUT_S) -> None:
    """It is found to be so, and all of this is said."""
    finding = check_cloud(settings, timeout)
    text = f"{finding.message} {finding.advice}"
    assert finding.level == level and all(words in text for words in said), text


@pytest.mark.parametrize(
    ("trusts", "token", "state", "said"),
    [
        ("authority", "secret", OK, ["serves over TLS", "takes the token", "ms"]),
        ("authority", "", ERROR, ["asks for a token", "--token-file"]),
        ("authority", "wrong", ERROR, ["the token is refused", "--token-file"]),
        ("stranger", "secret", ERROR, ["not signed by", "stranger", "--authority"]),
        ("", "secret", ERROR, ["speaks TLS, the robot not"]),
    ],
)
def test_a_verifier_is_ok_that_is_trusted_and_takes_the_token_and_keeps_no_session(
    guarded: Cloud,
    trusts: str,
    token: str,
    state: Level,
    said: list[str],
    request: pytest.FixtureRequest,
) -> None:
    path = request.getfixturevalue(trusts).path if trusts else ""
    expect(ClientSettings(guarded.address, path, token), state, *said)
    assert guarded.worker.sessions == 0


def test_a_verifier_without_tls_and_token_is_said_to_have_none(authority: Authority) -> None:
    with Cloud(toy_worker()) as plain:
        expect(ClientSettings(plain.address), OK, "without TLS", "asks for no token")
        expect(ClientSettings(plain.address, authority.path), ERROR, "speaks no TLS")


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
        robot = ClientSettings(running.address, authority.path, "secret")
        expect(robot, ERROR, said, "(tls)", advice)


def test_a_verifier_that_wants_a_client_certificate_says_so_to_a_robot_without_one(
    authority: Authority, stranger: Authority
) -> None:
    files, mutual = authority.certificate("verifier"), {"client_authority": authority.path}
    with Cloud(toy_worker(), token="secret", **files, **mutual) as running:
        for robot, state, said in (
            ({}, ERROR, ["asks for a client certificate", "--certificate"]),
            (authority.certificate("robot"), OK, []),
            (stranger.certificate("robot"), ERROR, ["refuses the robot's certificate"]),
        ):
            where = (running.address, authority.path, "secret")
            expect(ClientSettings(*where, **robot), state, *said)


def test_nobody_a_deaf_listener_and_an_unknown_host_are_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        silent = ClientSettings(f"127.0.0.1:{deaf.getsockname()[1]}")
        expect(silent, ERROR, "does not answer gRPC", timeout=0.5)
    nobody = ClientSettings(f"127.0.0.1:{free_port()}")
    expect(nobody, ERROR, "nothing listens", "edge-cloud-spec serve")
    unknown = ClientSettings("verifier.invalid:50151")
    expect(unknown, ERROR, "verifier.invalid is not known")


Status = health_pb2.HealthCheckResponse


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (Status.SERVING, ["is no verifier"]),  # it lies
        (None, ["is no verifier"]),
        (Status.NOT_SERVING, ["does not serve", "wait"]),
    ],
    ids=["calls ours serving", "without a health service", "a verifier that starts or ends"],
)
def test_another_grpc_server_and_one_that_does_not_serve_are_told_apart(
    status: int | None, said: list[str]
) -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    if status is not None:
        servicer = health.HealthServicer()
        servicer.set(SERVICE, status)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        expect(ClientSettings(f"127.0.0.1:{port}"), ERROR, *said)
    finally:
        server.stop(0).wait(60)


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
        assert finding.level in (OK, ERROR)
        assert check_cloud(ClientSettings(proxy.address)).level == OK


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
