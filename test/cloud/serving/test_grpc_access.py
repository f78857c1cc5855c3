"""Which robots the verifier accepts and as which client, credentials that are replaced, and what
one robot may ask; robots that do not read or flood, and strangers by the thousand."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from cryptography import x509
from helpers.cloud.certificates import Authority
from helpers.cloud.grpc_cloud import Cloud, Proxy, until
from helpers.cloud.grpc_robot import OWN, REQUEST, Talk, decode_at, opening, settings, toy_robot
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from edge_cloud_spec.cli import main
from edge_cloud_spec.cloud import command
from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.cloud.model_thread.sessions import RobotStream
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.cloud.serving.access import ClientRates, TokenBucket
from edge_cloud_spec.cloud.serving.client_streams import (
    MAX_UNHANDLED,
    ByteBound,
    ClientStreams,
    SendQueue,
)
from edge_cloud_spec.cloud.serving.server import ServerSettings
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.edge.client import VerifierClient
from edge_cloud_spec.edge.events import LinkLost, LinkUp
from edge_cloud_spec.edge.link import stream as link_stream
from edge_cloud_spec.edge.link.route import ClientSettings
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.wire.channel import METHOD, retry_after_s
from edge_cloud_spec.wire.codec import decode_server, encode_client, read_server
from edge_cloud_spec.wire.messages import DraftMessage, Opened, Resume, Verdict
from edge_cloud_spec.wire.secret_files import named_tokens, validity
from edge_cloud_spec_lab.harness.emulated_link import LinkProfile
from edge_cloud_spec_lab.harness.toy import ToyVlm, spec_of, toy_worker

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
    with Proxy(guarded.address, LinkProfile(delay_ms=550.0)) as proxy:
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
    with pytest.raises(UserError, match="missing cannot be read"):
        ClientSettings(authority=missing).check()
    for without in (str(broken), pem.key):
        with pytest.raises(UserError, match=f"authority {without} holds no PEM certificate"):
            ClientSettings(authority=without).check()


@pytest.mark.parametrize(
    ("dates", "said"),
    [
        ({"begins": -9, "ends": -0.1}, "the certificate .*old.pem has expired on"),
        ({"begins": 0.5}, "the certificate .*old.pem is not valid before"),
    ],
)
def test_serve_refuses_a_certificate_that_no_robot_accepts_before_it_loads_a_model(
    pem: Any,
    dates: dict[str, float],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "set_up_logging", lambda form: None)  # it would end pytest's
    folder = Path(pem.certificate).parent
    old = Authority(folder, "another").certificate("old", **dates)  # type: ignore[arg-type]
    given = [f"--{name}={path}" for name, path in old.items()]
    assert main(["serve", "--target", "/no/model", "--address", "127.0.0.1:0", *given]) == 2
    assert re.search(said, capsys.readouterr().err)


def test_the_log_says_once_a_day_that_a_certificate_expires_in_its_last_thirty_days(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    for days, lines in ((29.9, 1), (31.1, 0)):
        served = authority.certificate(f"of_{lines}", ends=days)
        with Cloud(toy_worker(), **served) as running:
            for _ in range(2):
                assert decode_at(running.address, authority=authority.path).tokens == OWN
        said = [each for each in caplog.messages if served["certificate"] in each]
        assert len(said) == lines and all("replace it before" in each for each in said)


def test_a_certificate_that_has_expired_does_not_replace_one_that_is_served(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with Cloud(toy_worker(), **authority.certificate("verifier")) as running:
        authority.certificate("verifier", begins=-9, ends=-1)
        assert decode_at(running.address, authority=authority.path).tokens == OWN


days = st.floats(
    -20_000, 40_000
)  # from 1972 on, and beyond 2050, from when on DER writes years whole


@settings_of_hypothesis(max_examples=30, deadline=None)
@given(begins=days, ends=days, before=st.text(st.characters(codec="utf-8"), max_size=40))
def test_the_dates_of_a_file_are_those_of_its_first_certificate(
    tmp_path_factory: pytest.TempPathFactory, begins: float, ends: float, before: str
) -> None:
    begins, ends = sorted((begins, ends))
    authority = Authority(tmp_path_factory.mktemp("dates"), ends=5)
    path = Path(authority.certificate("one", begins=begins, ends=ends)["certificate"])
    written = x509.load_pem_x509_certificate(path.read_bytes())
    path.write_text(before + "\n" + path.read_text() + Path(authority.path).read_text(), "utf-8")
    assert validity(str(path)) == (written.not_valid_before_utc, written.not_valid_after_utc)


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
            ({"certificate": "", "key": ""}, "tls"),
            (stranger, "tls"),
            ({"token_file": ""}, "unauthenticated"),
        ):
            outcome = decode_at(cloud.address, **{**robot, **wrong})
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
    with contextlib.closing(VerifierClient(ClientSettings(cloud.address, **robot))) as link:
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
    with contextlib.closing(VerifierClient(ClientSettings(cloud.address, **robot))) as link:
        assert client(link).tokens == OWN
        shutil.copy(fresh["key"], folder / "server.key")  # it does not fit: the old pair stays
        assert decode_at(cloud.address, **robot).tokens == OWN
        shutil.copy(fresh["certificate"], folder / "server.pem")
        assert decode_at(cloud.address, **robot).reason == "tls"
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
        first, second, third = (SendQueue(600, lambda: gone.append(1), bound) for _ in range(3))
        first.put(b"x" * 500)
        second.put(b"x" * 400)
        assert not second.over
        third.put(b"x" * 200)  # little, but its client has too much
        await asyncio.sleep(0)
        assert third.over and gone == [1]
        assert await first.take() == b"x" * 500
        for each in (first, second, third):
            each.close()
            each.put(b"late")  # the worker does not know yet that the stream is over
        assert await second.take() == b"x" * 400  # nor does who sends what waits
        assert bound.size == 0

    asyncio.run(fill())


# What one robot may ask

CONNECTIONS = 10_000


@given(
    per_s=st.floats(0.1, 100),
    burst=st.floats(1, 100),
    asked=st.lists(st.tuples(st.floats(0.01, 50), st.floats(0, 3)), max_size=60),
)
def test_a_rate_is_kept_and_a_wait_is_enough(
    per_s: float, burst: float, asked: list[tuple[float, float]]
) -> None:
    rate, now, used, largest = TokenBucket(per_s, burst, 0.0), 0.0, 0.0, 0.0
    for amount, pause in asked:
        now += pause
        wait = rate.take(amount, now)
        if wait:
            now += wait * 1.001 + 1e-6
            assert not rate.take(amount, now)
        used, largest = used + amount, max(largest, amount)
    assert used <= burst + per_s * now + largest + 1e-6


def test_a_robot_that_opens_too_many_streams_is_told_when_to_come_again() -> None:
    """And one that waits as told is served; a robot on another connection notices nothing."""
    with Cloud(toy_worker(), streams_per_s=2.0) as cloud:
        with grpc.insecure_channel(cloud.address) as channel:
            calls = [channel.stream_stream(METHOD)(iter(())) for _ in range(40)]
            refused = [call for call in calls if call.code() != grpc.StatusCode.OK]
        assert {call.code() for call in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        waits = [retry_after_s(call.trailing_metadata()) for call in refused]
        assert all(wait is not None and 0 < wait <= 20 for wait in waits)
        assert decode_at(cloud.address).tokens == OWN


def test_a_robot_that_floods_is_read_slowly_and_loses_nothing() -> None:
    """Ten a second beyond the first ones; all that it sent is answered in the end."""
    rates, now, read = ClientRates(ServerSettings(messages_per_s=10.0)), 0.0, []
    for _ in range(60):
        while pause := rates.take("messages", "flooding", now):
            now += pause * 1.001
        read.append(now)
        assert not rates.take("messages", f"other {len(read)}", now)
    assert read[19] == 0.0 and 3.9 < read[-1] < 4.2
    with Cloud(toy_worker(), messages_per_s=50.0) as toy, Talk(toy.address) as robot:
        for _ in range(120):
            robot.say(b"\x99")
        assert {robot.hear().code for _ in range(120)} == {"bad_request"}


def test_a_robot_that_sends_too_much_pauses_and_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_stream, "LATE_CLOSE_S", 0.05)  # it takes a fault for the last answer
    with (
        Cloud(toy_worker(), bytes_per_s=20_000.0) as cloud,
        Talk(cloud.address, retry_s=0.01) as robot,
    ):
        assert isinstance(robot.ask(opening()), Opened)
        for _ in range(30):
            robot.say(b"\x99" * 10_000)
        while not isinstance(heard := robot.hear(), LinkLost):
            pass  # faults of what is no message
        assert "tries again after" in heard.reason
        assert isinstance(robot.hear(), LinkUp)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame (RFC 9113, section 4.1)."""
    head = struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream)
    return head + payload


def sized(text: str) -> bytes:
    """A part of a header, shorter than 127 bytes."""
    return bytes((len(text),)) + text.encode()


def request(nonce: int) -> bytes:
    """The bytes that begin a connection and a decode, written by hand; more than one frame."""
    message = encode_client(opening(nonce=nonce, jpeg=bytes(40_000))).data
    data = b"\x00" + struct.pack(">I", len(message)) + message
    parts = [data[at : at + 16_000] for at in range(0, len(data), 16_000)]
    fields = {":method": "POST", ":scheme": "http", ":path": METHOD, ":authority": "localhost"}
    fields |= {"content-type": "application/grpc", "te": "trailers"}
    headers = b"".join(b"\x00" + sized(name) + sized(value) for name, value in fields.items())
    preface = b"PRI * HTTP/2.0\r\n\r\n" + b"SM\r\n\r\n" + frame(4, 0, 0, b"")
    return preface + frame(1, 4, 1, headers) + b"".join(frame(0, 0, 1, part) for part in parts)


def test_ten_thousand_strangers_leave_an_honest_robot_served(toy: Any) -> None:
    """They say nothing, noise, a part of a request or all of it; they stay for a while, or
    vanish."""
    host, _, port = toy.address.rpartition(":")
    noise, staying = random.Random(5), deque[socket.socket]()
    for number in range(CONNECTIONS):
        said = noise.randbytes(noise.randrange(60) * (number % 3 > 0))
        if number % 10 == 0:
            whole = request(number)
            said = whole if number % 20 else whole[: noise.randrange(1, len(whole))]
        stranger = socket.socket()
        stranger.settimeout(5.0)
        with contextlib.suppress(OSError):
            stranger.connect((host, int(port)))
            stranger.sendall(said)
        if number % 7 == 0:  # its close is a reset
            linger = struct.pack("ii", 1, 0)
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        staying.append(stranger)
        if len(staying) > 100:
            staying.popleft().close()
        if number % (CONNECTIONS // 4) == CONNECTIONS // 8:
            assert decode_at(toy.address, nonce=number).tokens == OWN
    for stranger in staying:
        stranger.close()
    assert toy.worker.held.evicted > 0, "no request of a stranger was taken for one"


TALKATIVE = """
import logging, sys
from edge_cloud_spec.cloud.serving.logs import TextLines, set_up_logging
set_up_logging("json", logging.DEBUG)
text = logging.StreamHandler()
text.setFormatter(TextLines())
logging.getLogger().addHandler(text)
from helpers.cloud.grpc_cloud import Cloud, Proxy
from helpers.cloud.grpc_robot import Talk, opening
from edge_cloud_spec.edge.link.route import ClientSettings
from edge_cloud_spec_lab.harness.toy import toy_worker
from edge_cloud_spec.wire.messages import DraftMessage
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.cloud.serving.server import ServerSettings

from edge_cloud_spec.edge.link import stream

stream.LATE_CLOSE_S = 0.05  # the robot takes a fault for the last answer
right, wrong, picture = sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3])
print(ServerSettings(token="token-of-a-value"), ClientSettings(token="token-of-a-value"))
worker = toy_worker()
with Cloud(worker, token_file=right, metrics="127.0.0.1:0") as cloud, Proxy(cloud.address) as proxy:
    for token in (right, wrong):
        with Talk(proxy.address, token_file=token, retry_s=0.01) as robot:
            opened = robot.ask(opening(jpeg=picture))
            robot.say(picture)
            if token == right:
                robot.ask(DraftMessage(opened.base, Draft((99,)), 0))
                proxy.cut()
                robot.hear()
    worker._models.speaker.prompt = lambda *_: 1 / 0  # a failure in the middle of a request
    with Talk(proxy.address, token_file=right) as robot:
        robot.ask(opening(jpeg=picture))
    from urllib.request import urlopen
    print(urlopen(f"http://{cloud._server.metrics.address}/metrics").read().decode())
"""


def test_neither_tokens_nor_pictures_stand_in_a_log(tmp_path: Path) -> None:
    """Both sides at debug level, and as much as goes wrong."""
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("robot-7:sesame-0123456789\n")
    wrong.write_text("barley-0123456789\n")
    picture = b"\xff\xd8picture-of-a-home"
    environment = {
        **os.environ,
        "GRPC_VERBOSITY": "debug",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
    }
    ended = subprocess.run(
        [sys.executable, "-c", TALKATIVE, str(right), str(wrong), picture.hex()],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
    )
    log = ended.stdout + ended.stderr
    assert "ZeroDivisionError" in log  # it is a log of what went wrong
    assert '"client": "robot-7"' in log and 'client="robot-7"' in log
    assert '"session": "' in log and "edge_cloud_spec_requests_failed_total" in log
    for secret in ("sesame", "barley", "token-of-a-value", "picture-of-a-home", picture.hex()):
        assert secret not in log


MEGABYTE = 2**20


@pytest.fixture
def wordy() -> Iterator[SimpleNamespace]:
    """A verifier whose Opened has a megabyte, of which it lets eight wait."""
    spec = replace(spec_of(60), chat_template="x" * MEGABYTE)
    limits = WorkerLimits(queue_bytes=8 * MEGABYTE)
    with Cloud(Worker(ToyVlm(1), spec, None, limits)) as running:  # type: ignore[arg-type]
        yield running


def test_a_robot_that_does_not_read_makes_nothing_wait_without_bound(wordy: Any) -> None:
    """Its answers would be 300 MB."""
    streams, said = wordy.service.streams.streams, queue.SimpleQueue[bytes]()
    with grpc.insecure_channel(wordy.address) as channel:
        deaf = channel.stream_stream(METHOD)(iter(said.get, b""))
        said.put(encode_client(opening()).data)
        first: Any = decode_server(read_server(next(deaf)))
        for _ in range(300):
            said.put(encode_client(opening()).data)
        (outbox,) = streams.values()
        most = 0

        def is_bounded() -> bool:
            """It is not listened to until it reads, or let go: the answer too many is not kept."""
            nonlocal most
            most = max(most, outbox.size)
            return (most > 4 * MEGABYTE or outbox.over) and not wordy.worker.pending

        until(is_bounded)
        assert most <= 9 * MEGABYTE
        assert len(wordy.worker.held) == 1
        with Talk(wordy.address) as back:  # as a robot does that is only slow
            assert isinstance(back.ask(Resume(first.session, first.base)), Opened)
            assert back.ask(DraftMessage(first.base, Draft(OWN[:3]), 0)).path == (0, 1, 2)
        heard = 0
        with contextlib.suppress(grpc.RpcError):  # where it was let go
            for _ in deaf:
                heard += 1
        assert heard < 50
        said.put(b"")
        until(lambda: not streams)


def test_a_robot_that_reads_gets_all_it_asked_for(wordy: Any) -> None:
    with Talk(wordy.address) as robot:
        for asked in range(40):
            robot.say(opening())
            assert asked < 3 or isinstance(robot.hear(), Opened)
        assert all(isinstance(robot.hear(), Opened) for _ in range(3))


@pytest.mark.parametrize(
    ("received", "to_send", "behind"),
    [
        (([1] * MAX_UNHANDLED, []), (0, 0), False),
        (([1] * (MAX_UNHANDLED + 1), []), (0, 0), True),
        (([100], []), (0, 0), False),
        (([101], []), (0, 0), True),
        (([60], [90]), (0, 0), False),
        (([60], [91]), (0, 0), True),
        (([], []), (50, 0), False),
        (([], []), (51, 0), True),
        (([], []), (30, 45), False),
        (([], []), (30, 46), True),
    ],
)
def test_a_stream_is_not_read_while_much_waits_in_it_or_for_its_client(
    received: tuple[list[int], list[int]], to_send: tuple[int, int], behind: bool
) -> None:
    """The client's second stream counts as well. What is to be sent waits up to half its bound."""

    async def ask() -> bool:
        streams = ClientStreams(WorkerLimits(queue_bytes=100, bytes_per_robot=150))
        both = [
            streams.open("robot", lambda queue: RobotStream(queue.put, "robot"), lambda: None)
            for _ in range(2)
        ]
        for (stream, outbox), sizes, size in zip(both, received, to_send, strict=True):
            for each in sizes:
                stream.waiting.append((bytes(each), 0.0))
            outbox.put(bytes(size))
        return streams.is_behind(both[0][0])

    assert asyncio.run(ask()) == behind


def test_a_stream_whose_client_has_no_name_is_a_client_of_its_own() -> None:
    """gRPC has no name for a peer that has already left."""

    async def come_and_go() -> None:
        streams = ClientStreams(WorkerLimits(sessions_per_robot=1))
        nameless = [
            streams.open("", lambda queue: RobotStream(queue.put, ""), lambda: None)[0]
            for _ in range(4)
        ]
        assert [*streams.streams] == nameless and not streams.evicted
        for stream in nameless:
            assert not streams.is_behind(stream)
            streams.remove(stream)
        assert not streams.streams

    asyncio.run(come_and_go())


def test_streams_without_a_session_make_room_for_others() -> None:
    with Cloud(toy_worker(WorkerLimits(sessions=3))) as toy, contextlib.ExitStack() as stack:
        robot = stack.enter_context(Talk(toy.address))
        base = robot.ask(opening()).base
        for _ in range(12):  # they say nothing
            stack.enter_context(Talk(toy.address, retry_s=60.0))
        with Talk(toy.address) as other:
            assert isinstance(other.ask(opening(nonce=2)), Opened)
        streams = toy.service.streams
        assert len(streams.streams) <= 6 <= streams.evicted
        assert isinstance(robot.ask(DraftMessage(base, Draft(OWN[:2]), 0)), Verdict)
