"""Receives the messages of the running graph through a node that only subscribes."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from rclpy.serialization import deserialize_message

from edge_cloud_spec.nodes.drafting.camera import TYPES as PICTURES
from edge_cloud_spec.nodes.runtime.node_thread import NodeThread
from edge_cloud_spec.nodes.topics import TOPICS as GRAPH
from edge_cloud_spec.observe.topic_bag import ALL, subscribe, subscribe_raw_camera
from edge_cloud_spec.signals import signals_as_event

from .entities import SHOWN_TOPICS, Timed

TAKE_EVERY_S = 0.1  # s between two looks at what came
SILENCE_S = 5.0  # s without a message after which a line reports that none comes
LAST_TAKE_S = 0.5  # s after the end, in which what was sent before it comes
MAX_BACKLOG_MESSAGES = 20_000  # messages, some minutes' worth; most have less than 1 kB


class Backlog:
    """A bounded queue in order: ``put`` by the receiving thread, ``take`` by the drawing one.

    Of each picture topic only the newest message is kept. Other messages beyond ``size`` are
    dropped and counted in ``missed``.
    """

    def __init__(self, size: int) -> None:
        self.received = self.missed = 0
        self._size = size
        self._waiting: dict[Any, Timed] = {}  # by their number, pictures by their topic
        self._numbers, self._lock = itertools.count(), threading.Lock()

    def put(self, now: float, topic: str, message: Any) -> None:
        """Add a message of ``topic``, received at ``now`` (s)."""
        with self._lock:
            self.received += 1
            self._waiting.pop(topic, None)
            if topic in PICTURES or len(self._waiting) < self._size:
                key = topic if topic in PICTURES else next(self._numbers)
                self._waiting[key] = (now, topic, message)
            else:
                self.missed += 1

    def take(self) -> list[Timed]:
        """Remove and return all messages."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        return list(waiting.values())


def live_messages(namespace: str, check: Callable[[], None]) -> Iterator[Timed]:
    """Yield (seconds since the start, topic, message) on arrival, until a signal ends it.

    ``check`` is called in between; it raises when the viewer has ended.
    """
    backlog, begun = Backlog(MAX_BACKLOG_MESSAGES), time.monotonic()
    thread = NodeThread("viewer", "/" + namespace.strip("/"))

    def receive(topic: str, cdr: bytes, _: int) -> None:
        backlog.put(time.monotonic() - begun, topic, cdr)

    subscribe(thread.node, receive, sorted(SHOWN_TOPICS.keys() & GRAPH.keys()))
    subscribe_raw_camera(thread.node, receive)
    thread.start()
    domain = os.environ.get("ROS_DOMAIN_ID") or 0
    where = f"ROS domain {domain}, namespace {thread.node.get_namespace()}"
    print(f"listening in {where}", flush=True)
    missed, silent, last = 0, True, False
    # An interrupt within a message would leave half of it in what later ones build on.
    with signals_as_event() as ended, closing(thread):
        while not last:
            last = ended.is_set()
            time.sleep(LAST_TAKE_S if last else TAKE_EVERY_S)
            check()
            for at, topic, cdr in backlog.take():
                yield at, topic, deserialize_message(cdr, ALL[topic][0])
            if backlog.missed > missed:
                missed = backlog.missed
                print(f"{missed} messages missed: they come faster than they can be shown")
            if silent and not backlog.received and time.monotonic() - begun > SILENCE_S:
                print(f"nothing is published yet in {where}", flush=True)
                silent = False
