"""Which replica a client gets, how many there are, and who starts and drains them."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.cloud.fleet.ray_fleet import LEAVE_S, Controller
from edge_cloud_spec.cloud.fleet.registry import (
    ABOVE_MEAN,
    LATE_REPORTS,
    Registry,
    ReplicaLoad,
    Scaling,
    ScalingLimits,
    place,
)
from edge_cloud_spec.cloud.fleet.replica import ReplicaReport

LIMITS = ScalingLimits(least=1, most=3, sessions=10, waiting=4, up_s=2.0, down_s=20.0)
CLIENTS = [f"robot {number}" for number in range(600)]
EVEN = dict.fromkeys("abcdef", ReplicaLoad(sessions=100))
NOW, AHEAD = 5_000.0, -300.0  # the router's clock, and how far the replicas' are ahead, s


BUSY, WAITING, IDLE = ReplicaLoad(sessions=11), ReplicaLoad(waiting=5), ReplicaLoad()
# How many there are at first; then loads, from when until when (s), and how many are wanted.
COURSES: dict[str, tuple[int, list[tuple[list[ReplicaLoad], float, float, int]]]] = {
    **{
        f"load above its bound adds a replica once it lasts, {load}": (
            1,
            [
                ([load], 0, 1.75, 1),
                ([IDLE], 2, 2, 1),  # it passed
                ([load], 3, 4.75, 1),
                ([load], 5, 5, 2),
                ([load], 6, 60, 2),  # not one more while that one starts
                ([load, load], 61, 63, 3),
                ([load] * 3, 64, 90, 3),  # at most
            ],
        )
        for load in (BUSY, WAITING)
    },
    "an idle fleet shrinks late to its least": (
        3,
        [
            ([IDLE] * 3, 0, 19.75, 3),
            ([IDLE] * 3, 20, 20, 2),
            ([IDLE] * 2, 20.25, 41, 1),
            ([IDLE], 42, 100, 1),
        ],
    ),
}


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
def test_as_many_are_wanted_as_the_load_asks_for(
    course: tuple[int, list[tuple[list[ReplicaLoad], float, float, int]]],
) -> None:
    scaling = Scaling(LIMITS)
    scaling.wanted, steps = course
    for loads, begin, end, wanted in steps:
        for tick in range(int(begin * 4), int(end * 4) + 1):
            scaling.look(loads, tick / 4)
        assert scaling.wanted == wanted, (begin, end)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=300))
def test_it_stays_within_its_limits_and_never_turns_back_at_once(
    held: list[tuple[int, int]],
) -> None:
    scaling = Scaling(LIMITS)
    changes: list[tuple[float, int]] = []
    for tick, (sessions, waiting) in enumerate(held):
        now, before = tick / 4, scaling.wanted
        scaling.look([ReplicaLoad(sessions, waiting)] * before, now)
        assert 1 <= scaling.wanted <= 3
        assert abs(scaling.wanted - before) <= 1
        if scaling.wanted != before:
            if scaling.wanted < before and changes:
                assert now - changes[-1][0] >= LIMITS.down_s
            changes.append((now, scaling.wanted))


def registry_of(names: str) -> Registry:
    """These replicas serve, each at its own address, and hold nothing."""
    registry = Registry()
    for name in names:
        registry.reported(name, f"{name}:1", ReplicaLoad())
    return registry


def homes(loads: dict[str, ReplicaLoad]) -> dict[str, str | None]:
    return {client: place(client, loads) for client in CLIENTS}


@pytest.mark.parametrize(
    ("then", "takers"),
    [
        ({name: load for name, load in EVEN.items() if name != "c"}, set("abdef")),
        ({**EVEN, "g": ReplicaLoad(100)}, {"g"}),
    ],
    ids=["goes, and its clients do not all go to one", "comes"],
)
def test_a_replica_that_goes_or_comes_moves_its_own_clients_and_no_others(
    then: dict[str, ReplicaLoad], takers: set[str]
) -> None:
    before, after = homes(EVEN), homes(then)
    moved = {client for client in CLIENTS if before[client] != after[client]}
    assert {after[client] for client in moved} == takers
    assert len(takers) == 1 or {before[client] for client in moved} == {"c"}
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
def test_a_replica_that_a_client_could_not_reach_or_that_is_late_is_its_last_choice(
    client: str,
) -> None:
    """All robots are at a late one since another died; or it is that one, as they found out."""
    assert Registry().place(client) is None
    registry = registry_of("ab")
    assert [registry.place(client, {f"{away}:1"}) for away in "ab"] == [("b", "b:1"), ("a", "a:1")]
    for _ in range(LATE_REPORTS):
        registry.missed("a")
    assert registry.place(client) == ("b", "b:1")
    assert registry.place(client, {"b:1"}) == ("a", "a:1")
    for _ in range(LATE_REPORTS):
        registry.missed("b")
    assert not registry.loads  # the router says that it does not serve, and tries nevertheless
    assert registry.place(client, {"b:1"}) == ("a", "a:1")
    assert registry.place(client, {"a:1"}) == ("b", "b:1")
    registry.drain("a")
    assert registry.place(client, {"b:1"}) == ("b", "b:1")  # there is no other
    registry.left("b")
    assert registry.place(client) is None


def test_the_router_counts_whom_it_placed_before_a_report_does() -> None:
    registry = registry_of("ab")
    for client in CLIENTS[:40]:
        assert registry.place(client) is not None
    held = [load.sessions for load in registry.loads.values()]
    assert sum(held) == 40
    assert max(held) <= ABOVE_MEAN * 41 / 2 + 1
    for name in "ab":
        registry.reported(name, f"{name}:1", ReplicaLoad(3))
    assert {load.sessions for load in registry.loads.values()} == {3}


def test_only_a_replica_that_reports_and_does_not_drain_gets_clients() -> None:
    registry = registry_of("abc")
    registry.drain("a")
    for _ in range(LATE_REPORTS):
        registry.missed("b")
    assert list(registry.loads) == ["c"]
    registry.left("c")
    assert not registry.loads
    registry.reported("b", "b:1", ReplicaLoad())  # it was slow only
    registry.reported("a", "a:2", ReplicaLoad())  # it was started again, elsewhere
    assert set(registry.loads) == {"a", "b"}
    assert {registry.place(client) for client in CLIENTS} == {("a", "a:2"), ("b", "b:1")}


class Said:
    """Replicas that say what a test has them say; an exception instead of a report is raised."""

    def __init__(self) -> None:
        self.reports: dict[str, ReplicaReport | Exception] = {}
        self.drained: list[str] = []
        self.ended: list[str] = []

    @property
    def names(self) -> list[str]:
        return list(self.reports)

    def start(self, name: str) -> None:
        self.reports[name] = ConnectionError("it loads its models")

    def serves(self, name: str, sessions: int = 0, streams: int = 0) -> None:
        self.reports[name] = ReplicaReport(
            f"{name}:1", 1, ReplicaLoad(sessions), streams, NOW + AHEAD
        )

    async def report(self, name: str) -> ReplicaReport:
        said = self.reports[name]
        if isinstance(said, Exception):
            raise said
        return said

    def drain(self, name: str) -> None:
        self.drained.append(name)

    def end(self, name: str) -> None:
        self.ended.append(name)
        del self.reports[name]


class Scene:
    def __init__(self, least: int = 2, most: int = 2) -> None:
        self.now, self.said, self.registry = 0.0, Said(), Registry()
        scaling = Scaling(ScalingLimits(least, most, sessions=4, up_s=1.0, down_s=5.0))
        self.controller = Controller(
            self.said, self.registry, scaling, lambda: self.now, lambda: NOW
        )

    def look(self, seconds: float = 0.0) -> None:
        self.now += seconds
        asyncio.run(self.controller.look())


def running(scene: Scene) -> None:
    scene.look()
    for name in scene.said.names:
        scene.said.serves(name)
    scene.look()


def test_as_many_are_started_as_are_wanted_and_get_clients_once_they_serve() -> None:
    scene = Scene()
    scene.look()
    assert len(scene.said.names) == 2 and not scene.registry.loads
    running(scene)
    assert len(scene.said.names) == 2
    assert set(scene.registry.loads) == set(scene.said.names)
    assert {scene.registry.ahead_s(name) for name in scene.said.names} == {AHEAD}


def test_one_that_is_gone_for_good_is_replaced_and_one_that_is_silent_is_waited_for() -> None:
    scene = Scene()
    running(scene)
    silent, gone = scene.said.names
    scene.said.reports |= {silent: TimeoutError(), gone: LookupError("its memory is full")}
    for _ in range(LATE_REPORTS):
        scene.look()
    assert (scene.said.ended, scene.controller.problem) == ([gone], "its memory is full")
    assert len(scene.said.names) == 2 and not scene.registry.loads  # it was replaced
    scene.said.serves(silent)
    scene.look()
    assert list(scene.registry.loads) == [silent]


@pytest.mark.parametrize("leaves", [True, False])
def test_one_that_drains_is_replaced_and_ends_with_its_last_robot_or_after_a_while(
    leaves: bool,
) -> None:
    scene = Scene()
    running(scene)
    leaving = scene.said.names[0]
    scene.controller.drain(leaving)
    assert scene.said.drained == [leaving]
    scene.said.serves(leaving, streams=1)
    scene.look(LEAVE_S)
    assert len(scene.said.names) == 3
    assert leaving not in scene.registry.loads
    assert not scene.said.ended
    scene.said.serves(leaving, streams=0 if leaves else 1)
    scene.look(0.0 if leaves else 0.1)
    assert scene.said.ended == [leaving]


def test_load_brings_one_more_and_idleness_drains_the_emptiest() -> None:
    scene = Scene(1, 2)
    running(scene)
    (first,) = scene.said.names
    for sessions, seconds, left in ((5, 1.0, 2), (1, 5.0, 1)):
        for name in scene.said.names:
            scene.said.serves(name, sessions=sessions if name == first else 0)
        for pause in (0.0, seconds, 0.0):
            scene.look(pause)
        assert len(scene.said.names) == left
    assert scene.said.names == [first]
    assert scene.said.drained == scene.said.ended != []
