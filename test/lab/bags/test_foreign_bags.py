"""Bags as other people have them: what is wanted is read, whatever else is there."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("rosbags")
from backports import zstd
from helpers.mcap_file import (
    block,
    channel,
    chunk,
    in_parts,
    message,
    record,
    schema,
    text,
    write_mcap,
)
from helpers.run_bag import KINDS, cdr_of
from hypothesis import given
from hypothesis import strategies as st
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.observe.bag_writer import types
from edge_cloud_spec_lab.bags.bag import Bag
from edge_cloud_spec_lab.bags.topics import robot_topics

TEXTS = [f"find the bottle {number}" for number in range(24)]
CDR = [cdr_of("instruction", {"data": each}) for each in TEXTS]
NAME = schema(1, KINDS["instruction"], "ros2msg", b"string data\n") + channel(1, 1, "/instruction")


def read(bag: Path) -> list[tuple[int, str]]:
    return [(at, message.data) for at, _, message in Bag(bag).read({"": "/instruction"})]


WHOLE = list(enumerate(TEXTS, 1))
FOREIGN = st.tuples(  # of a schema and a channel: names, encodings, a definition, a message
    st.text(max_size=20),
    st.sampled_from(("ros2msg", "ros2idl", "omgidl", "protobuf", "jsonschema", "unknown", "", "x")),
    st.binary(max_size=60),
    st.sampled_from(("cdr", "protobuf", "json", "ros1", "")),
    st.binary(max_size=40),
    st.sampled_from(("/foreign", "/e_stop", "/verdict", "/_service_event", "/a/instruction")),
)


@given(
    foreign=st.lists(FOREIGN, max_size=3),
    other=st.sampled_from((b"", record(16, b"later"), record(0x80, b"own"), record(9, bytes(50)))),
    padding=st.sampled_from((b"", b"\1\2\3")),
    order=st.permutations(range(len(TEXTS))),
    size=st.sampled_from((1, 5, 100)),
    compression=st.sampled_from((None, "", "zstd", "lz4")),
    name=st.sampled_from(("std_msgs/msg/String", "std_msgs/String")),
    definition=st.sampled_from((b"string data\n", b"", b"no definition")),
    profile=st.sampled_from((b"ros2", b"", b"x")),
    index=st.sampled_from((b"", record(11, bytes(46)), record(8, bytes(80)))),
)
def test_an_mcap_is_read_whatever_else_is_in_it_and_however_it_is_laid_out(
    tmp_path_factory: pytest.TempPathFactory,
    foreign: list[tuple[str, str, bytes, str, bytes, str]],
    other: bytes,
    padding: bytes,
    order: list[int],
    size: int,
    compression: str | None,
    name: str,
    definition: bytes,
    profile: bytes,
    index: bytes,
) -> None:
    records = [message(CDR[number], number + 1) for number in order]
    for number, (kind, of, defined, encoding, data, topic) in enumerate(foreign, 2):
        kind = kind if topic == "/foreign" or kind else "my/msg/Type"
        records.insert(
            0, schema(number, kind, of, defined) + channel(number, number, topic, encoding)
        )
        records.insert(9, message(data, 5, number))
    ours = schema(1, name, "ros2msg", definition) + channel(1, 1, "/instruction")
    empty = chunk(b"") + block(b"", 0, b"zstd") + block(b"", 0, b"lz4") + chunk(b"", "zstd")
    content = ours + other + in_parts(records, size, compression) + empty
    path = tmp_path_factory.mktemp("bag") / "bag.mcap"
    assert read(write_mcap(path, content + other, index, profile=profile + padding)) == WHOLE


def whole_mcap(path: Path, texts: range = range(len(TEXTS)), compression: str = "") -> Path:
    records = [message(CDR[number], number + 1) for number in texts]
    return write_mcap(path, NAME + in_parts(records, 5, compression))


def test_a_changed_byte_of_a_message_is_damage_in_every_layout(tmp_path: Path) -> None:
    """The negative control: what is passed over is what nobody wants."""
    for compression in ("", "zstd", "lz4"):
        file = whole_mcap(tmp_path / "bag.mcap", compression=compression)
        data = bytearray(file.read_bytes())
        at = data.index(b"bottle 7") if not compression else data.rindex(compression.encode()) + 40
        data[at] ^= 1
        file.write_bytes(data)
        with pytest.raises(UserError, match=r"bag\.mcap cannot be read: "):
            read(file)
    unknown = write_mcap(tmp_path / "x.mcap", NAME + message(CDR[0], 1, 7))
    assert read(unknown) == []


def write(
    folder: Path, storage: StoragePlugin, mode: CompressionMode = CompressionMode.NONE
) -> Path:
    writer = Writer(folder, version=9, storage_plugin=storage)
    writer.set_compression(mode, CompressionFormat.ZSTD)
    with writer:
        topic = writer.add_connection("/instruction", KINDS["instruction"], typestore=types())
        for stamp, cdr in enumerate(CDR, 1):
            writer.write(topic, stamp, cdr)
    return folder


@pytest.mark.parametrize("storage", list(StoragePlugin))
@pytest.mark.parametrize("mode", list(CompressionMode))
def test_every_compression_of_rosbag2_is_read_with_its_metadata_or_without(
    storage: StoragePlugin, mode: CompressionMode, tmp_path: Path
) -> None:
    if (storage, mode) == (StoragePlugin.SQLITE3, CompressionMode.STORAGE):
        pytest.skip("sqlite3 has none")
    bag = write(tmp_path / "bag", storage, mode)
    assert read(bag) == WHOLE
    for content in ("", "[", "rosbag2_bagfile_information: {relative_file_paths: 7}"):
        (bag / "metadata.yaml").write_text(content)
        assert read(bag) == WHOLE
    (bag / "metadata.yaml").unlink()
    assert read(bag) == WHOLE
    (file,) = bag.iterdir()
    assert read(file.rename(bag / "renamed")) == WHOLE


def test_the_parts_of_a_split_bag_are_read_in_their_order_and_a_missing_one_is_named(
    tmp_path: Path,
) -> None:
    bag = tmp_path / "bag"
    bag.mkdir()
    files = [whole_mcap(bag / f"bag_{at}.mcap", range(2 * at, 2 * at + 2)) for at in range(12)]
    assert read(bag) == WHOLE, "10 comes after 9"
    named = "\n".join(f"  - some/where/{file.name}" for file in files)
    noted = f"rosbag2_bagfile_information:\n  version: 3\n  relative_file_paths:\n{named}\n"
    (bag / "metadata.yaml").write_text(noted)
    assert read(bag) == WHOLE
    files[3].unlink()
    with pytest.raises(UserError, match=r"not whole: its file bag_3\.mcap is missing; copy it"):
        read(bag)


def test_files_side_by_side_are_read_in_order_of_time(tmp_path: Path) -> None:
    """As of a recorder for each sensor, whose messages were read one file behind the other."""
    bag = tmp_path / "bag"
    bag.mkdir()
    for at in range(3):
        whole_mcap(bag / f"bag_{at}.mcap", range(at, len(TEXTS), 3), "zstd")
    database = write(tmp_path / "later", StoragePlugin.SQLITE3) / "later.db3"
    database.rename(bag / "later.db3")
    assert read(bag) == [each for each in WHOLE for _ in range(2)]


def test_a_copy_in_the_folder_is_not_read_again(tmp_path: Path) -> None:
    """Nor are a file and its zstd both, which `ros2 bag` leaves side by side."""
    bag = write(tmp_path / "bag", StoragePlugin.MCAP, CompressionMode.FILE)
    (packed,) = bag.glob("*.zstd")
    file = packed.with_suffix("")
    with zstd.open(packed) as source:
        file.write_bytes(source.read())
    for name in ("a copy.mcap", f"{file.stem} (1).mcap", "bag_10.mcap"):
        shutil.copyfile(file, bag / name)
    shutil.copyfile(packed, bag / "a copy.mcap.zstd")
    assert read(bag) == WHOLE, "as its metadata name it"
    (bag / "metadata.yaml").unlink()
    (bag / "a copy.mcap.zstd").unlink()
    assert read(bag) == WHOLE
    file.unlink()
    assert read(bag) == [each for each in WHOLE for _ in range(2)], "what differs is read"
    for copy in bag.glob("*.mcap"):
        copy.unlink()
    shutil.copyfile(packed, bag / "x.mcap.zstd")
    assert read(bag) == WHOLE


def test_a_topic_of_two_types_is_refused_where_it_is_wanted(tmp_path: Path) -> None:
    """Before, all messages of one of them were missing without a word."""
    other = channel(2, 2, "/instruction") + message(bytes(5), 3, 2)
    foreign = schema(2, "my/msg/Order", "ros2msg", b"") + other
    assert read(write_mcap(tmp_path / "x.mcap", NAME + message(CDR[0], 1) + foreign)) == WHOLE[:1]
    known = schema(2, KINDS["e_stop"], "ros2msg", b"") + other
    file = write_mcap(tmp_path / "bag.mcap", NAME + message(CDR[0], 1) + known)
    with pytest.raises(UserError, match=r"std_msgs/msg/String and std_msgs/msg/Bool on /instr"):
        read(file)
    assert list(Bag(file).read({"": "/another"})) == []


def test_a_type_may_stand_behind_its_topic(tmp_path: Path) -> None:
    records = channel(1, 1, "/instruction") + chunk(message(CDR[0], 1))
    late = schema(1, KINDS["instruction"], "ros2msg", b"string data\n")
    assert read(write_mcap(tmp_path / "bag.mcap", records + late)) == WHOLE[:1]


KILLED = """
import os, sqlite3, sys
path, mode, commits = sys.argv[1:]
bag = sqlite3.connect(path, isolation_level=None)
rows = bag.execute("SELECT * FROM messages").fetchall()
bag.execute("DELETE FROM messages")
for pragma in (f"journal_mode = {mode}", "wal_autocheckpoint = 0", "cache_size = 2"):
    bag.execute(f"PRAGMA {pragma}")
bag.executemany("INSERT INTO messages VALUES (?, ?, ?, ?)", rows[:12])
bag.execute("BEGIN")
bag.executemany("INSERT INTO messages VALUES (?, ?, ?, ?)", rows[12:])
bag.execute("INSERT INTO messages VALUES (99, 99, 99, zeroblob(99999))")
if commits == "commits":
    bag.execute("COMMIT")
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
@pytest.mark.parametrize("commits", ["commits", ""])
def test_what_a_killed_recorder_committed_is_read_from_the_log_beside_it(
    mode: str, commits: str, tmp_path: Path
) -> None:
    """Before, what was in the write-ahead log was missing without a word."""
    bag = write(tmp_path / "bag", StoragePlugin.SQLITE3)
    file = bag / "bag.db3"
    command = [sys.executable, "-c", KILLED, str(file), mode, commits]
    assert subprocess.run(command, check=False).returncode == -9
    left = {path.name: path.read_bytes() for path in bag.iterdir()}
    assert len(left) > 2 or commits, "a log is beside it"
    assert read(file) == read(bag) == (WHOLE if commits else WHOLE[:12])
    assert {path.name: path.read_bytes() for path in bag.iterdir()} == left, "nothing is changed"


OLDER: dict[str, str] = {  # what bags of earlier distributions do not have
    "jazzy": "SELECT 1",
    "humble": "DROP TABLE message_definitions; DROP TABLE schema; DROP TABLE metadata;"
    "ALTER TABLE topics DROP COLUMN type_description_hash",
    "dashing": "DROP TABLE message_definitions; DROP TABLE schema; DROP TABLE metadata;"
    "ALTER TABLE topics DROP COLUMN type_description_hash;"
    "ALTER TABLE topics DROP COLUMN offered_qos_profiles; DROP INDEX timestamp_idx",
    "with more": "INSERT INTO topics VALUES (9, '/f', 'a/action/F_FeedbackMessage', 'cdr', '', '');"
    "INSERT INTO message_definitions VALUES (9, 'a/action/F_FeedbackMessage', 'unknown', '', '');"
    "INSERT INTO topics VALUES (8, '/p', 'foxglove.Log', 'protobuf', 'no: [yaml', '');"
    "INSERT INTO messages VALUES (99, 9, 3, x'00'); INSERT INTO messages VALUES (98, 8, 3, x'00');"
    "CREATE TABLE notes (a TEXT DEFAULT 'x', b AS (a || 'y'), CHECK (length(a) < 9));"
    "CREATE VIEW shown AS SELECT a FROM notes; ANALYZE",
}


@pytest.mark.parametrize("distribution", list(OLDER))
def test_sqlite3_is_read_as_each_distribution_wrote_it(distribution: str, tmp_path: Path) -> None:
    file = write(tmp_path / "bag", StoragePlugin.SQLITE3) / "bag.db3"
    database = sqlite3.connect(file)
    database.executescript(OLDER[distribution])
    database.close()
    assert read(file) == WHOLE


WRONG: dict[str, tuple[Callable[[bytes], bytes], str]] = {  # and what is said of it
    "of ROS 1": (lambda _: b"#ROSBAG V2.0\n" + bytes(99), r"ROS 1: `rosbags-convert --src"),
    "a pointer": (lambda _: b"version https://git-lfs.example/v1\noid 1\n", "run `git lfs pull`"),
    "empty": (lambda _: b"", "is empty: nothing was recorded"),
    "a text": (lambda _: b"hello", "no bag: give the folder of a rosbag2"),
    "cut off": (lambda whole: whole[:-60], r"cut off after \d+ bytes.* `mcap recover`"),
    "a beginning": (lambda whole: whole[:8], "cut off after 8 bytes"),
    "half a zstd": (lambda _: b"\x28\xb5\x2f\xfd\0", "cannot be read: "),
}


@pytest.mark.parametrize("kind", list(WRONG))
def test_what_is_no_bag_is_said_with_what_to_do(kind: str, tmp_path: Path) -> None:
    change, said = WRONG[kind]
    bag = tmp_path / "bag"
    bag.mkdir()
    file = bag / "bag_0.mcap"
    file.write_bytes(change(whole_mcap(tmp_path / "whole.mcap").read_bytes()))
    for path in (file, bag):
        with pytest.raises(UserError, match=said) as raised:
            read(path)
        assert str(file) in str(raised.value) and "\n" not in str(raised.value)
    shutil.rmtree(bag)
    bag.mkdir()
    with pytest.raises(UserError, match=r"no \.mcap or \.db3 file"):
        read(bag)


def test_a_foreign_topic_that_is_named_as_one_of_ours_is_not_taken_for_it() -> None:
    wanted = {"instruction": "std_msgs/msg/String", "verdict": "edge_cloud_spec/msg/Verdict"}
    foreign = {"/instruction": "my/msg/Order", "/verdict": "my/msg/Verdict"}
    assert robot_topics(foreign, wanted) == {}
    assert robot_topics(foreign | {"/instruction": "std_msgs/msg/String"}, wanted) == {
        "instruction": "/instruction"
    }
    with pytest.raises(UserError, match="use the edge_cloud_spec that recorded it"):
        robot_topics(foreign | {"/verdict": "edge_cloud_spec/msg/Draft"}, wanted)


def test_a_bag_of_another_encoding_names_it(tmp_path: Path) -> None:
    defined = schema(1, "foxglove.CompressedImage", "protobuf", b"\x0a") + channel(
        1, 1, "/camera", "protobuf"
    )
    bag = Bag(write_mcap(tmp_path / "bag.mcap", defined + message(text(b"")), profile=b""))
    assert bag.topics == {"/camera": "foxglove.CompressedImage in protobuf"}
