"""An asyncio loop in a thread of its own, and signals that reach a loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Coroutine, Iterable
from signal import Signals
from typing import Any

TIMEOUT_S = 100.0


def event_of(signals: Iterable[Signals]) -> asyncio.Event:
    """An event of the running loop that these signals set from now on."""
    came = asyncio.Event()
    for number in signals:
        asyncio.get_running_loop().add_signal_handler(number, came.set)
    return came


class LoopThread:
    """A running asyncio ``loop`` in its own thread, until ``close``."""

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """timeout_s: of each coroutine that is run."""
        self.loop, self._timeout_s = loop or asyncio.new_event_loop(), timeout_s
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop, from another thread, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(self._timeout_s)

    def close(self) -> None:
        """Cancel all tasks, and end loop and thread."""
        self.run(_cancel_the_others())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(self._timeout_s)
        self.loop.close()


async def cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel these tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _cancel_the_others() -> None:
    await cancel({task for task in asyncio.all_tasks() if task is not asyncio.current_task()})
