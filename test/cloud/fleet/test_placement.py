"""Clients stay where they are when replicas come and go; none is filled beyond the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.cloud.fleet.roster import ABOVE_MEAN, MISSES, ReplicaLoad, Roster, place

CLIENTS = [f"robot {number}" for number in range(600)]
EVEN = dict.fromkeys("abcdef", ReplicaLoad(sessions=100))


def homes(loads: dict[str, ReplicaLoad]) -> dict[str, str | None]:
    return {client: place(client, loads) for client in CLIENTS}


def test_a_replica_that_goes_moves_its_own_clients_and_no_others() -> None:
    before = homes(EVEN)
    after = homes({name: load for name, load in EVEN.items() if name != "c"})
    moved = {client for client in CLIENTS if before[client] != after[client]}
    assert moved == {client for client in CLIENTS if before[client] == "c"}
    assert {after[client] for client in moved} == set("abdef")  # and not all to one


def test_a_replica_that_comes_takes_its_share_and_moves_no_other_client() -> None:
    before = homes(EVEN)
    after = homes({**EVEN, "g": ReplicaLoad(100)})
    moved = [client for client in CLIENTS if before[client] != after[client]]
    assert {after[client] for client in moved} == {"g"}
    assert len(CLIENTS) / 14 < len(moved) < 2 * len(CLIENTS) / 7


@given(
    sessions=st.lists(st.integers(0, 50), min_size=1, max_size=8),
    client=st.sampled_from(CLIENTS),
)
def test_no_replica_gets_a_client_beyond_the_bound_on_its_load(
    sessions: list[int], client: str
) -> None:
    loads = {str(number): ReplicaLoad(held) for number, held in enumerate(sessions)}
    chosen = place(client, loads)
    assert chosen is not None
    assert loads[chosen].sessions <= ABOVE_MEAN * (sum(sessions) + 1) / len(sessions)


def test_without_the_bound_one_replica_would_be_filled() -> None:
    """A control: a client does not get what it prefers where that is full."""
    client = CLIENTS[0]
    home = place(client, EVEN)
    assert home is not None
    assert place(client, {**EVEN, home: ReplicaLoad(sessions=200)}) != home
    assert place(client, {**EVEN, home: ReplicaLoad(sessions=100, memory=0.95)}) != home
    full = dict.fromkeys("ab", ReplicaLoad(9, memory=0.99))
    assert place(client, {**full, "b": ReplicaLoad(9, memory=0.97)}) == "b"  # all are: the emptiest


@pytest.mark.parametrize("client", CLIENTS[:5])
def test_a_replica_that_a_client_could_not_reach_is_its_last_choice(client: str) -> None:
    roster = Roster()
    assert roster.place(client) is None
    for name in EVEN:
        roster.reported(name, f"{name}:1", ReplicaLoad())
    home = roster.place(client)
    assert home is not None
    assert roster.place(client, {home[1]}) not in (home, None)
    for name in set(EVEN) - {home[0]}:
        roster.left(name)
    assert roster.place(client, {home[1]}) == home


@pytest.mark.parametrize("client", CLIENTS[:5])
def test_a_replica_that_is_late_gets_clients_whom_no_other_can_have(client: str) -> None:
    """All robots are at it since another died; or it is the one that died, as they found out."""
    roster = Roster()
    for name in "ab":
        roster.reported(name, f"{name}:1", ReplicaLoad())
    for _ in range(MISSES):
        roster.missed("a")
    assert roster.place(client) == ("b", "b:1")
    assert roster.place(client, {"b:1"}) == ("a", "a:1")
    for _ in range(MISSES):
        roster.missed("b")
    assert not roster.loads  # the front says that it does not serve, and tries nevertheless
    assert roster.place(client, {"b:1"}) == ("a", "a:1")
    assert roster.place(client, {"a:1"}) == ("b", "b:1")
    roster.drain("a")
    roster.left("b")
    assert roster.place(client) is None


def test_the_front_counts_whom_it_placed_before_a_report_does() -> None:
    roster = Roster()
    for name in "ab":
        roster.reported(name, f"{name}:1", ReplicaLoad())
    for client in CLIENTS[:40]:
        assert roster.place(client) is not None
    held = [load.sessions for load in roster.loads.values()]
    assert sum(held) == 40
    assert max(held) <= ABOVE_MEAN * 41 / 2 + 1
    for name in "ab":
        roster.reported(name, f"{name}:1", ReplicaLoad(3))
    assert {load.sessions for load in roster.loads.values()} == {3}


def test_only_a_replica_that_reports_and_does_not_drain_gets_clients() -> None:
    roster = Roster()
    assert roster.place("x") is None
    for name in "abc":
        roster.reported(name, f"{name}:1", ReplicaLoad())
    roster.drain("a")
    for _ in range(MISSES):
        roster.missed("b")
    assert list(roster.loads) == ["c"]
    roster.left("c")
    assert not roster.loads
    roster.reported("b", "b:1", ReplicaLoad())  # it was slow only
    roster.reported("a", "a:2", ReplicaLoad())  # it was started again, elsewhere
    assert set(roster.loads) == {"a", "b"}
    assert roster.address("a") == "a:2"
