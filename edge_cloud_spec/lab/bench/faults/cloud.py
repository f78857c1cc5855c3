"""Faults of the verifier."""

from __future__ import annotations

from collections.abc import Callable

from ....bringup.running_graph import free_address, is_serving
from ....wire.messages import OLDEST_PROTOCOL, PROTOCOL
from ...harness.random_checkpoint import TINY, make_pair
from .fault import InjectedFault
from .poisoned import PROTOCOLS
from .rig import Rig


def _kill(rig: Rig) -> None:
    rig.kill("verifier")


def _start(rig: Rig) -> None:
    rig.start("verifier")


def _hang(rig: Rig) -> None:
    rig.hang("verifier")


def _unhang(rig: Rig) -> None:
    rig.unhang("verifier")


def _model(failure: str) -> Callable[[Rig], None]:
    """Passes of the target fail so."""

    def inject(rig: Rig) -> None:
        rig.switch("verifier").write_text(failure)

    return inject


def _sound(rig: Rig) -> None:
    rig.switch("verifier").write_text("")


def _other_target(rig: Rig) -> None:
    """A verifier of another checkpoint takes the place of ours."""
    target, _ = make_pair(rig.folder / "other", TINY, TINY, seed=rig.seed)
    address = free_address()
    argv = rig.verifier_command(address, target=str(target))
    rig.start_other("other_verifier", argv, lambda: is_serving(address))
    rig.proxy.redirect(address)


def _speaking(oldest: int, newest: int) -> Callable[[Rig], None]:
    """A verifier that speaks these versions of the protocol takes the place of ours."""

    def inject(rig: Rig) -> None:
        address = free_address()
        argv = ["env", f"{PROTOCOLS}={oldest} {newest}", *rig.verifier_command(address)]
        rig.start_other("other_verifier", argv, lambda: is_serving(address))
        rig.proxy.redirect(address)

    return inject


def _own(rig: Rig) -> None:
    rig.proxy.redirect(rig.verifier_address)
    rig.endings.close()


FAULTS = (
    InjectedFault(
        "server_killed",
        "the verifier gets SIGKILL, and is started again at the end",
        "ends its step and stands",
        _kill,
        _start,
        reads="lost",
        soak=False,
        quick=True,
    ),
    InjectedFault(
        "server_hung",
        "the verifier gets SIGSTOP",
        "ends its step and stands; the decision is given up after `patience`",
        _hang,
        _unhang,
        lasts=3.0,
        reads="lost|degraded",
    ),
    InjectedFault(
        "out_of_memory",
        "every pass of the target raises torch's OutOfMemoryError",
        "ends its step and stands; each decision ends with a fault that says so",
        _model("out_of_memory"),
        _sound,
        reads="(?i)OutOfMemory|memory",
    ),
    InjectedFault(
        "nan_logits",
        "every pass of the target gives logits that are no numbers",
        "ends its step and stands; each decision ends with a fault that says so",
        _model("nan"),
        _sound,
        reads="no decision on",
    ),
    InjectedFault(
        "wrong_checkpoint",
        "the link leads to a verifier with another target",
        "ends its step and stands, or is refused the session",
        _other_target,
        _own,
        soak=False,
        reads="no decision on",
    ),
    InjectedFault(
        "older_robot",
        "the link leads to a verifier of the next protocol, which speaks the robot's too",
        "goes on in the protocol that both speak",
        _speaking(OLDEST_PROTOCOL, PROTOCOL + 1),
        _own,
        lasts=3.0,
        stops=False,
        soak=False,
    ),
    InjectedFault(
        "older_robot_refused",
        "the link leads to a verifier that speaks the next protocol alone",
        "ends its step and stands; the owner reads which side to update",
        _speaking(PROTOCOL + 1, PROTOCOL + 1),
        _own,
        reads="update edge_cloud_spec on the robot",
        soak=False,
    ),
    InjectedFault(
        "newer_robot_refused",
        "the link leads to a verifier that speaks the protocol before the robot's alone",
        "ends its step and stands; the owner reads which side to update",
        _speaking(OLDEST_PROTOCOL - 1, OLDEST_PROTOCOL - 1),
        _own,
        reads="update edge_cloud_spec on the cloud",
        soak=False,
    ),
)
