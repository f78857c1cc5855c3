"""Clients of an endpoint that vanish at every stage of a request, and the memory of its process.

``vanishing``: nobody decodes for who is gone, nothing of theirs stays, and others are answered.
``memory``: a real ``edge-cloud-spec endpoint`` keeps its size over requests of all forms.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from fuzz import Broken
from fuzz.endpoint import SEEDS
from helpers.checkpoints import checkpoint, jpeg
from helpers.cloud.grpc_cloud import Cloud, Proxy, until
from helpers.endpoint import HEADERS, MODEL, RunningEndpoint, asked, shown

from edge_cloud_spec import Decoder
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.endpoint.server import CHAT, DECISIONS
from edge_cloud_spec.models.load import load
from edge_cloud_spec_lab.harness.emulated_link import LinkProfile
from edge_cloud_spec_lab.harness.endpoint import EndpointProcess

STAGES = ("head", "body", "queue", "words", "questions", "answer")
TOKENS, AT_ONCE, QUEUE, BATCH = 40, 4, 16, 25
LINK = LinkProfile(2.0)  # slow enough for clients to go between words
DIFFERENT = 100  # requests whose memory is watched
SAMPLES, SPARE_KIB = 8, 4 * 1024  # of memory; what may come after the third
READERS = (os.cpu_count() or 1) + 4  # threads that asyncio may keep for the readers of bodies
PROPER = asked("hello")
QUESTIONS = {
    "model": MODEL,
    "input": "hello",
    "questions": [
        {"type": "predicate", "instructions": f"{number} boxes are red"} for number in range(20)
    ],
}


def vanishing(count: int, seed: int) -> Counter[str]:
    """So many clients that vanish; what became of their decodes. Raises Broken."""
    target = load(checkpoint("qwen3_vl", 1), threads=1)
    drafter = str(checkpoint("qwen3_vl", 2, 384))
    with (
        Cloud(Worker(target, target.spec(TOKENS))) as cloud,
        Proxy(cloud.address, LINK) as link,
        Decoder(link.address, drafter, preset="dsd") as decoder,
        RunningEndpoint(decoder, queue=QUEUE) as endpoint,
    ):
        return vanish(endpoint, decoder, count, seed)


def vanish(endpoint: RunningEndpoint, decoder: Decoder, count: int, seed: int) -> Counter[str]:
    """So many clients of this endpoint that vanish. Raises Broken."""
    counts, run = Counter[str](), decoder.runner.run

    def noted(*given: Any) -> Any:
        outcome = run(*given)
        counts[f"decode {outcome.reason}"] += 1
        return outcome

    decoder.runner.run = noted  # type: ignore[method-assign]
    own = endpoint.post(PROPER)[2]["choices"]
    before = _held()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for begin in range(0, count, BATCH):
            numbers = range(begin, min(begin + BATCH, count))
            for stage in pool.map(lambda n: _vanish(endpoint, Random(f"{seed} {n}")), numbers):
                counts[f"gone {stage}"] += 1
            _check_idle(endpoint)
            status, _, answer = endpoint.post(PROPER)
            if status != 200 or answer["choices"] != own:
                raise Broken(f"after {begin + BATCH} clients a proper request got {answer}")
    decoder.runner.run = run  # type: ignore[method-assign]
    held = _held()
    if held[0] > before[0] + READERS or held[1] > before[1] + 2:
        raise Broken(f"threads and files were {before}, and are {held}")
    return counts


def _check_idle(endpoint: RunningEndpoint) -> None:
    """Nothing of clients that are gone is left."""
    decodes, app = endpoint.decodes, endpoint.app
    until(lambda: not (decodes._turn.locked() or decodes._waiting or app._reading))
    until(lambda: not endpoint.server.server_state.connections)


def _vanish(endpoint: RunningEndpoint, random: Random) -> str:
    """Ask as one client, and be gone at a stage, by an end or by a reset."""
    stage = random.choice(STAGES)
    body = json.dumps(QUESTIONS if stage == "questions" else PROPER | {"stream": True}).encode()
    path = DECISIONS if stage == "questions" else CHAT
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n"
    data = head.encode() + b"content-type: application/json\r\n\r\n" + body
    client = socket.create_connection(("127.0.0.1", endpoint.port), timeout=60)
    if random.random() < 0.5:  # a reset, as of a program that was killed with unread bytes
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with client, suppress(OSError):
        if stage == "head":
            data = data[: random.randrange(len(data) - len(body))]
        elif stage == "body":
            data = data[: len(data) - 1 - random.randrange(len(body))]
        client.sendall(data)
        if stage == "words":
            for _ in range(random.randint(1, 6)):
                client.recv(400)
        elif stage in ("queue", "questions"):
            client.settimeout(0.001 + 0.05 * random.random())
            client.recv(1)
        elif stage == "answer":
            while b"[DONE]" not in client.recv(65_536)[-40:]:
                pass
    return stage


def _held() -> tuple[int, int]:
    """Threads of this process, and files that it has open."""
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def memory(count: int, seed: int) -> Counter[str]:
    """So many requests to a real process, whose memory is printed; in KiB. Raises Broken."""
    target = load(checkpoint("qwen3_vl", 1), threads=1)
    options = ("--drafter", str(checkpoint("qwen3_vl", 2, 384)))
    with (
        Cloud(Worker(target, target.spec(TOKENS))) as cloud,
        EndpointProcess("--cloud", cloud.address, *options) as endpoint,
    ):
        return watch(endpoint.url, endpoint.pid, count, Random(seed), partial(print, flush=True))


def watch(
    url: str, pid: int, count: int, random: Random, tell: Callable[[str], object]
) -> Counter[str]:
    """So many requests; the memory of the process, KiB, by their number. Raises Broken."""
    where, found = urlsplit(url), Counter[str]()
    # The same ones again, so that what is kept of prompts and pictures is soon all there.
    requests = [_request(random) for _ in range(DIFFERENT)]
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=60)
    for number in range(1, count + 1):
        path, body = random.choice(requests)
        connection.request("POST", path, body, HEADERS)
        response = connection.getresponse()
        told = response.read()
        if response.status != 200:
            raise Broken(f"{response.status} {told[:300]!r}")
        if number % max(1, count // SAMPLES) == 0:
            found[f"after {number:7}"] = size = _resident(pid)
            tell(f"{number:7} requests, {size} KiB")
    _, _, third, *later = found.values()
    if max(later) > third + SPARE_KIB:
        raise Broken(f"memory has grown from {third} to {max(later)} KiB")
    return found


def _request(random: Random) -> tuple[str, bytes]:
    """Another request each time: text, new pictures, schema, decisions, streamed or not."""
    path, seed = random.choice(SEEDS)
    body = json.loads(seed)
    if path == CHAT:
        new = jpeg(random.getrandbits(31), 64 + random.randrange(64), 64 + random.randrange(64))
        text = f"{random.getrandbits(64)}"
        parts = random.choice(((text,), (shown(new), text), (shown(new), shown(jpeg(1)), text)))
        body["messages"] = [*body["messages"][:-1], asked(*parts)["messages"][0]]
        body |= {"max_tokens": 4, "stream": random.random() < 0.5}
    return path, json.dumps(body).encode()


def _resident(pid: int) -> int:
    _, pages, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    return int(pages) * os.sysconf("SC_PAGE_SIZE") // 1024
