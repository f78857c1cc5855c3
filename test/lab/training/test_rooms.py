"""Training in furnished rooms: an expert that goes around what is in the way, and what it
teaches."""

from __future__ import annotations

import multiprocessing.dummy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from edge_cloud_spec.cli import main
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.load import load
from edge_cloud_spec.nav.answer import ORDERS, action_of
from edge_cloud_spec.nav.events import Odometry, Scan
from edge_cloud_spec.nav.footprint import ObstacleSettings
from edge_cloud_spec.nav.navigator import Navigator
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.nav.status import WAYS
from edge_cloud_spec_lab.bench.requests import sample_requests
from edge_cloud_spec_lab.sim.bases import free_space_of, scanned_rays
from edge_cloud_spec_lab.sim.camera import Camera, eye_at
from edge_cloud_spec_lab.sim.furniture import make_furnished
from edge_cloud_spec_lab.sim.reach import thing_in_front
from edge_cloud_spec_lab.sim.room import Room
from edge_cloud_spec_lab.sim.scene import Scene
from edge_cloud_spec_lab.sim.view import visible_things
from edge_cloud_spec_lab.sim.world import World
from edge_cloud_spec_lab.training import rendered
from edge_cloud_spec_lab.training.flats.conversations import ConversationRow
from edge_cloud_spec_lab.training.rooms import command, views
from edge_cloud_spec_lab.training.rooms.expert import RoomExpert, carried_out
from edge_cloud_spec_lab.training.rooms.views import RoomViews, make_room_views
from edge_cloud_spec_lab.training.tiny.data import QuestionEncoder
from edge_cloud_spec_lab.training.tiny.evaluation import MAX_ANSWER_TOKENS, greedy_answers
from edge_cloud_spec_lab.training.tiny.language import best_action, pieces, visible
from edge_cloud_spec_lab.training.tiny.tokenizer import build_tokenizer

ROOMS = (0, 2, 3, 6, 7, 8)


def arrives(room: Room, expert: RoomExpert, *, straight: bool) -> bool:
    """Whether a robot gets to the target by the expert's actions, or ``straight`` by those that
    nothing in the way changes."""
    rng, pose, blocked = np.random.default_rng(room.seed), room.start, 0
    with Camera(Scene(room), "rays", 32) as camera:
        for _ in range(40):
            eye = eye_at(pose)
            seen = visible(visible_things(room, eye, camera.segment(eye)))
            action = best_action(seen.get(room.target))
            action = action if straight else expert.decide(pose, room.target, seen)
            if action == "stop":
                return thing_in_front(room, pose) == room.target
            pose, there = carried_out(expert, pose, room.target, action, rng)
            blocked = 0 if there else blocked + 1
            if blocked == 3:
                return False
    return False


def test_the_expert_arrives_where_straight_on_something_is_in_the_way() -> None:
    found = {True: 0, False: 0}
    for room in map(make_furnished, ROOMS):
        expert = RoomExpert(room)
        for straight in found:
            found[straight] += arrives(room, expert, straight=straight)
    assert found[False] >= len(ROOMS) - 1 > found[True] + 1


def test_what_it_does_where_nothing_is_in_the_way_is_what_it_was_taught_before() -> None:
    room = make_furnished(0)
    target = room.thing(room.target)
    expert = RoomExpert(room.__class__(**{**vars(room), "things": (target,), "furniture": ()}))
    actions = set()
    with Camera(Scene(expert.room), "rays", 64) as camera:
        for x in np.linspace(-1.5, target.x - 1.0, 5):
            for yaw in (-0.4, 0.0, 0.3, 2.0):
                pose = Pose(float(x), target.y, yaw)
                eye = eye_at(pose)
                seen = visible(visible_things(expert.room, eye, camera.segment(eye)))
                action = expert.decide(pose, target.name, seen)
                assert action == best_action(seen.get(target.name))
                actions.add(action)
    assert len(actions) > 3


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> RoomViews:
    """What the drafter saw on its way through a room or two."""
    here = SimpleNamespace(get_context=lambda _: multiprocessing.dummy)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rendered, "multiprocessing", here)
        patched.setattr(views, "MOST_ROOM_FRAMES", 6)
        folder = tmp_path_factory.mktemp("driven")
        return make_room_views(folder, 3, 2, 1, EMBEDDED / "drafter")


def test_what_a_view_teaches_is_the_action_and_what_is_done_first(driven: RoomViews) -> None:
    encoder, around = QuestionEncoder(build_tokenizer()), 0
    assert len(driven) >= 6
    for index in range(len(driven)):
        for mirrored in (False, True):
            name, action = driven.target(index), driven.action(index, mirrored)
            things = driven.things(index, mirrored)
            text = "".join(piece.text for piece in pieces(things, name, ORDERS[0], action))
            assert str(action_of(text)) == action
            straight = best_action(visible(things).get(name))
            assert (", first " in text) == (action != straight)
            around += action != straight
            assert len(encoder.ids(text)) < MAX_ANSWER_TOKENS
    assert around, "nothing was in the way"


def test_a_mirrored_view_has_the_free_space_of_the_other_side(driven: RoomViews) -> None:
    told = [driven.space(index, False) for index in range(len(driven))]
    swapped = {"left": "right", "right": "left"}
    for index, space in enumerate(told):
        ways = dict(way.split(" ", 1) for way in space.split(", "))
        assert list(ways) == list(WAYS) and "not seen" not in space
        mirrored = dict(way.split(" ", 1) for way in driven.space(index, True).split(", "))
        assert mirrored == {swapped.get(way, way): far for way, far in ways.items()}
    assert len(set(told)) > 1


def test_what_is_told_in_training_is_what_a_navigator_with_a_lidar_tells() -> None:
    settings = NavigatorSettings(obstacles=ObstacleSettings(scan="scan"))
    for seed in ROOMS[:3]:
        world = World(Scene(make_furnished(seed)))
        space = free_space_of(world.pose, world, settings)
        navigator, moment = Navigator(settings), 10**9
        navigator.on(Odometry(world.pose, moment), 1.0)
        navigator.on(Scan("scan", moment, rays=scanned_rays(world)), 1.0)
        assert space.words == navigator.obstacles.free_space(1.0).words


@pytest.mark.parametrize("told", [False, True])
def test_it_learns_to_go_around_where_the_free_space_is_told_and_else_straight(
    told: bool, driven: RoomViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "UNTOLD_SHARE", 0.0 if told else 1.0)
    lessons = command.RoomLessons(driven, torch.zeros(0))
    pictures = torch.zeros(len(driven), 64, 3, 1)
    lessons.rooms, lessons.seen = (driven,), ((pictures, pictures),)
    rows: list[ConversationRow] = []
    keep = SimpleNamespace(of=lambda some, *_: rows.extend(some))
    monkeypatch.setattr(command, "ConversationBatch", keep)
    lessons.conversations(60, np.random.default_rng(0))
    texts = [build_tokenizer().decode(row.ids) for row in rows]
    assert all(("ahead" in text.split("\n")[1]) == told for text in texts)
    assert any(", first " in text for text in texts) == told


def test_a_tuned_target_loads_and_a_second_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = SimpleNamespace(get_context=lambda _: multiprocessing.dummy)
    monkeypatch.setattr(rendered, "multiprocessing", here)
    monkeypatch.setattr(views, "MOST_ROOM_FRAMES", 3)
    few = ("--rooms", "1", "--rollouts", "1", "--rounds", "1", "--views", "4", "--batch", "2")
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
