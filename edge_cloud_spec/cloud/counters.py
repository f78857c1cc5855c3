"""What became of the messages that a verifier was sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Counts. Of ``drafts`` that came, each is one of the next five, or still pooled."""

    drafts: int = 0
    judged: int = 0  # the target looked at them
    repeated: int = 0  # their verdict stood already, and was said again
    late: int = 0  # their place was passed, or is being judged, or their robot had left
    unused: int = 0  # pushed ahead, for a place the answer did not come to, or a second time
    refused: int = 0
    verdicts: int = 0  # each counted once, however often it was said
    ignored: int = 0  # other messages that name a place where the answer is not

    def left(self, kind: str) -> None:
        """A message of this kind was dropped, since its robot had left."""
        self.drafts += kind == "draft"
        self.late += kind == "draft"

    @property
    def accounted(self) -> int:
        """Drafts whose fate is known; of all that came, once no session stands."""
        return self.judged + self.repeated + self.late + self.unused + self.refused
