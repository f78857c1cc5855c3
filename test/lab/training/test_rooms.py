"""Training in furnished rooms: an expert that goes around what is in the way, and what it
teaches."""

from __future__ import annotations

import math
import multiprocessing.dummy
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.go2 import each_base

from edge_cloud_spec.cli import main
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models import ROOMS as ROOMS_MODELS
from edge_cloud_spec.models.load import load
from edge_cloud_spec.nav.answer import ORDERS, action_of
from edge_cloud_spec.nav.events import Odometry, Scan
from edge_cloud_spec.nav.free_space import MOST_TRIED
from edge_cloud_spec.nav.navigator import Navigator
from edge_cloud_spec.nav.pose import Pose, wrap
from edge_cloud_spec_lab.bench.requests import sample_requests
from edge_cloud_spec_lab.bench.rooms import straight
from edge_cloud_spec_lab.harness.mission.room_mission import RoomMission
from edge_cloud_spec_lab.sim.bases import (
    free_space_of,
    make_base,
    scan_from,
    scanned_rays,
    sight_of,
)
from edge_cloud_spec_lab.sim.camera import Camera, eye_at
from edge_cloud_spec_lab.sim.furniture import make_furnished
from edge_cloud_spec_lab.sim.room import Room
from edge_cloud_spec_lab.sim.scene import Scene
from edge_cloud_spec_lab.sim.thing import VisibleThing
from edge_cloud_spec_lab.sim.view import VIEW_PX, sample_pose
from edge_cloud_spec_lab.sim.world import World
from edge_cloud_spec_lab.training import rendered
from edge_cloud_spec_lab.training.flats.conversations import ConversationRow
from edge_cloud_spec_lab.training.rooms import command, driver, views
from edge_cloud_spec_lab.training.rooms.driver import (
    ROOM_ROBOT,
    Decider,
    Driver,
    Look,
    drive,
    moved,
)
from edge_cloud_spec_lab.training.rooms.expert import ACTIONS, GOALS, Reach, costs_of
from edge_cloud_spec_lab.training.rooms.views import (
    RoomViews,
    make_room_views,
    make_told_views,
    rows_of,
)
from edge_cloud_spec_lab.training.tiny.data import QuestionEncoder
from edge_cloud_spec_lab.training.tiny.evaluation import MAX_ANSWER_TOKENS, greedy_answers
from edge_cloud_spec_lab.training.tiny.language import best_action, pieces, visible
from edge_cloud_spec_lab.training.tiny.tokenizer import build_tokenizer

ROOMS = (0, 2, 3, 6, 7, 8)


def arrives(room: Room, *, by_expert: bool) -> bool:
    """Whether a robot gets to the target by the expert's actions, or by those that nothing in the
    way changes; the navigator carries them out."""
    world = World(Scene(room))
    if not by_expert:
        return RoomMission(room, world, straight(room), ROOM_ROBOT, 60.0, 3).run().arrived
    with Driver(room, world, np.random.default_rng(0)) as expert:
        return RoomMission(room, world, expert, ROOM_ROBOT, 60.0, 3).run().arrived


def test_the_expert_arrives_where_straight_on_something_is_in_the_way() -> None:
    found = {True: 0, False: 0}
    for room in map(make_furnished, ROOMS):
        for by_expert in found:
            found[by_expert] += arrives(room, by_expert=by_expert)
    assert found[True] >= len(ROOMS) - 1 > found[False] + 1


def test_the_shipped_target_arrives_where_straight_on_something_is_in_the_way() -> None:
    """By its pictures; a move goes around what is small, in both."""
    decider, robot = Decider(load(ROOMS_MODELS / "target", threads=1)), ROOM_ROBOT
    robot, arrived = replace(robot, around=True), 0
    for room in map(make_furnished, (7, 13)):
        scene, rng = Scene(room), np.random.default_rng(room.seed)
        alone = RoomMission(room, World(scene), straight(room), robot, 60.0)
        assert alone.run().state == "blocked"
        world = World(scene)
        with Driver(room, world, rng, Camera(scene, "rays", VIEW_PX), decider) as player:
            mission = RoomMission(room, world, player, robot).run()
        arrived += mission.arrived
        assert mission.contacts == 0
    assert arrived


FREE = Reach(9.0, 9.0, 9.0, 9.0)


def best(thing: VisibleThing | None, path: tuple[float, float] | None, reach: Reach = FREE) -> str:
    return ACTIONS[int(costs_of(thing, path, reach, ()).argmin())]


@pytest.mark.parametrize("bearing", [-26.0, -14.0, -8.0, -4.0, 0.0, 7.0, 20.0])
@pytest.mark.parametrize("distance", [0.6, 1.0, 1.8, 3.0])
def test_what_it_does_where_nothing_is_in_the_way_is_what_it_was_taught_before(
    bearing: float, distance: float
) -> None:
    thing = VisibleThing("red chair", 400, bearing, distance)
    for path in (None, (math.radians(bearing), distance + 0.4)):
        assert best(thing, path) == best_action(thing)


def test_the_expert_goes_along_the_path_that_is_told_unless_it_gets_nowhere() -> None:
    behind = VisibleThing("red chair", 400, 5.0, 3.0)  # something is before it
    for thing in (None, behind):
        assert best(thing, (0.8, 1.0)) == "turn left large"
        assert best(thing, (-0.8, 1.0)) == "turn right large"
        assert best(thing, (0.02, 0.95)) == "move forward large"
        assert best(thing, (0.02, 0.5)) == "move forward medium"
        assert best(thing, (0.0, 0.9), Reach(0.0, 9.0, 9.0, 9.0)) != "move forward large"
    assert best(None, None) == "search" and best(behind, None) == best_action(behind)
    tried = costs_of(None, (0.8, 1.0), FREE, ["turn left large"] * 3)
    assert ACTIONS[int(tried.argmin())] != "turn left large"


@pytest.mark.parametrize(
    ("bearing", "distance", "stops"), [(14.0, 0.6, True), (-10.0, 0.7, True), (26.0, 0.6, False)]
)
def test_beside_the_thing_the_expert_turns_to_it_and_stops_where_it_cannot(
    bearing: float, distance: float, stops: bool
) -> None:
    thing, elsewhere = VisibleThing("red chair", 900, bearing, distance), (-1.0, 0.5)
    turn = best_action(thing)
    assert best(thing, elsewhere) == turn
    shut, farther = Reach(9.0, 9.0, 0.02, 0.02), replace(thing, distance=1.2)
    for seen, reach, tried, stopped in (
        (thing, shut, [turn], stops),
        (thing, shut, [], False),
        (thing, FREE, [turn], False),  # a turn to it before this one
        (farther, shut, [turn], False),
    ):
        costs = costs_of(seen, elsewhere, reach, tried)
        assert (ACTIONS[int(costs.argmin())] == "stop") == stopped


@pytest.mark.parametrize(
    ("action", "made"),
    [
        ("move forward large", (0.5, 0.0)),
        ("move forward small", (0.2, 0.0)),
        ("move backward medium", (-0.1, 0.0)),
        ("turn left large", (0.0, 0.4)),
        ("turn right small", (0.0, -math.radians(6))),
        ("turn right large", (0.0, -0.2)),
    ],
)
def test_an_action_gets_as_far_as_the_navigator_lets_it(
    action: str, made: tuple[float, float]
) -> None:
    found = Reach(0.5, 0.1, 0.4, 0.2).of(GOALS[action])
    assert found == pytest.approx(made, abs=0.05)


def test_how_far_it_gets_is_how_far_the_navigator_goes() -> None:
    """Each action from the start of a room, carried out by the navigator in the simulator."""
    compared = 0
    for seed in ROOMS[:3]:
        room = make_furnished(seed)
        reach = Reach.of_sight(sight_of(room.start, World(Scene(room)), ROOM_ROBOT), ROOM_ROBOT)
        for action in ("turn left large", "turn right large", "move backward large"):
            ends: list[Pose] = []

            def play(pose: Pose, action: str = action, ends: list[Pose] = ends) -> str:
                ends.append(pose)
                return action

            RoomMission(room, World(Scene(room)), play, ROOM_ROBOT, 6.0).run()
            way, turn = reach.of(GOALS[action])
            first = ends[1] if len(ends) > 1 else room.start
            made = wrap(first.yaw - room.start.yaw) if turn else first.x - room.start.x
            meant = turn or way * math.cos(room.start.yaw)
            assert abs(made - meant) < 0.12, (seed, action, made, meant)
            compared += 1
    assert compared == 9


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[RoomViews, RoomViews]:
    """Pictures of an expert's ways through two rooms, and what a model met with in one."""
    here = SimpleNamespace(get_context=lambda _: multiprocessing.dummy)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rendered, "multiprocessing", here)
        patched.setattr(views, "ROOM_LESSON_S", 15.0)
        patched.setattr(driver, "DRIVE_ACTIONS", 6)
        folder = tmp_path_factory.mktemp("views")
        target = ROOMS_MODELS / "target"
        return make_room_views(folder, 3, 2, 1), make_told_views(folder, 3, 1, 1, target)


@pytest.mark.parametrize("pictured", [False, True])
def test_what_a_view_teaches_is_the_action_and_what_is_done_first(
    pictured: bool, made: tuple[RoomViews, RoomViews]
) -> None:
    encoder, around = QuestionEncoder(build_tokenizer()), 0
    seen = made[0] if pictured else made[1]
    assert len(seen) >= 6 and bool(seen.images.size) == pictured
    for index in range(len(seen)):
        for mirrored in (False, True):
            name = seen.target(index)
            action = seen.action(index, mirrored, np.random.default_rng(index))
            things = seen.things(index, mirrored)
            text = "".join(piece.text for piece in pieces(things, name, ORDERS[0], action))
            assert str(action_of(text)) == action
            straight = best_action(visible(things).get(name))
            assert (", first " in text) == (action != straight)
            around += action != straight
            assert len(encoder.ids(text)) < MAX_ANSWER_TOKENS
    assert around, "nothing was in the way"


def mirror(words: str) -> str:
    swapped = {"left": "right", "right": "left"}
    return " ".join(swapped.get(word, word) for word in words.split(" "))


LEFT = ("search", "turn left large")


def one_view(action: str) -> RoomViews:
    """A view of which one action is by far the best; a search is a large turn to the left."""
    best = LEFT if action in LEFT else (action,)
    costs = np.where([each in best for each in ACTIONS], 1.0, 50.0)
    tried = [ACTIONS.index(each) for each in ("turn left small", "search")] + [-1, -1, -1, -1]
    views = (np.zeros((1, 8, 8, 3), np.uint8), np.zeros((1, 16, 16)), *[np.zeros((1, 8))] * 3)
    around = np.arange(18)[None] / 10
    places = np.array([[0.5, 2.0]]), np.array([[-0.25, 1.0]])
    taught = costs[None], around, *places, np.array([tried])
    return RoomViews(*views, np.array([0]), *taught)


def test_a_mirrored_view_has_what_is_told_of_the_other_side() -> None:
    view, metres = one_view("stop"), [str(n if n < 6 else n - n % 2) for n in range(18)]
    assert view.told(0, False) == (
        f"way right 14 1.0; free {' '.join(metres)}; seen left 29 2.0; not turn left small, search"
    )
    assert view.told(0, True) == (
        f"way left 14 1.0; free {' '.join([*metres[16::-1], metres[17]])}; seen right 29 2.0; "
        "not turn right small, search"
    )


@pytest.mark.parametrize("action", ACTIONS)
def test_a_mirrored_view_teaches_the_mirrored_action(action: str) -> None:
    view, rng = one_view(action), np.random.default_rng(0)
    plain, mirrored = ({view.action(0, m, rng) for _ in range(50)} for m in (False, True))
    assert plain == (set(LEFT) if action in LEFT else {action})
    right = {"turn right large"} if action in LEFT else {mirror(action)}
    assert mirrored == (set(LEFT) if "turn left large" in right else right)


def test_what_is_seen_before_its_place_was_told_is_gone_to() -> None:
    """The path of a first frame leads to where nobody has looked."""
    seen = 0
    for room in map(make_furnished, range(12)):
        with Driver(room, World(Scene(room)), np.random.default_rng(0)) as expert:
            look = expert.look(room.start)
        thing = visible(look.things).get(room.target)
        if thing is not None and best_action(thing) != "stop":
            assert look.right == best_action(thing)
            seen += 1
    assert seen > 2


def test_a_mirrored_view_of_nowhere_left_to_look_teaches_the_search() -> None:
    costs = costs_of(None, None, FREE, ("search",))
    view, rng = replace(one_view("search"), costs=costs[None]), np.random.default_rng(0)
    assert {view.action(0, True, rng) for _ in range(50)} == {"search"}


def test_views_of_an_earlier_version_are_refused(
    made: tuple[RoomViews, RoomViews], tmp_path: Path
) -> None:
    old = {name: value for name, value in vars(made[0]).items() if name != "path"}
    np.savez(tmp_path / "old.npz", arrived=np.array([1, 1]), **old)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"old.npz has no path: remove it"):
        views._read("old", [tmp_path / "old.npz"])


def test_what_was_tried_costs_more_and_is_told(tmp_path: Path) -> None:
    """A robot that cannot move is asked again and again where it stands."""
    room = make_furnished(0)
    with Driver(room, World(Scene(room)), np.random.default_rng(0)) as expert:
        taken = [expert(room.start) for _ in range(8)]
        rows = rows_of(expert)
    assert len(set(taken)) > 1, "it never tries anything else"
    told = [[ACTIONS[k] for k in row["tried"] if k >= 0] for row in rows]
    assert told == [taken[max(0, n - MOST_TRIED) : n] for n in range(8)]


def test_a_drive_without_a_navigator_goes_as_far_as_one_would_let_it() -> None:
    reach, rng, start = Reach(0.5, 0.1, 0.4, 0.2), np.random.default_rng(0), Pose(1.0, 2.0, 0.0)
    ends = [moved(start, "move forward large", reach, rng) for _ in range(200)]
    assert np.mean([end.x for end in ends]) == pytest.approx(1.5, abs=0.01)
    assert len({end.yaw for end in ends}) == 200
    turns = [moved(start, "turn left large", reach, rng).yaw for _ in range(200)]
    assert np.mean(turns) == pytest.approx(0.4, abs=0.02)


@each_base
def test_who_decides_sees_the_people_of_the_mission_where_they_are(name: str) -> None:
    room, walked = make_furnished(21000063, people=2), 0
    base, painter = make_base(name, room), Camera(Scene(room), "rays", VIEW_PX)
    with Driver(room, base, np.random.default_rng(0), painter) as player:
        for _ in range(4):
            x, y = base.data.mocap_pos[0, :2]
            yaw = math.atan2(y, x)
            pose = Pose(x - math.cos(yaw), y - math.sin(yaw), yaw)  # a metre before somebody
            near = np.array(player.look(pose).space.ranges)
            assert near[np.arange(-4, 5)].min() < 1.0
            shown, then = painter.render(eye_at(pose)), base.data.mocap_pos[0].copy()
            for _ in range(40):
                base.step(0.05)
            player.look(pose)
            if moved_away := np.abs(base.data.mocap_pos[0] - then).max() > 0.3:
                walked += 1
            changed = (painter.render(eye_at(pose)) != shown).any(-1).mean()
            assert (changed > 0.02) >= moved_away
    assert walked > 1


def test_people_walk_between_the_decisions_of_a_drive_where_its_lidar_sees_them() -> None:
    room = make_furnished(21000063, people=2)
    base = World(Scene(room))
    pose, before = base.pose, scan_from(room.start, base)
    with Driver(room, base, np.random.default_rng(0)) as expert:
        expert.wait(Pose(9.0, 9.0))
        assert np.abs(scan_from(room.start, base) - before).max() > 0.5
        before = base.data.mocap_pos.copy()
        drive([expert], np.random.default_rng(0), None)
    assert np.abs(base.data.mocap_pos - before).max() > 0.3 and base.pose == pose


def test_no_lesson_begins_in_a_person() -> None:
    rng = np.random.default_rng(0)
    for room in (make_furnished(seed, people=2) for seed in range(12)):
        for pose in (sample_pose(room, rng) for _ in range(60)):
            assert all(w.shape.distance(pose.x, pose.y) > 0.1 for w in room.walkers)


def test_a_model_goes_on_from_the_right_reason_alone_as_with_others() -> None:
    decider, rooms = Decider(load(EMBEDDED / "target", threads=1)), map(make_furnished, ROOMS[:3])
    looks: list[tuple[Look, Room]] = []
    for room in rooms:
        with Driver(room, World(Scene(room)), np.random.default_rng(0)) as one:
            looks += [(one.look(room.start), room), (one.look(replace(room.start, yaw=2.0)), room)]
    together = decider.completed(*map(list, zip(*looks, strict=True)))
    alone = [decider.completed([look], [room])[0] for look, room in looks]
    assert together == alone
    for (look, room), text in zip(looks, together, strict=True):
        assert text.startswith(look.reason(room.target)) and text.endswith(";")


def test_what_is_told_in_training_is_what_a_navigator_with_a_lidar_tells() -> None:
    for seed in ROOMS[:3]:
        world = World(Scene(make_furnished(seed)))
        space = free_space_of(world.pose, sight_of(world.pose, world, ROOM_ROBOT), ROOM_ROBOT)
        navigator, moment = Navigator(ROOM_ROBOT), 10**9
        navigator.on(Odometry(world.pose, moment), 1.0)
        navigator.on(Scan("scan", moment, rays=scanned_rays(world)), 1.0)
        shown = navigator.obstacles.free_space(1.0, around=True)
        assert space.say("{ways}; {around}") == shown.say("{ways}; {around}")
        assert shown.front == space.front is not None
        assert shown.body == space.body
        # a point between two directions may count to either
        equal = np.isclose(shown.ranges, space.ranges, atol=0.01, equal_nan=True)
        assert equal.mean() > 0.95


@pytest.fixture
def lessons(made: tuple[RoomViews, RoomViews]) -> command.RoomLessons:
    found = command.RoomLessons(made[0], torch.zeros(len(made[0]), 64, 3, 1), build_tokenizer())
    found.rooms, found.seen = made[0], (found.viewed, found.viewed)
    found.told.append(made[1])
    return found


@pytest.mark.parametrize("told", [False, True])
def test_it_learns_to_go_around_where_the_free_space_is_told_and_else_straight(
    told: bool, lessons: command.RoomLessons, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "UNTOLD_SHARE", 0.0 if told else 1.0)
    monkeypatch.setattr(command, "PLAIN_SHARE", 0.0)
    rng = np.random.default_rng(0)
    texts = [build_tokenizer().decode(lessons.question(rng)[0].ids) for _ in range(60)]
    assert all(text.split("\n")[1].startswith("way ") == told for text in texts)
    assert any(", first " in text for text in texts) == told


def test_without_a_picture_it_learns_the_action_and_is_given_the_reason(
    lessons: command.RoomLessons, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[ConversationRow] = []
    keep = SimpleNamespace(of=lambda some, *_: rows.extend(some))
    monkeypatch.setattr(command, "ConversationBatch", keep)
    lessons.conversations(40, np.random.default_rng(0))
    decode = build_tokenizer().decode
    for row in rows:
        asked, free, answer = decode(row.ids).split("\n")
        assert free.startswith("way ") and set(row.visual) == {-1} and asked
        learned = decode([i for i, weight in zip(row.ids, row.weights, strict=True) if weight])
        assert re.fullmatch(r"(, first \w+)?; action: [a-z ]+;<.im_end.>", learned), learned
        assert answer.endswith(learned)


def test_a_tuned_target_loads_and_a_second_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = SimpleNamespace(get_context=lambda _: multiprocessing.dummy)
    monkeypatch.setattr(rendered, "multiprocessing", here)
    monkeypatch.setattr(views, "ROOM_LESSON_S", 6.0)
    monkeypatch.setattr(driver, "DRIVE_ACTIONS", 3)
    few = ("--rooms", "1", "--told", "1", "--rollouts", "1", "--rounds", "1", "--views", "4")
    few = (*few, "--batch", "2")
    steps, minutes = 0, 0.001
    for _ in range(2):
        options = ("train", "rooms", "--minutes", str(minutes), "--out", str(tmp_path), *few)
        assert main([*options, "--threads", "1"]) == 0
        state = torch.load(tmp_path / "target" / "tuning.pt", weights_only=True)
        assert state["steps"] > steps
        steps, minutes = state["steps"], state["spent"] / 60 + 0.001
    names = {path.name for path in (EMBEDDED / "target").iterdir()}
    made = {path.name for path in (tmp_path / "target").iterdir()}
    assert made == names - {"exits"} | {"tuning.pt"}
    weights = [(at / "target" / command.WEIGHTS).stat().st_size for at in (EMBEDDED, tmp_path)]
    assert abs(weights[0] - weights[1]) < 1000, "no larger than what it is to replace"
    model = load(tmp_path / "target", threads=1)
    (ids,) = greedy_answers(model, [sample_requests(0, 1)[0]], model.spec(8))
    assert ids


@pytest.mark.parametrize(
    "options", [("--rooms", "0"), ("--minutes", "nan"), ("--pair", "nowhere"), ("--batch", "1")]
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_rendered(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "rooms", "--out", str(tmp_path / "new"), *options]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_rooms_in_which_nobody_decides_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "rooms", "--players", "--scenes", "1"]) == 2
    assert capsys.readouterr().err.endswith("give --players who decide, or a --target\n")
