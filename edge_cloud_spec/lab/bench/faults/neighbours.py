"""A hostile neighbour in the ROS domain: what it publishes is heard, and must be reported."""

from __future__ import annotations

import time
from dataclasses import replace

from geometry_msgs.msg import Twist

from edge_cloud_spec.msg import Verdict as VerdictMessage
from edge_cloud_spec.msg import VerifiedTokens

from ....nav.status import Status
from ....nodes.runtime.qos import DECODE, RELIABLE
from ....wire.codec import encode_server
from ....wire.messages import Opened, Verdict
from .events import Asked, FromCloud
from .fault import InjectedFault
from .rig import Rig
from .watch import FOREIGN

REPORT = 1.0  # s


def _begun(rig: Rig) -> None:
    rig.forged_at = time.time()


def _twists(rig: Rig) -> None:
    """A second publisher of cmd_vel, with slow turns that the judge knows as its own."""
    publisher = rig.watch.node.create_publisher(Twist, "cmd_vel", RELIABLE)
    rig.endings.callback(rig.watch.node.destroy_publisher, publisher)
    _begun(rig)
    twist = Twist()
    twist.angular.z, twist.linear.z = 0.1, FOREIGN
    for _ in range(20):
        publisher.publish(twist)
        rig.ros.spin(0.05)


def _forged_verdict(rig: Rig) -> None:
    """Verdicts for the decode under way that accept nothing and give a token of their own."""
    publisher = rig.watch.node.create_publisher(VerdictMessage, "verdict", DECODE)
    rig.endings.callback(rig.watch.node.destroy_publisher, publisher)
    _begun(rig)
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        opened = [
            e
            for e in rig.watch.events
            if isinstance(e, FromCloud) and isinstance(e.message, Opened)
        ]
        if opened:
            base = opened[-1].message.base
            verdict = Verdict(base, (), 5)
            verdict = replace(verdict, leads_to=base.extend((5,)).short)
            rig.forged.append(verdict)
            message = VerdictMessage(
                request_id=opened[-1].request,
                base_length=base.length,
                base_hash=base.hash,
                payload=encode_server(verdict),
            )
            publisher.publish(message)
        rig.ros.spin(0.1)


def _forged_words(rig: Rig) -> None:
    """Words that nobody verified, marked as verified."""
    publisher = rig.watch.node.create_publisher(VerifiedTokens, "verified_tokens", DECODE)
    rig.endings.callback(rig.watch.node.destroy_publisher, publisher)
    _begun(rig)
    rig.ros.spin(0.5)
    asked = [event for event in rig.watch.events if isinstance(event, Asked)]
    text = "action: turn left small;"
    message = VerifiedTokens(request_id="forged", text=text, answer=text, tokens=[1])
    message.verified = message.finished = True
    message.instruction = asked[-1].instruction if asked else ""
    message.stops = Status.parse(rig.watch.lines["nav_status"]).stops
    message.header.stamp = rig.watch.node.get_clock().now().to_msg()
    publisher.publish(message)
    rig.ros.spin(0.5)


def _gone(rig: Rig) -> None:
    rig.endings.close()


FAULTS = (
    InjectedFault(
        "second_cmd_vel",
        "another node publishes on `cmd_vel`",
        "the base obeys both; reported within 1 s, prevented by SROS2 only",
        _twists,
        _gone,
        lasts=1.5,
        stops=False,
        reads="bystander publishes on .*cmd_vel",
        reported_s=REPORT,
        soak=False,
        quick=True,
    ),
    InjectedFault(
        "forged_verdict",
        "another node publishes verdicts for the decode under way",
        "believes the first verdict on its prefix; reported within 1 s, prevented by SROS2 only",
        _forged_verdict,
        _gone,
        lasts=1.0,
        stops=False,
        reads="bystander publishes on .*verdict",
        reported_s=REPORT,
        soak=False,
    ),
    InjectedFault(
        "forged_words",
        "another node publishes `verified_tokens` with an action",
        "moves by it; reported within 1 s, prevented by SROS2 only",
        _forged_words,
        _gone,
        lasts=1.0,
        stops=False,
        reads="bystander publishes on .*verified_tokens",
        reported_s=REPORT,
        soak=False,
    ),
)
