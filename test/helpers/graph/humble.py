"""Nodes under an rclpy that is as Humble's (3.3.15), where ours notice that the installed is newer.

Fields of messages are checked as Humble checks them in every test (``conftest.py``).
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

TESTS = Path(__file__).parents[2]


def program(module: str) -> list[str]:
    """Arguments of Python that run a module's node in a process of its own, as on Humble."""
    become = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from helpers.graph import humble"
    return ["-c", f"{become}; humble.run({module!r})"]


def run(module: str) -> None:
    """Change rclpy in this process for good, and run the module."""
    import rclpy.action  # what imports the module of events itself
    import rclpy.event_handler
    import rclpy.lifecycle
    from rclpy.executors import Executor, await_or_execute
    from rclpy.subscription import Subscription

    def take_subscription(executor: Executor, subscription: Any) -> Any:
        with subscription.handle:  # one that is gone raises
            taken = subscription.handle.take_message(subscription.msg_type, subscription.raw)

        async def execute() -> None:
            await await_or_execute(subscription.callback, taken[0])

        return taken and execute

    old: Any = ModuleType("rclpy.qos_event")  # the module of events has another name
    vars(old).update(vars(rclpy.event_handler))
    sys.modules["rclpy.qos_event"] = old
    sys.modules["rclpy.event_handler"] = None  # type: ignore[assignment]
    del Subscription.CallbackType, Subscription.callback
    Executor._take_subscription = take_subscription  # calls back with the message alone
    runpy.run_module(module, run_name="__main__")
