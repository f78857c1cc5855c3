"""One decode's stream to the verifier, which reconnects after a break."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import grpc
import grpc.aio

from ...health import Health
from ...throttle import Reports
from ...wire.channel import retry_after_s
from ...wire.codec import encode_server, read_server
from ...wire.frames import ClientFrame, ServerFrame
from ...wire.messages import PROTOCOL, Code, Fault, WireError
from ..events import LinkLost, LinkUp, OnReceive
from ..reply_timeout import spread
from .probe import NOTHING_ANSWERS, TLS, diagnosis
from .route import UNREACHABLE_S, ClientSettings, Place, Route

log = logging.getLogger(__name__)

LINGER_S = 0.5  # for sending what is queued when a stream is closed
# After the last answer, a break is reported if no Close followed within this time.
LATE_CLOSE_S = 5.0

# gRPC statuses that a retry cannot fix, with the fault's code and the advice.
_FATAL = {
    grpc.StatusCode.UNAUTHENTICATED: (Code.UNAUTHENTICATED, ""),
    grpc.StatusCode.UNIMPLEMENTED: (
        Code.NOT_A_VERIFIER,
        f"no verifier of protocol {PROTOCOL} is there: check the address, or update "
        "edge_cloud_spec on the cloud",
    ),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (
        Code.TOO_LARGE,
        "send a smaller camera frame, shorter drafts, or use a rule that needs no dense rows",
    ),
    grpc.StatusCode.INVALID_ARGUMENT: (Code.BAD_REQUEST, ""),
}

# For a replica: its tokens or the lease changed, so the router must be asked.
_FOR_THE_FRONT = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)

# Makes a new call of raw bytes to a place, or to the router (None). The string is the address of an
# unreachable replica, which the router is told.
OpenCall = Callable[[Place | None, str], Any]


class ClientStream:
    """One decode's stream, which reconnects when it breaks. Its methods are for any thread.

    After the decode's last answer, the end of the stream does not count as a lost link, and there
    is no reconnect.
    """

    def __init__(
        self,
        settings: ClientSettings,
        route: Route,
        open_call: OpenCall,
        run_soon: Callable[[Callable[[], None]], None],
        on_receive: OnReceive,
    ) -> None:
        """run_soon: runs a job on the client's loop, where ``open_call`` must be called, too."""
        self._settings, self._route = settings, route
        self._open_call, self._run_soon, self._on_receive = open_call, run_soon, on_receive
        self._queue: asyncio.Queue[ClientFrame | None] = asyncio.Queue()
        self._unreadable = Reports(log.warning)
        self._task: asyncio.Task[None] | None = None
        self._lost = False  # whether LinkLost was reported
        self._found: Health | None = None  # why the configured verifier cannot be reached
        self._answered = False  # whether the decode's last message has arrived
        self._goes_on = asyncio.Event()  # set when the robot closes the stream, or resumes
        self._random = Random()
        self._last: Place | None = None  # the destination of the robot's last message
        self.closing = False

    def send(self, frame: ClientFrame) -> None:
        """Queue a frame; a reconnect drops what is still queued (see LinkUp)."""
        self._run_soon(lambda: self._send(frame))

    def close(self, last: ClientFrame | None = None) -> None:
        """End the stream once everything queued is sent, or at once while it is broken.

        ``last`` is sent before the end. Message and close are one call because the cloud ends its
        side after a Close, which must not count as a lost link.
        """
        self._run_soon(lambda: self._close(last))

    def start(self) -> asyncio.Task[None]:
        """Run the stream; call this on the client's loop."""
        self._task = asyncio.ensure_future(self._run())
        return self._task

    def _send(self, frame: ClientFrame) -> None:
        if frame.head.kind in ("open", "resume"):
            self._answered = False
            self._goes_on.set()
        self._queue.put_nowait(frame)

    def _close(self, last: ClientFrame | None) -> None:
        if self.closing:
            return
        assert self._task is not None
        self.closing = True
        self._goes_on.set()
        if last is not None:
            self._queue.put_nowait(last)
        self._queue.put_nowait(None)
        linger = 0.0 if self._lost else LINGER_S  # in case the cloud does not end its side
        self._task.get_loop().call_later(linger, self._task.cancel)

    async def _run(self) -> None:
        try:
            while not self.closing:
                await self._try_once()
        except _FatalError as error:
            self._on_receive(encode_server(error.fault))
        except Exception as error:
            log.exception("a stream failed")
            fault = Fault(
                Code.LINK_FAILED, f"the link failed on the robot ({error!r}); see its log"
            )
            self._on_receive(encode_server(fault))

    async def _try_once(self) -> None:
        """Connect and relay until the stream ends; pause after a break."""
        connected, clean, refused = False, False, False
        pause, route = self._settings.retry_s, self._route
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
            refused = not route.at_router and error.code() in _FOR_THE_FRONT
            if wait is None and error.code() in _FATAL and not (self._answered or refused):
                code, advice = _FATAL[error.code()]
                text = f"{reason}; {advice}" if advice else reason
                raise _FatalError(Fault(code, text)) from None
            pause = max(pause, spread(wait or 0.0, self._random))
            if route.at_router and not connected:
                await self._diagnose(error)
        except _SilentError:
            reason = "nothing answers there"
        # After the decode's last answer a lost stream is not reopened: wait for the decode's end.
        late_s = None if clean else LATE_CLOSE_S
        if self._answered and not await _within(late_s, self._goes_on.wait()):
            self._answered = False  # a robot that awaits an earlier answer resumes after this
        if not self.closing:
            self._report_loss(reason if connected else self._unreachable(reason))
            if not route.lost(connected=connected and not refused):
                await asyncio.sleep(pause)

    async def _ask(self) -> Place:
        """Ask the router for a replica; or stay at the address if it verifies itself now."""
        call = await self._connect(None)
        await call.done_writing()
        async for data in call:
            self._follow(_first(data).fault)
            call.cancel()
            break
        else:
            self._route.is_plain()
        place = self._route.here
        if place is None:  # a router that gave no address
            raise _FatalError(Fault(Code.BAD_REDIRECT, "the fleet's router named no replica"))
        return place

    def _follow(self, fault: Fault | None) -> None:
        """Follow a redirect; raises _FatalError if it is not allowed."""
        problem = "the fleet's router does not name a replica; update it"
        if fault is not None and fault.code == Code.MOVED:
            now = time.monotonic()
            problem = self._route.follow(fault.address, fault.lease, fault.lease_s, now)
        if problem:
            raise _FatalError(Fault(Code.BAD_REDIRECT, problem))

    def _arrive(self, place: Place) -> None:
        """After connecting: drop what is queued for an earlier stream, if there was one."""
        moved = self._last is not None and self._last.address != place.address
        self._last, self._found = place, None
        if self._lost or moved:
            self._queue = asyncio.Queue()
            self._lost = False
            self._on_receive(LinkUp(moved))

    async def _connect(self, place: Place | None) -> Any:
        """Connect a call; reports LinkLost if that takes too long (``Route.connect_s``).

        ``place`` None: a call to the router. A replica that takes too long is given up.
        """
        call = self._open_call(place, self._route.avoid)
        if not await _within(self._route.connect_s, call.wait_for_connection()):
            if place is not None and not self._route.at_router:
                call.cancel()
                raise _SilentError
            self._report_loss(self._unreachable(str(NOTHING_ANSWERS)))
            await call.wait_for_connection()
        return call

    def _unreachable(self, why: str) -> str:
        return str(self._found or f"cannot reach the cloud at {self._settings.cloud}: {why}")

    async def _diagnose(self, error: grpc.aio.AioRpcError) -> None:
        """Find out why the configured verifier cannot be reached, which gRPC does not say.

        If TLS is why, and is so again, a retry does not help: raises _FatalError. Once alone it may
        be a verifier that ended, or a link that broke, within the handshake.
        """

        async def look() -> None:
            self._found = await diagnosis(error, self._settings)

        before = self._found
        if before is not None and before.check != TLS:
            return
        is_known = await _within(UNREACHABLE_S, look())
        if is_known and before is not None and self._found == before:
            raise _FatalError(Fault(Code.TLS, str(before)))

    def _report_loss(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            self._on_receive(LinkLost(reason))

    async def _relay(self, call: Any) -> None:
        writing = asyncio.ensure_future(self._write(call))
        read: Callable[[bytes], ServerFrame | None] = _first
        try:
            async for data in call:
                if (frame := read(data)) is None:
                    continue
                read = self._next
                head, fault = frame.head, frame.fault
                if fault is not None and fault.code == Code.MOVED:
                    raise _MovedError(fault)
                self._route.answered()
                if head.kind != "prediction":  # a late prediction says nothing about the end
                    self._answered = head.ends_decode
                    if head.ends_decode and not self.closing:
                        self._goes_on.clear()
                self._on_receive(frame)
        finally:
            call.cancel()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)  # reading raises the actual error

    async def _write(self, call: Any) -> None:
        # This is what ``call.write`` calls. At the stream's end that one raises "Internal error
        # from Core" in place of the cloud's status (grpc/grpc#36066); reading raises the status.
        write = call._cython_call.send_serialized_message
        while (frame := await self._queue.get()) is not None:
            await write(frame.data)
        await call.done_writing()

    def _next(self, data: bytes) -> ServerFrame | None:
        """The frame that has arrived; None, and a line of the log, where it is none."""
        try:
            return read_server(data)
        except WireError as error:
            self._unreadable.add(f"what the cloud sent is dropped: {error}", time.monotonic())
            return None


def _first(data: bytes) -> ServerFrame:
    """The first frame of a stream. Raises _FatalError: the rest will not be of our protocol."""
    try:
        return read_server(data)
    except WireError as error:
        raise _FatalError(Fault(Code.NOT_A_VERIFIER, str(error))) from None


async def _within(seconds: float | None, work: Coroutine[Any, Any, object]) -> bool:
    """Whether the work ends in time; raises its exceptions.

    ``asyncio.wait_for`` loses a cancellation that arrives as the work ends (Python 3.10 and 3.11):
    a closed client then ran forever.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        return bool([each.result() for each in done])  # raises their exceptions
    finally:
        task.cancel()


class _FaultError(Exception):
    """A stream ends with this fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault


class _MovedError(_FaultError):
    """The verifier redirects to another one."""


class _FatalError(_FaultError):
    """A failure that a retry cannot fix."""


class _SilentError(Exception):
    """A replica cannot be reached."""
