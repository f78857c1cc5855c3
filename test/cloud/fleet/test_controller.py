"""The controller hears from replicas, replaces those that are gone, and lets robots leave first."""

from __future__ import annotations

import asyncio

from edge_cloud_spec.cloud.fleet.controller import LEAVE_S, Controller, Scaling, ScalingLimits
from edge_cloud_spec.cloud.fleet.replica import ReplicaReport
from edge_cloud_spec.cloud.fleet.roster import MISSES, ReplicaLoad, Roster

NOW, AHEAD = 5_000.0, -300.0  # the front's clock, and how far the replicas' are ahead, s


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
        self.now, self.said, self.roster = 0.0, Said(), Roster()
        scaling = Scaling(ScalingLimits(least, most, sessions=4, up_s=1.0, down_s=5.0))
        self.controller = Controller(self.said, self.roster, scaling, lambda: self.now, lambda: NOW)

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
    assert len(scene.said.names) == 2
    assert not scene.roster.loads
    running(scene)
    assert len(scene.said.names) == 2
    assert set(scene.roster.loads) == set(scene.said.names)
    assert {scene.roster.ahead_s(name) for name in scene.said.names} == {AHEAD}


def test_one_that_is_gone_for_good_is_replaced_and_one_that_is_silent_is_waited_for() -> None:
    scene = Scene()
    running(scene)
    silent, gone = scene.said.names
    scene.said.reports[silent] = TimeoutError()
    scene.said.reports[gone] = LookupError("its memory is full")
    for _ in range(MISSES):
        scene.look()
    assert scene.said.ended == [gone]
    assert len(scene.said.names) == 2  # it was replaced
    assert not scene.roster.loads
    assert scene.controller.problem == "its memory is full"
    scene.said.serves(silent)
    scene.look()
    assert list(scene.roster.loads) == [silent]


def test_one_that_drains_is_replaced_and_ends_when_its_last_robot_has_left() -> None:
    scene = Scene()
    running(scene)
    leaving = scene.said.names[0]
    scene.controller.drain(leaving)
    assert scene.said.drained == [leaving]
    scene.said.serves(leaving, streams=1)
    scene.look()
    assert len(scene.said.names) == 3
    assert leaving not in scene.roster.loads
    assert not scene.said.ended
    scene.said.serves(leaving, streams=0)
    scene.look()
    assert scene.said.ended == [leaving]


def test_a_robot_that_does_not_leave_holds_a_draining_replica_for_a_while_only() -> None:
    scene = Scene()
    running(scene)
    leaving = scene.said.names[0]
    scene.controller.drain(leaving)
    scene.said.serves(leaving, streams=1)
    scene.look(LEAVE_S)
    assert not scene.said.ended
    scene.look(0.1)
    assert scene.said.ended == [leaving]


def test_load_brings_one_more_and_idleness_drains_the_emptiest() -> None:
    scene = Scene(1, 2)
    running(scene)
    (first,) = scene.said.names
    scene.said.serves(first, sessions=5)
    scene.look()
    scene.look(1.0)
    scene.look()
    assert len(scene.said.names) == 2
    second = scene.said.names[1]
    scene.said.serves(first, sessions=1)
    scene.said.serves(second)
    scene.look()
    scene.look(5.0)
    assert scene.said.drained == [second]
