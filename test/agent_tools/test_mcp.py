"""The tools for an agent, asked by the protocol's own client, before a real navigator and a real
instruction server; this test plays the drafter, the base and the camera."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
from helpers.checkpoints import checkpoint
from helpers.cloud.grpc_cloud import Cloud
from helpers.endpoint import RunningEndpoint, asked, shown
from helpers.graph.decode_graph import frame
from helpers.graph.ros_domain import ros_domain
from helpers.navigator_bench import Bench
from mcp import Client, StdioServerParameters
from rclpy.action import ActionClient
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import Bool, String

from edge_cloud_spec import Decoder
from edge_cloud_spec.action import NavigateByInstruction
from edge_cloud_spec.agent_tools import robot as robot_module
from edge_cloud_spec.agent_tools.describer import Describer
from edge_cloud_spec.agent_tools.robot import RobotGraph
from edge_cloud_spec.agent_tools.tools import make_tools
from edge_cloud_spec.cli import main
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.loop_thread import LoopThread
from edge_cloud_spec.models.load import load
from edge_cloud_spec.msg import InstructionStatus
from edge_cloud_spec.nav.status import GoalStatus, NavCode
from edge_cloud_spec.nodes.instruction_server import ACTION_NAME

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
        self._client = ActionClient(self, NavigateByInstruction, ACTION_NAME)
        self.tell("idle")

    def begin(self) -> None:
        """Have the instruction server stop the robot: now the three know each other, and whatever
        was before has come."""
        self.until(self._client.server_is_ready)
        stop = NavigateByInstruction.Goal(instruction="stop")
        self.heard.clear()
        while "stop" not in self.heard:  # a message, and an answer, is lost before
            sent = self._client.send_goal_async(stop)
            self.executor_.spin_until_future_complete(sent, 3.0)
            end = time.monotonic() + 1.0  # for what is on its way
            self.until(lambda end=end: "stop" in self.heard or time.monotonic() > end)
        self.until(lambda: self.state.code is NavCode.TOLD_TO_STOP)
        self.heard.clear()
        self.twists.clear()
        self.decisions = 0

    def known(self) -> object:
        return self.heard, self.states[-3:], len(self.twists)

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

    def follows(self, instruction: str) -> None:
        """Take what the tools have the instruction server publish, and have the robot turn."""
        self.until(lambda: instruction in self.heard)
        self.turn(instruction)

    def heard_from(self, instruction: str) -> list[str]:
        """From this one on; a late stop of the last test may have come before."""
        return self.heard[self.heard.index(instruction) :]

    def is_stopped(self, most: int = 2) -> None:
        """Wait until the robot stands for a stop, and for nothing else. most: stops that there may
        be: the instruction server's, and the tools' own where its answer takes longer."""
        self.until(lambda: self.halted and self.state.code is NavCode.TOLD_TO_STOP)
        self.until(lambda: self.heard_from(BOX)[1:])  # the navigator may have heard it before
        stops = self.heard_from(BOX)[1:]
        assert set(stops) == {"stop"} and len(stops) <= most


Launch = Callable[..., subprocess.Popen[str]]
Navigator = subprocess.Popen[str]


class InstructionServer:
    """The node, which may be killed and started again."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self.start()

    def start(self) -> None:
        self.process = self._launch(["-m", "edge_cloud_spec.nodes.instruction_server"])


@pytest.fixture(scope="module")
def server(launch_once: Launch) -> InstructionServer:
    return InstructionServer(launch_once)


@pytest.fixture(scope="module")
def navigator(launch_once: Launch, server: InstructionServer) -> Navigator:
    return launch_once(["-m", "edge_cloud_spec.nodes.navigator"], "-p", "listen:=0.2")


@pytest.fixture(scope="module")
def peer(navigator: Navigator) -> Iterator[Drafter]:
    with Drafter() as drafter:
        drafter.until(lambda: drafter.states and drafter.count_publishers("cmd_vel"))
        drafter.until(lambda: drafter.words.get_subscription_count() == 2)  # navigator and server
        drafter.until(lambda: drafter.state.detail != "the navigator is not active")
        drafter.match("navigator", "instruction_server")
        yield drafter


@pytest.fixture
def drafter(peer: Drafter) -> Drafter:
    """That of all tests; it has heard nothing of this one yet."""
    peer.begin()
    return peer


class Agent:
    """A client of the tools, in a thread of its own."""

    def __init__(self, where: Any, mode: str, drafter: Drafter | None) -> None:
        self.drafter, self.progress = drafter, list[str]()
        self._thread = LoopThread("agent")
        self._ready: Future[Client] = Future()
        self._end = asyncio.Event()
        self._session = self._start(self._live(where, mode))
        self.client = self.wait(self._ready)
        while drafter is not None and self.call("status").is_error:
            pass  # on a busy machine the robot is not found at once

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


@pytest.fixture(scope="module")
def silent_url() -> Iterator[str]:
    """An endpoint that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield f"http://127.0.0.1:{silent.getsockname()[1]}/v1"


@pytest.fixture(scope="module")
def url(navigator: Navigator, silent_url: str) -> Iterator[str]:
    """Of tools that are served by HTTP, for all tests."""
    with serving("--endpoint", silent_url) as url:
        yield url


@contextmanager
def agent_on(where: Any, mode: str, drafter: Drafter | None) -> Iterator[Agent]:
    agent = Agent(where, mode, drafter)
    yield agent
    agent.close()


def by_stdio(drafter: Drafter, *options: str) -> AbstractContextManager[Agent]:
    arguments = [*COMMAND[1:], *options]
    given = StdioServerParameters(command=COMMAND[0], args=arguments, env=dict(os.environ))
    return agent_on(given, "auto", drafter)


@contextmanager
def impatient() -> Iterator[None]:
    """The robot that is here waits less, for what does not come."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FIND_S", "STOP_S", "GIVE_UP_S", "PICTURE_S"):
            patch.setattr(robot_module, name, 1.0)
        yield


@contextmanager
def tools_here(endpoint: str, drafter: Drafter | None) -> Iterator[Agent]:
    """An agent of tools in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(robot_module, "udp_alone", nullcontext)  # nobody kills this process
        robot = RobotGraph()
    with agent_on(make_tools(robot, Describer(endpoint, str)), "auto", drafter) as agent:
        yield agent
        agent.wait(agent._start(robot.close()))


@pytest.fixture(scope="module")
def client(way: str, url: str, silent_url: str, peer: Drafter) -> Iterator[Agent]:
    mode = "legacy" if "legacy" in way else "auto"
    by_http = way != "stdio"
    with (
        agent_on(url, mode, peer) if by_http else by_stdio(peer, "--endpoint", silent_url) as agent
    ):
        yield agent


@pytest.fixture
def agent(client: Agent, drafter: Drafter) -> Agent:
    """That of all tests by its way."""
    client.progress.clear()
    return client


def text_of(result: Any) -> str:
    return "\n".join(part.text for part in result.content)


@pytest.mark.parametrize("way", WAYS, scope="module")
def test_an_instruction_is_followed_with_progress_to_its_end(
    agent: Agent, drafter: Drafter
) -> None:
    end = agent.ask("follow_instruction", instruction=f"  {BOX}")
    drafter.follows(BOX)
    drafter.until(lambda: any("turn left large" in said for said in agent.progress))
    drafter.tell("done", BOX)
    result = agent.wait(end)
    assert not result.is_error
    said = result.structured_content
    assert said["outcome"] == "found" and 0 < said["decisions"] <= drafter.decisions
    numbers = [float(said.split()[0]) for said in agent.progress]
    assert numbers == sorted(set(numbers)), "progress goes on"
    assert drafter.heard_from(BOX) == [BOX]


@pytest.mark.parametrize("way", WAYS, scope="module")
def test_a_cancel_stops_the_robot(agent: Agent, drafter: Drafter) -> None:
    end = agent.ask("follow_instruction", instruction=BOX)
    drafter.follows(BOX)
    end.cancel()
    drafter.is_stopped()
    assert "told to stop" in agent.call("status").structured_content["why"]


AGENT = """
import asyncio, json, sys
from mcp import Client, StdioServerParameters

async def main(given, mode):
    where = given if isinstance(given, str) else StdioServerParameters(**given)
    async with Client(where, mode=mode) as client:
        while (await client.call_tool("status")).is_error:
            pass
        await client.call_tool("follow_instruction", {"instruction": "find the red box"})

asyncio.run(main(*json.loads(sys.argv[1])))
"""


@pytest.mark.parametrize("way", WAYS)
def test_an_agent_that_is_killed_leaves_a_robot_that_stands(
    way: str, url: str, drafter: Drafter
) -> None:
    given: Any = url
    if way == "stdio":
        given = {"command": COMMAND[0], "args": COMMAND[1:], "env": dict(os.environ)}
    said = json.dumps([given, "legacy" if "legacy" in way else "auto"])
    drafter.until(lambda: "agent_tools" in drafter.get_node_names())  # that of the url
    agent = subprocess.Popen([sys.executable, "-c", AGENT, said])
    drafter.follows(BOX)
    agent.kill()
    agent.wait()
    drafter.is_stopped()
    drafter.until(lambda: drafter.get_node_names().count("agent_tools") <= 1)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_tools_that_are_ended_leave_a_robot_that_stands(how: int, drafter: Drafter) -> None:
    """Also in the background of a shell, which has it ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    assert process.stdin is not None and process.stdout is not None
    params = {"protocolVersion": "2025-06-18", "capabilities": {}}
    params["clientInfo"] = {"name": "test", "version": "1"}

    def say(**message: Any) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        process.stdin.flush()

    say(id=1, method="initialize", params=params)
    assert "result" in process.stdout.readline()
    say(method="notifications/initialized")
    said = '"isError":true'
    while '"isError":true' in said:
        say(id=2, method="tools/call", params={"name": "status", "arguments": {}})
        said = process.stdout.readline()
    asked = {"name": "follow_instruction", "arguments": {"instruction": BOX}}
    say(id=3, method="tools/call", params=asked)
    drafter.follows(BOX)
    process.send_signal(how)
    drafter.is_stopped()
    assert process.wait(60) == 0
    process.stdin.close()
    process.stdout.close()


@pytest.mark.parametrize("way", WAYS, scope="module")
def test_a_stop_is_behind_nothing_and_ends_what_is_followed(agent: Agent, drafter: Drafter) -> None:
    """Another tool waits for an endpoint that never answers."""
    with camera(drafter):
        waits = agent.ask("describe")
        end = agent.ask("follow_instruction", instruction=BOX)
        drafter.follows(BOX)
        result = agent.call("stop")
        assert not result.is_error and text_of(result).startswith("stopped: ")
        assert drafter.state.state == "stopped"
        assert agent.wait(end).structured_content["outcome"] == "cancelled"
        drafter.is_stopped(sys.maxsize)  # it is said until it is confirmed
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
    drafter.destroy_timer(timer)
    drafter.destroy_publisher(publisher)


def test_a_stop_at_the_same_time_as_an_instruction_wins(url: str, drafter: Drafter) -> None:
    """In whatever order they reach the navigator."""
    with agent_on(url, "auto", drafter) as agent:
        for _ in range(5):
            agent.ask("status")
            end, stopped = agent.ask("follow_instruction", instruction=BOX), agent.ask("stop")
            assert text_of(agent.wait(stopped)).startswith("stopped: ")
            agent.wait(end)
            drafter.spin(0.3)
            assert drafter.state.state == "stopped" and drafter.heard[-1:] != [BOX]


def test_a_stop_in_ones_own_words_stops_what_another_has_begun(url: str, drafter: Drafter) -> None:
    before = drafter.state.stops
    drafter.until(
        lambda: drafter.state.stops != before,  # the navigator has found its publisher
        meanwhile=lambda: drafter.instruction.publish(String(data=BOX)),
    )
    drafter.turn(BOX)
    with agent_on(url, "auto", drafter) as agent:
        result = agent.call("follow_instruction", instruction="Please stop now!")
        assert result.structured_content["outcome"] == "cancelled"
        assert drafter.state.state == "stopped" and drafter.heard[-1] == "stop"


def test_a_stop_that_no_navigator_confirms_is_said_to_be_none(
    silent_url: str, drafter: Drafter, navigator: Navigator
) -> None:
    with tools_here(silent_url, drafter) as agent:
        assert not agent.call("stop").is_error
        with suspended(navigator), impatient():
            result = agent.call("stop")
        assert result.is_error and "NOT CONFIRMED" in text_of(result)
        assert not agent.call("stop").is_error


def test_of_two_agents_the_last_one_is_followed_and_the_other_may_go(
    url: str, drafter: Drafter
) -> None:
    with agent_on(url, "legacy", drafter) as second:
        with agent_on(url, "auto", drafter) as first:
            end = first.ask("follow_instruction", instruction=BOX)
            drafter.until(lambda: BOX in drafter.heard)
            then = second.ask("follow_instruction", instruction=BALL)
            said = first.wait(end).structured_content
            assert (said["outcome"], said["message"]) == ("cancelled", "another goal came")
        drafter.turn(BALL)
        drafter.tell("done", BALL)
        assert second.wait(then).structured_content["outcome"] == "found"
        assert drafter.heard_from(BOX) == [BOX, BALL]


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("follow_instruction", {}, "instruction"),
    ("follow_instruction", {"instruction": 5}, "instruction"),
    ("follow_instruction", {"instruction": " "}, "is empty"),
    ("follow_instruction", {"instruction": "x" * 501}, "501 characters"),
    ("follow_instruction", {"instruction": "find <|im_end|>"}, "a control token"),
    ("release_e_stop", {}, "release_e_stop"),
]


@pytest.mark.parametrize("way", ["http"], scope="module")
def test_what_cannot_be_done_is_a_sentence(agent: Agent, drafter: Drafter) -> None:
    for tool, arguments, complaint in WRONG:
        result = agent.call(tool, **arguments)
        assert result.is_error and complaint in text_of(result)
    assert not drafter.heard


@pytest.mark.parametrize("way", ["http"], scope="module")
def test_the_status_says_what_holds_the_robot_and_no_tool_releases_it(
    agent: Agent, drafter: Drafter
) -> None:
    drafter.e_stop.publish(Bool(data=True))
    drafter.until(lambda: drafter.state.e_stopped)
    assert not agent.call("stop").is_error
    said = agent.call("status").structured_content
    assert (said["state"], said["code"]) == ("stopped", "E_STOP") and said["link"] == "unknown"
    drafter.e_stop.publish(Bool(data=False))
    drafter.until(lambda: not drafter.state.e_stopped)
    tools = agent.wait(agent._start(agent.client.list_tools())).tools
    assert {tool.name for tool in tools} == {"follow_instruction", "stop", "status", "describe"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "evil.example"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost"}, 403),
        ({"content-type": "text/plain"}, 400),
        ({"host": "evil.example", "mcp-protocol-version": "2026-07-28"}, 421),
        ({"origin": "http://localhost", "mcp-protocol-version": "2026-07-28"}, 403),
    ],
    ids=str,
)
def test_no_web_page_reaches_the_tools(url: str, headers: dict[str, str], status: int) -> None:
    params = {"protocolVersion": "2025-06-18", "capabilities": {}}
    params["clientInfo"] = {"name": "test", "version": "1"}  # type: ignore[assignment]
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    usual = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    connection = http.client.HTTPConnection("127.0.0.1", int(url.split(":")[2][:-4]))
    connection.request("POST", "/mcp", json.dumps(asked), usual | headers)
    assert connection.getresponse().status == status
    connection.close()


def test_the_endpoint_describes_the_newest_picture(drafter: Drafter) -> None:
    target = load(checkpoint("qwen3_vl", 1), threads=1)
    small = str(checkpoint("qwen3_vl", 2, 384))
    with (
        Cloud(Worker(target, target.spec(3))) as cloud,
        Decoder(cloud.address, small, preset="dsd") as decoder,
        RunningEndpoint(decoder) as endpoint,
        camera(drafter) as picture,
        tools_here(endpoint.url, drafter) as agent,
    ):
        result = agent.call("describe", question="What is left?")
        assert not result.is_error, text_of(result)
        answer = endpoint.post(asked(shown(picture), "What is left?"))[2]
        assert text_of(result) == answer["choices"][0]["message"]["content"]


def test_an_endpoint_that_is_not_there_is_told_with_what_starts_it(drafter: Drafter) -> None:
    where = f"http://127.0.0.1:{free_port()}/v1"
    with camera(drafter), tools_here(where, drafter) as agent:
        result = agent.call("describe")
        assert result.is_error and "start edge-cloud-spec endpoint" in text_of(result)


def test_without_a_robot_each_tool_says_so(silent_url: str) -> None:
    with ros_domain(), tools_here(silent_url, None) as agent, impatient():
        ends = {
            agent.ask("follow_instruction", instruction=BOX): "no robot is there",
            agent.ask("stop"): "NOT CONFIRMED",
            agent.ask("status"): "no robot is there",
            agent.ask("describe"): "no picture came on /camera/image_raw",
        }
        for end, said in ends.items():
            result = agent.wait(end)
            assert result.is_error and said in text_of(result)


def test_an_instruction_server_that_is_started_again_ends_what_is_followed(
    url: str, drafter: Drafter, server: InstructionServer
) -> None:
    """The new one knows nothing of the goal, and cancels none."""
    with agent_on(url, "auto", drafter) as agent:
        end = agent.ask("follow_instruction", instruction=BOX)
        drafter.follows(BOX)
        server.process.kill()
        server.process.wait()
        server.start()
        result = agent.wait(end)
        assert result.is_error and "was started again; stop was published" in text_of(result)
        drafter.is_stopped()
        assert not agent.call("stop").is_error


class RobotHere(RobotGraph):
    """The robot as the tools have it, whose coroutines run in a thread of their own."""

    def __init__(self, drafter: Drafter) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(robot_module, "udp_alone", nullcontext)  # nobody kills this process
            super().__init__()
        self._loop_thread, self._drafter = LoopThread("robot"), drafter
        drafter.until(self._client.server_is_ready)
        # It is heard by the drafter, and by navigator and instruction server in two ways each.
        drafter.until(lambda: self._instruction.get_subscription_count() == 5)

    def begin(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop_thread.loop)

    def begin_to_follow(self) -> Future[Any]:
        async def ignore(feedback: object) -> None:
            pass

        return self.begin(self.follow(BOX, ignore, lambda: True))

    def ended(self, work: Any) -> Any:
        future = self.begin(work)
        self._drafter.until(future.done)
        return future.result()


@pytest.fixture
def robot(drafter: Drafter) -> Iterator[RobotHere]:
    robot = RobotHere(drafter)
    yield robot
    if not robot._thread._closed:
        robot.ended(robot.close())
    robot._loop_thread.close()


@contextmanager
def suspended(process: subprocess.Popen[str]) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def test_no_stop_is_confirmed_while_an_instruction_is_on_its_way(
    robot: RobotHere, drafter: Drafter, server: InstructionServer
) -> None:
    with suspended(server.process), impatient():
        followed = robot.begin_to_follow()
        drafter.until(lambda: robot._goals)
        followed.cancel()
        drafter.until(lambda: "stop" in drafter.heard and not robot._kept)  # it has given up
        with pytest.raises(UserError, match="NOT CONFIRMED"):
            robot.ended(robot.stop())
    drafter.until(lambda: BOX in drafter.heard and drafter.heard[-1] == "stop")
    robot.ended(robot.stop())


def test_a_server_that_answers_no_cancel_has_one_stop_published_in_its_place(
    robot: RobotHere, drafter: Drafter, server: InstructionServer
) -> None:
    """Though the agent is gone, and then the tools end."""
    followed = robot.begin_to_follow()
    drafter.until(lambda: BOX in drafter.heard)
    with suspended(server.process), impatient():
        followed.cancel()
        robot.ended(robot.close())
        assert drafter.heard_from(BOX) == [BOX, "stop"]


def test_an_instruction_server_that_is_gone_ends_what_is_followed(
    robot: RobotHere, drafter: Drafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = robot.begin_to_follow()
    drafter.until(lambda: BOX in drafter.heard)
    monkeypatch.setattr(robot._client, "server_is_ready", lambda: False)
    with impatient():
        drafter.until(followed.done)
    with pytest.raises(UserError, match="the instruction server is gone"):
        followed.result()
    drafter.until(lambda: drafter.state.code is NavCode.TOLD_TO_STOP)
    monkeypatch.undo()
    robot._closed = True
    with pytest.raises(UserError, match="this MCP server ends"):
        robot.begin_to_follow().result()
    assert drafter.heard.count(BOX) == 1


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--endpoint", "http://10.0.0.1/v1"), "give --endpoint https://"),
        (("--endpoint", "ftp://127.0.0.1/v1"), "must be http://HOST:PORT/v1"),
        (("--endpoint-token-file", "/nowhere"), "/nowhere"),
        (("--endpoint", "http://[::1/v1"), "must be http://HOST:PORT/v1"),
        (("--endpoint", "http://127.0.0.1:99999/v1"), "must be http://HOST:PORT/v1"),
        (("--namespace", "a b"), "namespace"),
        (("--camera", "a b"), "is no name of a topic"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_one_sentence(
    options: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mcp", *options]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("error: ") and complaint in told
