"""What a verifier keeps of many requests, and what one robot learns of another's by their times.

PYTHONPATH=test .venv/bin/python -m helpers.cloud.many_requests large --count 320

``refused``, ``large`` and ``conversations`` send so many requests of that kind: the server's memory
is bounded by what its options say and ``SPARE_MB``. ``text``, ``picture`` and ``conversation`` time
so many requests of a robot, of which each second one repeats what a robot with another credential
has just sent: nobody can tell which. It returns 1 where that is not so.
"""

from __future__ import annotations

import argparse
import io
import queue
import random
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import grpc
import numpy as np
from PIL import Image

from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.request import Message, Part, Picture, Request
from edge_cloud_spec.wire.channel import CLIENT_OPTIONS, METHOD
from edge_cloud_spec.wire.codec import decode_server, encode_client, read_server
from edge_cloud_spec.wire.messages import Close, Fault, Generation, Open, Opened, Verdict, key_of

SPARE_MB = 150.0  # beyond what the options say
TOLD = 0.55  # share of the looks that tell right; 0.5: by chance
HISTORY_MB, KV_MB, WAITING_MB = 8, 40, 32  # for each credential, for all, and each way
TOKENS = "a" * 24, "b" * 24
MESSAGE = 2**20  # bytes of a large picture
OPTIONS = (
    f"--target={EMBEDDED / 'target'}",
    "--dialect=any",
    "--address=127.0.0.1:0",
    "--threads=1",
    f"--history-mb={HISTORY_MB}",
    f"--kv-memory={KV_MB}",
    f"--bytes-per-robot={WAITING_MB * 2**20}",
)
WORDS = ["find", "go", "to", "the", "red", "blue", "chair", "box", "kitchen", "door", "left"]


class Robot:
    """One credential's requests, each on a stream of its own."""

    def __init__(self, address: str, token: str) -> None:
        self._channel = grpc.insecure_channel(address, options=CLIENT_OPTIONS)
        self._metadata = (("authorization", f"Bearer {token}"),)

    def ask(self, request: Request) -> tuple[float, float, str]:
        """Seconds until it is accepted, until the first verdict or fault, and which it is."""
        sent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        opening = Open(
            secrets.randbits(63),
            request,
            GREEDY,
            "greedy",
            key=key_of(secrets.token_bytes(16)),
            max_tokens=1,
            generation=Generation(),
        )
        frame = encode_client(opening).data
        call = self._channel.stream_stream(METHOD)(iter(sent.get, None), metadata=self._metadata)
        asked = time.perf_counter()
        sent.put(frame)
        opened = 0.0
        for answer in call:
            took, said = time.perf_counter() - asked, decode_server(read_server(answer))
            opened = took if isinstance(said, Opened) else opened
            if isinstance(said, Verdict | Fault):
                sent.put(encode_client(Close()).data)
                sent.put(None)
                return opened, took, said.code if isinstance(said, Fault) else "answered"
        raise RuntimeError("the verifier ended the stream without an answer")


@contextmanager
def verifier() -> Iterator[tuple[str, Callable[[], float]]]:
    """A server's address, and what reads its memory, MB."""
    with tempfile.NamedTemporaryFile("w") as tokens:
        tokens.write("\n".join(TOKENS))
        tokens.flush()
        command = [sys.executable, "-m", "edge_cloud_spec.cli", "serve", *OPTIONS]
        serving = subprocess.Popen(
            [*command, f"--token-file={tokens.name}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert serving.stdout is not None
        try:
            said = next(line for line in serving.stdout if line.startswith("serving on "))
            status = Path(f"/proc/{serving.pid}/status")

            def memory() -> float:
                found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text())
                assert found is not None, "the server has ended"
                return int(found[1]) / 1024

            yield said.split()[-1], memory
        finally:
            serving.terminate()
            serving.wait()


def words(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=60))


def jpeg(rng: random.Random, width: int, height: int) -> bytes:
    noise = np.frombuffer(rng.randbytes(width * height // 64 * 3), np.uint8)
    small = Image.fromarray(noise.reshape(height // 8, width // 8, 3))
    file = io.BytesIO()
    small.resize((width, height)).save(file, "JPEG", quality=85)
    return file.getvalue()


def conversation(rng: random.Random, pictures: list[bytes]) -> Request:
    """A request that another may go on from, with a turn for each picture."""
    first: list[Message] = []
    for data in pictures[:-1]:
        first.append(Message("user", (words(rng), Picture.of(data), words(rng))))
        first.append(Message("assistant", ("action: turn left small;",)))
    last: tuple[Part, ...] = (words(rng), *map(Picture.of, pictures[-1:]))
    return Request((*first, Message("user", last)), continues=True)


def refused(rng: random.Random) -> Request:
    return conversation(rng, [rng.randbytes(3) for _ in range(64)])


def large(rng: random.Random, picture: bytes = jpeg(random.Random(0), 1920, 1080)) -> Request:
    """Nine large pictures, each of which is new by a comment in it."""

    def new() -> bytes:
        comment = b"\xff\xfe\x00\x0a" + rng.randbytes(8)
        return picture[:2] + comment + picture[2:] + bytes(MESSAGE)

    return conversation(rng, [new() for _ in range(9)])


def short(rng: random.Random) -> Request:
    return conversation(rng, [jpeg(rng, 96, 72), jpeg(rng, 96, 72)])


KEPT = {"refused": refused, "large": large, "conversations": short}
TIMED: dict[str, Callable[[random.Random], Request]] = {
    "text": lambda rng: Request((Message("user", (words(rng),)),)),
    "picture": lambda rng: Request((Message("user", (Picture.of(jpeg(rng, 1280, 720)), "go")),)),
    "conversation": lambda rng: conversation(rng, [jpeg(rng, 320, 240) for _ in range(3)]),
}
ACCEPTED = ("picture",)  # whose time until it is accepted tells most, as it is decoded then


def keep(what: str, count: int, rng: random.Random) -> bool:
    """Send so many requests of one credential; whether the server's memory stays within bounds."""
    bound = HISTORY_MB + KV_MB + 2 * WAITING_MB + SPARE_MB
    with verifier() as (address, memory):
        robot, said = Robot(address, TOKENS[0]), Counter[str]()
        start = peak = memory()
        for number in range(count):
            said[robot.ask(KEPT[what](rng))[2]] += 1
            peak = max(peak, memory())
            if number % max(1, count // 10) == 0:
                print(f"{number + 1:6} {memory():5.0f} MB {dict(said)}", flush=True)
        print(f"{start:.0f} MB at first, {peak:.0f} at most, {memory():.0f} at last; {dict(said)}")
    print(f"{peak - start:.0f} MB more, of {bound:.0f}")
    return peak - start <= bound


def look(what: str, count: int, rng: random.Random) -> bool:
    """Learn by so many requests what the times tell, then guess by as many; whether that fails."""
    make = TIMED[what]
    with verifier() as (address, _):
        first, other = (Robot(address, token) for token in TOKENS)
        learnt: dict[bool, list[float]] = {True: [], False: []}
        looks: list[tuple[bool, float]] = []
        for number in range(2 * count + 10):
            told, asked = make(rng), make(rng)
            first.ask(told)
            repeats = rng.random() < 0.5
            opened, took, said = other.ask(told if repeats else asked)
            took = opened if what in ACCEPTED else took
            assert said == "answered", said
            if number >= count + 10:
                looks.append((repeats, took))
            elif number >= 10:
                learnt[repeats].append(took)
    known, new = median(learnt[True]), median(learnt[False])
    right = sum(repeats == ((took < (known + new) / 2) == (known < new)) for repeats, took in looks)
    print(
        f"what another has sent takes {1e3 * known:.2f} ms, what is new {1e3 * new:.2f} ms; "
        f"{right} of {count} looks tell right"
    )
    return right <= TOLD * count


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("what", choices=[*KEPT, *TIMED])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    does, rng = keep if given.what in KEPT else look, random.Random(given.seed)
    return 0 if does(given.what, given.count, rng) else 1


if __name__ == "__main__":
    sys.exit(main())
