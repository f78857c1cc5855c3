"""One decode's stream to the verifier, which reconnects after a break."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

import grpc
import grpc.aio

from ...wire.channel import is_loopback, retry_after_s
from ...wire.codec import encode_server
from ...wire.kinds import ends_decode, kind_of, server_kind_of
from ...wire.messages import Fault
from ..events import LinkLost, LinkUp
from ..transport import OnReceive

log = logging.getLogger(__name__)

UNREACHABLE_S = 1.0  # without a connection for this long, LinkLost is reported
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


class StreamHost(Protocol):
    """What owns the channel and the loop: the ``VerifierClient``."""

    @property
    def address(self) -> str:
        """The verifier's HOST:PORT."""

    @property
    def retry_s(self) -> float:
        """Pause before a broken stream reconnects."""

    def open_call(self) -> Any:
        """A fresh call of raw bytes; on the loop."""

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
        connected, clean = False, False
        pause = self._host.retry_s
        try:
            call = await self._connect()
            connected = True
            if self._lost:
                while not self._queue.empty():
                    self._queue.get_nowait()
                self._lost = False
                self._on_receive(LinkUp())
            await self._relay(call)
            reason, clean = "the cloud ended the stream", True
        except grpc.aio.AioRpcError as error:
            reason = error.details() or error.code().name
            wait = retry_after_s(error.trailing_metadata())
            if wait is None and error.code() in _FATAL and not self._answered:
                code, advice = _FATAL[error.code()]
                text = f"{reason}; {advice}" if advice else reason
                raise _FatalError(Fault(code, text)) from None
            pause = max(pause, wait or 0.0)
        if self._answered:
            await self._wait_for_close(None if clean else LATE_CLOSE_S)
        if not self.closing:
            self._report_loss(reason if connected else self._unreachable(reason))
            await asyncio.sleep(pause)

    async def _wait_for_close(self, seconds: float | None) -> None:
        """The decode's last answer is here and the stream is gone: nothing is lost by that."""
        try:
            await asyncio.wait_for(self._goes_on.wait(), seconds)
        except asyncio.TimeoutError:  # a robot that waits for an earlier answer resumes after this
            self._answered = False

    async def _connect(self) -> Any:
        """A connected call; LinkLost is reported if that takes longer than UNREACHABLE_S."""
        call = self._host.open_call()
        try:
            await asyncio.wait_for(call.wait_for_connection(), UNREACHABLE_S)
        except asyncio.TimeoutError:
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
                self._host.read_echo(data)
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


class _FatalError(Exception):
    """A failure that a retry cannot fix."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault
