"""Messages on ``e_stop``, and who publishes them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from rclpy.node import Node
from std_msgs.msg import Bool

from ...nav.e_stop import EStopMessage
from .qos import EVERY_PUBLISHER
from .subscription_thread import SubscriptionThread

GID_SIZE = 16  # bytes of a publisher's identity, in a message's info and in the graph
TAKEN, NOTHING_THERE = 0, 401  # what rcl_take returns


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
