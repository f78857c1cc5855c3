"""Faults of the link between robot and cloud."""

from __future__ import annotations

from dataclasses import replace

from ...harness.message_proxy import MessageFaults
from .fault import InjectedFault
from .rig import Rig

DELAY_MS = 5_000.0


def _set_out(rig: Rig) -> None:
    rig.proxy.set_out(True)


def _set_up(rig: Rig) -> None:
    rig.proxy.set_out(False)


def _outage(rig: Rig) -> None:
    """Two seconds, over before the fault is cleared."""
    rig.proxy.set_out(True)
    rig.ros.spin(2.0)
    rig.proxy.set_out(False)


def _nothing(rig: Rig) -> None:
    """It has ended by itself."""


def _delay(rig: Rig) -> None:
    rig.proxy.set_delay(DELAY_MS)


def _no_delay(rig: Rig) -> None:
    rig.proxy.set_delay(1.0)
    rig.proxy.redirect(rig.verifier_address)  # what is under way would still take its five seconds


def _silent(rig: Rig) -> None:
    rig.proxy.set_silent(True)


def _heard(rig: Rig) -> None:
    rig.proxy.set_silent(False)


def _messages(name: str, injected: str, robot: str, faults: MessageFaults) -> InjectedFault:
    """The same fault for every message between robot and cloud, both ways."""

    def inject(rig: Rig) -> None:
        rig.messages.faults = faults
        rig.proxy.redirect(rig.messages.address)

    def clear(rig: Rig) -> None:
        rig.proxy.redirect(rig.verifier_address)

    return InjectedFault(name, injected, robot, inject, clear, lasts=6.0, stops=False)


GOES_ON = "goes on with what is verified; decisions that miss a message are given up and made anew"

FAULTS = (
    InjectedFault(
        "link_cut",
        "every connection to the cloud is broken, and none can be made",
        "ends its step and stands",
        _set_out,
        _set_up,
        reads="lost",
        quick=True,
    ),
    InjectedFault(
        "outage_2s",
        "the same for 2 s",
        "ends its step, stands and resumes the decision",
        _outage,
        _nothing,
        lasts=0.5,
        stops=False,
    ),
    InjectedFault(
        "half_open",
        "all bytes are lost both ways, while both ends believe to be connected",
        "ends its step and stands; the decision is given up after `patience`",
        _silent,
        _heard,
        lasts=3.0,
        reads="lost|degraded",
    ),
    InjectedFault(
        "delay_5s",
        "every byte takes 5 s each way",
        "ends its step and stands; decisions are given up after `patience`",
        _delay,
        _no_delay,
        lasts=3.0,
        reads="lost|degraded",
    ),
    _messages("loss_30", "30 % of all messages are lost", GOES_ON, MessageFaults(lost=0.3)),
    _messages(
        "duplicated", "half of all messages come twice", GOES_ON, MessageFaults(repeated=0.5)
    ),
    _messages(
        "reordered",
        "half of all messages come up to 0.3 s late, after others",
        GOES_ON,
        MessageFaults(reordered=0.5),
    ),
    replace(
        _messages(
            "corrupted",
            "a bit of every second message is another",
            GOES_ON,
            MessageFaults(corrupted=0.5),
        ),
        quick=True,
    ),
    _messages(
        "truncated", "every second message ends early", GOES_ON, MessageFaults(truncated=0.5)
    ),
)
