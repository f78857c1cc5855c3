"""The processes of bare paths, which our figures stand beside: nothing but rclpy and gRPC.

``python -m edge_cloud_spec.lab.bench.bare robot|bridge|cloud|echo``. A round: the robot publishes
messages of a round's sizes, the bridge relays them to a gRPC echo in the cloud and publishes the
answer, the robot receives it. No codec, and only the threads that rclpy and gRPC need. Matrix
products that take as long stand for the models' passes, and their time is subtracted as in the
measured path: a process that has just computed finds its caches cold and is scheduled otherwise
than one that slept. A stop: ``echo`` answers a message, as a navigator that has nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import numpy as np
import rclpy
from geometry_msgs.msg import Twist
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from std_msgs.msg import Bool, UInt8MultiArray

PRESS, COMMAND = "bare/press", "bare/command"
METHOD = "/bare/Echo"
DEPTH = 100  # of the queues, as ours
WIDTH = 1024  # of the matrix of a pass: 4 MB
ARRAY_BYTES = 16  # what a UInt8MultiArray takes besides its data


@dataclass(frozen=True)
class Sizes:
    """Bytes of a round's messages: serialized on the topics, and on gRPC."""

    draft: int = 0
    verdict: int = 0
    words: int = 0
    up: int = 0
    down: int = 0


def blob(size: int, seconds: float = 0.0) -> UInt8MultiArray:
    """A message of this many bytes on the wire, which carries a time."""
    return UInt8MultiArray(data=padded(size - ARRAY_BYTES, seconds))


def padded(size: int, seconds: float) -> bytes:
    """So many bytes (8 at least) that carry a time."""
    return struct.pack("<d", seconds).ljust(size, b"\0")


def seconds_of(message: UInt8MultiArray) -> float:
    """The time that a message carries, in seconds."""
    seconds: float = struct.unpack_from("<d", message.data)[0]
    return seconds


class StandInModel:
    """Computes as a model does: matrix products over more weights than a cache holds."""

    def __init__(self) -> None:
        self._weights = np.full((WIDTH, WIDTH), 1 / WIDTH, np.float32)
        self._state = np.ones(WIDTH, np.float32)

    def run(self, seconds: float) -> float:
        """Compute for so many seconds; returns how many it took."""
        started = now = time.perf_counter()
        while now < started + seconds:
            self._state = self._weights @ self._state
            now = time.perf_counter()
        return now - started


def run_robot(sizes: Sizes) -> None:
    """Reads ``rounds draft_s verify_s`` from stdin, runs so many rounds, prints their ms."""
    node = Node("bare_robot")
    drafts = node.create_publisher(UInt8MultiArray, "bare/draft", DEPTH)
    words = node.create_publisher(UInt8MultiArray, "bare/words", DEPTH)
    answer, model = blob(sizes.words), StandInModel()
    received: list[tuple[float, UInt8MultiArray]] = []
    node.create_subscription(
        UInt8MultiArray, "bare/verdict", lambda m: received.append((time.perf_counter(), m)), DEPTH
    )
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    while not drafts.get_subscription_count():
        executor.spin_once(timeout_sec=0.05)
    print("ready", flush=True)
    for line in sys.stdin:
        rounds, draft_s, verify_s = line.split()
        draft = blob(sizes.draft, float(verify_s))
        times = []
        for _ in range(int(rounds)):
            received.clear()
            started = time.perf_counter()
            words.publish(answer)
            drafting = model.run(float(draft_s))
            drafts.publish(draft)
            while not received:
                executor.spin_once()
            received_at, verdict = received[0]
            times.append(1e3 * (received_at - started - drafting - seconds_of(verdict)))
        print(json.dumps(times), flush=True)


def run_bridge(sizes: Sizes, address: str) -> None:
    """Relays drafts to the echo, and its answers to the robot; until it is killed."""
    node = Node("bare_bridge")
    verdicts = node.create_publisher(UInt8MultiArray, "bare/verdict", DEPTH)
    loop = asyncio.new_event_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue()

    async def relay() -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.stream_stream(METHOD)()
            await call.wait_for_connection()
            writing = asyncio.ensure_future(_write(call, queue))
            async for down in call:
                verdicts.publish(UInt8MultiArray(data=down.ljust(sizes.verdict - ARRAY_BYTES)))
            await writing

    def on_draft(message: UInt8MultiArray) -> None:
        up = message.data.tobytes()[: max(8, sizes.up)]
        loop.call_soon_threadsafe(queue.put_nowait, up)

    node.create_subscription(UInt8MultiArray, "bare/draft", on_draft, DEPTH)
    threading.Thread(target=lambda: loop.run_until_complete(relay()), daemon=True).start()
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    print("ready", flush=True)
    executor.spin()


async def _write(call: Any, queue: asyncio.Queue[bytes]) -> None:
    while True:
        await call.write(await queue.get())


def run_cloud(sizes: Sizes) -> None:
    """Prints its port; answers every message after a pass of the time that it carries."""
    model = StandInModel()

    async def echo(requests: AsyncIterator[bytes], context: Any) -> None:
        async for up in requests:
            verifying = model.run(struct.unpack_from("<d", up)[0])
            await context.write(padded(sizes.down, verifying))

    async def serve() -> None:
        server = grpc.aio.server()
        method = grpc.stream_stream_rpc_method_handler(echo)
        service, name = METHOD[1:].split("/")
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {name: method}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(port, flush=True)
        await server.wait_for_termination()

    asyncio.run(serve())


def run_echo() -> None:
    """Answers each Bool with an all-zero Twist, as a navigator does; until it is killed."""
    node = Node("bare_echo")
    commands = node.create_publisher(Twist, COMMAND, 100)
    node.create_subscription(Bool, PRESS, lambda _: commands.publish(Twist()), 10)
    rclpy.spin(node)


def main() -> None:
    """Run one of the processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=("robot", "bridge", "cloud", "echo"))
    parser.add_argument("sizes", nargs="?", help="the fields of Sizes as JSON; the echo needs none")
    parser.add_argument("--address", default="")
    args = parser.parse_args()
    sizes = Sizes(**json.loads(args.sizes or "{}"))
    if args.part != "cloud":
        rclpy.init(args=[])
    parts: dict[str, Callable[[], None]] = {
        "robot": lambda: run_robot(sizes),
        "bridge": lambda: run_bridge(sizes, args.address),
        "cloud": lambda: run_cloud(sizes),
        "echo": run_echo,
    }
    parts[args.part]()


if __name__ == "__main__":
    main()
