"""What the drafter does while the link to the cloud is lost: wait, or decide alone."""

from __future__ import annotations

from collections.abc import Callable

from rclpy.node import Node
from std_msgs.msg import String

from ...nav.status import Status
from .drafter_settings import CREEP

LINK_STATE = "link_state"


class LinkPolicy:
    """Follows the topic ``link_state``; under ``creep`` a lost link makes decisions local.

    ``abort`` is called with the reason when a decision in the cloud is under way and the link is
    lost: its session waits in the cloud for a robot that resumes, but this one decides anew, on a
    newer frame. ``report`` is called with a sentence when creeping cannot move the robot.
    """

    def __init__(
        self,
        node: Node,
        when_lost: Callable[[], str],
        abort: Callable[[str], None],
        report: Callable[[str], None],
    ) -> None:
        self._node, self._when_lost = node, when_lost
        self._abort, self._report = abort, report
        self._heard = False
        self._lost = False
        self._in_cloud = False  # a decision is under way there

    def on_link_state(self, message: String) -> None:
        """The bridge says how good the link is."""
        self._heard = True
        self._lost = message.data.split(" ")[0] == "lost"
        if self._lost and self._in_cloud and self._when_lost() == CREEP:
            self._abort("the link is lost; the drafter decides alone")

    def on_status(self, status: Status) -> None:
        """The navigator's status: whether it takes what is not verified."""
        if self.without_cloud and "allow_unverified" in status.detail:
            self._report(
                "when_lost is creep, but the navigator does not move on unverified words; set its "
                "parameter allow_unverified too, or when_lost to stop"
            )

    @property
    def without_cloud(self) -> bool:
        """Whether a decision that begins now is made without the cloud."""
        if self._when_lost() != CREEP:
            return False
        gone = self._heard and not self._node.count_publishers(LINK_STATE)  # the bridge itself
        return self._lost or gone

    @property
    def note(self) -> str:
        """For the diagnostics, behind the instruction."""
        return " (the link is lost: deciding alone, unverified)" if self.without_cloud else ""

    def begin(self) -> bool:
        """A decision begins; whether it is made without the cloud."""
        without_cloud = self.without_cloud
        self._in_cloud = not without_cloud
        return without_cloud

    def check(self) -> None:
        """Abort a decision that began in the cloud while the link was being lost."""
        if self._in_cloud and self.without_cloud:
            self._abort("the link is lost; the drafter decides alone")

    def end(self) -> None:
        """The decision is over."""
        self._in_cloud = False
