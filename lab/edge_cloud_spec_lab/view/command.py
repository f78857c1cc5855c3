"""``edge-cloud-spec view``: shows the running graph or a bag in a browser, or writes a Rerun file.

Rerun's server runs as a separate process. Served from this process by the SDK, it would listen on
all interfaces, and expose the robot's camera to the whole network.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from edge_cloud_spec.errors import UserError, check_installed
from edge_cloud_spec.share import path_of
from edge_cloud_spec.signals import signals_as_interrupt

from ..running.processes import Processes

SERVER_MEMORY = "1GiB"  # that the server keeps for browsers that come late; then the oldest goes
SERVER_STARTUP_S = 60.0  # s
REACHED = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where all interfaces are reached from here


@dataclass(frozen=True)
class ViewerAddress:
    """Where the viewer is served. ``data_port``: for the data it shows. Raises UserError."""

    host: str = "127.0.0.1"
    port: int = 9090
    data_port: int = 9876

    def __post_init__(self) -> None:
        if len({0, self.port, self.data_port}) < 3:
            raise UserError("--port and --data-port must be two ports, from 1 to 65535")
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            for port in (self.port, self.data_port):
                socket.create_server((self.host, port), family=family).close()
        except (OSError, OverflowError) as error:
            raise UserError(
                f"{self.host}:{port} cannot be served ({error}): --host must be an address of this "
                "machine, --port and --data-port free"
            ) from None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def data_url(self) -> str:
        """The URL to which this process sends its entities."""
        return _data_url(REACHED.get(self.host, self.host), self.data_port)

    @property
    def page(self) -> str:
        """The URL to open in a browser."""
        name = socket.gethostname() if self.host in REACHED else self.host
        data = quote(_data_url(name, self.data_port), safe="")
        # As in a notebook, Rerun's page tells its makers nothing.
        return f"http://{_in_url(name)}:{self.port}/?url={data}&notebook=1"

    @property
    def command(self) -> list[str]:
        """The server's command line."""
        origin = f"http://{'*' if self.host in REACHED else _in_url(self.host)}:{self.port}"
        return [
            *(sys.executable, "-m", "rerun", "--serve-web", "--hide-welcome-screen"),
            *("--bind", "127.0.0.1" if self.host == "localhost" else self.host),
            *("--port", str(self.data_port), "--web-viewer-port", str(self.port)),
            *("--server-memory-limit", SERVER_MEMORY, "--cors-allow-origin", origin),
        ]

    def answers(self) -> bool:
        """Whether both ports are open."""
        try:
            for port in (self.port, self.data_port):
                socket.create_connection((REACHED.get(self.host, self.host), port), 1.0).close()
        except OSError:
            return False
        return True


def _data_url(host: str, port: int) -> str:
    return f"rerun+http://{_in_url(host)}:{port}/proxy"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@contextlib.contextmanager
def serving(address: ViewerAddress) -> Iterator[Callable[[], None]]:
    """A context in which the server runs. Yields a function that raises UserError if it has
    ended.

    Under ``CI`` Rerun's server tells its makers nothing; it has no other switch.
    """
    with (
        tempfile.TemporaryDirectory(prefix="view-") as logs,
        Processes({"rerun": address.command}, {"CI": "1"}, Path(logs)) as processes,
    ):
        end = time.monotonic() + SERVER_STARTUP_S
        while not address.answers():
            processes.check()
            if time.monotonic() > end:
                raise UserError(f"the viewer's server is not up: {processes.last_error('rerun')}")
            time.sleep(0.1)
        print(f"open {address.page} (Ctrl-C ends)", flush=True)
        if not address.is_loopback:
            print("whoever reaches these ports sees the robot's camera", flush=True)
        yield processes.check


SLICE = 0.5  # s between two looks whether the server is there


def add_view_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``edge-cloud-spec view``."""
    parser.add_argument(
        "bag", nargs="?", type=path_of, help="a rosbag2; without one, the running graph is shown"
    )
    parser.add_argument("--namespace", default="", help="of the robot to show")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to serve on (127.0.0.1); 0.0.0.0: other machines may look, all of them",
    )
    parser.add_argument("--port", type=int, default=9090, help="of the page (9090)")
    parser.add_argument("--data-port", type=int, default=9876, help="of its data (9876)")
    parser.add_argument("--save", type=path_of, help="write this .rrd file instead of serving")


def run_view(args: argparse.Namespace) -> int:
    """Show the run until Ctrl-C; with ``--save`` and a bag, until the file is written."""
    check_installed("rerun", "view (of Python 3.11 or newer)")
    if args.bag is None:
        check_installed("rclpy", "view without a bag")
    elif not args.bag.exists():
        raise UserError(f"there is no bag {args.bag}")
    with signals_as_interrupt():
        if args.save is not None:
            _show(args, args.save, lambda: None)
            return 0
        address = ViewerAddress(args.host, args.port, args.data_port)
        with serving(address) as check, contextlib.suppress(KeyboardInterrupt):
            _show(args, address.data_url, check)
    return 0


def _show(args: argparse.Namespace, to: Path | str, check: Callable[[], None]) -> None:
    from .entities import Entities, bag_messages
    from .sink import Sink

    if args.bag is None:
        from .live_messages import live_messages

        messages = live_messages(args.namespace, check)
    else:
        messages = bag_messages(args.bag, args.namespace)
    entities, count, now = Entities(), 0, 0.0
    with contextlib.closing(Sink(to, live=args.bag is None)) as sink:
        sink.log(entities.begin())
        for now, topic, message in messages:
            sink.log(entities.on_message(topic, message, now))
            count += 1
        sink.log(entities.caption(now))
        sink.flush()
        print(f"{args.bag or args.save or 'the graph'}: {count} messages shown", flush=True)
        # Here, while the sink lives: an interrupt within its __del__ would be lost.
        while args.bag is not None and args.save is None:
            check()
            time.sleep(SLICE)
