"""``edge-cloud-spec mcp``: tools with which an agent steers the robot."""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UserError, check_installed, one_line
from ..loop_thread import event_of
from ..options import Bounded, add_options, bounded, described, from_options
from ..signals import ending_signals
from ..wire.secret_files import Reloaded, read_token

if TYPE_CHECKING:
    from .robot import RobotGraph


@dataclass(frozen=True)
class ToolSettings(Bounded):
    """How an agent reaches the tools, and they the robot."""

    http: int = bounded(
        0, 0, 65535, "port of http://127.0.0.1:PORT/mcp; 0: on standard input and output"
    )
    namespace: str = described("", "of the robot's nodes")
    camera: str = described("", "the robot's camera topic, as the launch's camera:=")
    endpoint: str = described(
        "http://127.0.0.1:8000/v1", "URL of an OpenAI-compatible API that describes pictures"
    )
    endpoint_token_file: str = described("", "file with the token for --endpoint")


def add_mcp_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``mcp``."""
    add_options(parser, ToolSettings())


def run_mcp(args: argparse.Namespace) -> int:
    """Serve until the agent is gone, or SIGINT, SIGTERM or SIGHUP. Raises UserError."""
    settings = from_options(ToolSettings(), args)
    check_installed("mcp", "edge-cloud-spec mcp")
    from ..endpoint.listener import listen
    from .describer import Describer
    from .robot import RobotGraph
    from .tools import make_tools

    path = settings.endpoint_token_file
    token = Reloaded(lambda: read_token(path) if path else "", path)
    describer = Describer(settings.endpoint, lambda: token.current)
    try:
        listening = listen(f"127.0.0.1:{settings.http}") if settings.http else None
    except UserError:
        raise UserError(f"port {settings.http} is in use: give --http another") from None
    robot = RobotGraph(settings.namespace, settings.camera)
    asyncio.run(_serve(make_tools(robot, describer), robot, listening))
    return 0


async def _serve(server: Any, robot: RobotGraph, listening: socket.socket | None) -> None:
    from ..nodes.runtime.parent import leave
    from .tools import serve_http

    ended = event_of(ending_signals())
    if listening is None:
        serving = asyncio.ensure_future(server.run_stdio_async())
    else:
        print(f"serving on http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
        serving = asyncio.ensure_future(serve_http(server, listening))
    waiting = asyncio.ensure_future(ended.wait())
    await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
    await robot.close()
    error = serving.exception() if serving.done() else None
    if error is not None:
        while inner := getattr(error, "exceptions", ()):  # groups, which say only how many
            error = inner[0]
        print(f"error: the MCP server failed: {one_line(error)}", file=sys.stderr)
    leave(int(error is not None))  # at once: a thread waits for standard input, maybe without end
