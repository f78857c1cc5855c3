"""Whether this robot could decode with a verifier: reached, trusted, let in, serving."""

from __future__ import annotations

import asyncio

from ..edge.client import ClientSettings, open_channel
from ..edge.probe import TIMEOUT_S, CloudState, probe
from .finding import FAIL, OK, Finding


def check_cloud(settings: ClientSettings, timeout: float = TIMEOUT_S) -> Finding:
    """Open a stream to the verifier with the token and close it at once.

    ``timeout``: s of each step.
    """
    state = asyncio.run(_probe(settings, timeout))
    if state.serves:
        how = "over TLS" if settings.secure else "without TLS"
        token = "takes the token" if settings.read_token() else "asks for no token"
        return Finding(
            "cloud", OK, f"{state.text} {how}, {token}, answers in {state.round_trip * 1e3:.1f} ms"
        )
    return Finding("cloud", FAIL, f"{state.text} ({state.kind})", state.advice)


async def _probe(settings: ClientSettings, timeout: float) -> CloudState:
    async with open_channel(settings) as channel:
        return await probe(channel, settings, timeout)
