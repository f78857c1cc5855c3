"""The target's session of one decode: computed in chunks before its next pass, again if evicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...decoding.draft import Draft

if TYPE_CHECKING:
    from ...models.cache import Refill
    from ...models.prefill import Prefill
    from ...models.session import Session

ALL_ROWS = 1 << 30  # of a prompt


class PreparedTarget:
    """A prompt and what is verified after it; ``passes`` counts those since it was prepared."""

    def __init__(self, prefill: Callable[[], Prefill[Session]], verified: tuple[int, ...]) -> None:
        """prefill: begins to compute the prompt. verified: the answer's first tokens, by another
        verifier, before the decode came here."""
        self._prefill, self._verified = prefill, verified
        self._target: Session | None = None
        self._steps: Refill | None = None
        self.held_draft: Draft | None = None  # of the pass that waits for the prompt
        self.passes = 0

    @property
    def target(self) -> Session:
        """The target after the prompt and what is verified; all that is left of it is computed."""
        while self._target is None:
            self.prepare(ALL_ROWS)
        return self._target

    @property
    def ready(self) -> bool:
        """Whether the target has its cache: the next pass is over the draft alone."""
        return self._target is not None and self._target.resident

    @property
    def holds(self) -> bool:
        """Whether it needs memory that others cannot have now: a pass is due, or a part is done."""
        return self._steps is not None or (self._target is not None and self._target.waits)

    def prepare(self, rows: int) -> bool:
        """Compute so many rows of the prompt, or of what an evicted cache held; True: it is ready.

        ``held_draft`` is scored with the prompt's last rows. MemoryFull: there is no room for the
        cache.
        """
        if self.ready:
            return True
        steps = self._steps
        if steps is None:
            steps = self._prefill() if self._target is None else self._target.restore()
        self._steps = None  # also where a step fails: its memory is given back
        if self.held_draft is not None and self._target is None and not self._verified:
            steps.draft(self.held_draft.tokens, self.held_draft.parents)
        if not steps.step(rows):
            self._steps = steps
            return False
        self.passes = 0
        if self._target is None:
            self._target = steps.session
            self._target.extend(self._verified)
        return True

    def wait_for_pass(self, waits: bool) -> None:
        """A pass of it is due, so that its cache is to stay; or it is done."""
        if self._target is not None:
            self._target.waits = waits

    def stop_preparing(self) -> None:
        """Give the memory back of what is computed in part."""
        self._steps = None

    def release(self) -> None:
        """Give all memory back."""
        self.stop_preparing()
        if self._target is not None:
            self._target.evict()
