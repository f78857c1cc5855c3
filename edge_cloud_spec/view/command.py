"""``edge-cloud-spec view``: the running graph, or a bag, in a browser or as a file of Rerun's."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..signals import signals_as_event, signals_as_interrupt

if TYPE_CHECKING:
    from ..bringup.processes import Processes
    from .sink import Sink

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
    if importlib.util.find_spec("rerun") is None:
        raise UserError(
            "view needs Rerun (Python 3.11 or newer): pip install -r requirements/view.txt, "
            "or pip install 'edge-cloud-spec[view]'"
        )
    from .server import ViewerAddress, serving
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
    try:
        from .live_messages import LiveMessages
    except ImportError as error:
        raise UserError(
            f"the running graph can be shown where ROS 2 is sourced only ({error}); "
            "give a bag, or see it through foxglove_bridge"
        ) from None
    from .entities import Entities

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
