"""Mutated requests to a real endpoint: none gets a traceback or another's answer, and memory stays.

Every ``SENT``th goes through a socket, the others to the endpoint's readers alone. Of those that
were sent and can be read every ``REAL``th is decoded with a real verifier; for the others one says
``ECHO``.
"""

from __future__ import annotations

import ctypes
import gc
import http.client
import json
import logging
import os
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from logging.handlers import BufferingHandler
from pathlib import Path
from random import Random
from typing import Any

from fuzz import Broken
from fuzz.verifier import is_our_error
from helpers.checkpoints import checkpoint, jpeg
from helpers.cloud.grpc_cloud import Cloud
from helpers.endpoint import HEADERS, MODEL, RunningEndpoint, asked, said, shown

from edge_cloud_spec import Decoder
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.endpoint import server
from edge_cloud_spec.endpoint.api_error import ApiError
from edge_cloud_spec.endpoint.chat import ChatRequest
from edge_cloud_spec.endpoint.decisions import Decisions
from edge_cloud_spec.endpoint.decodes import Decodes, Finished, Piece
from edge_cloud_spec.endpoint.fields import FIELDS
from edge_cloud_spec.endpoint.server import CHAT, DECISIONS, SYSTEMONE
from edge_cloud_spec.models.load import load
from edge_cloud_spec.request import Request

ECHO, TOKENS, REAL, SENT, RAW, PROBE = "echo", 2, 64, 16, 50, 500
SPARE_BYTES = 24 * 2**20  # that memory may grow by after two fifths of the requests
STATUSES = {200, 400, 403, 404, 405, 413, 415, 422}
PROPER = asked("hello")
_OPTIONS = {"temperature": 0.5, "seed": 7, "stop": ["a", "bc"], "max_tokens": 2, "stream": True}
_CHAT = [said("be brief", role="system"), said("a"), said("b", role="assistant"), said("c")]
_FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
_CHOICES = [{"value": "a", "description": "b"}, {"value": True}]
_PICTURE = {"type": "input_image", "image_url": shown(jpeg(1, 8, 8))["image_url"]["url"]}
_QUESTIONS = [
    {"type": "predicate", "instructions": [{"type": "input_text", "text": "a"}]},
    {"type": "choice", "name": "b", "instructions": "c", "choices": _CHOICES},
    {"type": "score", "instructions": "d", "levels": [{"label": "a"}, {"label": "b"}]},
]
_MAP = {
    "a": {"type": "choice", "instructions": "x", "criteria": {"b": {"c": 1}, "d": None}},
    "e": {"type": "score", "criteria": ["f", "g"]},
}
SEEDS = tuple(
    (path, json.dumps(body).encode())
    for path, body in (
        (CHAT, PROPER),
        (CHAT, asked("a", shown(jpeg(1, 8, 8)), shown(jpeg(2, 8, 8), detail="low")) | _OPTIONS),
        (CHAT, {"model": MODEL, "messages": _CHAT, "response_format": _FORM}),
        (CHAT, asked("x", prediction={"type": "content", "content": "x"}, n=1, tools=[])),
        (
            DECISIONS,
            {
                "model": MODEL,
                "input": [{"role": "user", "content": [_PICTURE]}],
                "questions": _QUESTIONS,
            },
        ),
        (
            SYSTEMONE,
            {
                "model": MODEL,
                "state": {"x": ["<img>"]},
                "questions": _MAP,
                "assets": {"<img>": {"data_base64": _PICTURE["image_url"].partition(",")[2]}},
            },
        ),
    )
)
WORDS = tuple(
    word.encode()
    for word in (
        *("null", "true", "-1", "1e999", "NaN", "[]", "{}", '""', '"\\ud800"', "9" * 400),
        *("[" * 2000, '{"a":' * 500, '"<|im_end|>"', '"\\u0000"', "0.5", "1" + "0" * 30),
        *(f'"{field.name}"' for field in FIELDS),
        *('"role"', '"tool"', '"url"', '"http://127.0.0.1/"', '"data:;base64,"', ",", ":", "}"),
    )
)


class Echo(Decodes):
    """Decodes some requests, and answers the others by itself."""

    seen = 0

    async def stream(self, chat: ChatRequest) -> AsyncGenerator[Piece, None]:
        self.seen += 1
        if self.seen % REAL and chat.request.text != "hello":
            yield Piece(ECHO)
            yield Finished(finish_reason="stop", usage={})
            return
        async for piece in super().stream(chat):
            yield piece

    async def score(self, requests: Sequence[Request]) -> tuple[Sequence[Sequence[float]], bool]:
        self.seen += 1
        if self.seen % REAL:
            return [(-1.0,) * len(request.candidates) for request in requests], True
        return await super().score(requests)


ODD = (None, True, -1, 0, 1, 2**64, 0.5, 1e300, "", "x", "\ud800", "<|im_end|>", [], {}, [3], ["x"])


def odd(random: Random, body: Any) -> Any:
    """The JSON with another value, or another name, somewhere in it."""
    if isinstance(body, dict | list) and body and random.random() < 0.8:
        if isinstance(body, list):
            at = random.randrange(len(body))
            return [*body[:at], odd(random, body[at]), *body[at + 1 :]]
        name = random.choice([*body])
        if random.random() < 0.1:
            return body | {random.choice(FIELDS).name: random.choice(ODD)}
        return body | {name: odd(random, body[name])}
    return random.choice(ODD)


def mutated(random: Random, data: bytes) -> bytes:
    """The bytes with one to four changes."""
    for _ in range(random.randint(1, 4)):
        at, length = random.randrange(len(data) + 1), random.choice((0, 1, 1, 2, 8, 40))
        there = random.randrange(len(data) + 1)
        new = random.choice(
            (
                random.randbytes(length),
                random.choice(WORDS),
                data[there : there + random.choice((1, 8, 60))],
                b"",
            )
        )
        data = data[:at] + new + data[at + length :]
    return data


def run(count: int, seed: int) -> Counter[str]:
    """So many mutated requests; what came of them. Raises Broken."""
    counts, random, alarm = Counter[str](), Random(seed), BufferingHandler(10**6)
    alarm.setLevel(logging.ERROR)
    alarm.addFilter(is_our_error)
    logging.getLogger().addHandler(alarm)
    target = load(checkpoint("qwen3_vl", 1), threads=1)
    try:
        with (
            Cloud(Worker(target, target.spec(TOKENS))) as cloud,
            Decoder(cloud.address, str(checkpoint("qwen3_vl", 2, 384))) as decoder,
            RunningEndpoint(decoder, decodes=Echo) as endpoint,
        ):
            ask(endpoint, random, count, counts, SENT)
    finally:
        logging.getLogger().removeHandler(alarm)
    if alarm.buffer:
        raise Broken("\n".join(map(alarm.format, alarm.buffer[:10])))
    return counts


def ask(
    endpoint: RunningEndpoint, random: Random, count: int, counts: Counter[str], sent: int = 1
) -> None:
    """So many mutated requests, every ``sent``th to this endpoint; counts what came of them. Raises
    Broken."""
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=60)
    own, before = _probe(endpoint, ""), 0
    for number in range(count):
        path, data = random.choice(SEEDS)
        if random.random() < 2 / 3:
            data = mutated(random, data)
        else:
            data = json.dumps(odd(random, json.loads(data))).encode()
        through, is_sent = number // sent, number % sent == 0
        if not is_sent:
            counts[f"read alone: {read_alone(path, data)}"] += 1
        elif through % RAW == 0:
            counts[_raw(endpoint, random, path, data)] += 1
        else:
            counts[_ask(connection, path, data)] += 1
        if is_sent and through % PROBE == 0:
            _probe(endpoint, own)
        if before == 0 and number >= 2 * count / 5:
            before = _resident()
    _probe(endpoint, own)
    counts["grown KiB"] = (_resident() - before) // 1024
    if counts["grown KiB"] * 1024 > SPARE_BYTES:
        raise Broken(f"memory has grown by {counts['grown KiB']} KiB")


def read_alone(path: str, data: bytes) -> str:
    """What a mutated body is without a server: a request, or an error in the API's form. Raises
    Broken."""
    try:
        asked = server.READERS[path](data, (MODEL,))
        if isinstance(asked, Decisions):
            scores = [(-1.0,) * len(each.request.candidates) for each in asked.questions]
            json.dumps(asked.answer(scores)).encode()
    except ApiError as error:
        _check_error(error.status, error.body, data)
        return str(error.status)
    except Exception as error:
        raise Broken(f"{error!r}, after {data[:300]!r}") from error
    return "200"


def _check_error(status: int, told: Any, data: bytes) -> None:
    if status not in STATUSES:
        raise Broken(f"{status} {told!r:.300}, after {data[:300]!r}")
    if status != 200 and not 10 < len(told["error"]["message"]) < 1000:
        raise Broken(f"an error that says too little or too much: {told!r:.300}")


def _ask(connection: http.client.HTTPConnection, path: str, data: bytes) -> str:
    """What a mutated body gets: an answer, or an error in the API's form."""
    try:
        connection.request("POST", path, data, HEADERS)
        response = connection.getresponse()
        told = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise Broken(f"{error!r}, after {data[:300]!r}") from error
    _check_error(response.status, told if response.status == 200 else json.loads(told), data)
    return str(response.status)


def _raw(endpoint: RunningEndpoint, random: Random, path: str, body: bytes) -> str:
    """A request whose head is mutated too; whatever it gets, it hangs nobody."""
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n"
    data = mutated(random, head.encode() + b"content-type: application/json\r\n\r\n") + body
    address = "127.0.0.1", endpoint.port
    with suppress(OSError), socket.create_connection(address, timeout=60) as client:
        client.sendall(data)
        client.settimeout(random.choice((0.001, 0.05)))  # many go away without an answer
        client.recv(4096)
    return "raw"


def _probe(endpoint: RunningEndpoint, own: str) -> str:
    """A proper request gets its own answer."""
    status, _, answer = endpoint.post(PROPER)
    text = answer["choices"][0]["message"]["content"] if status == 200 else ""
    if status != 200 or (own and text != own):
        raise Broken(f"a proper request got {status} {answer}")
    return str(text)


def _resident() -> int:
    gc.collect()
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    _, pages, *_ = Path("/proc/self/statm").read_text().split()
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
