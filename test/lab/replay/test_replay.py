"""What of a bag is replayed, and how it is played."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from geometry_msgs.msg import Twist
from helpers.bags import changed, make_bag
from helpers.cloud.grpc_cloud import Cloud, until
from helpers.cloud.served_answers import worker_of
from helpers.graph.nodes_here import replay_here
from helpers.graph.ros_domain import ros_domain
from helpers.run_bag import KINDS
from rclpy.node import Node
from rosbags.rosbag2 import StoragePlugin
from std_msgs.msg import String

from edge_cloud_spec.cli import main
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.image import decode_image
from edge_cloud_spec.msg import NavStatus, VerifiedTokens
from edge_cloud_spec.nav.status import STOPPED
from edge_cloud_spec.nodes.runtime.node_thread import NodeThread
from edge_cloud_spec.nodes.topics import TOPICS
from edge_cloud_spec.observe.topic_bag import subscribe
from edge_cloud_spec_lab.replay import player
from edge_cloud_spec_lab.replay.difference import dialect_of, history_of
from edge_cloud_spec_lab.replay.player import NAMESPACE
from edge_cloud_spec_lab.replay.recording import (
    CAMERAS,
    RUN_TOPICS,
    Choice,
    choose_topics,
    read_recording,
)
from edge_cloud_spec_lab.running.observer import Observer
from edge_cloud_spec_lab.running.run_log import RunLog

COMPRESSED, RAW = CAMERAS.values()
FOREIGN = {"storage": "sqlite3", "namespace": "robot1", "raw": "bgr8"}
TEXT = RUN_TOPICS["instruction"]

pytest.importorskip("rclpy")
pytest.importorskip("mujoco")
pytest.importorskip("rosbags")


pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "target").is_dir(), reason="the embedded pair is not in this checkout"
)


@pytest.fixture(scope="module", autouse=True)
def nodes() -> Iterator[int]:
    """Bridge, drafter and a verifier in this process, for all replays of this module; prompts
    remember frames. One test starts them as a user does."""
    with ros_domain() as domain, Cloud(worker_of()) as cloud, replay_here(cloud.address, 2):
        yield domain


def replay(bag: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    out = bag.parent / "replay.json"
    out.unlink(missing_ok=True)
    status = main(["replay", str(bag), "--attach", "--json", str(out), *options])
    return status, json.loads(out.read_text())["rows"] if out.exists() else []


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bag(tmp_path_factory.mktemp("bag") / "plain")


@pytest.fixture(scope="module")
def recorded(nodes: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The decisions on a foreign bag (sqlite3, namespaced, raw), recorded beside it."""
    folder = tmp_path_factory.mktemp("replay")
    foreign = make_bag(folder / "foreign", seconds=2.0, **FOREIGN)
    sampled = ("--rule", "coupled", "--temperature", "1.5", "--seed", "7")
    status, rows = replay(foreign, "--out", str(folder / "recorded"), *sampled)
    assert status == 0 and len(rows) == 2
    assert all(row["replayed"] and row["recorded"] is None for row in rows)
    return folder / "recorded"


def test_new_decisions_are_recorded_and_nodes_of_its_own_replay_them_to_equal_ones(
    recorded: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They remember as many frames: a bag of history:=8 was once replayed without."""
    for name in ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE"):
        monkeypatch.setenv(name, os.environ[name])  # its graph sets its own
    again = tmp_path / "again"
    assert main(["replay", str(recorded), "--out", str(again)]) == 0
    assert "2 of 2 decisions are the recorded ones" in capsys.readouterr().out
    recording = read_recording(recorded)
    assert dialect_of(recording.run_log) == "clauses" and dialect_of(RunLog()) == ""
    assert {task.parameters["rule"] for task in recording.tasks} == {"coupled"}
    assert [task.parameters["first_decision"] for task in recording.tasks] == [0, 1]
    was, now = (
        [task.recorded.remembered for task in tasks if task.recorded]
        for tasks in (recording.tasks, read_recording(again).tasks)
    )
    assert was == now and max(was) > 0
    assert [task.begins for task in recording.tasks] == [count == 0 for count in was]


@pytest.mark.parametrize(
    ("noted", "frames"),
    [({"history": 8}, 8), ({"history": 0}, 0), ({}, -1), ({"history": "8"}, -1), ([], -1)]
    + [({"history": wrong}, -1) for wrong in (-3, 10**9, None, 2.0)],
)
def test_how_many_frames_a_run_remembered_is_read_or_unknown(noted: object, frames: int) -> None:
    run_log = RunLog()
    run_log.run_info = json.dumps(noted)
    assert history_of(run_log) == frames


def test_the_first_difference_is_said_with_its_place_and_its_reason(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, rows = replay(recorded, "--rule", "greedy")
    said = capsys.readouterr().out
    differing = [row for row in rows if not row["equal"]]
    assert status == 1 and differing
    first = differing[0]
    assert f"decision {first['number']}, picture {first['frame']}" in said
    assert f"they part at token {first['token']}" in said
    assert "rule is greedy, and was coupled" in first["why"]


def flip(message: Any) -> None:
    message.data = message.data.copy()
    message.data[message.data.size // 2] ^= 1


def forge(message: Any) -> None:
    """The second decision said something else, as another model would have."""
    if message.header.stamp.sec % 10 == 1 and message.position == 0:
        message.tokens = np.array(message.tokens) ^ 1
        message.answer = message.answer.replace("action", "noitca")


def test_words_that_differ_without_a_known_reason_are_not_taken_for_equal(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, rows = replay(changed(recorded, tmp_path / "forged", forge, "verified_tokens"))
    assert status == 1 and [row["equal"] for row in rows].count(False) == 1
    assert "nothing that the bag knows of differs" in capsys.readouterr().out


def rename_target(message: Any) -> None:
    """In the cloud's first answer of a run, and in what the drafter says of it."""
    if hasattr(message, "payload"):
        named = re.sub(rb"(?<=qwen3_vl:).{8}", b"0" * 8, message.payload.tobytes())
        message.payload = np.frombuffer(named, np.uint8)
    else:
        message.data = re.sub('(?<="target": "qwen3_vl:)', "00000000", message.data)


def test_another_target_is_refused_before_anything_is_decided(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = changed(recorded, tmp_path / "other", rename_target, ("verdict", "run_info"))
    assert main(["replay", str(copy)]) == 2
    said = capsys.readouterr().err
    assert "was recorded with the target qwen3_vl:00000000" in said and "--target" in said
    status, _ = replay(copy)
    assert "and was qwen3_vl:00000000" in capsys.readouterr().out
    assert status == 0  # the words are equal all the same


def test_a_picture_other_than_the_one_decided_on_is_damage(recorded: Path, tmp_path: Path) -> None:
    """sqlite3 has no checksums; the decision's own copy of its picture tells."""
    copy = changed(
        recorded, tmp_path / "flipped", flip, "compressed", storage=StoragePlugin.SQLITE3
    )
    with pytest.raises(UserError, match="was made on another picture than picture 1"):
        read_recording(copy)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--every", "nan"), "--every is 0 seconds or more, not nan"),
        (("--json", "/nowhere/x.json"), "/nowhere/x.json cannot be written"),
        (("--attach", "--target", "x"), "--attach plays to nodes that run"),
        (("--attach", "--dialect", "x"), "no --cloud, --target, --drafter or --dialect"),
        (("--cloud", "127.0.0.1:1", "--target", "x"), "--cloud names a verifier that runs"),
    ],
)
def test_what_cannot_be_is_said_before_the_bag_is_read(
    options: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(tmp_path / "no bag"), *options]) == 2
    errors = capsys.readouterr().err
    assert said in errors and errors.count("\n") == 1


def test_an_instruction_that_the_models_do_not_know_is_one_sentence(
    nodes: int, bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(bag, "--say", "sing a song", "--out", str(tmp_path / "out"))[0] == 2
    said = capsys.readouterr().err
    assert said.startswith("error: the drafter refuses 'sing a song'") and said.count("\n") == 1


@contextmanager
def bystander(name: str, domain: int) -> Iterator[tuple[Node, list[str]]]:
    """A node beside the replay, and the instructions that it has heard."""
    thread, heard = NodeThread(name, NAMESPACE, domain), list[str]()
    thread.node.create_subscription(String, "instruction", lambda m: heard.append(m.data), 10)
    thread.start()
    yield thread.node, heard
    thread.close()


MOVERS: dict[str, Callable[[Node], object]] = {
    "nav_status": lambda node: node.create_publisher(NavStatus, "nav_status", 10),
    "verified_tokens": lambda node: node.create_publisher(VerifiedTokens, "verified_tokens", 10),
    "cmd_vel": lambda node: node.create_publisher(Twist, "cmd_vel", 10),
}


@pytest.mark.parametrize("mover", [*MOVERS, "navigator"])
def test_a_replay_where_something_could_move_says_nothing_and_ends(
    mover: str,
    nodes: int,
    bag: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(player, "LISTEN", 60.0)  # however long a loaded machine takes to find it
    with bystander("navigator" if mover == "navigator" else "other", nodes) as (node, heard):
        MOVERS.get(mover, lambda node: None)(node)
        status, rows = replay(bag, "--say", "find the blue box", "--out", str(tmp_path / "out"))
    assert (status, rows, heard) == (1, [], [])
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("a replay moves nothing, and in /replay something could move: ")
    assert mover in said


def _state(run_log: RunLog) -> str:
    return run_log.instruction_status.state if run_log.instruction_status else ""


def _interrupt(node: Node) -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("every", "at_first_words", "ends_with", "decisions"),
    [("0", MOVERS["cmd_vel"], 1, 0), ("0", _interrupt, 130, 0), ("2", lambda node: None, 0, 2)],
    ids=["somebody comes", "interrupted", "played to its end"],
)
def test_a_replay_takes_its_instruction_back_however_it_ends_and_no_robot_hears_of_it(
    every: str,
    at_first_words: Callable[[Node], object],
    ends_with: int,
    decisions: int,
    nodes: int,
    bag: Path,
    tmp_path: Path,
) -> None:
    began, said = list[str](), list[str]()
    options = ("--say", "find the blue box", "--every", every, "--out", str(tmp_path / "out"))
    robot = NodeThread("robot", domain=nodes)
    subscribe(robot.node, lambda topic, *_: said.append(topic), set(TOPICS) - {"/diagnostics"})
    robot.start()
    with bystander("other", nodes) as (node, heard), Observer(nodes, None, NAMESPACE) as observer:

        def on_words(message: VerifiedTokens) -> None:
            if message.position == 0 and not began:
                began.append(message.request_id)
                at_first_words(node)

        node.create_subscription(VerifiedTokens, "verified_tokens", on_words, 10)
        status, rows = replay(bag, *options)
        assert (status, len(rows)) == (ends_with, decisions) and began
        assert not rows or re.match("action: .*blue box", rows[0]["replayed"])
        until(lambda: heard[-1:] == ["stop"] and observer.read(_state) == STOPPED)
    robot.close()
    assert heard[0] == "find the blue box" and not said


def run_of(namespace: str) -> dict[str, str]:
    topics = ("camera/image_raw/compressed", "instruction", "verified_tokens", "decode_request")
    return {f"{namespace}/{topic}": KINDS[topic] for topic in topics}


def test_topics_are_found_in_any_namespace_and_by_their_type() -> None:
    assert choose_topics(run_of(""), Choice())["verified_tokens"] == "/verified_tokens"
    found = choose_topics(run_of("/robot1"), Choice())
    assert found["camera"] == "/robot1/camera/image_raw/compressed"
    assert found["instruction"] == "/robot1/instruction"
    two = run_of("/robot1") | run_of("/robot2") | {"/map/odom": "nav_msgs/msg/Odometry"}
    second = choose_topics(two, Choice(namespace="/robot2"))
    assert second["camera"] == "/robot2/camera/image_raw/compressed"
    assert second["verified_tokens"] == "/robot2/verified_tokens"
    foreign = {"/front/rgb": RAW, "/image_annotated/compressed": COMPRESSED, "/say": TEXT}
    assert choose_topics(foreign, Choice()) == {"camera": "/front/rgb"}
    named = choose_topics(foreign, Choice(camera="front/rgb", instruction="/say"))
    assert named == {"camera": "/front/rgb", "instruction": "/say"}


@pytest.mark.parametrize(
    ("types", "choice", "sentence"),
    [
        ({"/a": RAW, "/b": RAW}, Choice(), "--camera must name a topic"),
        ({"/a": RAW}, Choice(camera="/c"), "the bag has /a"),
        ({"/a": RAW, "/s": TEXT}, Choice(camera="/s"), "the bag has /a"),
        ({"/a": RAW, "/s": TEXT}, Choice(instruction="/a"), "--instruction must name a topic of"),
        ({"/verdict": TEXT}, Choice(), "the edge_cloud_spec that recorded it"),
        (run_of("/a") | run_of("/b"), Choice(), "several robots, choose one: --namespace a, b"),
        (run_of("/a"), Choice(namespace="b"), "none of the graph's topics under /b"),
    ],
)
def test_a_topic_that_cannot_be_meant_is_refused(
    types: dict[str, str], choice: Choice, sentence: str
) -> None:
    with pytest.raises(UserError) as raised:
        choose_topics(types, choice)
    assert sentence in str(raised.value)


def test_every_storage_name_and_encoding_gives_the_same_tasks(bag: Path, tmp_path: Path) -> None:
    plain = read_recording(bag)
    assert len(plain.tasks) == 4 and plain.frames == 20 and not plain.compares
    assert [task.frame for task in plain.tasks] == [1, 6, 11, 16]
    for number, options in enumerate(
        (FOREIGN, {"raw": "rgb8"}, {"raw": "mono8", "camera": "/front/rgb"})
    ):
        other = read_recording(make_bag(tmp_path / str(number), **options))
        assert [(t.frame, t.stamp, t.instruction) for t in other.tasks] == [
            (t.frame, t.stamp, t.instruction) for t in plain.tasks
        ]
        for ours, theirs in zip(plain.tasks, other.tasks, strict=True):
            pictures = [np.asarray(decode_image(t.jpeg), float) for t in (ours, theirs)]
            if options.get("raw") == "mono8":
                pictures = [pictures[0][..., :1], pictures[1][..., :1]]
            assert abs(pictures[0] - pictures[1]).mean() < 6, options


def test_an_instruction_of_ones_own_and_how_often_to_decide(bag: Path, tmp_path: Path) -> None:
    silent = make_bag(tmp_path / "silent", instruction="")
    with pytest.raises(UserError, match=r"has no instruction: give one, as in --say"):
        read_recording(silent)
    tasks = read_recording(silent, Choice(say="find the red chair", every=0.0)).tasks
    assert len(tasks) == 20 and {task.instruction for task in tasks} == {"find the red chair"}
    said = read_recording(bag, Choice(say="find the red chair", every=2.0)).tasks
    assert [task.frame for task in said] == [1, 11]


def test_what_a_bag_lacks_is_said(bag: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no camera"):
        read_recording(changed(bag, tmp_path / "blind", only="instruction"))
    stopped = make_bag(tmp_path / "stopped", instruction="stop", seconds=0.5)
    with pytest.raises(UserError, match="no picture while an instruction was followed"):
        read_recording(stopped)


def test_pictures_whose_stamps_stand_still_are_told_apart(bag: Path, tmp_path: Path) -> None:
    def freeze(message: Any) -> None:
        message.header.stamp.sec, message.header.stamp.nanosec = 7, 0

    tasks = read_recording(changed(bag, tmp_path / "frozen", freeze, "compressed")).tasks
    assert len({task.stamp for task in tasks}) == len(tasks) == 4


def test_a_picture_that_is_damaged_is_named_and_not_decided_on(bag: Path, tmp_path: Path) -> None:
    """As of a live camera: the next one is decided on."""
    pictures = iter(range(20))

    def cut(message: Any) -> None:
        if next(pictures) in (0, 6):
            message.data = message.data[:400]

    def clear(message: Any) -> None:
        message.data = message.data[:0]

    recording = read_recording(changed(bag, tmp_path / "cut", cut, "compressed"))
    assert [task.frame for task in recording.tasks] == [2, 8, 13, 18]
    assert re.search("picture 1 of .* cannot be used: .* damaged", recording.problem)
    assert read_recording(bag).problem == ""
    with pytest.raises(UserError, match=r"picture 1 of .*: the picture is empty"):
        read_recording(changed(bag, tmp_path / "empty", clear, "compressed"))


def test_of_two_cameras_one_is_chosen_by_its_name_alone() -> None:
    two = {f"/{side}/camera/image_raw": RAW for side in ("left", "right")}
    assert choose_topics(two, Choice(camera="/left/camera/image_raw")) == {
        "camera": "/left/camera/image_raw"
    }
    assert choose_topics(two, Choice(namespace="right")) == {"camera": "/right/camera/image_raw"}


def test_a_bag_without_a_camera_says_what_it_has(bag: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="; it has /instruction of std_msgs/msg/String"):
        read_recording(changed(bag, tmp_path / "blind", only="instruction"))
