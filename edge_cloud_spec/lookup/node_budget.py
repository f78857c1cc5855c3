"""How many looked-up nodes a pass is given: as many as promise the most tokens per second."""

from __future__ import annotations

from collections.abc import Callable

RECENT = 0.1  # weight of the last pass, in how often each node was right
RETRY = 0.0005  # of the first place, where it was not tried: so that it is tried again
PRIOR = 0.8  # how often a node is taken to be right where the one before it is, before it was tried


class NodeBudget:
    """Nodes come the likeliest first, so that a smaller budget keeps the first ones.

    So how often each place in this order was accepted is the gain of one more node, and what that
    costs is a pass's time by its rows (``PassEstimator.seconds``).
    """

    def __init__(self, most: int) -> None:
        """most: nodes at the most; 0: none."""
        self._gains = [PRIOR ** (1 + place) for place in range(most)]
        self._tried = [1] * most  # passes; what is taken for granted counts as one
        self._others = 1.0  # tokens of a pass that are not due to looked-up nodes

    def nodes(self, rows: int, seconds: Callable[[int], float]) -> int:
        """The best number for a pass that has this many rows without them; seconds: by rows."""
        tokens, best = self._others, 0
        best_rate = tokens / max(seconds(rows), 1e-9)
        for nodes, gain in enumerate(self._gains, start=1):
            tokens += gain
            rate = tokens / max(seconds(rows + nodes), 1e-9)
            if rate > best_rate:
                best, best_rate = nodes, rate
        return best

    def judged(self, nodes: int, accepted: tuple[int, ...], tokens: int) -> None:
        """Of so many nodes these places were accepted, in a pass that settled ``tokens``."""
        self._others += RECENT * (tokens - len(accepted) - self._others)
        before = 1.0
        for place, gain in enumerate(self._gains):
            if place < nodes:
                self._tried[place] += 1
                recent = max(RECENT, 1 / self._tried[place])
                self._gains[place] += recent * ((place in accepted) - gain)
            else:  # a place behind one that gains nothing is not worth a try
                recent = RECENT if place else RETRY
                self._gains[place] += recent * (PRIOR * before - gain)
            before = self._gains[place]
