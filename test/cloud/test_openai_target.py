"""A target behind an OpenAI-compatible API: its answers drive, its faults are sentences."""

from __future__ import annotations

import base64
import itertools
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.checkpoints import jpeg
from helpers.cloud.api_peer import (
    ANSWER,
    DONE,
    SECRET,
    USAGE,
    Answers,
    ApiPeer,
    answer,
    chunk,
    event,
)
from helpers.cloud.grpc_cloud import Cloud, Proxy, free_port, until
from helpers.cloud.served_answers import refused, worker_of
from helpers.requests import ANY_FORM
from helpers.transformers_serve import running
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.cloud.openai_target import Allowance
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.dialects import ours
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.edge.events import Cut, Emit, Inbox
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED, openai_server
from edge_cloud_spec.models.byte_drafter import END_TOKEN
from edge_cloud_spec.models.load_drafter import DraftModelSettings, load_drafter
from edge_cloud_spec.models.openai_server import KEY_VARIABLE, OpenAiServer, Unavailable
from edge_cloud_spec.models.tokenizer import TextStream
from edge_cloud_spec.nav.answer import action_of, answer_grammar
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.request import Request
from edge_cloud_spec.share import rules_text
from edge_cloud_spec.wire.messages import LOG_PROBS
from edge_cloud_spec_lab.bench.requests import sample_questions, sample_requests
from edge_cloud_spec_lab.harness.grpc_robot import GrpcRobot
from edge_cloud_spec_lab.harness.server import parsed

KEY = SECRET.decode()
TARGET = str(EMBEDDED / "target")
# A real server loads its model at the first request, which takes long on a busy machine.
AR = DecodeSettings(load_preset("cloud_ar"), max_tokens=64, reply_timeout=150.0)
REQUEST = ours().request("find the silver bottle", jpeg(1))
NONCES = itertools.count()
IN_TORCH = ("--device", "cpu", "--dtype", "float32")


class Robot(GrpcRobot):
    """A robot without a draft model, or with the drafter named."""

    def __init__(self, address: str, drafter: str = "bytes", token: str = "") -> None:
        self.model = load_drafter(DraftModelSettings(path=drafter))
        super().__init__(address, self.model, self.model.spec(128), token)
        self.inbox = Inbox()

    def decode(
        self, request: Request = REQUEST, settings: DecodeSettings = AR, on_emit: Any = None
    ) -> Outcome:
        say = on_emit or (lambda emit: None)
        nonce = next(NONCES)
        return self.runner.run(request, settings, nonce, self.client.connect, say, self.inbox)

    def words(self, outcome: Outcome) -> str:
        return TextStream(self.model.tokenizer).add(outcome.tokens)


@contextmanager
def verifier(url: str, *options: str, model: str = "a-model") -> Iterator[SimpleNamespace]:
    worker = worker_of("--target", f"openai:{url}", "--model", model, *options)
    with Cloud(worker) as cloud, Robot(cloud.address) as robot:
        yield SimpleNamespace(cloud=cloud, worker=worker, robot=robot, decode=robot.decode)


def spent(worker: Any) -> tuple[int, int]:
    """Requests and tokens, once the last request has ended."""
    until(lambda: not worker.held)
    asked = worker._models.allowance._asked
    return len(asked), int(sum(tokens for _, tokens in asked))


# Against a real server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """``transformers serve`` with the embedded target."""
    pytest.importorskip("fastapi")  # which has no build for Python 3.10
    with running(TARGET, tmp_path_factory.mktemp("serve") / "hold") as server:
        yield server


def test_a_real_servers_answers_are_those_of_our_own_verifier(served: SimpleNamespace) -> None:
    questions = sample_questions(3, 8)
    requests = [question.request for question in questions]
    with verifier(served.url, "--api-timeout", "600", model=TARGET) as there:
        ends = [there.decode(request) for request in requests[:-1]]
        # The server refuses the fields for a grammar; it is asked again without.
        grammar = SamplingPolicy(grammar=answer_grammar("action", questions[-1].order))
        ends.append(there.decode(requests[-1], replace(AR, policy=grammar)))
        assert all(end.completed for end in ends), ends
        theirs = [there.robot.words(end) for end in ends]
        asked, tokens = spent(there.worker)
    drafter = str(EMBEDDED / "drafter")
    with Cloud(worker_of(*IN_TORCH)) as cloud, Robot(cloud.address, drafter) as robot:
        ours = [robot.words(robot.decode(request)) for request in requests]
    assert theirs == ours
    assert len({str(action_of(words)) for words in ours}) > 3
    assert asked == len(requests)
    assert 60 < tokens / asked < 160  # its own count: 64 of the picture in each


def test_a_cut_ends_the_generation_at_the_real_server(served: SimpleNamespace) -> None:
    with verifier(served.url, "--api-timeout", "600", model=TARGET) as there:
        cut = there.robot.inbox.put
        served.hold.touch()
        served.cut.clear()
        outcome = there.decode(sample_requests(3, 1)[0], on_emit=lambda _: cut(Cut()))
        assert outcome.reason == "cut"
        until(lambda: served.cut)
        served.hold.unlink()
        assert not there.worker.held


# What can go wrong

FAULTS: dict[str, tuple[Any, str]] = {
    "HTML": ([b"<html>hello</html>"], "broke off"),
    "HTML instead of a stream": ((200, {"content-type": "text/html"}, b"<p>"), "broke off"),
    "nothing": ([], "broke off"),
    "no end": ([chunk("action: move forw")], "broke off"),
    "done without an end": ([chunk("action: move forw"), DONE], "broke off"),
    "broken JSON": ([b"data: {oh no\n\n"], "no answer of an OpenAI-compatible API"),
    "no UTF-8": ([b"data: \xff\xfe\n\n"], "no answer of an OpenAI-compatible API"),
    "half a character": ([chunk("\ud83d"), chunk(finish="stop")], "no chunk of an answer"),
    "a list": ([event([1, 2])], "no chunk of an answer"),
    "null": ([event(None)], "no chunk of an answer"),
    "a number of choices": ([event({"choices": 3})], "no chunk of an answer"),
    "a number for text": ([chunk(5), chunk(finish="stop")], "no chunk of an answer"),
    "an error in the midst": ([chunk("action:"), event({"error": {"message": "OOM"}})], "OOM"),
    "one endless line": (itertools.repeat(b"x" * 65536), "longer than any answer"),
    "one huge text": ([chunk("a" * 2**23)], "longer than any answer"),
    "a tool": ([chunk(delta={"tool_calls": [{"index": 0}]}), DONE], "wants a tool"),
    "a refusal": ([chunk(delta={"refusal": "no"}), DONE], "declines"),
    "a cut by length": ([chunk("action: sto"), chunk(finish="length")], "'length'"),
    "a filter": ([chunk("action: sto"), chunk(finish="content_filter")], "'content_filter'"),
    "another end": ([chunk("x"), chunk(finish="p" * 999)], "'pppp"),
    "a wrong key": ((401, {}, b'{"error": {"message": "bad"}}'), "refuses the key given"),
    "forbidden": ((403, {}, b""), "refuses the key given"),
    "no such model": ((404, {}, b'{"error": {"message": "no a-model"}}'), "has no model a-model"),
    "a bad request": ((400, {}, b"too long"), "whether it has a model a-model"),
    "a full server": ((429, {"retry-after": "7"}, b"{}"), "takes no more requests for now"),
    "a failing server": ((500, {}, b"boom"), "failed"),
    "a gateway": ((502, {}, b"<html>bad gateway"), "failed"),
    "a redirect": ((307, {"location": "/v1/chat/completions"}, b""), "no such API (307)"),
    "an error after the end": ([chunk("a", "stop"), event({"error": {"message": "OOM"}})], "OOM"),
    "a model without eyes": (
        (500, {}, b'{"error": {"message": "image input is not supported - hint: mmproj"}}'),
        "llama-server: with --mmproj",
    ),
    "no such ability": ((501, {}, b""), "cannot do what is asked of it"),
}
PASS_BY = (
    "an error in the midst",
    "an error after the end",
    "a full server",
    "a failing server",
    "a gateway",
)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ApiPeer, SimpleNamespace]]:
    """A server for a test to say what it answers, and a verifier with a key before it."""
    secret = tmp_path_factory.mktemp("secret") / "key"
    secret.write_text(KEY)
    with ApiPeer() as peer, verifier(peer.url, "--api-key-file", str(secret)) as there:
        yield peer, there


def beside_others(body: object) -> Iterator[bytes]:
    """Each letter of the answer beside another choice's words."""
    for letter in ANSWER:
        other = {"index": 1, "delta": {"content": "turn"}, "finish_reason": "stop"}
        ours = {"index": 0, "delta": {"content": letter}, "finish_reason": None}
        yield event({"choices": [other, ours]})
        yield event({"choices": [other]})
    yield chunk(finish="stop")


def counted(count: Any, choices: Any = (), wait_s: float = 0.0) -> Answers:
    """An answer and then its count of tokens."""

    def said(body: object) -> Iterator[bytes]:
        yield from answer()[:-2]
        time.sleep(wait_s)
        yield event({"choices": choices, "usage": {"total_tokens": count}})
        yield DONE

    return said


COOKIES = b"".join(b"set-cookie: c%d=v; Max-Age=99999\r\n" % n for n in range(20))
WITH_COOKIES = b"HTTP/1.1 200 OK\r\n" + COOKIES + b"\r\n" + b"".join(answer())
# Answers and the tokens that each is charged; 0: an estimate.
HEARD: dict[str, tuple[Answers, int]] = {
    "beside other choices": (beside_others, 0),
    "with cookies": (lambda body: WITH_COOKIES, 123),
    "without a count": (lambda body: [each for each in answer() if each != USAGE], 0),
    "a late count": (counted(123, wait_s=0.05), 123),
    "a late count beside no choices": (counted(123, None, 0.05), 123),
    "True tokens": (counted(True), 1),
    **{
        f"{count} tokens": (counted(count), 0)
        for count in (10**40, -5, 0, 1e308, "NaN", None, [1], {"a": 1})
    },
}


@pytest.mark.parametrize("name", HEARD)
def test_an_answer_is_heard_however_it_comes_and_is_charged_once(
    faulty: tuple[ApiPeer, SimpleNamespace], name: str
) -> None:
    """By the server's own count, where that can be; a server that sets cookies gets none."""
    peer, there = faulty
    peer.answers, count = HEARD[name]
    prompt = sum(len(message.text) for message in REQUEST.messages) // 4
    before = spent(there.worker)[1]
    for asked in (1, 2):
        assert there.robot.words(there.decode()) == ANSWER
        charged = (spent(there.worker)[1] - before) / asked
        assert charged == count if count else prompt < charged < prompt + 500
    headers = {header.lower(): value for header, value in peer.headers[-1].items()}
    assert "cookie" not in headers and headers["accept-encoding"] == "identity"


NAMES = st.sampled_from(["choices", "delta", "content", "finish_reason", "usage", "error", "x"])


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_sentence_moves_nothing_and_the_verifier_lives(
    faulty: tuple[ApiPeer, SimpleNamespace], name: str
) -> None:
    (said, complaint), (peer, there) = FAULTS[name], faulty
    peer.answers = lambda body: said
    outcome = there.decode()
    refused(outcome, complaint, "overloaded" if name in PASS_BY else "bad_request")
    assert action_of(there.robot.words(outcome)) is None
    until(lambda: not there.worker.held)
    peer.answers = lambda body: answer()
    there.worker._models.allowance._closed = 0.0  # as if it had waited
    assert there.robot.words(there.decode()) == ANSWER
    assert peer.asked[-1]["temperature"] == 0, "what was refused in every form is asked again"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
SHAPED = st.builds(lambda choices, usage: {"choices": choices, "usage": usage}, JSON, JSON)
CHOSEN = st.builds(
    lambda delta, finish, usage: {
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        "usage": usage,
    },
    JSON | st.builds(lambda content, calls: {"content": content, "tool_calls": calls}, JSON, JSON),
    st.none() | JSON,
    JSON | st.builds(lambda total: {"total_tokens": total}, JSON),
)


def test_whatever_a_server_sends_is_an_answer_or_a_sentence() -> None:
    with ApiPeer() as peer, verifier(peer.url) as there:

        @settings(max_examples=100)
        @given(st.lists(JSON | SHAPED | CHOSEN, max_size=4))
        def send(events: list[Any]) -> None:
            peer.answers = lambda body: [event(each) for each in events]
            there.worker._models.allowance._closed = 0.0
            outcome = there.decode()
            assert outcome.completed or outcome.text
            assert outcome.reason != "internal"
            assert action_of(there.robot.words(outcome)) is None

        send()
        peer.answers = lambda body: answer()
        there.worker._models.allowance._closed = 0.0
        assert there.robot.words(there.decode()) == ANSWER


def test_any_text_arrives_as_it_was_said() -> None:
    with ApiPeer() as peer, verifier(peer.url) as there:

        @settings(max_examples=60)
        @given(st.text(max_size=80), st.integers(1, 9))
        def say(text: str, pieces: int) -> None:
            peer.answers = lambda body: answer(text, pieces)
            said = there.decode().tokens
            assert bytes(said[: -(said[-1] == END_TOKEN) or None]) == text.encode()[:256]
            assert (said[-1] == END_TOKEN) == (len(text.encode()) < 256)

        say()


def test_the_first_request_is_not_sent_where_the_models_were_asked_for() -> None:
    """Where that failed, a real server closed the connection under the request."""
    heard: list[bytes] = []

    def fail() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.settimeout(30)
            heard.append(connection.recv(65536))
            connection.sendall(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n")
            heard.append(connection.recv(1))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = OpenAiServer(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", "a-model")
        failing = threading.Thread(target=fail)
        failing.start()
        with pytest.raises(Unavailable, match="failed"):
            server.check()
        failing.join()
    assert heard[0].startswith(b"GET /v1/models") and heard[1:] == [b""], "it is closed"


@pytest.mark.parametrize(("kept", "connections"), [(60.0, 1), (0.01, 2)])
def test_a_connection_that_was_idle_takes_no_request_any_more(
    monkeypatch: pytest.MonkeyPatch, kept: float, connections: int
) -> None:
    """Its server may close it at that moment."""
    heard: list[object] = []

    class Keeps(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            heard.append(self.client_address)
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    monkeypatch.setattr(openai_server, "IDLE_CONNECTION_S", kept)
    with ThreadingHTTPServer(("127.0.0.1", 0), Keeps) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        server = OpenAiServer(f"http://127.0.0.1:{http.server_port}/v1", "a-model")
        for _ in range(2):
            server.submit(server.client.post("/ask", body={}, cast_to=object)).result()
            time.sleep(0.1)
        http.shutdown()
    assert len(heard) == 2 and len(set(heard)) == connections


def test_a_dead_server_and_a_slow_one_pass_by_and_are_named() -> None:
    with verifier(f"http://127.0.0.1:{free_port()}/v1") as there:  # not there yet: it serves
        refused(there.decode(), "cannot be reached", "overloaded")
    silent = threading.Event()

    def stalls(body: object) -> Iterator[bytes]:
        yield chunk("action: mo")
        silent.wait(30)

    with ApiPeer(stalls) as peer, verifier(peer.url, "--api-timeout", "0.5") as there:
        refused(there.decode(), "within 0.5 s", "overloaded")
        silent.set()


def test_an_endless_answer_ends_at_the_robots_limit_and_its_request_with_it() -> None:
    def endless(body: object) -> Iterator[bytes]:
        for said in itertools.count():
            yield chunk("a")
            time.sleep(0.001 if said < 64 else 0.1)  # so slow that it never becomes too much

    options = ("--max-tokens", "16", "--api-timeout", "600")
    with ApiPeer(endless) as peer, verifier(peer.url, *options) as there:
        outcome = there.decode()
        assert outcome.reason == "length"
        assert there.robot.words(outcome) == "a" * 64
        until(peer.broken.is_set)


def test_a_server_that_wants_reply_timeout_is_left_alone_as_long() -> None:
    busy = (429, {"retry-after": "20"}, b"{}")
    with ApiPeer(lambda body: busy) as peer, verifier(peer.url) as there:
        assert there.decode().reason == "overloaded"
        again = there.decode(settings=replace(AR, reply_timeout=0.5))
        assert (again.reason, len(peer.asked)) == ("overloaded", 1)
        assert 0 < again.retry_after_s < 30  # a robot adds some of its own


SENSELESS = ["NaN", "Infinity", "-Infinity", "-5", "soon", "[1]", "9" * 5000, ""]


@pytest.mark.parametrize("said", SENSELESS)
def test_a_senseless_retry_after_is_the_usual_pause(said: str) -> None:
    with ApiPeer() as peer:
        peer.models = (429, {"retry-after": said}, b"{}")
        with pytest.raises(Unavailable) as error:
            OpenAiServer(peer.url, "a").check()
        assert error.value.retry_s == 1.0


def test_pictures_follow_no_redirect_to_another_host() -> None:
    with ApiPeer() as elsewhere, ApiPeer() as peer, verifier(peer.url) as there:
        url = elsewhere.url.replace("127.0.0.1", "localhost") + "/chat/completions"
        for status in (301, 302, 303, 307, 308):
            peer.answers = lambda body, status=status: (status, {"location": url}, b"")  # type: ignore[misc]
            assert there.decode().reason == "bad_request"
        assert len(peer.asked) == 5 and not elsewhere.asked


# What is asked, and what is said of it


def test_the_picture_and_the_words_are_asked_and_what_has_arrived_is_one_verdict() -> None:
    with ApiPeer(lambda body: [b"".join(answer())]) as peer, verifier(peer.url) as there:
        outcome = there.decode()
        (asked,) = peer.asked
        system, user = asked["messages"]
        assert system["content"] == rules_text()
        picture, words = user["content"]
        assert picture["image_url"]["url"].startswith("data:image/jpeg;base64,")
        assert words["text"] == "find the silver bottle\naction first"
        assert (asked["temperature"], asked["stream"], asked["max_tokens"]) == (0, True, 256)
        assert "exact: false" in there.robot.runner.target
        assert len(outcome.stats.rounds) <= 3
        counts = there.worker.counters.answers
        assert counts.tokens == len(outcome.tokens) == len(ANSWER.encode()) + 1
        assert counts.drafted["target"] == counts.accepted["target"]


def test_a_robot_whose_server_is_slow_holds_up_no_other() -> None:
    ended = threading.Event()

    def slow_first(body: dict[str, Any]) -> Iterator[bytes]:
        if "door" in str(body["messages"]):
            yield chunk("action: ")
            ended.wait(60)
        yield from answer()

    door = ours().request("find the brown door", jpeg(1))
    with (
        ApiPeer(slow_first) as peer,
        verifier(peer.url) as there,
        Robot(there.cloud.address) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        slow = pool.submit(other.decode, door)
        until(lambda: len(peer.asked) == 1)
        assert [there.robot.words(there.decode()) for _ in range(3)] == [ANSWER] * 3
        assert not slow.done()
        ended.set()
        assert other.words(slow.result()) == "action: " + ANSWER


def test_a_robot_that_lost_the_link_goes_on_with_the_same_request() -> None:
    cut, back = threading.Event(), threading.Event()

    def in_two_parts(body: object) -> Iterator[bytes]:
        yield chunk(ANSWER[:20])
        cut.set()
        back.wait(60)
        yield from answer(ANSWER[20:])

    def lose(emit: Emit) -> None:
        if not back.is_set():
            proxy.cut()
            back.set()

    with (
        ApiPeer(in_two_parts) as peer,
        verifier(peer.url) as there,
        Proxy(there.cloud.address) as proxy,
        Robot(proxy.address) as robot,
    ):
        outcome = robot.decode(on_emit=lose)
        assert robot.words(outcome) == ANSWER
        assert outcome.stats.resumed == 1
        assert len(peer.asked) == 1


@pytest.mark.parametrize(
    ("preset", "rule", "drafter", "complaint"),
    [
        ("auto", "greedy", str(EMBEDDED / "drafter"), "set the robot's model.path"),
        ("auto", "greedy", "bytes", "judges no drafts: take preset cloud_ar"),
        ("cloud_sd", "greedy", "bytes", "judges no drafts: take preset cloud_ar"),
        ("cloud_lookup", "greedy", "bytes", "judges no drafts: take preset cloud_ar"),
        ("cloud_ar", "coupled", "bytes", "take rule greedy"),
        ("cloud_ar", "rejection", "bytes", "take rule greedy"),
    ],
)
def test_what_a_server_without_drafts_cannot_do_is_refused_with_what_would(
    faulty: tuple[ApiPeer, SimpleNamespace], preset: str, rule: str, drafter: str, complaint: str
) -> None:
    peer, there = faulty
    peer.answers = lambda body: answer()
    policy = SamplingPolicy(0.0 if rule == "greedy" else 0.8)
    settings = DecodeSettings(load_preset(preset), rule, policy)
    with Robot(there.cloud.address, drafter) as robot:
        refused(robot.decode(settings=settings), complaint, "bad_request")
    assert there.robot.words(there.decode()) == ANSWER


@pytest.mark.parametrize("asked", LOG_PROBS[1:])
def test_log_probabilities_are_refused_by_a_code_and_a_sentence(
    faulty: tuple[ApiPeer, SimpleNamespace], asked: str
) -> None:
    peer, there = faulty
    peer.answers = lambda body: answer()
    settings = DecodeSettings(load_preset("cloud_ar"), log_probs=asked)
    refused(there.decode(settings=settings), "tells no log probabilities: take", "unsupported")
    assert there.robot.words(there.decode()) == ANSWER


@pytest.mark.parametrize("form", ANY_FORM)
def test_a_request_of_any_form_is_asked_of_the_server_in_its_words(form: str) -> None:
    request = Request(ANY_FORM[form])
    with ApiPeer() as peer, verifier(peer.url, "--dialect", "any") as there:
        assert there.robot.words(there.decode(request)) == ANSWER
        (asked,) = peer.asked
    assert [each["role"] for each in asked["messages"]] == [e.role for e in request.messages]
    for message, told in zip(request.messages, asked["messages"], strict=True):
        if not message.pictures:
            assert told["content"] == message.text
            continue
        texts = [part["text"] for part in told["content"] if part["type"] == "text"]
        urls = [p["image_url"]["url"] for p in told["content"] if p["type"] == "image_url"]
        assert "".join(texts) == message.text
        data = [base64.b64decode(url.partition("base64,")[2]) for url in urls]
        assert data == [picture.data for picture in message.pictures]


def test_an_answer_that_another_verifier_began_is_refused() -> None:
    with ApiPeer() as peer, verifier(peer.url) as there:
        models = there.worker._models
        opening = SimpleNamespace(verified=(97,))
        with pytest.raises(UserError, match="start another decode"):
            models.open(opening, None)
        assert not peer.asked


def test_a_robot_without_a_draft_model_is_told_what_it_cannot_do() -> None:
    with Cloud(worker_of(*IN_TORCH)) as cloud, Robot(cloud.address) as robot:
        for preset, complaint in (
            ("edge_only", "cannot draft or decide alone: take preset cloud_ar"),
            ("cloud_ar", "different tokenizers"),
        ):
            outcome = robot.decode(settings=DecodeSettings(load_preset(preset)))
            assert (outcome.completed, complaint in outcome.text) == (False, True)
    with pytest.raises(UserError, match="tokenizer of its own"):
        robot.model.crop(151_936)


# Grammars


BY_GRAMMAR = {"structured_outputs", "grammar", "ebnf", "guided_grammar"}


def strict(body: dict[str, Any]) -> Any:
    """Refuses the fields of a grammar."""
    return (422, {}, b"{}") if BY_GRAMMAR & body.keys() else answer()


@pytest.mark.parametrize(
    ("how", "fields"),
    [
        ("auto", ["grammar", "structured_outputs"]),
        ("vllm", ["structured_outputs"]),
        ("llguidance", ["grammar"]),
        ("sglang", ["ebnf"]),
        ("none", []),
    ],
)
def test_a_grammar_is_sent_as_it_was_asked_for_and_no_more_where_it_was_refused(
    how: str, fields: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    grammar = answer_grammar("action", "action first")
    settings = replace(AR, policy=SamplingPolicy(grammar=grammar))
    with ApiPeer(strict) as peer, verifier(peer.url, "--structured", how) as there:
        for _ in range(2):
            assert there.robot.words(there.decode(settings=settings)) == ANSWER
    asked = [sorted(body.keys() & BY_GRAMMAR) for body in peer.asked]
    assert asked == ([fields, [], []] if fields else [[], []])
    lark = f"%llguidance {{}}\n{grammar}"
    sent = {"structured_outputs": {"grammar": grammar}, "grammar": lark, "ebnf": lark}
    assert all(peer.asked[0][field] == sent[field] for field in fields)
    assert (f"refuses {', '.join(fields)}: left out" in caplog.text) == bool(fields)


def test_a_grammar_that_was_refused_is_asked_anew_for_each_credential(tmp_path: Path) -> None:
    """Or one robot would tell by its wait that another has asked with the same one. The control:
    for a robot that asks again it is known."""
    (tmp_path / "tokens").write_text("a:first\nb:second\n")
    settings = replace(AR, policy=SamplingPolicy(grammar="start: /[a-z]+/"))
    with ApiPeer(strict) as peer:
        worker = worker_of("--target", f"openai:{peer.url}", "--model", "a-model")
        with Cloud(worker, token_file=str(tmp_path / "tokens")) as cloud:
            for token in ("first", "second", "first"):
                with Robot(cloud.address, token=token) as robot:
                    assert robot.words(robot.decode(settings=settings)) == ANSWER
    assert [bool(BY_GRAMMAR & body.keys()) for body in peer.asked] == [True, False] * 2 + [False]


# The bill


def test_the_hours_bounds_are_kept_and_said() -> None:
    now = [0.0]
    allowance = Allowance(3, 1000, lambda: now[0])
    for at, spent_then, why, wait_s in (
        (0.0, 100, "", 0.0),
        (10.0, 100, "", 0.0),
        (20.0, 100, "", 0.0),
        (20.0, 0, "3 of 3 requests of this hour", 3580.0),
        (3600.0, 900, "", 0.0),
        (3610.0, 0, "1000 of 1000 tokens", 10.0),
        (3620.0, 0, "", 0.0),
    ):
        now[0] = at
        with pytest.raises(Unavailable, match=why) if why else nullcontext() as no:
            allowance.check()
        assert not why or no.value.retry_s == wait_s
        if spent_then:
            allowance.spend(100)[1] = spent_then  # what it was in the end
    for retry_s in (600.0, 1.0):  # the server asked for, of which the longest counts
        allowance.close(Unavailable("full", retry_s))
    now[0] = 4219.0
    with pytest.raises(Unavailable, match="full"):
        allowance.check()
    now[0] = 4220.0
    allowance.check()


def test_a_request_beyond_the_bound_is_not_sent_and_its_robot_is_told() -> None:
    with ApiPeer() as peer, verifier(peer.url, "--requests-per-hour", "2") as there:
        patient = replace(AR, reply_timeout=1.0)
        outcomes = [there.decode(settings=patient) for _ in range(3)]
        assert [outcome.completed for outcome in outcomes] == [True, True, False]
        assert "2 of 2 requests of this hour" in outcomes[2].text
        assert outcomes[2].out_of_reach
        assert len(peer.asked) == 2
        assert spent(there.worker) == (2, 2 * 123)


# Keys


def test_a_key_is_in_no_log_no_message_and_no_metric(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """A bag holds what a robot hears, and what its nodes say of it."""
    secret = tmp_path / "key"
    secret.write_text(KEY + "\n")
    caplog.set_level(logging.DEBUG)
    heard: list[bytes] = []
    echoes: list[Any] = [
        (status, {"x-key": KEY}, f'{{"error": {{"message": "your key {KEY} is bad"}}}}'.encode())
        for status in (400, 401, 403, 404, 429, 500)
    ]
    echoes += [
        [event({"error": {"message": f"Bearer {KEY}"}})],
        [b"data: " + KEY.encode() + b"\n\n"],
    ]
    with ApiPeer() as peer, verifier(peer.url, "--api-key-file", str(secret)) as there:
        put = there.robot.inbox.put
        there.robot.inbox.put = lambda item, *rest: (heard.append(item), put(item, *rest))  # type: ignore[method-assign]
        for said in echoes:
            peer.answers = lambda body, said=said: said  # type: ignore[misc]
            there.worker._models.allowance._closed = 0.0
            outcome = there.decode()
            assert not outcome.completed
            heard.append(outcome.text.encode())
        assert KEY.encode() not in b"".join(item for item in heard if isinstance(item, bytes))
        assert "[key]" in str(heard)
        assert all(each["authorization"] == f"Bearer {KEY}" for each in peer.headers)
        counters = repr(there.worker.counters)
    assert KEY not in "".join([caplog.text, counters, *capfd.readouterr()])


def test_neither_a_part_of_a_key_nor_of_a_picture_is_quoted_from_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    picture = "data:image/jpeg;base64," + "Q7" * 500
    with ApiPeer() as peer:
        server = OpenAiServer(peer.url, "a")
        server._key = KEY
        for place in range(200, 320):
            for secret in (KEY, picture):
                message = f"{'x' * place}'{secret}' is wrong"
                error = RuntimeError(message)
                said = str(server._sentence(error))
                assert KEY[:6] not in said and "Q7" not in said
        assert "[picture]" in str(server._sentence(RuntimeError(picture)))
        listed = b'{"data": [{"id": "a\\nb"}, {"id": "%s"}]}' % SECRET
        peer.models = (200, {"content-type": "application/json"}, listed)
        server.check()
        assert "a b, [key]" in caplog.text and KEY not in caplog.text


@pytest.mark.parametrize(
    "key", ["sk\nabc", "sk\x01abc", "sk abc", "s\u00e4", "s\\abc", "s'abc", 's"abc']
)
def test_a_key_that_no_header_takes_is_refused_and_not_quoted(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(key)
    monkeypatch.setenv(KEY_VARIABLE, key)
    for file in ("", str(tmp_path / "key")):
        with pytest.raises(UserError, match="key") as error:
            OpenAiServer("http://127.0.0.1:9/v1", "a", file)
        assert "abc" not in str(error.value) and key not in str(error.value)


def test_the_key_comes_from_a_file_or_its_variable_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-server")
    for key, expected in ((None, "Bearer none"), (KEY, f"Bearer {KEY}")):
        if key:
            monkeypatch.setenv(KEY_VARIABLE, key)
        with ApiPeer() as peer, verifier(peer.url) as there:
            there.decode()
            assert [each["authorization"] for each in peer.headers] == [expected]
            assert "sk-of-another" not in str(peer.headers)
    for url in (
        f"http://user:{KEY}@host/v1",
        f"http://host/v1?key={KEY}",
        "host:8000",
        "ftp://a/b",
        "http://a\x01b/v1",
        "http://a:99999/v1",
    ):
        with pytest.raises(UserError, match="address must be http") as error:
            OpenAiServer(url, "a")
        assert KEY not in str(error.value)
    with pytest.raises(UserError, match=r"name one of them \(--model, or model.name\)"):
        OpenAiServer("http://host/v1", "")
    with pytest.raises(UserError, match="cannot be read"):
        OpenAiServer("http://host/v1", "a", str(tmp_path / "nothing"))


# The command


VLLM = ("--target", "vllm:http://x:1", "--checkpoint", "x")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--drafter", "somewhere"), "leave out --drafter"),
        (("--replicas", "2"), "leave out --replicas"),
        (("--quantize", "int8", "--replicas", "2"), "leave out --replicas, --quantize"),
        (("--requests-per-hour", "-1"), "must be a whole number from 0 up, not -1"),
        (("--api-timeout", "0"), "--api-timeout must be a number from 0.001 up, not 0"),
        (("--target", TARGET), "goes with --target openai:"),
        (("--target", "vllm:http://x:1", "--model", ""), "--checkpoint DIRECTORY go together"),
        (("--target", TARGET, "--checkpoint", "x", "--model", ""), "go together"),
        ((*VLLM, "--drafter", "y", "--model", ""), "leave out --drafter"),
        (VLLM, "--model goes with"),
    ],
    ids=str,
)
def test_options_that_do_not_go_with_it_are_one_sentence(
    options: tuple[str, ...], complaint: str
) -> None:
    given = ["--target", "openai:http://127.0.0.1:9/v1", "--model", "a"]
    with pytest.raises(UserError, match=complaint):
        parsed([*given, *options])


def test_a_wrong_key_is_found_before_it_serves() -> None:
    with ApiPeer() as peer:
        peer.models = (401, {}, b"{}")
        with pytest.raises(UserError, match="refuses a request without a key"):
            worker_of("--target", f"openai:{peer.url}", "--model", "a")
