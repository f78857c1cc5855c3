"""What a robot is told of a request that failed."""

from __future__ import annotations

import logging

from ...errors import MemoryFull, UserError, is_out_of_memory
from ...wire.messages import Fault

log = logging.getLogger(__name__)

RETRY_S = 1.0
MAX_TEXT = 500  # characters of a fault, which may quote a robot's message


def fault_of(error: Exception) -> Fault:
    """The fault for an error of one request; one that is not the robot's own is logged."""
    if isinstance(error, MemoryFull):
        return Fault("overloaded", str(error), error.retry_s)
    if is_out_of_memory(error):
        log.error("the device has no memory for a request", exc_info=error)
        text = "the verifier's device has no memory for this request; try again later"
        return Fault("overloaded", text, RETRY_S)
    if isinstance(error, UserError | ValueError):
        text = str(error)
        return Fault("bad_request", text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ...")
    log.error("a request failed", exc_info=error)
    name = type(error).__name__
    return Fault("internal", f"the verifier failed on this request ({name}); see its log")
