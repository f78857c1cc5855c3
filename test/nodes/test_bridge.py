"""The cloud bridge as a node: what the drafter says reaches the cloud in the order of its words."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from builtin_interfaces.msg import Duration, Time
from diagnostic_msgs.msg import DiagnosticStatus
from helpers.cloud.grpc_cloud import Cloud, free_port, until
from helpers.cloud.grpc_robot import opening
from helpers.cloud.scripted_cloud import RobotSide, ScriptedCloud
from helpers.graph.nodes_here import Hearer, running_bridge
from helpers.graph.peer import REPLY_TIMEOUT
from rcl_interfaces.msg import Log

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft as TheDraft
from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.edge.events import LinkLost, LinkUp
from edge_cloud_spec.edge.link import route
from edge_cloud_spec.msg import Verdict
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec.nodes import cloud_bridge
from edge_cloud_spec.nodes.bridge_messages import from_topic, to_draft, to_request, to_topic
from edge_cloud_spec.nodes.runtime.qos import RELIABLE
from edge_cloud_spec.nodes.topics import TOPICS
from edge_cloud_spec.wire import codec
from edge_cloud_spec.wire.codec import (
    decode_client,
    encode_client,
    encode_server,
    read_client,
    read_server,
)
from edge_cloud_spec.wire.frames import ClientFrame
from edge_cloud_spec.wire.messages import (
    ClientMessage,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Resume,
    RowMessage,
    ServerMessage,
)
from edge_cloud_spec.wire.messages import Prediction as WirePrediction
from edge_cloud_spec.wire.messages import Verdict as WireVerdict
from edge_cloud_spec_lab.harness.toy import toy_worker


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its waits are shorter than a bridge's; test/edge tests the link's with all of them."""
    for name in ("nodes.runtime.diagnostics.PERIOD_S", "nodes.health.WELL_S"):
        monkeypatch.setattr(f"edge_cloud_spec.{name}", 0.3)
    for name in ("PROBE_S", "IDLE_S", "HOLD_S"):
        monkeypatch.setattr(f"edge_cloud_spec.edge.link.state.{name}", 0.2)


class Recorder(ScriptedCloud):
    """A verifier that says nothing, and keeps what came on each stream that said something."""

    def __init__(self) -> None:
        super().__init__(self._record)
        self.heard: list[list[ClientMessage]] = []
        self.ended = 0

    def _record(self, robot: RobotSide) -> Iterator[bytes]:
        heard: list[ClientMessage] = []
        while data := robot.hear():
            heard.append(decode_client(read_client(data)))
            if len(heard) == 1:  # who waits for a stream waits for its Open
                self.heard.append(heard)
        self.ended += 1
        yield from ()


def message_of(request: int, number: int, last: int) -> ClientMessage:
    base = PrefixDigest(number, request)
    if number == 0:
        return Open(request, CLAUSES.request("find", b""), GREEDY, "greedy")
    if number == last:
        return Close(request)
    if number % 3:
        return DraftMessage(base, TheDraft((1,)), number)
    return Generate(base)


def say(hearer: Hearer, request: int, number: int, last: int) -> None:
    """Message ``number`` of a request: an Open, drafts with requests between, a Close."""
    message = message_of(request, number, last)
    drafts = isinstance(message, DraftMessage)
    said = to_draft(message, [], 0.0) if drafts else to_request(message, "dsd")
    said.request_id, said.sequence = f"request {request}", number
    (hearer.drafts if drafts else hearer.requests).publish(said)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder() as recorder:
        yield recorder


@pytest.fixture
def robot(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hearer]:
    # This robot says nothing twice, and what it said is dropped where a link comes up late.
    monkeypatch.setattr(route, "UNREACHABLE_S", REPLY_TIMEOUT)
    with running_bridge(cloud=recorder.address) as robot:
        yield robot


@pytest.mark.parametrize("seed", range(2))
def test_messages_go_out_by_sequence_in_whatever_order_the_topics_bring_them(
    robot: Hearer, recorder: Recorder, seed: int
) -> None:
    """Three requests at a time, each of up to 20 messages, some of them said twice."""
    random = Random(seed)
    lasts = [random.randint(3, 19) for _ in range(3)]
    said = [(request, number) for request, last in enumerate(lasts) for number in range(last)]
    said += [each for each in said if random.random() < 0.3]
    random.shuffle(said)
    for request, number in said:
        say(robot, request, number, lasts[request])
    robot.until(lambda: sum(map(len, recorder.heard)) >= sum(lasts))
    assert recorder.ended == 0
    for request, last in enumerate(lasts):
        say(robot, request, last, last)
    robot.until(lambda: recorder.ended == 3)
    for heard in recorder.heard:
        assert isinstance(heard[0], Open) and heard[0].key  # which the bridge puts into it
        request = heard[0].nonce
        last = lasts[request]
        assert heard[1:] == [message_of(request, number, last) for number in range(1, last + 1)]


def test_a_message_that_comes_after_the_end_opens_no_stream(
    robot: Hearer, recorder: Recorder
) -> None:
    """Said twice, or overtaken by the end: it would be a session that nobody closes."""
    say(robot, 0, 0, 2)
    robot.until(lambda: len(recorder.heard) == 1)
    for number in (1, 2, 0, 1, 2):
        say(robot, 0, number, 2)
    say(robot, 1, 0, 2)  # another request; what is before it on its topic has been handled

    robot.until(lambda: len(recorder.heard) == 2 and Close(0) in recorder.heard[0])
    kinds = [[type(message) for message in stream] for stream in recorder.heard]
    assert kinds == [[Open, DraftMessage, Close], [Open]]


def test_a_request_with_a_gap_ends_with_a_fault_and_not_with_silence(
    robot: Hearer, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many wait as may; the one that is due must not be turned away for that."""
    most = 8
    monkeypatch.setattr(cloud_bridge, "MAX_WAITING_MESSAGES", most)
    say(robot, 0, 0, 999)
    robot.until(lambda: len(recorder.heard) == 1)
    for number in range(2, most + 2):
        say(robot, 0, number, 999)
    robot.until(lambda: len(robot.bridge._streams["request 0"]._waiting) == most)
    say(robot, 0, 1, 999)
    robot.until(lambda: sum(map(len, recorder.heard)) == most + 2)
    assert not any(verdict.kind == Verdict.FAULT for verdict in robot.verdicts)
    for number in range(most + 3, 2 * most + 4):
        say(robot, 0, number, 999)
    robot.until(lambda: any(verdict.kind == Verdict.FAULT for verdict in robot.verdicts))
    [fault] = [verdict for verdict in robot.verdicts if verdict.kind == Verdict.FAULT]
    assert "got lost on its way to the bridge" in fault.text
    robot.until(lambda: recorder.ended == 1)


def test_a_request_from_before_a_restart_of_the_bridge_is_no_answer_that_is_missed(
    robot: Hearer,
) -> None:
    """It was waited for as long as the bridge ran, and link_state said lost of a good link."""
    for number in (4, 9):
        say(robot, 0, number, 9)
    robot.until(lambda: len(getattr(robot.bridge._streams.get("request 0"), "_waiting", ())) == 2)
    assert not robot.bridge._monitor._watch.waiting
    say(robot, 1, 0, 9)  # a request of its own is waited for
    robot.until(lambda: robot.bridge._monitor._watch.waiting)


STAMP = Time(sec=3, nanosec=4)
BASE = PrefixDigest(5, 6)
VERDICT = WireVerdict(BASE, (0, 1), 9, verify_s=1.5)
BASED = {"base_length": 5, "base_hash": 6}
ONE_AND_A_HALF = Duration(sec=1, nanosec=500_000_000)
PREDICTION = WirePrediction(BASE, (0,), 9, 0.5)
ROW = RowMessage(BASE, TokenDistribution(np.ones(1), np.array([2])))


@pytest.mark.parametrize(
    ("item", "kind", "fields"),
    [
        (VERDICT, Verdict.VERDICT, {"accepted": 2, "verify_time": ONE_AND_A_HALF, **BASED}),
        (Opened("s", b"", BASE), Verdict.OPENED, BASED),
        (ROW, Verdict.ROW, BASED),
        (Fault("f", "no such thing"), Verdict.FAULT, {"text": "no such thing"}),
        (PREDICTION, None, {"confidence": 0.5, **BASED}),  # it has a topic of its own
        (LinkLost("out of range"), Verdict.LINK_LOST, {"text": "out of range"}),
        (LinkUp(), Verdict.LINK_UP, {}),
        (LinkUp(moved=True), Verdict.LINK_MOVED, {}),
    ],
)
def test_what_the_cloud_or_the_link_says_has_typed_fields_and_comes_back_as_it_was(
    item: Any, kind: int | None, fields: dict[str, object]
) -> None:
    said = item if isinstance(item, LinkLost | LinkUp) else encode_server(item)
    message = to_topic(said, STAMP, "r1")
    assert (message.request_id, message.header.stamp) == ("r1", STAMP)
    assert (message.kind if isinstance(message, Verdict) else None) == kind
    assert {name: getattr(message, name) for name in fields} == fields
    assert isinstance(item, LinkLost | LinkUp) == (not message.payload)
    assert from_topic(message) == said
    if kind != Verdict.LINK_LOST:  # whose text is its reason
        if isinstance(message, Verdict):
            message.text = "in other words"
        assert from_topic(message) == said, "the text is for people"


@pytest.mark.parametrize("message", [VERDICT, PREDICTION, ROW, Opened("s", b"", BASE)])
def test_the_bridge_passes_on_what_it_does_not_read(
    message: ServerMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verdict is read once, in the decode; whatever is behind its head arrives as it was."""
    monkeypatch.setattr(codec, "_parsed", None)
    frame = encode_server(message)
    spoiled = read_server(frame.data[:21] + b"\xff" * len(frame.data[21:]))
    for sent in (frame, spoiled):
        assert from_topic(to_topic(sent, STAMP, "r1")) == sent
    assert isinstance(to_topic(spoiled, STAMP, "r1"), type(to_topic(frame, STAMP, "r1")))


def test_bytes_that_are_no_message_end_their_decode_alone_and_reach_no_cloud(
    robot: Hearer, recorder: Recorder
) -> None:
    """On the topics' way to the cloud: one has no head, the other an Open that is none."""
    bad = to_request(Close(), "dsd")
    for request, payload in ("no head", b"\xff"), ("no body", b"\x01" + bytes(13) + b"\xff"):
        bad.request_id, bad.payload = request, payload
        robot.requests.publish(bad)
    robot.until(lambda: len(robot.verdicts) == 2)
    for said, name in zip(robot.verdicts, ("no head", "no body"), strict=True):
        assert (said.request_id, said.kind) == (name, Verdict.FAULT)
        assert "not a message of this protocol" in said.text
    say(robot, 0, 0, 2)
    robot.until(lambda: len(recorder.heard) == 1)
    assert isinstance(recorder.heard[0][0], Open)


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    with Cloud(toy_worker()) as running:
        yield running


def ask(hearer: Hearer, request: str = "a") -> None:
    message = to_request(opening(), "dsd")
    message.request_id = request
    hearer.requests.publish(message)


def test_a_verifier_whose_model_hangs_is_lost_though_it_can_be_connected_to(cloud: Cloud) -> None:
    """It answers health checks; a decode under way gets no answer."""
    release = threading.Event()
    with running_bridge(cloud=cloud.address, late_after=0.2) as hearer:
        hearer.until(lambda: hearer.now("cloud"))
        receive: Any = cloud.worker.receive

        def hang(stream: Any, frame: ClientFrame) -> None:
            if release.is_set():
                receive(stream, frame)

        cloud.worker.receive = hang  # type: ignore[method-assign]
        ask(hearer)
        hearer.until(lambda: hearer.now("lost"))
        assert "no answer within 0.2 s" in hearer.states[-1]
        release.set()
        ask(hearer, "b")
        hearer.until(lambda: any(v.request_id == "b" for v in hearer.verdicts))


def test_an_answer_that_comes_before_its_request_is_noted_is_no_missing_one(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine: the link was lost for "no answer" until the next one came."""
    with running_bridge(cloud=cloud.address) as hearer:
        hearer.until(lambda: hearer.now("cloud"))
        send = cloud_bridge.RequestStream.send

        def slow(stream: Any, *message: Any) -> Any:
            sent = send(stream, *message)
            until(lambda: hearer.verdicts)
            return sent

        monkeypatch.setattr(cloud_bridge.RequestStream, "send", slow)
        ask(hearer)
        hearer.until(lambda: hearer.verdicts)
        with hearer.bridge._lock:  # the request is noted
            pass
        hearer.until(lambda: not hearer.bridge._monitor._watch.waiting)


OK, ERROR = DiagnosticStatus.OK, DiagnosticStatus.ERROR
NAME = "/cloud_bridge"


def test_a_wrong_address_shows_before_the_first_instruction_and_ends_with_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    port = free_port()
    with running_bridge(cloud=f"127.0.0.1:{port}", hardware_id="go2-7") as hearer:
        hearer.until(lambda: hearer.says(NAME, ERROR, "nothing listens", "edge-cloud-spec serve"))
        hearer.until(lambda: hearer.says(NAME, ERROR, "lost"))
        assert hearer.last[NAME].hardware_id == "go2-7"
        assert not any(status.level == OK for status in hearer.statuses)
        with Cloud(toy_worker(), address=f"127.0.0.1:{port}"):
            hearer.until(lambda: hearer.says(NAME, OK, "cloud"))
            assert "round_trip_ms" in hearer.values(NAME)
            ask(hearer)
            hearer.until(lambda: any(v.kind == Verdict.OPENED for v in hearer.verdicts))
            hearer.until(lambda: int(hearer.values(NAME)["up_bytes"]) > 0)
            hearer.until(lambda: int(hearer.values(NAME)["down_bytes"]) > 0)
            log = [capfd.readouterr().err]
            hearer.until(
                lambda: "cloud: well again" in log[-1] or log.append(capfd.readouterr().err)
            )
        hearer.until(lambda: hearer.says(NAME, ERROR, "lost"))
    assert len(hearer.states[-1].split()) > 1, "and why"
    states = [state.split()[0] for state in hearer.states]
    assert ("lost", "cloud") not in set(pairwise(states)), "by way of degraded"
    console = "".join(log)
    assert len(re.findall(r"ERROR.*cloud: lost .*edge-cloud-spec serve", console)) == 1
    assert console.count("relaying to") == 1


def test_a_cloud_that_still_starts_is_no_trouble_and_its_first_answer_ends_the_wait(
    capfd: pytest.CaptureFixture[str],
) -> None:
    port = free_port()
    with running_bridge(cloud=f"127.0.0.1:{port}", startup=600.0) as hearer:
        hearer.until(lambda: len(hearer.statuses) > 5)
        with Cloud(toy_worker(), address=f"127.0.0.1:{port}"):
            hearer.until(lambda: hearer.now("cloud"))
        hearer.until(lambda: hearer.says(NAME, ERROR, "lost"))  # it had its time
    states = [state.split()[0] for state in hearer.states]
    assert states.index("cloud") < states.index("lost")
    assert "cloud: " not in capfd.readouterr().err.partition("relaying to")[0]


def test_a_wrong_token_is_said_and_a_right_one_in_its_place_is_taken(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("wrong")
    with (
        Cloud(toy_worker(), token="secret") as guarded,
        running_bridge(cloud=guarded.address, token_file=token) as hearer,
    ):
        hearer.until(lambda: hearer.says(NAME, ERROR, "token is refused", "token_file"))
        assert not any("wrong" in status.message for status in hearer.statuses)
        ask(hearer)  # the stream's own report of it is no answer either
        hearer.until(lambda: hearer.verdicts)
        assert not any(state.startswith("cloud") for state in hearer.states)
        token.write_text("secret")
        hearer.until(lambda: hearer.says(NAME, OK, "cloud"))


def test_the_secret_of_a_session_is_on_no_topic(robot: Hearer, recorder: Recorder) -> None:
    recorded: list[bytes] = []
    for topic, (kind, _) in {**TOPICS, "/rosout": (Log, RELIABLE)}.items():
        robot.create_subscription(kind, topic, recorded.append, 200, raw=True)
    robot.until(lambda: robot.drafts.get_subscription_count() == 2)
    robot.until(lambda: robot.requests.get_subscription_count() == 2)
    for number in (0, 1):
        say(robot, 7, number, 999)
    resume = to_request(Resume("session", PrefixDigest(1, 7)), "dsd")
    resume.request_id, resume.sequence = "request 7", 2
    robot.requests.publish(resume)
    robot.until(lambda: recorder.heard and len(recorder.heard[0]) == 3)
    opened, drafted, resumed = recorder.heard[0]
    assert isinstance(opened, Open) and opened.key and not opened.secret
    assert isinstance(resumed, Resume) and len(resumed.secret) == 16
    # As bytes of one piece, and so would the secret be.
    robot.until(lambda: encode_client(drafted).data in b"".join(recorded))
    robot.until(lambda: resume.payload.tobytes() in b"".join(recorded))
    everything = b"".join(recorded)
    for hidden in (resumed.secret, opened.key, resumed.secret.hex().encode()):
        assert hidden not in everything
