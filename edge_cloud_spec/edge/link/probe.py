"""Asks a verifier whether this robot may decode there, without decoding anything.

If the connection fails, ``diagnosis`` finds out why: gRPC says only that it failed.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import time
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from ...health import Health, Level
from ...wire.channel import (
    HEALTH_METHOD,
    HEALTH_SERVING,
    METHOD,
    SERVICE,
    health_request,
    host_of,
    is_loopback,
)
from ...wire.messages import PROTOCOL
from ...wire.secret_files import date_problem
from .route import ClientSettings

CONNECT_TIMEOUT_S = 3.0  # of a probe, a connection, and a handshake

SERVING, UNREACHABLE, TLS = "serving", "unreachable", "tls"
ROUND_TRIP_MS = "round_trip_ms"  # key of a small message's round trip, if the verifier serves
RENEW = "make a new one, or set this machine's clock"
ADVICE_FOR = {
    UNREACHABLE: "start one with edge-cloud-spec serve, and check the address and the firewall",
    "token": "give the robot the verifier's own token (--token-file, parameter token_file)",
    "not_a_verifier": "check the address, or update edge_cloud_spec on the cloud",
    "not_serving": "wait until it is up, or see its log",
}


async def probe(
    channel: grpc.aio.Channel, settings: ClientSettings, timeout: float = CONNECT_TIMEOUT_S
) -> Health:
    """Check whether the verifier behind this channel serves, and accepts this robot's token.

    A stream is opened with the token and closed at once: no session is made and no model runs.
    Returns OK, or an error whose ``check`` is a key of ``ADVICE_FOR`` or ``tls``.
    """
    for last_try in (False, True):
        try:
            if not await _check_health(channel, timeout, wait=last_try):
                return _error("not_serving", f"{settings.cloud} answers, but does not serve (yet)")
            return await _open_and_close(channel, settings, timeout)
        except grpc.aio.AioRpcError as error:
            state = await diagnosis(error, settings)
            if state is not None:
                return state
            failed = error
    return _error(UNREACHABLE, f"{settings.cloud}: {failed.details() or failed.code().name}")


async def _check_health(channel: grpc.aio.Channel, timeout: float, wait: bool) -> bool:
    """Whether the health service reports SERVING; ``wait``: wait for a connection."""
    check = channel.unary_unary(HEALTH_METHOD)
    reply = await check(health_request(SERVICE), timeout=timeout, wait_for_ready=wait)
    return bool(reply == HEALTH_SERVING)


async def _open_and_close(channel: Any, settings: ClientSettings, timeout: float) -> Health:
    token = settings.read_token()
    metadata = (("authorization", f"Bearer {token}"),) if token else None
    begun = time.perf_counter()
    # Sends nothing: a write that crosses the server's refusal would hide it in gRPC's aio.
    async for _ in channel.stream_stream(METHOD)(iter(()), metadata=metadata, timeout=timeout):
        pass
    round_trip = 1e3 * (time.perf_counter() - begun)
    return Health(
        Level.OK, f"{settings.cloud} serves", check=SERVING, values={ROUND_TRIP_MS: round_trip}
    )


async def diagnosis(error: grpc.aio.AioRpcError, settings: ClientSettings) -> Health | None:
    """Why the connection failed, as ``probe`` says it; None if no cause is found: a retry may
    work."""
    code, address = error.code(), settings.cloud
    if code == grpc.StatusCode.UNAUTHENTICATED:
        given = "the token is refused" if settings.read_token() else "it asks for a token"
        return _error("token", f"{address}: {given}")
    if code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND):
        text = f"{address} answers, but is no verifier of protocol {PROTOCOL}"
        return _error("not_a_verifier", text)
    if variable := proxy_variable(address):
        text = f"{address} is asked through the proxy of {variable}, which does not pass it on"
        return _error("proxy", text, f"add {host_of(address)} to no_proxy, or unset {variable}")
    problem = await asyncio.to_thread(
        connection_problem,
        address,
        settings.secure,
        settings.authority,
        (settings.certificate, settings.key) if settings.certificate else None,
    )
    if problem is not None:
        return replace(problem, message=f"{address}: {problem.message}")
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return _error("not_a_verifier", f"{address} is open, but does not answer gRPC")
    return None


def proxy_variable(address: str) -> str:
    """The variable of the environment whose proxy gRPC takes to ``address``; empty: none."""
    host = host_of(address)
    known = os.environ.get  # gRPC reads the names in small letters only
    passed = known("no_grpc_proxy") or known("no_proxy") or ""
    names = [name.strip().lstrip(".") for name in passed.split(",")]
    goes_past = "*" in names or any(name and f".{host}".endswith(f".{name}") for name in names)
    if goes_past or is_loopback(address):
        return ""
    return next((n for n in ("grpc_proxy", "https_proxy", "http_proxy") if known(n)), "")


def _error(check: str, text: str, advice: str = "") -> Health:
    return Health(Level.ERROR, text, advice or ADVICE_FOR[check], check=check)


NOTHING_ANSWERS = _error(
    UNREACHABLE, "nothing answers there", "check the address, the route and the firewall"
)


def connection_problem(
    address: str, secure: bool, authority: str = "", client: tuple[str, str] | None = None
) -> Health | None:
    """Why ``address`` (HOST:PORT) cannot be reached; None if no cause is found.

    ``authority`` is a PEM file (empty: the system's), ``client`` the robot's certificate and key.
    It blocks for up to twice ``CONNECT_TIMEOUT_S``.
    """
    if address.startswith("unix:"):
        return None
    host, port = host_of(address), int(address.rpartition(":")[2])
    try:
        connection = socket.create_connection((host, port), CONNECT_TIMEOUT_S)
    except socket.gaierror:
        text = f"the host name {host} is not known"
        return _error(UNREACHABLE, text, "check the address and the name server")
    except TimeoutError:
        return NOTHING_ANSWERS
    except OSError as error:
        advice = "start a verifier there with edge-cloud-spec serve, and check the address"
        why = (error.strerror or str(error)).lower()
        return _error(UNREACHABLE, f"nothing listens there ({why})", advice)
    with connection:
        return _handshake(connection, host, secure, authority, client)


def _handshake(
    connection: socket.socket,
    host: str,
    secure: bool,
    authority: str,
    client: tuple[str, str] | None,
) -> Health | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    try:
        if not secure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        elif authority:
            context.load_verify_locations(authority)
        else:
            context.load_default_certs()
        if client is not None:
            context.load_cert_chain(*client, password="")
        with context.wrap_socket(connection, server_hostname=host) as encrypted:
            if not secure:
                return _error(
                    TLS,
                    "the verifier speaks TLS, the robot not",
                    "give --authority (parameter authority) with its certificate authority",
                )
            # Under TLS 1.3 a missing client certificate shows only now: by an alert or, from
            # gRPC's servers, by the end of a connection on which the server would speak first.
            if not encrypted.recv(1):
                return _refused("it hangs up", client)
    except ssl.SSLCertVerificationError as error:
        return _refused_certificate(error, host, authority)
    except (ssl.SSLError, OSError) as error:
        return _tls_failed(error, client) if secure else None
    return None


def _refused_certificate(error: ssl.SSLCertVerificationError, host: str, authority: str) -> Health:
    whose = authority or "this machine's own authorities"
    text = f"the verifier's certificate is not signed by {whose} ({error.verify_message})"
    advice = "give --authority (parameter authority) with the authority that signed it"
    match error.verify_code:  # X509_V_ERR of OpenSSL
        case 9 | 10 if problem := date_problem(authority, "authority"):
            text, advice = problem, RENEW
        case 10:
            text, advice = "the verifier's certificate has expired", RENEW
        case 9:
            text, advice = "the verifier's certificate is not valid yet", "set this machine's clock"
        case 62 | 64:
            text = f"the verifier's certificate is not for {host}"
            advice = "reach it under the name in its certificate, or make one for this name"
    return _error(TLS, text, advice)


def _refused(reason: str, client: tuple[str, str] | None) -> Health:
    if client is None:
        return _error(
            TLS,
            "the verifier asks for a client certificate",
            "give the robot's (--certificate and --key, parameters certificate and key)",
        )
    if problem := date_problem(client[0], "robot's certificate"):
        return _error(TLS, problem, RENEW)
    text = f"the verifier refuses the robot's certificate ({reason})"
    return _error(TLS, text, "use one that its authority signed")


def _tls_failed(error: OSError, client: tuple[str, str] | None) -> Health:
    reason = str(getattr(error, "reason", "") or error)
    if re.search("CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE|UNKNOWN_CA|ALERT", reason):
        return _refused(reason, client)
    text, advice = f"TLS failed: {reason}", "check the address and the port"
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason:
        text = "what listens there speaks no TLS"
        advice = "serve with --certificate and --key, and check the port"
    elif isinstance(error, TimeoutError):
        text = "what listens there does not answer a TLS handshake"
    return _error(TLS, text, advice)
