"""Which versions of the protocol this side speaks, and what two sides agree on."""

from __future__ import annotations

PROTOCOL = 3  # the newest that this side speaks
OLDEST_PROTOCOL = 2  # the oldest that it speaks too
ALONE_PROTOCOL = 3  # from here on a cloud goes on alone where Open says so
GRAMMAR_PROTOCOL = 3  # from here on a cloud keeps to a policy's grammar


class VersionError(ValueError):
    """Two sides without a common protocol; the text says which of them to update."""


def common_protocol(robot: int, robot_oldest: int = 0) -> int:
    """The newest protocol that this cloud and a robot both speak; raises VersionError.

    ``robot`` is the newest that the robot speaks, ``robot_oldest`` its oldest (0: only that one).
    """
    oldest = robot_oldest or robot
    if min(robot, PROTOCOL) >= max(oldest, OLDEST_PROTOCOL):
        return min(robot, PROTOCOL)
    side = "robot" if robot < OLDEST_PROTOCOL else "cloud"
    raise VersionError(
        f"the robot speaks {_span(oldest, robot)} and the cloud "
        f"{_span(OLDEST_PROTOCOL, PROTOCOL)}; update edge_cloud_spec on the {side}"
    )


def check_agreed(protocol: int, grammar: bool = False) -> None:
    """Raise VersionError where the cloud answers in a protocol that this robot does not speak.

    0 is a cloud that does not say: it speaks what the robot asked for. ``grammar``: one is asked
    for, which an older cloud would pass over.
    """
    if grammar and protocol < GRAMMAR_PROTOCOL:
        raise VersionError("the cloud's version knows no grammar; update it, or decode without")
    if protocol and not OLDEST_PROTOCOL <= protocol <= PROTOCOL:
        side = "robot" if protocol > PROTOCOL else "cloud"
        raise VersionError(
            f"the cloud answers in protocol {protocol} and the robot speaks "
            f"{_span(OLDEST_PROTOCOL, PROTOCOL)}; update edge_cloud_spec on the {side}"
        )


def _span(oldest: int, newest: int) -> str:
    return f"protocol {newest}" if oldest >= newest else f"protocol {oldest} to {newest}"
