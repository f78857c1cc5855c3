"""One decode's stream to the verifier, which reconnects after a break."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import grpc
import grpc.aio

from ...wire.channel import is_loopback, retry_after_s
from ...wire.codec import decode_server, encode_server
from ...wire.frames import ends_decode, kind_of, server_kind_of
from ...wire.messages import MOVED, Fault, ServerMessage, WireError
from ..events import LinkLost, LinkUp, OnReceive
from ..reply_deadline import spread
from .route import Place, Route

log = logging.getLogger(__name__)

LINGER_S = 0.5  # to send what is queued when a stream is closed
LATE_CLOSE_S = 5.0  # a break after the last answer is reported if no Close came by then

# Statuses that a retry cannot fix: the fault's code, and what to do about it.
_FATAL = {
    grpc.StatusCode.UNAUTHENTICATED: ("unauthenticated", ""),
    grpc.StatusCode.UNIMPLEMENTED: ("not_a_verifier", "check the address and the versions"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (
        "too_large",
        "send a smaller camera frame, shorter drafts, or use a rule that needs no dense rows",
    ),
    grpc.StatusCode.INVALID_ARGUMENT: ("bad_request", ""),
}


# Of a replica: its tokens or our lease changed, and the front knows more.
_FOR_THE_FRONT = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class StreamHost(Protocol):
    """What owns the channel and the loop: the ``VerifierClient``."""

    @property
    def address(self) -> str:
        """The verifier's HOST:PORT."""

    @property
    def retry_s(self) -> float:
        """Pause before a broken stream reconnects."""

    def route(self) -> Route:
        """The way of a new stream."""

    def open_call(self, place: Place | None, avoid: str) -> Any:
        """A fresh call of raw bytes; on the loop. ``place`` None: it asks the front for one.

        ``avoid``: the address of a replica that could not be reached, for the front to know.
        """

    def run_soon(self, job: Callable[[], None]) -> None:
        """Run a job on the loop; from any thread."""

    def stamp(self, data: bytes) -> bytes:
        """A message as it leaves, perhaps with the time."""

    def read_echo(self, data: bytes) -> None:
        """A message as it arrived, perhaps with the cloud's times."""


class ClientStream:
    """One decode's stream, which reconnects when it breaks. Its methods are for any thread.

    Once the last answer of the decode has arrived, the end of the stream is no loss, whichever side
    ends it: only a robot that resumes has a use for another one.
    """

    def __init__(self, host: StreamHost, on_receive: OnReceive) -> None:
        self._host = host
        self._on_receive = on_receive
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._lost = False  # and LinkLost was reported
        self._answered = False  # the last message was the last of a decode
        self._goes_on = asyncio.Event()  # the robot closes the stream, or resumes
        self._random = Random()
        self._route = host.route()
        self._last: Place | None = None  # where what the robot sent last went
        self.closing = False

    def send(self, data: bytes) -> None:
        """Queue these bytes; a reconnect drops what is still queued (see LinkUp)."""
        self._host.run_soon(lambda: self._send(data))

    def close(self, last: bytes | None = None) -> None:
        """End the stream once everything queued is sent, or at once while it is broken.

        ``last`` is sent before the end. The cloud ends its side after a Close, and that must not
        count as a lost link: so the last message and the close are one call.
        """
        self._host.run_soon(lambda: self._close(last))

    def start(self) -> asyncio.Task[None]:
        """Run the stream; to be called on the client's loop."""
        self._task = asyncio.ensure_future(self._run())
        return self._task

    def _send(self, data: bytes) -> None:
        if kind_of(data) in ("open", "resume"):
            self._answered = False
            self._goes_on.set()
        self._queue.put_nowait(data)

    def _close(self, last: bytes | None) -> None:
        if self.closing:
            return
        assert self._task is not None
        self.closing = True
        self._goes_on.set()
        if last is not None:
            self._queue.put_nowait(last)
        self._queue.put_nowait(None)
        linger = 0.0 if self._lost else LINGER_S  # for a cloud that does not end its side
        self._task.get_loop().call_later(linger, self._task.cancel)

    async def _run(self) -> None:
        try:
            while not self.closing:
                await self._try_once()
        except _FatalError as error:
            self._on_receive(encode_server(error.fault))
        except Exception as error:
            log.exception("a stream failed")
            fault = Fault("link_failed", f"the link failed on the robot ({error!r}); see its log")
            self._on_receive(encode_server(fault))

    async def _try_once(self) -> None:
        """Connect and relay until the stream ends; pause after a break."""
        connected, clean, refused = False, False, False
        pause, route = self._host.retry_s, self._route
        try:
            place = route.here or await self._ask()
            call = await self._connect(place)
            connected = True
            self._arrive(place)
            await self._relay(call)
            reason, clean = "the cloud ended the stream", True
        except _MovedError as moved:
            self._follow(moved.fault)
            if not route.in_circles:
                return
            reason = "the fleet sends this robot in circles"
        except grpc.aio.AioRpcError as error:
            reason = error.details() or error.code().name
            wait = retry_after_s(error.trailing_metadata())
            refused = not route.at_front and error.code() in _FOR_THE_FRONT
            if wait is None and error.code() in _FATAL and not (self._answered or refused):
                code, advice = _FATAL[error.code()]
                text = f"{reason}; {advice}" if advice else reason
                raise _FatalError(Fault(code, text)) from None
            pause = max(pause, spread(wait or 0.0, self._random))
        except _SilentError:
            reason = "nothing answers there"
        if self._answered:
            await self._wait_for_close(None if clean else LATE_CLOSE_S)
        if not self.closing:
            self._report_loss(reason if connected else self._unreachable(reason))
            if not route.lost(connected=connected and not refused, now=time.monotonic()):
                await asyncio.sleep(pause)

    async def _ask(self) -> Place:
        """Ask the front for a replica; the front itself, where that verifies now."""
        call = await self._connect(None)
        await call.done_writing()
        async for data in call:
            self._follow(decode_server(data))
            call.cancel()
            break
        else:
            self._route.is_plain()
        place = self._route.here
        if place is None:  # a front without an address to go to
            raise _FatalError(Fault("bad_redirect", "the fleet's front named no replica"))
        return place

    def _follow(self, fault: ServerMessage) -> None:
        """Go where this sends us next; raises _FatalError where that is nowhere to go."""
        problem = "the fleet's front does not name a replica; update it"
        if isinstance(fault, Fault) and fault.code == MOVED:
            now = time.monotonic()
            problem = self._route.follow(fault.address, fault.lease, fault.lease_s, now)
        if problem:
            raise _FatalError(Fault("bad_redirect", problem))

    def _arrive(self, place: Place) -> None:
        """Connected: what is still queued was for another stream, unless this is the first."""
        moved = self._last is not None and self._last.address != place.address
        self._last = place
        if self._lost or moved:
            while not self._queue.empty():
                self._queue.get_nowait()
            self._lost = False
            self._on_receive(LinkUp(moved))

    async def _wait_for_close(self, seconds: float | None) -> None:
        """The decode's last answer is here and the stream is gone: nothing is lost by that."""
        try:
            await asyncio.wait_for(self._goes_on.wait(), seconds)
        except asyncio.TimeoutError:  # a robot that waits for an earlier answer resumes after this
            self._answered = False

    async def _connect(self, place: Place | None) -> Any:
        """A connected call; LinkLost is reported if that takes long (``Route.connect_s``).

        ``place`` None: it asks the front. A replica is given up then.
        """
        call = self._host.open_call(place, self._route.avoid)
        try:
            await asyncio.wait_for(call.wait_for_connection(), self._route.connect_s)
        except asyncio.TimeoutError:
            if place is not None and not self._route.at_front:
                call.cancel()
                raise _SilentError from None
            self._report_loss(self._unreachable("nothing answers there"))
            await call.wait_for_connection()
        return call

    def _unreachable(self, why: str) -> str:
        address = self._host.address
        advice = "; start one there with edge-cloud-spec serve" if is_loopback(address) else ""
        return f"cannot reach the cloud at {address}: {why}{advice}"

    def _report_loss(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            self._on_receive(LinkLost(reason))

    async def _relay(self, call: Any) -> None:
        writing = asyncio.ensure_future(self._write(call))
        try:
            async for data in call:
                if server_kind_of(data) == "fault" and _is_moved(data):
                    raise _MovedError(decode_server(data))
                self._host.read_echo(data)
                self._route.answered()
                self._note_answer(data)
                self._on_receive(data)
        finally:
            call.cancel()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)  # reading raises what went wrong

    def _note_answer(self, data: bytes) -> None:
        if server_kind_of(data) == "prediction":
            return  # one that is late says nothing about the end
        self._answered = ends_decode(data)
        if self._answered and not self.closing:
            self._goes_on.clear()

    async def _write(self, call: Any) -> None:
        while (data := await self._queue.get()) is not None:
            await call.write(self._host.stamp(data))
        await call.done_writing()


def _is_moved(data: bytes) -> bool:
    try:
        message = decode_server(data)
    except WireError:
        return False
    return isinstance(message, Fault) and message.code == MOVED


class _MovedError(Exception):
    """The verifier sends us to another."""

    def __init__(self, fault: ServerMessage) -> None:
        super().__init__("moved")
        self.fault = fault


class _SilentError(Exception):
    """A replica cannot be reached."""


class _FatalError(Exception):
    """A failure that a retry cannot fix."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault
