"""What one robot may ask; strangers by the thousand; and what nobody finds in a log."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.grpc_robot import OWN, REQUEST, Talk, opening, settings, toy_robot
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.cloud.serving.access import ClientRates, TokenBucket
from edge_cloud_spec.cloud.serving.server import ServerSettings
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.events import LinkLost, LinkUp
from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.wire.channel import METHOD, retry_after_s
from edge_cloud_spec.wire.messages import Opened

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


def test_whoever_was_quiet_for_long_has_saved_up_one_burst_and_no_more() -> None:
    rate = TokenBucket(1.0, 3.0, 0.0)
    assert [bool(rate.take(1.0, 3600.0)) for _ in range(4)] == [False, False, False, True]


def test_one_clients_rate_is_not_anothers() -> None:
    rates = ClientRates(ServerSettings(streams_per_s=0.1))
    assert [bool(rates.stream("a", 0.0)) for _ in range(3)] == [False, True, True]
    assert not rates.stream("b", 0.0)


def test_a_robot_that_opens_too_many_streams_is_told_when_to_come_again() -> None:
    """And one that waits as told is served; a robot on another connection notices nothing."""
    with Cloud(toy_worker(), streams_per_s=2.0) as cloud:
        with grpc.insecure_channel(cloud.address) as channel:
            method = channel.stream_stream(METHOD)
            errors = []
            for _ in range(40):
                try:
                    list(method(iter(())))
                except grpc.RpcError as error:
                    errors.append(error)
        assert errors
        assert {error.code() for error in errors} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        waits = [retry_after_s(error.trailing_metadata()) for error in errors]
        assert all(wait is not None and 0 < wait <= 1 for wait in waits)
        link = VerifierClient(ClientSettings(cloud.address))
        outcome = toy_robot().run(REQUEST, settings("dsd", "coupled"), 1, link.connect)
        link.close()
        assert outcome.tokens == OWN


def test_a_robot_that_floods_is_read_slowly_and_loses_nothing() -> None:
    """Ten a second beyond the first ones; all that it sent is answered in the end."""
    rates, now, read = ClientRates(ServerSettings(messages_per_s=10.0)), 0.0, []
    for _ in range(60):
        while pause := rates.pause("flooding", now):
            now += pause * 1.001
        read.append(now)
        assert not rates.pause(f"other {len(read)}", now)
    assert read[19] == 0.0 and 3.9 < read[-1] < 4.2
    with Cloud(toy_worker(), messages_per_s=50.0) as toy, Talk(toy.address) as robot:
        for _ in range(120):
            robot.say(b"\x99")
        assert {robot.hear().code for _ in range(120)} == {"bad_request"}


def test_a_robot_that_sends_too_much_pauses_and_resumes(toy: Any) -> None:
    with (
        Cloud(toy_worker(), bytes_per_s=20_000.0) as cloud,
        Talk(cloud.address, retry_s=0.01) as robot,
    ):
        robot.say(opening())
        assert isinstance(robot.hear(), Opened)
        for _ in range(30):
            robot.say(b"\x99" * 10_000)
        heard = robot.hear()
        while not isinstance(heard, LinkLost):  # faults of what is no message
            heard = robot.hear()
        # gRPC makes INTERNAL of a refusal that a write crosses on its way: it tries again, too.
        assert heard.reason == "Internal error from Core" or "tries again after" in heard.reason
        assert isinstance(robot.hear(), LinkUp)


def test_ten_thousand_garbage_connections_leave_an_honest_robot_served(toy: Any) -> None:
    """They connect, say something that is no HTTP/2, or nothing; some stay for a while."""
    host, _, port = toy.address.rpartition(":")
    noise, staying = random.Random(5), []
    link = VerifierClient(ClientSettings(toy.address))
    outcomes = []
    for number in range(CONNECTIONS):
        stranger = socket.socket()
        stranger.settimeout(5.0)
        with contextlib.suppress(OSError):
            stranger.connect((host, int(port)))
            if number % 3:
                stranger.send(noise.randbytes(noise.randrange(1, 60)))
        staying.append(stranger)
        if len(staying) > 100:
            staying.pop(0).close()
        if number % (CONNECTIONS // 4) == CONNECTIONS // 8:
            chosen = settings("dsd", "coupled")
            outcomes.append(toy_robot().run(REQUEST, chosen, number, link.connect))
    for stranger in staying:
        stranger.close()
    link.close()
    assert [outcome.tokens for outcome in outcomes] == [OWN] * 4


TALKATIVE = """
import logging, sys
from edge_cloud_spec.cloud.serving.logs import TextLines, set_up_logging
set_up_logging("json", logging.DEBUG)
text = logging.StreamHandler()
text.setFormatter(TextLines())
logging.getLogger().addHandler(text)
from helpers.cloud.grpc_cloud import Cloud, Proxy
from helpers.cloud.grpc_robot import REQUEST, Talk, opening, settings, toy_robot
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.wire.messages import DraftMessage
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.cloud.serving.server import ServerSettings

right, wrong, picture = sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3])
print(ServerSettings(token="token-of-a-value"), ClientSettings(token="token-of-a-value"))
worker = toy_worker()
with Cloud(worker, token_file=right, metrics="127.0.0.1:0") as cloud, Proxy(cloud.address) as proxy:
    for token in (right, wrong):
        with Talk(proxy.address, token_file=token, retry_s=0.01) as robot:
            robot.say(opening(jpeg=picture))
            opened = robot.hear()
            robot.say(picture)
            if token == right:
                robot.say(DraftMessage(opened.base, Draft((99,)), 0))
                robot.hear()
                proxy.cut()
                robot.hear()
    worker._models.prompt = lambda opening: 1 / 0  # a failure in the middle of a request
    with Talk(proxy.address, token_file=right) as robot:
        robot.say(opening(jpeg=picture))
        robot.hear()
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
