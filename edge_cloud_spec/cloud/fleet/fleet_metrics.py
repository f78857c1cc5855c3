"""``/metrics`` of a fleet: all replicas' own, each with a label ``replica``, and the front's.

As vLLM labels the engines of one server, so that the same queries sum over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..serving.metrics import counter, gauge
from .roster import Roster

if TYPE_CHECKING:
    from prometheus_client.core import Metric

LABEL = "replica"
# What each replica counts; None where one did not answer.
Scrape = Mapping[str, "Sequence[Metric] | None"]


class FleetCollector:
    """Asks all replicas at each scrape; one that does not answer is ``fleet_replica_up`` 0."""

    def __init__(self, ask: Callable[[], Scrape], roster: Roster) -> None:
        """ask: all replicas, from the thread of the scrape."""
        self._ask, self._roster = ask, roster

    def collect(self) -> Iterator[Metric]:
        """All families."""
        scrape = self._ask()
        up = {name: float(found is not None) for name, found in scrape.items()}
        yield gauge("fleet_replica_up", "1: the replica answered.", up, LABEL)
        text = "Robots that the front sent to this replica."
        yield counter("fleet_placements", text, dict(self._roster.placed), LABEL)
        yield from together({name: found for name, found in scrape.items() if found is not None})


def together(scrape: Mapping[str, Sequence[Metric]]) -> Iterator[Metric]:
    """One family of each name, whose samples say whose they are."""
    families: dict[str, Any] = {}
    for replica, found in scrape.items():
        for family in found:
            whole = families.setdefault(family.name, family)
            own = [one._replace(labels={**one.labels, LABEL: replica}) for one in family.samples]
            whole.samples = [*([] if whole is family else whole.samples), *own]
    yield from families.values()
