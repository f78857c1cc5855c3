"""What became of the messages that a verifier received."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Counts. Each of the ``drafts`` received is one of the next five, or pushed and waiting."""

    drafts: int = 0
    judged: int = 0  # scored by the target
    repeated: int = 0  # for a prefix that has its verdict, which was sent again
    late: int = 0  # for a prefix that is passed or being judged, or from a robot that has left
    unused: int = 0  # pushed for a prefix that the answer did not reach, or a second time for one
    refused: int = 0
    verdicts: int = 0  # each counted once, however often it was sent
    ignored: int = 0  # other messages that name a prefix where the answer is not

    def count_left(self, kind: str) -> None:
        """A message of this kind was dropped, since its robot has left."""
        self.drafts += kind == "draft"
        self.late += kind == "draft"

    @property
    def accounted(self) -> int:
        """The sum of these five: all ``drafts``, once there are no sessions."""
        return self.judged + self.repeated + self.late + self.unused + self.refused
