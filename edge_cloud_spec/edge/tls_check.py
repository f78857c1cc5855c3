"""Why no TLS connection to a verifier comes about, in words: gRPC says only that it failed."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass

TIMEOUT_S = 3.0  # for a connection, and again for the handshake
_EXPIRED, _NOT_YET, _WRONG_HOST = {10}, {9}, {62, 64}  # X509_V_ERR codes of OpenSSL


@dataclass(frozen=True)
class ConnectionProblem:
    """``kind`` is ``unreachable`` or ``tls``; ``text`` says what is so, ``advice`` what to do."""

    kind: str
    text: str
    advice: str


def connection_problem(
    address: str, secure: bool, authority: str = "", client: tuple[str, str] | None = None
) -> ConnectionProblem | None:
    """What is wrong with the way to ``address`` (HOST:PORT); None where nothing was found.

    ``authority`` is a PEM file (empty: the system's), ``client`` the robot's certificate and key.
    It blocks for up to twice ``TIMEOUT_S``.
    """
    if address.startswith("unix:"):
        return None
    name, _, port = address.rpartition(":")
    host = name.strip("[]")
    try:
        connection = socket.create_connection((host, int(port)), TIMEOUT_S)
    except socket.gaierror:
        text = f"the host name {host} is not known"
        return ConnectionProblem("unreachable", text, "check the address and the name server")
    except TimeoutError:
        advice = "check the address, the route and the firewall"
        return ConnectionProblem("unreachable", f"{host} does not answer", advice)
    except OSError as error:
        advice = "start a verifier there with edge-cloud-spec serve, and check the address"
        why = (error.strerror or str(error)).lower()
        return ConnectionProblem("unreachable", f"nothing listens at {address} ({why})", advice)
    with connection:
        return _handshake(connection, host, secure, authority, client)


def _handshake(
    connection: socket.socket,
    host: str,
    secure: bool,
    authority: str,
    client: tuple[str, str] | None,
) -> ConnectionProblem | None:
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
                advice = "give --authority (parameter authority) with its certificate authority"
                return ConnectionProblem("tls", "the verifier speaks TLS, the robot not", advice)
            # Under TLS 1.3 a missing client certificate shows only now, by an alert or, from
            # gRPC's servers, by the end of a connection on which they would speak first.
            if not encrypted.recv(1):
                return _wants_certificate() if client is None else _refused("it hangs up")
    except ssl.SSLCertVerificationError as error:
        return _refused_certificate(error, host, authority)
    except (ssl.SSLError, OSError) as error:
        return _failed(error) if secure else None
    return None


def _refused_certificate(
    error: ssl.SSLCertVerificationError, host: str, authority: str
) -> ConnectionProblem:
    if error.verify_code in _EXPIRED:
        text = "the verifier's certificate has expired"
        return ConnectionProblem("tls", text, "make a new one, or set this machine's clock")
    if error.verify_code in _NOT_YET:
        text = "the verifier's certificate is not valid yet"
        return ConnectionProblem("tls", text, "set this machine's clock")
    if error.verify_code in _WRONG_HOST:
        text = f"the verifier's certificate is not for {host}"
        advice = "reach it under the name in its certificate, or make one for this name"
        return ConnectionProblem("tls", text, advice)
    whose = authority or "this machine's own authorities"
    text = f"the verifier's certificate is not signed by {whose} ({error.verify_message})"
    advice = "give --authority (parameter authority) with the authority that signed it"
    return ConnectionProblem("tls", text, advice)


def _wants_certificate() -> ConnectionProblem:
    advice = "give the robot's (--certificate and --key, parameters certificate and key)"
    return ConnectionProblem("tls", "the verifier asks for a client certificate", advice)


def _refused(reason: str) -> ConnectionProblem:
    text = f"the verifier refuses the robot's certificate ({reason})"
    return ConnectionProblem("tls", text, "use one that its authority signed")


def _failed(error: OSError) -> ConnectionProblem | None:
    reason = str(getattr(error, "reason", "") or error)
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return _wants_certificate()
    if "UNKNOWN_CA" in reason or "ALERT" in reason:
        return _refused(reason)
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason:
        text = "what listens there speaks no TLS"
        advice = "serve with --certificate and --key, and check the port"
        return ConnectionProblem("tls", text, advice)
    if isinstance(error, TimeoutError):
        text = "what listens there does not answer a TLS handshake"
        return ConnectionProblem("tls", text, "check the address and the port")
    return ConnectionProblem("tls", f"TLS failed: {reason}", "check the address and the port")
