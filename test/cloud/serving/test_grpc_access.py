"""Which robots the verifier accepts, as which client, and credentials that are replaced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.cloud.certificates import Authority
from helpers.cloud.grpc_cloud import Cloud, Proxy
from helpers.cloud.grpc_robot import OWN, REQUEST, Talk, decode_at, opening, settings, toy_robot
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.cloud.model_thread.sessions import WorkerLimits
from edge_cloud_spec.cloud.serving.client_streams import ByteBound, SendQueue
from edge_cloud_spec.cloud.serving.server import ServerSettings
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.lab.harness.emulated_link import LinkProfile
from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.wire.messages import Opened
from edge_cloud_spec.wire.secret_files import named_tokens

PAGE = Path(__file__).parents[3] / "docs/certificates.md"


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A certificate for 127.0.0.1 and its key, who signed it, and another authority."""
    folder = tmp_path_factory.mktemp("pem")
    ours, other = (Authority(folder, name) for name in ("ours", "stranger"))
    served = ours.certificate("verifier")
    return SimpleNamespace(**served, authority=ours.path, other=other.path)


@pytest.fixture(scope="module")
def guarded(pem: Any) -> Iterator[Cloud]:
    with Cloud(toy_worker(), certificate=pem.certificate, key=pem.key, token="secret") as running:
        yield running


@pytest.mark.parametrize("token", ["secret", "", "wrong", "secret2", "SECRET"])
def test_the_right_token_lets_a_robot_in_and_a_wrong_one_is_a_fault_that_says_what_to_do(
    guarded: Cloud, pem: Any, token: str
) -> None:
    outcome = decode_at(guarded.address, authority=pem.authority, token=token)
    if token == "secret":
        assert outcome.tokens == OWN
    else:
        assert (outcome.reason, outcome.tokens) == ("unauthenticated", ())
        assert "give the robot the verifier's token" in outcome.text


def test_over_tls_a_round_trip_of_more_than_a_second_is_no_dead_link(
    guarded: Cloud, pem: Any
) -> None:
    """Where an attempt to connect ends before its three round trips, none ever succeeds."""
    shown = {"authority": pem.authority, "token": "secret"}
    with Proxy(guarded.address, LinkProfile(delay_ms=750.0)) as proxy:
        outcome = decode_at(proxy.address, "cloud_ar", reply_timeout=30.0, **shown)
    assert outcome.tokens == OWN, outcome.text


@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:50151", "robot.example.org:1"]
)
def test_off_loopback_tls_and_a_token_are_required(address: str, pem: Any) -> None:
    pair = {"certificate": pem.certificate, "key": pem.key}
    for some in ({}, {"token": "x"}, pair):
        with pytest.raises(UserError, match="give --certificate, --key and --token"):
            ServerSettings(address, **some)
    ServerSettings(address, **pair, token="secret")
    ServerSettings(address, **pair, client_authority=pem.authority)
    assert ClientSettings(address).secure


def test_a_certificate_that_cannot_be_used_is_named(pem: Any, tmp_path: Path) -> None:
    missing, broken = str(tmp_path / "missing"), tmp_path / "broken.pem"
    broken.write_text("no PEM")
    good = {"certificate": pem.certificate, "key": pem.key}
    for access, complaint in (
        ({"certificate": missing, "key": pem.key}, "missing cannot be read"),
        ({"certificate": pem.certificate, "key": missing}, "missing cannot be read"),
        ({"certificate": str(broken), "key": pem.key}, "no PEM pair"),
        ({"certificate": pem.other, "key": pem.key}, "no PEM pair"),
        ({"certificate": pem.certificate}, "both --certificate and --key"),
        ({"client_authority": pem.authority}, "needs TLS"),
        ({**good, "client_authority": str(broken)}, "no PEM certificate"),
    ):
        with pytest.raises(UserError, match=complaint):
            Cloud(toy_worker(), **access)
    with pytest.raises(UserError, match="is not a file"):
        ClientSettings(authority=missing).check()


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


def client(link: VerifierClient) -> Outcome:
    return toy_robot().run(REQUEST, settings("dsd", "coupled"), 1, link.connect)


def test_the_commands_of_this_page_let_a_robot_in_and_nobody_else(
    made: Path, tmp_path: Path
) -> None:
    def files(**named: str) -> dict[str, str]:
        return {what: str(made / name) for what, name in named.items()}

    served = files(certificate="server.pem", key="server.key", client_authority="ca.pem")
    robot = files(authority="ca.pem", certificate="robot.pem", key="robot.key", token_file="token")
    stranger = Authority(tmp_path, "stranger").certificate("robot-1")
    assert (made / "ca.key").stat().st_mode & 0o077 == 0
    with Cloud(toy_worker(), **served, token_file=robot["token_file"]) as cloud:
        for wrong, reason in (
            ({}, "end"),
            ({"certificate": "", "key": ""}, "timeout"),
            (stranger, "timeout"),
            ({"token_file": ""}, "unauthenticated"),
        ):
            reply_timeout = 1.5 if reason == "timeout" else 150.0
            outcome = decode_at(cloud.address, reply_timeout=reply_timeout, **{**robot, **wrong})
            assert (outcome.reason, outcome.tokens) == (reason, () if wrong else OWN)


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
    with closing(VerifierClient(ClientSettings(cloud.address, **robot))) as link:
        for name, text, reason in (
            ("token", "old-token\n", "end"),
            ("token", "new-token\nold-token\n", "end"),  # both are good for a while
            ("robot-token", "new-token\n", "end"),
            ("token", "new-token\n", "end"),
            ("robot-token", "old-token\n\n", "unauthenticated"),
            ("token", "\n", "unauthenticated"),  # half written: the last good ones stay
            ("robot-token", "new-token\n", "end"),
        ):
            (folder / name).write_text(text)
            outcome = client(link)
            assert (outcome.reason, outcome.tokens) == (reason, OWN if reason == "end" else ())


def test_a_certificate_is_replaced_without_a_restart_of_either_side(rotating: Any) -> None:
    """By one of another authority, as after a theft: the old one's robots are not served."""
    cloud, robot, folder = rotating
    (folder / "other").mkdir()
    other = Authority(folder / "other", "second")
    fresh = other.certificate("server")
    with closing(VerifierClient(ClientSettings(cloud.address, **robot))) as link:
        assert client(link).tokens == OWN
        shutil.copy(fresh["key"], folder / "server.key")  # it does not fit: the old pair stays
        assert decode_at(cloud.address, **robot).tokens == OWN
        shutil.copy(fresh["certificate"], folder / "server.pem")
        assert decode_at(cloud.address, reply_timeout=1.5, **robot).reason == "timeout"
        shutil.copy(other.path, folder / "ca.pem")
        assert client(link).tokens == OWN  # the running robot, too, on a new connection


def test_robots_with_a_named_token_are_that_name_and_others_a_hash(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("sesame\nrobot-7:barley\nrobot-7:barley-before\n")
    with Cloud(toy_worker(), token_file=str(tokens)) as cloud:
        shown = ("sesame", "barley", "barley-before", "robot-7:barley", "sesame")
        with contextlib.ExitStack() as stack:
            for number, token in enumerate(shown):
                talk = stack.enter_context(Talk(cloud.address, token=token))
                assert isinstance(talk.ask(opening(nonce=number)), Opened)
            found = [stream.client for stream in cloud.service.streams.streams]
        assert sorted(found)[:3] == ["robot-7"] * 3
        assert re.fullmatch(r"token [0-9a-f]{12}", sorted(found)[3]) and found.count(found[0]) == 2
        with Talk(cloud.address, token="robot-7") as stranger:  # a name is no secret
            assert stranger.ask(opening()).code == "unauthenticated"


lines = st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1))


@given(lines)
def test_every_line_of_a_token_file_is_good_and_has_the_name_before_its_colon(
    lines: list[str],
) -> None:
    """As whole lines, too: a token from before there were names may hold a colon."""
    named = named_tokens(tuple(lines))
    assert set(lines) <= {token for _, token in named}
    for name, token in named:
        unnamed = " " in name and token in lines
        assert unnamed or f"{name}:{token}" in lines or token.startswith(f"{name}:")


@given(lines, lines)
def test_a_token_keeps_its_name_whichever_other_lines_come_or_go(
    before: list[str], after: list[str]
) -> None:
    """What a name has (an index of answers, bounds, leases) is never another token's."""
    first, second = (
        {token: name for name, token in named_tokens(tuple(given)) if " " in name}
        for given in (before, after)
    )
    assert all(second[token] == name for token, name in first.items() if token in second)
    together = first | second
    assert len({*together.values()}) == len(together)


def test_a_client_that_opens_streams_without_end_ends_its_own(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("honest:sesame\nhostile:barley\n")
    limits = WorkerLimits(sessions=8, sessions_per_robot=2)
    with (
        Cloud(toy_worker(limits), token_file=str(tokens)) as cloud,
        contextlib.ExitStack() as open_,
    ):
        honest = open_.enter_context(Talk(cloud.address, token="sesame"))
        assert isinstance(honest.ask(opening()), Opened)
        for nonce in range(12):
            robot = open_.enter_context(Talk(cloud.address, token="barley", retry_s=60.0))
            assert robot.ask(opening(nonce=100 + nonce))
        service = cloud.service
        found = [stream.client for stream in service.streams.streams]
        assert found.count("honest") == 1
        assert 1 <= found.count("hostile") <= 4
        assert service.streams.evicted >= 8


def test_what_waits_for_a_client_is_bounded_over_all_its_streams() -> None:
    async def fill() -> None:
        bound, gone = ByteBound(1000), []
        queues = [SendQueue(600, lambda: gone.append(1), bound) for _ in range(3)]
        queues[0].put(b"x" * 500)
        queues[1].put(b"x" * 400)
        assert not queues[1].over
        queues[2].put(b"x" * 200)  # little, but its client has too much
        await asyncio.sleep(0)
        assert queues[2].over and gone == [1]
        assert await queues[0].take() == b"x" * 500
        for queue in queues:
            queue.close()
            queue.put(b"late")  # the worker does not know yet that the stream is over
        assert await queues[1].take() == b"x" * 400  # nor does who sends what waits
        assert bound.size == 0

    asyncio.run(fill())
