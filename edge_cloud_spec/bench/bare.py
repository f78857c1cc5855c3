"""A round trip of nothing but rclpy and gRPC, over as many processes as ours takes.

``python -m edge_cloud_spec.bench.bare robot|bridge|cloud``: the robot publishes what a round's
messages weigh, the bridge passes it to a gRPC echo and publishes the answer, the robot hears it.
No codec, no model, and no thread but those that rclpy and gRPC cannot do without.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from std_msgs.msg import UInt8MultiArray

METHOD = "/bare/Echo"
DEPTH = 100  # of the queues, as ours
ARRAY_BYTES = 16  # what a UInt8MultiArray takes besides its data


@dataclass(frozen=True)
class Sizes:
    """Bytes of a round's messages: serialized on the topics, and as they go over gRPC."""

    draft: int
    verdict: int
    words: int
    up: int
    down: int


def blob(size: int) -> UInt8MultiArray:
    """A message of this many bytes on the wire."""
    return UInt8MultiArray(data=bytes(max(0, size - ARRAY_BYTES)))


def run_robot(sizes: Sizes) -> None:
    """Reads ``rounds pause_s`` from stdin, plays so many rounds, prints their times in ms."""
    node = Node("bare_robot")
    drafts = node.create_publisher(UInt8MultiArray, "bare/draft", DEPTH)
    words = node.create_publisher(UInt8MultiArray, "bare/words", DEPTH)
    draft, said = blob(sizes.draft), blob(sizes.words)
    heard: list[float] = []
    node.create_subscription(
        UInt8MultiArray, "bare/verdict", lambda _: heard.append(time.perf_counter()), DEPTH
    )
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    while not drafts.get_subscription_count():
        executor.spin_once(timeout_sec=0.05)
    print("ready", flush=True)
    for line in sys.stdin:
        rounds, pause = line.split()
        times = []
        for _ in range(int(rounds)):
            time.sleep(float(pause))
            heard.clear()
            started = time.perf_counter()
            words.publish(said)
            drafts.publish(draft)
            while not heard:
                executor.spin_once()
            times.append(1e3 * (heard[0] - started))
        print(json.dumps(times), flush=True)


def run_bridge(sizes: Sizes, address: str) -> None:
    """Passes drafts on to the echo, and what comes back to the robot; until it is killed."""
    node = Node("bare_bridge")
    verdicts = node.create_publisher(UInt8MultiArray, "bare/verdict", DEPTH)
    verdict, up = blob(sizes.verdict), bytes(sizes.up)
    loop = asyncio.new_event_loop()
    outbox: asyncio.Queue[bytes] = asyncio.Queue()

    async def relay() -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.stream_stream(METHOD)()
            await call.wait_for_connection()
            writing = asyncio.ensure_future(_write(call, outbox))
            async for _ in call:
                verdicts.publish(verdict)
            await writing

    node.create_subscription(
        UInt8MultiArray,
        "bare/draft",
        lambda _: loop.call_soon_threadsafe(outbox.put_nowait, up),
        DEPTH,
    )
    threading.Thread(target=lambda: loop.run_until_complete(relay()), daemon=True).start()
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    print("ready", flush=True)
    executor.spin()


async def _write(call: Any, outbox: asyncio.Queue[bytes]) -> None:
    while True:
        await call.write(await outbox.get())


def run_cloud(sizes: Sizes, on_ready: Callable[[int], None]) -> None:
    """Answers every message at once; until it is killed."""
    down = bytes(sizes.down)

    async def echo(requests: AsyncIterator[bytes], context: Any) -> None:
        async for _ in requests:
            await context.write(down)

    async def serve() -> None:
        server = grpc.aio.server()
        method = grpc.stream_stream_rpc_method_handler(echo)
        service, name = METHOD[1:].split("/")
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {name: method}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        on_ready(port)
        await server.wait_for_termination()

    asyncio.run(serve())


def main() -> int:
    """Play one of the three parts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=("robot", "bridge", "cloud"))
    parser.add_argument("sizes", help="the fields of Sizes as JSON")
    parser.add_argument("--address", default="")
    args = parser.parse_args()
    sizes = Sizes(**json.loads(args.sizes))
    if args.part == "cloud":
        run_cloud(sizes, lambda port: print(port, flush=True))
        return 0
    rclpy.init(args=[])
    if args.part == "robot":
        run_robot(sizes)
    else:
        run_bridge(sizes, args.address)
    return 0


if __name__ == "__main__":
    sys.exit(main())
