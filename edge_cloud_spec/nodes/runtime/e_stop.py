"""``e_stop`` by its publishers: it is on while any of them holds it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from rclpy.node import Node
from std_msgs.msg import Bool

from ...nav.status import E_STOP_ON
from .qos import EVERY_PUBLISHER
from .subscription_thread import SubscriptionThread

GID_SIZE = 16  # bytes of a publisher's identity, in a message's info and in the graph
TAKEN, NOTHING_THERE = 0, 401  # what rcl_take returns
LEFT_S = 1.0  # without a word, after which who is not in the graph has left


class EStopMessage(NamedTuple):
    """A message on ``e_stop``, and the gid of who published it; empty: unknown."""

    data: bool
    publisher: bytes = b""


class EStops:
    """Whether ``e_stop`` is on, by its publishers.

    Each holds it from its ``true`` to its own ``false``. Who has left the graph cannot release it
    any more: then the ``false`` of another does that was first heard, or pressed, after it. So what
    a publisher held before it was started again is released by it, and one that always says
    ``false`` does not release what another held.

    With a ``timeout`` (s; 0: none) a publisher that is silent for so long holds it, too, and so
    does the silence of all. Who has left, with ``false`` as the last word, need not speak, unless
    it was the only one.

    ``present`` returns the publishers in the graph, with the names of their nodes. It may know them
    later than their messages come, so nobody has left who was heard within ``LEFT_S``.
    """

    def __init__(
        self,
        present: Callable[[], Mapping[bytes, str]],
        timeout: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._present, self._timeout = present, timeout
        # By publisher, in the order in which they were first heard, or pressed: why it holds e_stop
        # (empty: it does not), and when it was last heard.
        self._said: dict[bytes, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def receive(self, message: EStopMessage, now: float) -> None:
        """Take a message that came at ``now`` (monotonic s)."""
        on, publisher = message
        with self._lock:
            if on and self._said.get(publisher, ("",))[0] != E_STOP_ON:
                self._said.pop(publisher, None)
            self._said[publisher] = E_STOP_ON if on else "", now
            if len(self._said) > 1:
                self._forget_who_left(publisher, not on, now)

    def _forget_who_left(self, publisher: bytes, releases: bool, now: float) -> None:
        order, left = [*self._said], self._left(now)
        earlier = order[: order.index(publisher)] if releases else []
        for each in left:
            if each in earlier or not self._said[each][0]:
                del self._said[each]

    def _left(self, now: float) -> list[bytes]:
        present = self._present()
        old = (each for each, (_, heard) in self._said.items() if now - heard > LEFT_S)
        return [each for each in old if each not in present]

    def why(self, now: float) -> str:
        """Why it is on at ``now`` (monotonic s); empty: it is off."""
        with self._lock:
            if timeout := self._timeout():
                silent = f"{E_STOP_ON}: silent for {timeout:g} s (parameter e_stop_timeout)"
                self._hold_for_silence(now, timeout, silent)
                if not self._said:
                    return silent
            return min(filter(None, (held for held, _ in self._said.values())), default="")

    def _hold_for_silence(self, now: float, timeout: float, why: str) -> None:
        for each, (held, heard) in [*self._said.items()]:
            if not held and now - heard > timeout:
                if len(self._said) == 1 or each in self._present():
                    self._said[each] = why, heard
                else:
                    del self._said[each]

    def holders(self) -> str:
        """The nodes that hold it, for people; empty: nobody does."""
        with self._lock:
            held = [each for each, (why, _) in self._said.items() if why]
        names = self._present() if held else {}
        return ", ".join(names.get(each, "a publisher that has left") for each in held)


def subscribe_e_stop(node: Node, callback: Callable[[EStopMessage], None]) -> SubscriptionThread:
    """Call back for each message on ``e_stop``, in a thread of its own, which has begun.

    It is received from publishers of every durability and reliability.
    """
    thread = SubscriptionThread(node)
    thread.subscribe(Bool, "e_stop", callback, *EVERY_PUBLISHER, take=take_e_stop)
    thread.start()
    return thread


def publishers_of_e_stop(node: Node) -> dict[bytes, str]:
    """The gids of the publishers in the graph, with the full names of their nodes."""
    return {
        bytes(info.endpoint_gid)[:GID_SIZE]: f"{info.node_namespace.rstrip('/')}/{info.node_name}"
        for info in node.get_publishers_info_by_topic(node.resolve_topic_name("e_stop"))
    }


class _MessageInfo(ctypes.Structure):
    """``rmw_message_info_t``, of which rclpy passes on all but the publisher's gid."""

    _fields_ = (
        ("source_timestamp", ctypes.c_int64),
        ("received_timestamp", ctypes.c_int64),
        ("publication_sequence_number", ctypes.c_uint64),
        ("reception_sequence_number", ctypes.c_uint64),
        ("implementation", ctypes.c_char_p),
        ("gid", ctypes.c_ubyte * GID_SIZE),
        ("rest", ctypes.c_ubyte * 64),  # more than any distribution has
    )


@cache
def _rcl() -> Any:
    """The library that rclpy has loaded; None if it has another name here."""
    try:
        take = ctypes.CDLL("librcl.so").rcl_take
    except (OSError, AttributeError):
        return None
    take.argtypes = [ctypes.c_void_p] * 4
    return take


def take_e_stop(subscription: Any) -> tuple[EStopMessage, Mapping[str, int]] | None:
    """The next message and its info, as rclpy's ``take_message`` has it, with the publisher."""
    if (take := _rcl()) is None:
        taken = subscription.handle.take_message(Bool, False)
        return taken and (EStopMessage(taken[0].data), taken[1])
    on, info = ctypes.c_bool(), _MessageInfo()  # a Bool is one bool
    with subscription.handle:
        code = take(subscription.handle.pointer, ctypes.byref(on), ctypes.byref(info), None)
    if code not in (TAKEN, NOTHING_THERE):
        raise RuntimeError(f"e_stop cannot be read: rcl_take returned {code}")
    heard = EStopMessage(on.value, bytes(info.gid)), {"source_timestamp": info.source_timestamp}
    return heard if code == TAKEN else None
