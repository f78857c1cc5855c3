"""Asking a verifier whether this robot may decode there, without decoding anything."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ..wire.channel import METHOD, SERVICE
from .link.settings import ClientSettings
from .tls_check import connection_problem

TIMEOUT_S = 3.0

SERVING = "serving"
ADVICE = {
    "unreachable": "start one with edge-cloud-spec serve, and check the address and the firewall",
    "token": "give the robot the verifier's own token (--token-file, parameter token_file)",
    "not_a_verifier": "check the address: another program answers there",
    "not_serving": "wait until it is up, or see its log",
}


@dataclass(frozen=True)
class CloudState:
    """What a probe found: ``kind`` is ``serving`` or a key of ``ADVICE`` or ``tls``.

    ``round_trip`` in seconds, of a small message; 0 where none came back.
    """

    kind: str
    text: str
    advice: str = ""
    round_trip: float = 0.0

    @property
    def serves(self) -> bool:
        """Whether a decode can be opened there."""
        return self.kind == SERVING


async def probe(
    channel: grpc.aio.Channel, settings: ClientSettings, timeout: float = TIMEOUT_S
) -> CloudState:
    """Look whether the verifier behind this channel serves, and takes this robot's token.

    A stream is opened with the token and closed at once: no session is made and no model runs.
    """
    for last_try in (False, True):
        try:
            if not await _check_health(channel, timeout, wait=last_try):
                text = f"{settings.address} answers, but does not serve (yet)"
                return _state("not_serving", text)
            return await _open_and_close(channel, settings, timeout)
        except grpc.aio.AioRpcError as error:
            state = await _failed(error, settings)
            if state is not None:
                return state
            failed = error
    return _state("unreachable", f"{settings.address}: {failed.details() or failed.code().name}")


async def _check_health(channel: grpc.aio.Channel, timeout: float, wait: bool) -> bool:
    """Whether it says that it serves; ``wait``: for a connection, if the first attempt fails."""
    request = health_pb2.HealthCheckRequest(service=SERVICE)
    stub = health_pb2_grpc.HealthStub(channel)
    reply = await stub.Check(request, timeout=timeout, wait_for_ready=wait)
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


async def _open_and_close(channel: Any, settings: ClientSettings, timeout: float) -> CloudState:
    token = settings.read_token()
    metadata = (("authorization", f"Bearer {token}"),) if token else None
    begun = time.perf_counter()
    # Nothing is sent: a write that crosses the server's refusal hides the refusal in gRPC's aio.
    async for _ in channel.stream_stream(METHOD)(iter(()), metadata=metadata, timeout=timeout):
        pass
    round_trip = time.perf_counter() - begun
    return CloudState(SERVING, f"{settings.address} serves", round_trip=round_trip)


async def _failed(error: grpc.aio.AioRpcError, settings: ClientSettings) -> CloudState | None:
    """Why; None where the way to the verifier looks good, so that it may work the next time."""
    code, address = error.code(), settings.address
    if code == grpc.StatusCode.UNAUTHENTICATED:
        given = "the token is refused" if settings.read_token() else "it asks for a token"
        return _state("token", f"{address}: {given}")
    if code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND):
        return _state("not_a_verifier", f"{address} answers, but is no verifier")
    problem = await asyncio.to_thread(
        connection_problem,
        address,
        settings.secure,
        settings.authority,
        (settings.certificate, settings.key) if settings.certificate else None,
    )
    if problem is not None:
        return CloudState(problem.kind, f"{address}: {problem.text}", problem.advice)
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return _state("not_a_verifier", f"{address} is open, but does not answer gRPC")
    return None


def _state(kind: str, text: str) -> CloudState:
    return CloudState(kind, text, ADVICE[kind])
