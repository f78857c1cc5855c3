"""`doctor --cloud` tells why a robot cannot decode with a verifier; each fault is a real one."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from queue import Queue
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from helpers.cloud.certificates import Authority
from helpers.cloud.grpc_cloud import Cloud, Proxy, free_port
from helpers.cloud.grpc_robot import decode_at
from helpers.doctor import elsewhere_only

from edge_cloud_spec.cli import main
from edge_cloud_spec.cloud.serving import access
from edge_cloud_spec.doctor.machine import check_cloud
from edge_cloud_spec.edge.client import VerifierClient
from edge_cloud_spec.edge.link.probe import CONNECT_TIMEOUT_S
from edge_cloud_spec.edge.link.route import ClientSettings
from edge_cloud_spec.health import Health, Level
from edge_cloud_spec.wire.channel import SERVICE
from edge_cloud_spec_lab.harness.toy import toy_worker

OK, ERROR = Level.OK, Level.ERROR


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pem"))


@pytest.fixture(scope="module")
def guarded(authority: Authority) -> Iterator[Cloud]:
    """A verifier with TLS and a token."""
    with Cloud(toy_worker(), token="secret", **authority.certificate("verifier")) as running:
        yield running


def found(settings: ClientSettings, timeout: float = CONNECT_TIMEOUT_S) -> tuple[Level, str]:
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
    assert len(guarded.worker.held) == 0


def test_a_verifier_without_tls_and_token_is_said_to_have_none(authority: Authority) -> None:
    with Cloud(toy_worker()) as plain:
        state, text = found(ClientSettings(plain.address))
        assert state == OK and "without TLS" in text and "asks for no token" in text
        state, text = found(ClientSettings(plain.address, authority.path))
    assert state == ERROR and "speaks no TLS" in text


TLS = {  # what is wrong between a robot and a verifier, each for ever
    "another authority": ({}, {"authority": "stranger"}),
    "no TLS on the robot": ({}, {"authority": ""}),
    "no TLS on the verifier": ({"certificate": "", "key": ""}, {}),
    "another host": ({"host": "verifier.example.org"}, {}),
    "no client certificate": ({"client_authority": "authority"}, {}),
    "a stranger's client certificate": ({"client_authority": "authority"}, {"robot": "stranger"}),
    "a client certificate that has expired": (
        {"client_authority": "authority"},
        {"robot": "authority", "begins": -9, "ends": -1},
    ),
}


@pytest.mark.parametrize(("server", "robot"), TLS.values(), ids=TLS)
def test_decode_and_the_bridge_say_at_once_what_doctor_says(
    server: dict[str, Any], robot: dict[str, Any], tmp_path: Path
) -> None:
    signers = {name: Authority(tmp_path, name) for name in ("authority", "stranger")}
    paths = {"": "", **{name: signer.path for name, signer in signers.items()}}
    served = {"token": "secret", **signers["authority"].certificate("verifier")}
    served |= signers["authority"].certificate("verifier", server.pop("host", "127.0.0.1"))
    served |= {name: paths[value] for name, value in server.items()}
    known = {"token": "secret", "authority": paths[robot.pop("authority", "authority")]}
    if signer := robot.pop("robot", ""):
        known |= signers[signer].certificate("robot", **robot)
    said: Queue[Health] = Queue()
    with Cloud(toy_worker(), **served) as running:
        settings = ClientSettings(running.address, **known)
        finding = check_cloud(settings)
        outcome = decode_at(running.address, **known)  # which waits for minutes if it may
        with closing(VerifierClient(settings)) as link:
            link.probe(said.put)
            on_link_state = said.get(timeout=60)
    assert (finding.level, outcome.reason, on_link_state.check) == (ERROR, "tls", "tls")
    assert outcome.text == str(on_link_state)
    assert finding.message == f"{on_link_state.message} (tls)"
    assert finding.advice == on_link_state.advice


def test_decode_waits_for_a_verifier_that_is_not_there_and_then_says_what_doctor_says() -> None:
    for address in (f"127.0.0.1:{free_port()}", "verifier.invalid:50151"):
        finding, outcome = check_cloud(ClientSettings(address)), decode_at(address, reply_timeout=3)
        message = finding.message.removesuffix(" (unreachable)")
        assert outcome.reason == "timeout" and f"({message}: {finding.advice})" in outcome.text


def test_the_command_prints_that_sentence_and_none_of_grpcs_lines(
    guarded: Cloud, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret")
    given = ["--authority", Authority(tmp_path).path, "--token-file", str(tmp_path / "token")]
    picture = str(Path(__file__).parents[2] / "examples/blue_box.jpg")
    given += ["--drafter", "bytes"]  # its model would be loaded before anybody is asked
    command = ["decode", picture, "find the blue box", "--cloud", guarded.address, *given]
    argv = [sys.executable, "-m", "edge_cloud_spec.cli", *command]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "not signed by" in line and "give --authority" in line


@pytest.mark.parametrize(
    ("wrong", "said", "advice"),
    [
        ({"ends": -0.5, "begins": -2}, "has expired", "make a new one"),
        ({"begins": 0.5}, "is not valid yet", "clock"),
        ({"host": "verifier.example.org"}, "is not for 127.0.0.1", "under the name"),
    ],
)
def test_a_certificate_that_cannot_be_accepted_is_told_apart(
    authority: Authority,
    wrong: dict[str, object],
    said: str,
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access, "date_problem", lambda *_: "")  # or it would not be served
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
            state, text = found(
                ClientSettings(address), 0.5 if "gRPC" in said[0] else CONNECT_TIMEOUT_S
            )
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
