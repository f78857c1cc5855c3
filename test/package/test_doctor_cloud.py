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
def guarded(authority: Authority) -> Iterator[Cloud]:
    """A verifier with TLS and a token."""
    with Cloud(toy_worker(), token="secret", **authority.certificate("verifier")) as running:
        yield running


def found(settings: ClientSettings, timeout: float = TIMEOUT_S) -> tuple[Level, str]:
    """Level, and all that is said."""
    finding = check_cloud(settings, timeout)
    return finding.level, f"{finding.message} {finding.advice}"


@pytest.mark.parametrize(
    ("signer", "token", "state", "said"),
    [
        ("verifier", "secret", OK, ["serves over TLS", "takes the token", "ms"]),
        ("verifier", "", ERROR, ["asks for a token", "--token-file"]),
        ("verifier", "wrong", ERROR, ["the token is refused", "--token-file"]),
        ("stranger", "secret", ERROR, ["not signed by", "stranger", "--authority"]),
        ("", "secret", ERROR, ["speaks TLS, the robot not"]),
    ],
)
def test_a_verifier_is_ok_whose_authority_and_token_are_known_and_keeps_no_session(
    guarded: Cloud,
    authority: Authority,
    tmp_path: Path,
    signer: str,
    token: str,
    state: Level,
    said: list[str],
) -> None:
    known = {"verifier": authority.path, "stranger": Authority(tmp_path, "stranger").path}
    found_state, text = found(ClientSettings(guarded.address, known.get(signer, ""), token))
    assert found_state == state and all(words in text for words in said), text
    assert guarded.worker.sessions == 0


def test_a_verifier_without_tls_and_token_is_said_to_have_none(authority: Authority) -> None:
    with Cloud(toy_worker()) as plain:
        state, text = found(ClientSettings(plain.address))
        assert state == OK and "without TLS" in text and "asks for no token" in text
        state, text = found(ClientSettings(plain.address, authority.path))
    assert state == ERROR and "speaks no TLS" in text


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
        state, text = found(ClientSettings(running.address, authority.path, "secret"))
    assert state == ERROR and said in text and "(tls)" in text and advice in text


def test_a_verifier_that_wants_a_client_certificate_says_so_to_a_robot_without_one(
    authority: Authority, tmp_path: Path
) -> None:
    files, mutual = authority.certificate("verifier"), {"client_authority": authority.path}
    known = authority.certificate("robot")
    stranger = Authority(tmp_path, "stranger").certificate("robot")
    with Cloud(toy_worker(), token="secret", **files, **mutual) as running:
        for robot, state, said in (
            ({}, ERROR, ["asks for a client certificate", "--certificate"]),
            (known, OK, []),
            (stranger, ERROR, ["refuses the robot's certificate"]),
        ):
            where = (running.address, authority.path, "secret")
            found_state, text = found(ClientSettings(*where, **robot))
            assert found_state == state and all(words in text for words in said), text


def test_nobody_a_deaf_listener_and_an_unknown_host_are_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        for address, said in (
            (f"127.0.0.1:{free_port()}", ["nothing listens", "edge-cloud-spec serve"]),
            (f"127.0.0.1:{deaf.getsockname()[1]}", ["does not answer gRPC"]),
            ("verifier.invalid:50151", ["verifier.invalid is not known"]),
        ):
            state, text = found(ClientSettings(address), 0.5 if "gRPC" in said[0] else TIMEOUT_S)
            assert state == ERROR and all(words in text for words in said), text


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
        state, text = found(ClientSettings(f"127.0.0.1:{port}"))
    finally:
        server.stop(0).wait(60)
    assert state == ERROR and all(words in text for words in said), text


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
