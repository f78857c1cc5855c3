"""What a bag asks of the nodes: any camera and instruction; what is missing is one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("mujoco")
pytest.importorskip("rosbags")
from helpers.bags import changed, make_bag

from edge_cloud_spec.cli import main
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.image import decode_image
from edge_cloud_spec.replay.recording import (
    COMPRESSED,
    RAW,
    TEXT,
    Choice,
    choose_topics,
    read_recording,
)

OURS = {
    "verified_tokens": "edge_cloud_spec/msg/VerifiedTokens",
    "decode_request": "edge_cloud_spec/msg/DecodeRequest",
}


def run_of(namespace: str) -> dict[str, str]:
    return {
        f"{namespace}/camera/image_raw/compressed": COMPRESSED,
        f"{namespace}/instruction": TEXT,
        **{f"{namespace}/{name}": kind for name, kind in OURS.items()},
    }


def test_topics_are_found_in_any_namespace_and_by_their_type() -> None:
    assert choose_topics(run_of("")).run["verified_tokens"] == "/verified_tokens"
    found = choose_topics(run_of("/robot1"))
    assert found.camera == "/robot1/camera/image_raw/compressed" and found.has_decisions
    assert found.instruction == "/robot1/instruction"
    two = run_of("/robot1") | run_of("/robot2")
    with pytest.raises(UserError, match="choose one with --camera"):
        choose_topics(two)
    second = choose_topics(two, "robot2/camera/image_raw/compressed")
    assert second.instruction == "/robot2/instruction"
    assert second.run["verified_tokens"] == "/robot2/verified_tokens"
    foreign = {"/front/rgb": RAW, "/image_annotated/compressed": COMPRESSED, "/say": TEXT}
    assert choose_topics(foreign).camera == "/front/rgb" and choose_topics(foreign).is_raw
    assert choose_topics(foreign, instruction="/say").instruction == "/say"
    assert choose_topics(foreign).instruction == ""


@pytest.mark.parametrize(
    ("types", "options", "sentence"),
    [
        ({"/a": RAW, "/b": RAW}, {}, "has 2 such topics (/a, /b): choose one with --camera"),
        ({"/a": RAW}, {"camera": "/c"}, "no messages on /c"),
        ({"/a": RAW, "/s": TEXT}, {"camera": "/s"}, "holds std_msgs/msg/String; --camera takes"),
        ({"/a": RAW, "/s": TEXT}, {"instruction": "/a"}, "--instruction takes std_msgs"),
        ({"/verdict": TEXT}, {}, "not what our nodes publish"),
    ],
)
def test_a_topic_that_cannot_be_meant_is_refused(
    types: dict[str, str], options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(UserError) as raised:
        choose_topics(types, **options)
    assert sentence in str(raised.value)


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bag(tmp_path_factory.mktemp("bag") / "plain")


def test_every_storage_name_and_encoding_gives_the_same_tasks(bag: Path, tmp_path: Path) -> None:
    plain = read_recording(bag)
    assert len(plain.tasks) == 4 and plain.frames == 20 and not plain.compares
    assert [task.frame for task in plain.tasks] == [1, 6, 11, 16]
    for number, options in enumerate(
        (
            {"storage": "sqlite3"},
            {"namespace": "robot1"},
            {"raw": "rgb8"},
            {"raw": "bgr8", "namespace": "robot1", "storage": "sqlite3"},
            {"raw": "mono8", "camera": "/front/rgb"},
        )
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


def only(topic: str) -> Any:
    return lambda name, message: message if name == topic else None


def test_what_a_bag_lacks_is_said(bag: Path, tmp_path: Path) -> None:
    for topic, sentence in (
        ("instruction", "has no camera"),
        ("camera/image_raw/compressed", "has no instruction"),
    ):
        part = changed(bag, tmp_path / topic.replace("/", "_"), only(topic))
        with pytest.raises(UserError, match=sentence):
            read_recording(part)

    def stopped(name: str, message: Any) -> Any:
        if name == "instruction":
            message.data = "stop"
        return message

    with pytest.raises(UserError, match="no picture while an instruction was followed"):
        read_recording(changed(bag, tmp_path / "stopped", stopped))


def test_pictures_whose_stamps_stand_still_are_told_apart(bag: Path, tmp_path: Path) -> None:
    def frozen(name: str, message: Any) -> Any:
        if hasattr(message, "header"):
            message.header.stamp.sec, message.header.stamp.nanosec = 7, 0
        return message

    tasks = read_recording(changed(bag, tmp_path / "frozen", frozen)).tasks
    assert len({task.stamp for task in tasks}) == len(tasks) == 4


def test_a_picture_that_is_damaged_is_named_and_not_decided_on(bag: Path, tmp_path: Path) -> None:
    """In a bag without checksums: the block is zero, the file is whole."""

    def damaged(name: str, message: Any) -> Any:
        if name.startswith("camera") and message.header.stamp.nanosec == 100_000_000:
            message.data = message.data.copy()
            message.data[-2000:-1000] = 0
        return message

    copy = changed(bag, tmp_path / "zeroed", damaged)
    with pytest.raises(UserError, match=r"picture 1 of .* a block of its bytes is zero"):
        read_recording(copy)
    assert main(["replay", str(copy)]) == 2

    def empty(name: str, message: Any) -> Any:
        if name.startswith("camera"):
            message.data = message.data[:0]
        return message

    with pytest.raises(UserError, match="the camera frame is empty"):
        read_recording(changed(bag, tmp_path / "empty", empty))
