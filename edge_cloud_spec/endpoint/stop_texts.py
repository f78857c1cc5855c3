"""Ends an answer before the first of some texts, however its tokens cut them."""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """Passes on a growing text up to the stop text that is complete first; holds back what may be
    the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self._held = stops, ""
        self.found = False

    def add(self, more: str, *, ended: bool = False) -> str:
        """What can be passed on now; ``ended``: the answer is over, so nothing is held back."""
        if self.found:
            return ""
        text, self._held = self._held + more, ""
        complete = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if complete:
            self.found = True
            return text[: min(complete)[1]]
        if not ended:
            self._held = max((beginning(stop, text) for stop in self._stops), key=len, default="")
        return text[: len(text) - len(self._held)]


def beginning(stop: str, text: str) -> str:
    """The longest end of the text with which the stop text begins."""
    longest = min(len(stop) - 1, len(text))
    return next((stop[:n] for n in range(longest, 0, -1) if text.endswith(stop[:n])), "")
