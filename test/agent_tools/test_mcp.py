"""The tools for an agent, asked by the protocol's own client, before a real navigator and a real
instruction server; this test plays the drafter, the base and the camera."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
from helpers.graph.decode_graph import frame
from helpers.navigator_bench import Bench
from mcp import Client, StdioServerParameters
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from edge_cloud_spec.loop_thread import LoopThread
from edge_cloud_spec.msg import InstructionStatus
from edge_cloud_spec.nav.status import GoalStatus

BOX, BALL = "find the red box", "find the yellow ball"
COMMAND = [sys.executable, "-m", "edge_cloud_spec.cli", "mcp"]
WAYS = ("stdio", "http", "http legacy")


class Drafter(Bench):
    """It takes each instruction, and decides to turn."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []
        self.decisions = 0
        self.create_subscription(String, "instruction", self._on_instruction, 10)
        self.tell("idle")

    def _on_instruction(self, message: String) -> None:
        text = message.data
        self.heard.append(text)
        if text == "stop":
            self.tell("stopped", "", "told to stop")
        else:
            self.tell("following", text)

    def tell(self, state: str, instruction: str = "", detail: str = "") -> None:
        """The goal is named after the instruction."""
        said = GoalStatus(state, instruction, detail, instruction)
        self.goal.publish(InstructionStatus(**said.fields))

    def turn(self, instruction: str) -> None:
        """Have the robot turn for this instruction, which the navigator may not have heard yet."""

        def decide() -> None:
            self.decisions += 1
            if self.state.state == "idle":
                request = f"r{self.decisions}"
                text = "action: turn left large;"
                self.say(text, request, instruction=instruction, finish="cut")

        self.until(lambda: self.turning, meanwhile=decide)

    def told_to_stop(self) -> bool:
        return self.halted and self.state.state == "stopped"


@pytest.fixture(scope="module")
def graph(launch_once: Callable[..., subprocess.Popen[str]]) -> None:
    launch_once(["-m", "edge_cloud_spec.nodes.navigator"], "-p", "listen:=0.2")
    launch_once(["-m", "edge_cloud_spec.nodes.instruction_server"])


@pytest.fixture
def drafter(graph: None) -> Iterator[Drafter]:
    with Drafter() as drafter:
        drafter.until(lambda: drafter.states and drafter.count_publishers("cmd_vel"))
        heard = (drafter.words, drafter.instruction, drafter.goal)
        drafter.until(lambda: all(publisher.get_subscription_count() for publisher in heard))
        drafter.until(lambda: drafter.state.detail != "the navigator is not active")
        yield drafter


class Agent:
    """A client of the tools, in a thread of its own."""

    def __init__(self, where: Any, mode: str, drafter: Drafter | None) -> None:
        self.drafter, self.progress = drafter, list[str]()
        self._thread = LoopThread("agent")
        self._ready: Future[Client] = Future()
        self._end = asyncio.Event()
        self._session = self._start(self._live(where, mode))
        self.client = self.wait(self._ready)

    def _start(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._thread.loop)

    async def _live(self, where: Any, mode: str) -> None:
        try:
            async with Client(where, mode=mode) as client:  # type: ignore[arg-type]
                self._ready.set_result(client)
                await self._end.wait()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise

    def wait(self, future: Future[Any]) -> Any:
        """Its result; meanwhile the drafter's callbacks run."""
        if self.drafter is not None:
            self.drafter.until(future.done)
        return future.result(120)

    def ask(self, tool: str, **arguments: Any) -> Future[Any]:
        async def told(progress: float, total: float | None, message: str | None) -> None:
            self.progress.append(f"{progress:g} {message}")

        return self._start(self.client.call_tool(tool, arguments, progress_callback=told))

    def call(self, tool: str, **arguments: Any) -> Any:
        return self.wait(self.ask(tool, **arguments))

    def close(self) -> None:
        self._thread.loop.call_soon_threadsafe(self._end.set)
        self.wait(self._session)
        self._thread.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """The URL of tools that are served by HTTP."""
    port = free_port()
    command = [*COMMAND, "--http", str(port), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == f"serving on http://127.0.0.1:{port}/mcp\n"
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        process.stdout.close()


@contextmanager
def agent_of(way: str, drafter: Drafter | None, *options: str) -> Iterator[Agent]:
    if way == "stdio":
        given = StdioServerParameters(
            command=COMMAND[0], args=[*COMMAND[1:], *options], env=dict(os.environ)
        )
        agent = Agent(given, "auto", drafter)
        yield agent
        agent.close()
        return
    with serving(*options) as url:
        agent = Agent(url, "legacy" if "legacy" in way else "auto", drafter)
        yield agent
        agent.close()


def text_of(result: Any) -> str:
    return "\n".join(part.text for part in result.content)


@pytest.mark.parametrize("way", WAYS)
def test_an_instruction_is_followed_with_progress_to_its_end(way: str, drafter: Drafter) -> None:
    with agent_of(way, drafter) as agent:
        end = agent.ask("follow_instruction", instruction=f"  {BOX}")
        drafter.until(lambda: drafter.heard == [BOX])
        drafter.turn(BOX)
        drafter.until(lambda: any("turn left large" in said for said in agent.progress))
        drafter.tell("done", BOX)
        result = agent.wait(end)
        assert not result.is_error
        said = result.structured_content
        assert said["outcome"] == "found" and 0 < said["decisions"] <= drafter.decisions
        numbers = [float(said.split()[0]) for said in agent.progress]
        assert numbers == sorted(set(numbers)), "progress goes on"
        assert "stop" not in drafter.heard


@pytest.mark.parametrize("way", WAYS)
def test_a_cancel_stops_the_robot(way: str, drafter: Drafter) -> None:
    with agent_of(way, drafter) as agent:
        end = agent.ask("follow_instruction", instruction=BOX)
        drafter.until(lambda: drafter.heard == [BOX])
        drafter.turn(BOX)
        end.cancel()
        drafter.until(drafter.told_to_stop)
        assert drafter.heard == [BOX, "stop"]
        assert "told to stop" in agent.call("status").structured_content["why"]


AGENT = """
import asyncio, json, sys
from mcp import Client, StdioServerParameters

async def main(given, mode):
    where = given if isinstance(given, str) else StdioServerParameters(**given)
    async with Client(where, mode=mode) as client:
        await client.call_tool("follow_instruction", {"instruction": "find the red box"})

asyncio.run(main(*json.loads(sys.argv[1])))
"""


@pytest.mark.parametrize("way", WAYS)
def test_an_agent_that_is_killed_leaves_a_robot_that_stands(way: str, drafter: Drafter) -> None:
    def follow(given: Any, mode: str) -> None:
        said = json.dumps([given, mode])
        agent = subprocess.Popen([sys.executable, "-c", AGENT, said])
        drafter.until(lambda: drafter.heard == [BOX])
        drafter.turn(BOX)
        agent.kill()
        agent.wait()
        drafter.until(drafter.told_to_stop)
        assert drafter.heard == [BOX, "stop"]

    if way == "stdio":
        follow({"command": COMMAND[0], "args": COMMAND[1:], "env": dict(os.environ)}, "auto")
    else:
        with serving() as url:
            follow(url, "legacy" if "legacy" in way else "auto")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_tools_that_are_ended_leave_a_robot_that_stands(how: int, drafter: Drafter) -> None:
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    params = {"protocolVersion": "2025-06-18", "capabilities": {}}
    params["clientInfo"] = {"name": "test", "version": "1"}
    asked = {"name": "follow_instruction", "arguments": {"instruction": BOX}}
    for message in (
        {"id": 1, "method": "initialize", "params": params},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": asked},
    ):
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        process.stdin.flush()
    drafter.until(lambda: drafter.heard == [BOX])
    drafter.turn(BOX)
    process.send_signal(how)
    drafter.until(drafter.told_to_stop)
    assert process.wait(60) == 0
    process.stdin.close()
    process.stdout.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_stop_is_behind_nothing_and_ends_what_is_followed(way: str, drafter: Drafter) -> None:
    """Another tool waits for an endpoint that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        with camera(drafter), agent_of(way, drafter, "--endpoint", where) as agent:
            waits = agent.ask("describe")
            end = agent.ask("follow_instruction", instruction=BOX)
            drafter.until(lambda: drafter.heard == [BOX])
            drafter.turn(BOX)
            result = agent.call("stop")
            assert not result.is_error and text_of(result).startswith("stopped: ")
            assert drafter.state.state == "stopped" and "stop" in drafter.heard
            assert agent.wait(end).structured_content["outcome"] == "cancelled"
            drafter.until(drafter.told_to_stop)
            assert not waits.done()
            waits.cancel()


@contextmanager
def camera(drafter: Drafter) -> Iterator[bytes]:
    """A camera that publishes this picture."""
    picture = frame(7)
    publisher = drafter.create_publisher(
        CompressedImage, "camera/image_raw/compressed", qos_profile_sensor_data
    )
    message = CompressedImage(format="jpeg", data=picture)
    timer = drafter.create_timer(0.1, lambda: publisher.publish(message))
    yield picture
    timer.cancel()
    drafter.destroy_publisher(publisher)
