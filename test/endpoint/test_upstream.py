"""What split decoding does not answer is passed through to another server, as it is, and no key of
the robot goes where it does not belong."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import threading
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from helpers.checkpoints import checkpoint
from helpers.cloud.api_peer import ApiPeer
from helpers.cloud.certificates import Authority
from helpers.cloud.grpc_cloud import Cloud, Proxy, until
from helpers.cloud.served_answers import worker_of
from helpers.endpoint import HEADERS, MODEL, RunningEndpoint, asked, said, shown

from edge_cloud_spec import Decoder
from edge_cloud_spec.cli import main
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.endpoint import upstream
from edge_cloud_spec.endpoint.chat import ChatRequest
from edge_cloud_spec.endpoint.decodes import Decodes, Finished, Piece
from edge_cloud_spec.endpoint.server import CHAT, DECISIONS, SYSTEMONE
from edge_cloud_spec.endpoint.upstream import Upstream
from edge_cloud_spec.models.load import load

ANSWER = b'{"id": "theirs",  "choices": []}\n'  # of two blanks, so that nobody has parsed it
ELSEWHERE = {"model": "another-model", "messages": [{"role": "user", "content": "hello"}]}


class Handler(BaseHTTPRequestHandler):
    """Notes what it is asked, and does as the test says."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        sent = {name.lower(): value for name, value in self.headers.items()}
        self.server.seen.append((self.path, sent, body))  # type: ignore[attr-defined]
        self.server.act(self)  # type: ignore[attr-defined]

    def head(self, status: int = 200, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def whole(self, body: bytes = ANSWER, status: int = 200, **headers: str) -> None:
        self.head(status, content_length=str(len(body)), **headers)
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@dataclass
class Other:
    """The other server, at ``url``."""

    url: str = ""
    act: Callable[[Handler], None] = Handler.whole
    seen: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Other]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads, server.block_on_close = True, False
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        other = Other(f"http{'s' * (tls is not None)}://127.0.0.1:{server.server_port}/v1")
        server.seen = other.seen  # type: ignore[attr-defined]
        server.act = lambda handler: other.act(handler)  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield other
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def other() -> Iterator[Other]:
    with serving() as other:
        yield other


@pytest.fixture(scope="module")
def idle() -> Iterator[Decoder]:
    """A decoder of which nothing is decoded."""
    with Decoder("127.0.0.1:1", "bytes", preset="cloud_ar") as decoder:
        yield decoder


@pytest.fixture
def endpoint(idle: Decoder, other: Other) -> Iterator[RunningEndpoint]:
    with RunningEndpoint(idle, upstream=Upstream(other.url)) as endpoint:
        yield endpoint


AUDIO = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
ADDRESS = {"type": "image_url", "image_url": {"url": "http://x/y.jpg"}}  # of a picture
NAMED = {"type": "function", "function": {"name": "a"}}
HALF = {"type": "function", "function": {"name": "a", "description": "\ud800"}}
ELSEWHERE_ONLY = {
    "another model": ELSEWHERE,
    "a refused field": asked("x", logprobs=True, top_logprobs=2),
    "another target": asked("x", logit_bias={"5": -100}),
    "an unknown field": asked("x", guided_choice=["a"]),
    "audio": asked("x", AUDIO),
    "another picture": asked(shown(b"GIF89a")),
    "a choice of tools": asked("x", tools=[NAMED], tool_choice={"type": "allowed_tools"}),
    "a custom tool": asked("x", tools=[NAMED], tool_choice={"type": "custom"}),
    "a call in a form": asked(
        "x", tools=[NAMED], tool_choice="required", response_format={"type": "json_object"}
    ),
    "a name": {"model": MODEL, "messages": [said("x") | {"name": "me"}]},
}


@pytest.mark.parametrize("what", ELSEWHERE_ONLY)
def test_what_is_not_decoded_here_is_passed_through_as_it_is(
    idle: Decoder, endpoint: RunningEndpoint, other: Other, what: str
) -> None:
    body = json.dumps(ELSEWHERE_ONLY[what], indent=3).encode()
    status, headers, answer = endpoint.post(body, cookie="mine=1")
    assert (status, headers["x-upstream"], answer) == (200, "true", json.loads(ANSWER))
    ((path, sent, data),) = other.seen
    assert path == CHAT and data == body and "cookie" not in sent
    with RunningEndpoint(idle) as alone:
        assert alone.post(body)[0] in (400, 404)
    assert len(other.seen) == 1


QUESTION = {"type": "predicate", "instructions": "it is red"}
ASKED = {
    DECISIONS: {"model": MODEL, "input": "hello", "questions": [QUESTION]},
    SYSTEMONE: {"model": MODEL, "state": "hello", "questions": {"red": {"type": "noul"}}},
    CHAT: asked("hello", logprobs=True),
}


@pytest.mark.parametrize("path", ASKED)
def test_what_this_target_cannot_tell_is_asked_of_the_other_server_by_the_same_path(
    other: Other, path: str
) -> None:
    body = ASKED[path]
    with (
        ApiPeer() as peer,
        Cloud(worker_of("--target", f"openai:{peer.url}", "--model", "a-model")) as cloud,
        Decoder(cloud.address, "bytes", preset="cloud_ar") as decoder,
        RunningEndpoint(decoder, upstream=Upstream(other.url)) as endpoint,
        RunningEndpoint(decoder) as alone,
    ):
        for request in (body, body | {"model": "another-model"}, body | {"unknown": 1}):
            status, headers, answer = endpoint.post(request, path)
            assert (status, headers["x-upstream"], answer) == (200, "true", json.loads(ANSWER))
        status, _, refused = alone.post(body, path)
    assert [asked for asked, _, _ in other.seen] == [path] * 3
    assert status == (422 if path == "/v1/systemone" else 400)
    assert refused["error"]["code"] == "unsupported"
    assert "tells no log probabilities" in refused["error"]["message"]


def test_a_mistake_is_not_passed_through(endpoint: RunningEndpoint, other: Other) -> None:
    hot, half = asked("x", temperature="hot"), asked("x", tools=[HALF])
    for wrong in (b"{", b"[]", hot, asked("x", stop=[""]), asked(ADDRESS), half):
        assert endpoint.post(wrong)[0] == 400
    assert endpoint.post(ELSEWHERE, "/v1/responses")[0] == 404
    assert endpoint.post(ELSEWHERE, **{"content-type": "text/plain"})[0] == 415
    assert endpoint.post(ELSEWHERE, host="evil.example")[0] == 403
    assert not other.seen


def test_the_other_servers_errors_are_its_own(endpoint: RunningEndpoint, other: Other) -> None:
    error = {"error": {"message": "slower", "type": "x", "param": None, "code": None}}
    other.act = lambda handler: handler.whole(json.dumps(error).encode(), 429, retry_after="7")
    status, headers, answer = endpoint.post(ELSEWHERE)
    assert (status, headers["retry-after"], answer) == (429, "7", error)


@pytest.mark.parametrize("then", ["closes", "waits"])
def test_an_answer_that_comes_before_a_large_body_is_read_is_passed_on(
    idle: Decoder, then: str
) -> None:
    large = json.dumps(ELSEWHERE).encode() + b" " * (20 * 2**20)
    said, done = b'{"error": "too large"}', threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with listening.accept()[0] as client:
                client.recv(2**16)
                head = b"HTTP/1.1 413 Too Large\r\ncontent-type: application/json\r\n"
                client.sendall(head + b"content-length: %d\r\n\r\n" % len(said) + said)
                if then == "waits":
                    assert done.wait(60)

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        with RunningEndpoint(idle, upstream=Upstream(url)) as endpoint:
            status, headers, told = endpoint.post(large)
        done.set()
        thread.join()
    assert (status, headers["x-upstream"], told) == (413, "true", json.loads(said))


@pytest.mark.parametrize(
    ("when_lost", "tools", "is_kept"),
    [("refuse", [], False), ("refuse", [NAMED], True), ("upstream", [], True)],
    ids=str,
)
def test_a_body_is_kept_only_until_it_cannot_be_passed_through(
    idle: Decoder, other: Other, when_lost: str, tools: list[Any], is_kept: bool
) -> None:
    size = 16 * 2**20
    body = json.dumps(asked("x", tools=tools)).encode() + b" " * size
    held = list[int]()

    class Traced(Decodes):
        async def stream(self, chat: ChatRequest) -> AsyncGenerator[Piece, None]:
            for piece in (Piece("a"), Finished(finish_reason="stop", usage={})):
                for _ in range(50):  # the thread that has read it may not have let it go yet
                    if (memory := tracemalloc.get_traced_memory()[0]) < size:
                        break
                    await asyncio.sleep(0.01)
                held.append(memory)
                yield piece

    to = Upstream(other.url)
    with RunningEndpoint(idle, decodes=Traced, when_lost=when_lost, upstream=to) as endpoint:
        tracemalloc.start()
        try:
            assert endpoint.post(body)[0] == 200
        finally:
            tracemalloc.stop()
    assert [memory > size for memory in held] == [is_kept, False]


def test_events_arrive_as_they_are_sent(endpoint: RunningEndpoint, other: Other) -> None:
    read = threading.Event()

    def act(handler: Handler) -> None:
        handler.head(kind="text/event-stream; charset=utf-8", connection="close")
        handler.wfile.write(b'data: {"a": 1}\n\ndata: {"b')
        assert read.wait(60), "the first event is there before the second is sent"
        handler.wfile.write(b'": 2}\n\ndata: [DONE]\n\n')
        handler.close_connection = True

    other.act = act
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=60)
    connection.request("POST", CHAT, json.dumps(ELSEWHERE | {"stream": True}), HEADERS)
    response = connection.getresponse()
    assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
    assert response.read1(2**16) == b'data: {"a": 1}\n\n'
    read.set()
    assert response.read() == b'data: {"b": 2}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("keys", "token", "expected"),
    [
        ((), "", "Bearer clients"),
        ((), "robots", "Bearer robots"),
        (("clients",), "", None),
        (("clients",), "robots", "Bearer robots"),
    ],
)
def test_a_key_goes_where_it_belongs(
    idle: Decoder, other: Other, keys: tuple[str, ...], token: str, expected: str | None
) -> None:
    """The endpoint's own key nowhere, a client's only where no other is given."""
    to = Upstream(other.url, lambda: token)
    with RunningEndpoint(idle, keys=keys, upstream=to) as endpoint:
        assert endpoint.post(ELSEWHERE, authorization="Bearer clients")[0] == 200
        ((_, sent, _),) = other.seen
        assert sent.get("authorization") == expected
        other.act = lambda handler: handler.whole(b'{"error": "robots is wrong"}', 401)
        status, _, answer = endpoint.post(ELSEWHERE, authorization="Bearer clients")
    assert status == (502 if token else 401)
    assert ("robots" in json.dumps(answer)) == (not token)


def test_a_client_that_goes_away_ends_the_request(endpoint: RunningEndpoint, other: Other) -> None:
    gone = threading.Event()

    def act(handler: Handler) -> None:
        handler.head(kind="text/event-stream", connection="close")
        handler.wfile.write(b"data: 1\n\n")
        with suppress(OSError):  # it is reset
            handler.connection.recv(1)
        handler.close_connection = True
        gone.set()

    other.act = act
    with socket.create_connection(("127.0.0.1", endpoint.port)) as client:
        body = json.dumps(ELSEWHERE).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        client.recv(2**16)
        assert not gone.is_set()
    assert gone.wait(60)


def close(handler: Handler) -> None:
    handler.close_connection = True


def half(handler: Handler) -> None:
    handler.head(content_length="50")
    handler.wfile.write(b"{")
    handler.close_connection = True


BROKEN: dict[str, Callable[[Handler], object]] = {
    "nothing": close,
    "half an answer": half,
    "too much": lambda handler: handler.whole(b" " * 5000),
    "a redirect": lambda handler: handler.whole(status=302, location="http://127.0.0.1:1/"),
    "what is compressed": lambda handler: handler.whole(content_encoding="gzip"),
    "no HTTP": lambda handler: handler.wfile.write(b"hello\r\n\r\n"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_server_that_does_not_answer_is_a_sentence(
    endpoint: RunningEndpoint, other: Other, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "MOST_ANSWER_BYTES", 4096)
    other.act = BROKEN[what]  # type: ignore[assignment]
    status, headers, answer = endpoint.post(ELSEWHERE)
    assert status == 502 and "x-upstream" not in headers
    assert answer["error"]["message"].startswith("the server of --upstream ")
    other.act = Handler.whole
    assert endpoint.post(ELSEWHERE)[0] == 200


def test_a_stream_that_breaks_off_ends_with_an_error(
    endpoint: RunningEndpoint, other: Other
) -> None:
    def act(handler: Handler) -> None:
        handler.head(kind="text/event-stream", content_length="1000")
        handler.wfile.write(b'data: {"a": 1}\ndata: {"b')
        handler.close_connection = True

    other.act = act
    first, last = endpoint.post(ELSEWHERE)[2].decode().strip().split("\n\n")
    assert first == 'data: {"a": 1}'
    assert "broke off" in json.loads(last.removeprefix("data: "))["error"]["message"]


def test_so_many_are_passed_through_at_once_and_more_come_again(
    endpoint: RunningEndpoint, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "MOST_AT_ONCE", 1)
    go_on = threading.Event()

    def act(handler: Handler) -> None:
        go_on.wait(60)
        handler.whole()

    other.act, statuses = act, []
    first = threading.Thread(target=lambda: statuses.append(endpoint.post(ELSEWHERE)[0]))
    first.start()
    until(lambda: other.seen)
    status, headers, _ = endpoint.post(ELSEWHERE)
    assert status == 429 and headers["retry-after"] == "1"
    go_on.set()
    first.join()
    assert statuses == [200] and endpoint.post(ELSEWHERE)[0] == 200


def test_off_this_machine_it_is_asked_over_tls(
    idle: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    pair = authority.certificate("other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair["certificate"], pair["key"])
    with serving(context) as other:
        with RunningEndpoint(idle, upstream=Upstream(other.url)) as endpoint:
            assert endpoint.post(ELSEWHERE)[0] == 502, "an authority that nobody knows"
        monkeypatch.setenv("SSL_CERT_FILE", authority.path)
        with RunningEndpoint(idle, upstream=Upstream(other.url)) as endpoint:
            assert endpoint.post(ELSEWHERE)[2] == json.loads(ANSWER)


def test_out_of_reach_the_other_server_answers_where_that_is_chosen(other: Other) -> None:
    target, hello = load(checkpoint("qwen3_vl", 1), threads=1), asked("hello")
    drafter = str(checkpoint("qwen3_vl", 2, 384))
    with (
        Cloud(Worker(target, target.spec(3))) as cloud,
        Proxy(cloud.address) as link,
        Decoder(link.address, drafter, preset="dsd") as decoder,
        RunningEndpoint(decoder, when_lost="upstream", upstream=Upstream(other.url)) as endpoint,
        RunningEndpoint(decoder, upstream=Upstream(other.url)) as refusing,
    ):
        status, headers, own = endpoint.post(hello)
        assert status == 200 and "x-upstream" not in headers and own["choices"]
        usual, decoder.settings = decoder.settings, replace(decoder.settings, reply_timeout=0.3)
        link.set_out(True)
        status, headers, answer = endpoint.post(hello)
        assert (status, headers["x-upstream"], answer) == (200, "true", json.loads(ANSWER))
        assert other.seen[0][2] == json.dumps(hello).encode()
        assert refusing.post(hello)[0] == 503 and len(other.seen) == 1
        link.set_out(False)
        decoder.settings = usual
        assert endpoint.post(hello)[2]["choices"] == own["choices"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--upstream", "http://10.0.0.1/v1"), "give --upstream https://"),
        (("--upstream", "ftp://127.0.0.1/v1"), "must be http://HOST:PORT/v1"),
        (("--upstream", "https://me:pass@host/v1"), "a key belongs into --upstream-token-file"),
        (("--upstream", "http://127.0.0.1:x/v1"), "must be http://HOST:PORT/v1"),
        (("--upstream", "http://127.0.0.1/a b"), "must be http://HOST:PORT/v1"),
        (("--upstream", "https://a..b/v1"), "must be http://HOST:PORT/v1"),
        (("--when-lost", "upstream"), "give --upstream URL"),
        (("--upstream-token-file", "/nowhere"), "give --upstream URL"),
        (("--upstream", "https://a/v1", "--upstream-token-file", "/nowhere"), "/nowhere"),
    ],
    ids=str,
)
def test_what_cannot_be_an_upstream_is_one_sentence(
    options: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["endpoint", *options]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("error: ") and complaint in told and "pass@" not in told
