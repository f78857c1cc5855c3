"""The tools, as an MCP server offers them, and its HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings

from .. import __version__
from ..endpoint.listener import make_server
from ..errors import UserError
from ..instruction import check_instruction, is_stop
from ..nav.status import UNKNOWN, GoalStatus, NavigatorStatus
from .describer import Describer
from .robot import LOOK_S, NO_ROBOT, RobotGraph

GONE = "edge_cloud_spec.gone"  # in the scope of an HTTP request: whether its client is gone
FOR_AGENTS = (
    "A robot that follows an instruction by itself, one at a time: a new one takes the place of "
    "the one that is followed. Stop works at any time. A person alone releases an emergency stop."
)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGI = Callable[[Message, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class MissionEnd:
    """How an instruction ended.

    outcome: found, not_found, blocked, given_up, cancelled (by a stop, or another instruction) or
    failed. message: why. decisions: how many were made.
    """

    outcome: str
    message: str
    decisions: int


def make_tools(robot: RobotGraph, describer: Describer) -> MCPServer[None]:
    """The MCP server of this robot's tools."""
    server: MCPServer[None] = MCPServer(
        "edge-cloud-spec", instructions=FOR_AGENTS, version=__version__, log_level="WARNING"
    )

    @server.tool()
    async def follow_instruction(instruction: str, context: Context[None, Any]) -> MissionEnd:
        """Have the robot find or go to what the instruction names ("find the red chair"), until it
        is found, or cannot be. Progress says what it decides. To cancel the call stops the robot.
        """
        with _told():
            if is_stop(instruction):
                return MissionEnd("cancelled", _stopped(await robot.stop()), 0)
            instruction = check_instruction(instruction)
            step = 0

            async def on_feedback(feedback: Any) -> None:
                nonlocal step
                step += 1
                said = f"{feedback.state}, {feedback.decisions} decisions: {feedback.words}"
                await context.report_progress(step, None, said)

            scope = getattr(context.request_context.request, "scope", {})
            end = await robot.follow(instruction, on_feedback, lambda: not scope.get(GONE))
            return MissionEnd(end.outcome, end.message, end.decisions)

    @server.tool()
    async def stop() -> str:
        """Stop the robot, whatever it does. An error says that the stop was not confirmed."""
        with _told():
            return _stopped(await robot.stop())

    @server.tool()
    async def status() -> dict[str, str]:
        """What the robot does and why: state (idle, ready for its next decision, moving, stopped),
        code and why; its last action; mission (following, or how it ended), instruction and
        trouble; link to the cloud (cloud is good, degraded, lost)."""
        with _told():
            if not await robot.find():
                raise UserError(NO_ROBOT)
            now, goal, link = robot.navigator, robot.goal or GoalStatus(UNKNOWN), robot.link
            assert now is not None
            return {
                "state": now.state,
                "code": now.code.name,
                "why": now.detail,
                "last_action": robot.action,
                "mission": goal.state,
                "instruction": goal.instruction,
                "trouble": goal.detail,
                "link": str(link.quality) if link else UNKNOWN,
                "link_trouble": link.reason if link else "",
            }

    @server.tool()
    async def describe(question: str = "What do you see?") -> str:
        """What the robot's camera sees now, or the answer to a question about it."""
        with _told():
            return await describer.ask(question, await robot.look())

    return server


async def serve_http(server: MCPServer[None], listening: socket.socket) -> None:
    """Serve on this socket until a signal."""
    port = listening.getsockname()[1]
    # A web page could have a browser ask under a name of its own; and only browsers tell an origin.
    hosts = [f"127.0.0.1:{port}", f"localhost:{port}"]
    checked = TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=[])
    http = make_server(_watched(server.streamable_http_app(transport_security=checked)), None)
    async with server.session_manager.run():
        serving = asyncio.ensure_future(http.serve([listening]))
        while not (http.should_exit or serving.done()):
            await asyncio.sleep(LOOK_S)


def _watched(app: ASGI) -> ASGI:
    """The application; its requests say in their scope once their client is gone, since with the
    protocol's older versions they would go on then."""

    async def serve(scope: Message, receive: Receive, send: Send) -> None:
        async def hear() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                scope[GONE] = True
            return message

        await app(scope, hear, send)

    return serve


def _stopped(status: NavigatorStatus) -> str:
    return f"stopped: the navigator confirms it ({status.detail})"


@contextmanager
def _told() -> Iterator[None]:
    """What a person is told, an agent is."""
    try:
        yield
    except UserError as error:
        raise ToolError(str(error)) from None
