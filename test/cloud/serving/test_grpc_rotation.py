"""Certificates and tokens as the documents make them; replaced while both sides run; in no log."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.cloud.certificates import Authority
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.grpc_robot import OWN, REQUEST, settings, toy_robot

from edge_cloud_spec.cloud.serving.server import ServerSettings
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.lab.harness.toy import toy_worker

PAGE = Path(__file__).parents[3] / "docs/certificates.md"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the first block of the page makes."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    folder = tmp_path_factory.mktemp("made")
    block = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.S)[0]
    script = ["sh", "-eu", "-c", block]
    environment = {**os.environ, "CLOUD": "127.0.0.1"}
    subprocess.run(script, cwd=folder, env=environment, check=True, capture_output=True)
    return folder


def client(link: VerifierClient, patience: float = 60.0) -> Outcome:
    chosen = replace(settings("dsd", "coupled"), patience=patience)
    return toy_robot().run(REQUEST, chosen, 1, link.connect)


def ask(address: str, patience: float = 60.0, **given: Any) -> Outcome:
    link = VerifierClient(ClientSettings(address, **given))
    try:
        return client(link, patience)
    finally:
        link.close()


def test_the_commands_of_this_page_let_a_robot_in_and_nobody_else(
    made: Path, tmp_path: Path
) -> None:
    path = {each.name: str(each) for each in made.iterdir()}
    served = {
        "certificate": path["server.pem"],
        "key": path["server.key"],
        "client_authority": path["ca.pem"],
        "token_file": path["token"],
    }
    robot = {
        "authority": path["ca.pem"],
        "certificate": path["robot.pem"],
        "key": path["robot.key"],
        "token_file": path["token"],
    }
    ServerSettings("0.0.0.0:50151", **served)
    stranger = Authority(tmp_path, "stranger").certificate("robot-1")
    assert (made / "ca.key").stat().st_mode & 0o077 == 0
    with Cloud(toy_worker(), **served) as cloud:
        assert ask(cloud.address, **robot).tokens == OWN
        for wrong in ({"certificate": "", "key": ""}, stranger):
            outcome = ask(cloud.address, patience=1.5, **{**robot, **wrong})
            assert (outcome.reason, outcome.tokens) == ("timeout", ())
        no_token = ask(cloud.address, **{**robot, "token_file": ""})
        assert no_token.reason == "unauthenticated"
        assert ask(cloud.address, **robot).tokens == OWN


def test_client_certificates_alone_do_off_loopback_and_need_tls(made: Path) -> None:
    pair = {"certificate": str(made / "server.pem"), "key": str(made / "server.key")}
    ServerSettings("0.0.0.0:1", **pair, client_authority=str(made / "ca.pem"))
    with pytest.raises(UserError, match="needs TLS"):
        ServerSettings(client_authority=str(made / "ca.pem"))
    with pytest.raises(UserError, match="no PEM certificate"):
        Cloud(toy_worker(), **pair, client_authority=str(made / "token"))


@pytest.fixture
def rotating(tmp_path: Path) -> Iterator[tuple[Cloud, dict[str, str], Path]]:
    """A verifier, the robot's settings, and the folder with the files that both read."""
    first = Authority(tmp_path, "first")
    pair, token = first.certificate("server"), tmp_path / "token"
    token.write_text("old-token\n")
    shutil.copy(first.path, tmp_path / "ca.pem")
    robot = {"authority": str(tmp_path / "ca.pem"), "token_file": str(tmp_path / "robot-token")}
    (tmp_path / "robot-token").write_text("old-token\n")
    with Cloud(toy_worker(), **pair, token_file=str(token)) as cloud:
        yield cloud, robot, tmp_path


def test_a_token_is_replaced_without_a_restart_of_either_side(rotating: Any) -> None:
    cloud, robot, folder = rotating
    link = VerifierClient(ClientSettings(cloud.address, **robot))
    assert client(link).tokens == OWN
    (folder / "token").write_text("new-token\nold-token\n")  # both are good for a while
    assert client(link).tokens == OWN
    (folder / "robot-token").write_text("new-token\n")
    assert client(link).tokens == OWN
    (folder / "token").write_text("new-token\n")
    assert client(link).tokens == OWN
    (folder / "robot-token").write_text("old-token\n\n")
    assert client(link).reason == "unauthenticated"
    (folder / "token").write_text("\n")  # half written: the last good ones stay
    assert client(link).reason == "unauthenticated"
    (folder / "robot-token").write_text("new-token\n")
    assert client(link).tokens == OWN
    link.close()


def test_a_certificate_is_replaced_without_a_restart_of_either_side(rotating: Any) -> None:
    """By one of another authority, as after a theft: the old one's robots are not served."""
    cloud, robot, folder = rotating
    link = VerifierClient(ClientSettings(cloud.address, **robot))
    assert client(link).tokens == OWN
    (folder / "other").mkdir()
    other = Authority(folder / "other", "second")
    fresh = other.certificate("server")
    shutil.copy(fresh["key"], folder / "server.key")  # it does not fit: the old pair stays
    assert ask(cloud.address, **robot).tokens == OWN
    shutil.copy(fresh["certificate"], folder / "server.pem")
    assert ask(cloud.address, patience=1.5, **robot).reason == "timeout"
    shutil.copy(other.path, folder / "ca.pem")
    assert client(link).tokens == OWN  # the running robot, too, on a new connection
    link.close()
