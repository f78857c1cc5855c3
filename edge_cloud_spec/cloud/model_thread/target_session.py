"""What a target keeps for one decode: the interface of the models here and of servers elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from ...decoding.draft import Draft


class TargetSession:
    """The target's state for one decode: verified tokens, and what is computed from them.

    This base class computes nothing and is always ready, as for a target on another server.
    """

    @property
    def ready(self) -> bool:
        """Whether the next pass needs to compute the draft only."""
        return True

    @property
    def holds(self) -> bool:
        """Whether it occupies memory that cannot be evicted now."""
        return False

    @property
    def scored_with_prompt(self) -> bool:
        """Whether the due draft was scored in the prompt's pass, so that no pass is needed."""
        return False

    def read(self, rows: int, due: Draft | None) -> bool:
        """Compute at most ``rows`` of the missing tokens; True: ready.

        due: the draft whose pass waits for this. MemoryFull: there is no memory.
        """
        return True

    def pin(self, pinned: bool) -> None:
        """Protect the memory from eviction while a pass is due."""

    def evict(self) -> None:
        """Free all memory until the next pass; cancels a request under way."""

    def close(self) -> None:
        """The decode is over: give all memory back but what a later prompt can begin with."""
        self.evict()

    def commit(self, path: Sequence[int]) -> None:
        """Append these nodes of the scored draft to the verified prefix."""
        raise NotImplementedError

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the verified prefix; the next pass computes them."""
        raise NotImplementedError


class NotArrived(Exception):
    """A target on another server has not answered yet; the pass is repeated when it has."""
