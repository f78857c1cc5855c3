"""Which requests wait for an answer of the cloud, and since when."""

from __future__ import annotations


class ReplyWatch:
    """A request waits from the first message after its last answer. Times are steady, in s."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._asked: dict[str, float] = {}  # since when, by request
        self._due: dict[str, float] = {}  # when the next miss is counted

    @property
    def waiting(self) -> bool:
        """Whether any request waits."""
        return bool(self._asked)

    def sent(self, request: str, now: float) -> None:
        """The robot sent a message of this request."""
        if request not in self._asked:
            self._asked[request] = now
            self._due[request] = now + self._deadline_s

    def answered(self, request: str, now: float) -> float | None:
        """The cloud answered; how long that took, None where nothing was asked."""
        asked = self._asked.pop(request, None)
        self._due.pop(request, None)
        return None if asked is None else now - asked

    def forget(self, request: str) -> None:
        """The request is over."""
        self._asked.pop(request, None)
        self._due.pop(request, None)

    def misses(self, now: float) -> int:
        """How many deadlines passed since the last look; one that goes on passes again."""
        late = [request for request, due in self._due.items() if now >= due]
        for request in late:
            self._due[request] = now + self._deadline_s
        return len(late)
