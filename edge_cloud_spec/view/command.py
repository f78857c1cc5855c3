"""``edge-cloud-spec view``: the running graph, or a bag, in a browser or as a file of Rerun's.

Browsers are served by Rerun's own server as a process. The SDK could serve from this process, too,
but on all interfaces only: a robot's camera would be open to its whole network.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ..bringup.processes import Processes, Program
from ..errors import UserError, check_installed
from ..signals import signals_as_event, signals_as_interrupt

if TYPE_CHECKING:
    from .sink import Sink


MEMORY = "1GiB"  # that the server keeps for browsers that come late; then the oldest goes
STARTUP_TIMEOUT = 60.0  # s
ANY = ("0.0.0.0", "::")  # addresses of all interfaces


@dataclass(frozen=True)
class ViewerAddress:
    """Where the viewer is served. ``data_port``: of the messages to it. Raises UserError."""

    host: str = "127.0.0.1"
    port: int = 9090
    data_port: int = 9876

    def __post_init__(self) -> None:
        for option, port in (("--port", self.port), ("--data-port", self.data_port)):
            if not 0 < port < 65536:
                raise UserError(f"{option} must be from 1 to 65535, not {port}")
        if self.port == self.data_port:
            raise UserError("--port and --data-port must be two ports")
        for port in (self.port, self.data_port):
            _check_free(self.host, port)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def data_url(self) -> str:
        """Where this process sends its entities to."""
        return f"rerun+http://{_in_url(self._reached())}:{self.data_port}/proxy"

    @property
    def page(self) -> str:
        """What a person opens in a browser."""
        name = socket.gethostname() if self.host in ANY else self.host
        data = f"rerun+http://{_in_url(name)}:{self.data_port}/proxy"
        return f"http://{_in_url(name)}:{self.port}/?url={quote(data, safe='')}"

    @property
    def command(self) -> list[str]:
        """The server's command line."""
        origin = f"http://{'*' if self.host in ANY else _in_url(self.host)}:{self.port}"
        return [
            *(sys.executable, "-m", "rerun", "--serve-web", "--hide-welcome-screen"),
            *("--bind", "127.0.0.1" if self.host == "localhost" else self.host),
            *("--port", str(self.data_port), "--web-viewer-port", str(self.port)),
            *("--server-memory-limit", MEMORY, "--cors-allow-origin", origin),
        ]

    def _reached(self) -> str:
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    def answers(self) -> bool:
        """Whether both ports are open."""
        try:
            for port in (self.port, self.data_port):
                socket.create_connection((self._reached(), port), 1.0).close()
        except OSError:
            return False
        return True


@contextlib.contextmanager
def serving(endpoint: ViewerAddress, logs: Path) -> Iterator[Processes]:
    """The server, up; it ends with the context. Raises UserError."""
    with Processes([Program("rerun", endpoint.command)], {}, logs) as processes:
        end = time.monotonic() + STARTUP_TIMEOUT
        while not endpoint.answers():
            processes.check()
            if time.monotonic() > end:
                raise UserError(f"the viewer's server is not up: {processes.last_error('rerun')}")
            time.sleep(0.1)
        yield processes


def _check_free(host: str, port: int) -> None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise UserError(
            f"{host}:{port} cannot be served ({error.strerror}): --host must be an address of this "
            "machine, --port and --data-port free"
        ) from None


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


SILENCE = 5.0  # s without a message after which it is said that none comes
SLICE = 0.5  # s
PERIOD = 0.1  # s between two looks at what came; browsers are sent no more often either


def add_view_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``edge-cloud-spec view``."""
    parser.add_argument(
        "bag", nargs="?", type=Path, help="a rosbag2; without one, the running graph is shown"
    )
    parser.add_argument("--namespace", default="", help="of the robot to show")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to serve on (127.0.0.1); 0.0.0.0: other machines may look, all of them",
    )
    parser.add_argument("--port", type=int, default=9090, help="of the page (9090)")
    parser.add_argument("--data-port", type=int, default=9876, help="of its data (9876)")
    parser.add_argument("--save", type=Path, help="write this .rrd file instead of serving")


def run_view(args: argparse.Namespace) -> int:
    """Show it until Ctrl-C; with ``--save`` and a bag, until the file is written."""
    check_installed("rerun", "view (of Python 3.11 or newer)")
    from .sink import Sink

    if args.bag is not None and not args.bag.exists():
        raise UserError(f"there is no bag {args.bag}")
    live = args.bag is None
    with signals_as_interrupt(), tempfile.TemporaryDirectory(prefix="view-") as logs:
        if args.save is not None:
            return _show(args, Sink(args.save, live), None)
        endpoint = ViewerAddress(args.host, args.port, args.data_port)
        with serving(endpoint, Path(logs)) as processes:
            sink = Sink(endpoint.data_url, live)
            print(f"open {endpoint.page} (Ctrl-C ends)", flush=True)
            if not endpoint.is_loopback:
                print("whoever reaches these ports sees the robot's camera", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                _show(args, sink, processes)
            return 0


def _show(args: argparse.Namespace, sink: Sink, processes: Processes | None) -> int:
    """``processes``: the server; None where a file is written."""
    try:
        if args.bag is None:
            return _show_graph(args, sink, processes)
        count = _show_bag(args, sink)
        sink.flush()
        print(f"{args.bag}: {count} messages shown", flush=True)
        while processes is not None:
            processes.check()
            time.sleep(SLICE)
        return 0
    finally:
        sink.close()


def _show_bag(args: argparse.Namespace, sink: Sink) -> int:
    from .bag_messages import bag_messages
    from .entities import Entities

    entities, count = Entities(), 0
    sink.log(entities.begin())
    for now, topic, message in bag_messages(args.bag, args.namespace):
        sink.log(entities.on_message(topic, message, now))
        sink.log(entities.caption(now))
        count += 1
    return count


def _show_graph(args: argparse.Namespace, sink: Sink, processes: Processes | None) -> int:
    from .entities import Entities
    from .live_messages import LiveMessages

    entities = Entities()
    sink.log(entities.begin())
    # An interrupt within a message would leave half of it in what later ones build on.
    with LiveMessages(args.namespace) as live, signals_as_event() as ended:
        where = f"ROS domain {live.domain}, namespace {live.namespace}"
        print(f"listening in {where}", flush=True)
        missed, silent = 0, True
        while True:
            last = ended.wait(PERIOD)
            if last:
                time.sleep(SLICE)  # what was sent before the end is still on its way
            for now, topic, message in live.take():
                sink.log(entities.on_message(topic, message, now))
            sink.log(entities.caption(live.now))
            if live.backlog.missed > missed:
                missed = live.backlog.missed
                text = f"{missed} messages missed: they come faster than they can be shown"
                sink.log(entities.missed(text, live.now))
                print(text, flush=True)
            if last:
                break
            if processes is not None:
                processes.check()
            if silent and not live.backlog.received and live.now > SILENCE:
                print(f"nothing is published yet in {where}", flush=True)
                silent = False
        if args.save is not None:
            backlog = live.backlog
            shown = backlog.received - backlog.missed - backlog.left_out
            older = f"; {backlog.left_out} pictures left out for newer ones"
            print(f"{args.save}: {shown} messages{older * bool(backlog.left_out)}", flush=True)
    return 0
