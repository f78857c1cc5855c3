"""Bags: what was written reads back; damage is named, and never taken for another recording."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("rosbags")
from helpers.run_bag import KINDS, cdr_of
from rosbags.highlevel import AnyReader
from rosbags.rosbag2 import StoragePlugin, Writer

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.observe.bag import Bag, types
from edge_cloud_spec.observe.bag_writer import BagWriter

TOPICS = {topic: KINDS[topic] for topic in ("camera/image_raw/compressed", "instruction")}
Messages = list[tuple[int, str, bytes]]


def messages(count: int = 60, size: int = 700) -> Messages:
    """Pictures of random bytes, and an instruction before each tenth."""
    rng, found = random.Random(1), []
    for number in range(count):
        stamp, header = 10**18 + number * 10**8, {"stamp": {"sec": number}, "frame_id": "camera"}
        if number % 10 == 0:
            text = {"data": f"find the bottle {number}"}
            found.append((stamp - 1, "instruction", cdr_of("instruction", text)))
        picture = {"header": header, "format": "jpeg", "data": rng.randbytes(size)}
        topic = "camera/image_raw/compressed"
        found.append((stamp, topic, cdr_of(topic, picture)))
    return found


def write(folder: Path, written: Messages) -> BagWriter:
    bag = BagWriter(folder, TOPICS)
    for stamp, topic, cdr in written:
        bag.write(topic, stamp, cdr)
    bag.close()
    return bag


def write_sqlite(folder: Path, written: Messages) -> None:
    with Writer(folder, version=9, storage_plugin=StoragePlugin.SQLITE3) as writer:
        store = types()
        known = {t: writer.add_connection(f"/{t}", k, typestore=store) for t, k in TOPICS.items()}
        for stamp, topic, cdr in written:
            writer.write(known[topic], stamp, cdr)


def read(bag: Path) -> Messages:
    return [(stamp, topic, cdr) for stamp, topic, cdr, _ in Bag(bag).read(tuple(TOPICS))]


def test_a_bag_reads_back_with_our_reader_and_with_any_other(tmp_path: Path) -> None:
    written = messages()
    assert write(tmp_path / "bag", written).problem == ""
    assert read(tmp_path / "bag") == written == read(tmp_path / "bag/bag.mcap")
    assert sorted(Bag(tmp_path / "bag").topics) == [f"/{topic}" for topic in sorted(TOPICS)]
    with AnyReader([tmp_path / "bag"]) as reader:
        assert [bytes(raw) for _, _, raw in reader.messages()] == [cdr for *_, cdr in written]
    write_sqlite(tmp_path / "db", written)
    assert read(tmp_path / "db") == written


def zero(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    end = min(len(data), at + rng.choice((8, 64, 512, 4096)))
    data[at:end] = bytes(end - at)


def flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.randbytes(rng.choice((1, 8, 100)))


def swap(data: bytearray, rng: random.Random) -> None:
    size = len(data) // 4
    first, second = rng.randrange(size), 2 * size + rng.randrange(size)
    data[first : first + 64], data[second : second + 64] = (
        data[second : second + 64],
        data[first : first + 64],
    )


@pytest.mark.parametrize("damage", [zero, flip, cut, insert, swap])
def test_damage_is_one_sentence_or_changes_nothing(
    damage: Callable[[bytearray, random.Random], None], tmp_path: Path
) -> None:
    written, bag = messages(), tmp_path / "bag"
    write(bag, written)
    named = 0
    for path in (bag / "bag.mcap", bag / "metadata.yaml"):
        whole = path.read_bytes()
        for seed in range(60):
            data = bytearray(whole)
            damage(data, random.Random(seed))
            path.write_bytes(data)
            try:
                assert read(bag) == written, (path.name, seed)
            except UserError as error:
                named += 1
                assert str(error).count("\n") == 0 and str(bag) in str(error)
        path.write_bytes(whole)
    assert named > 30
    assert read(bag) == written


DAMAGE: dict[str, Callable[[bytes], bytes]] = {  # what is said of it
    "wrong checksum": lambda whole: whole[:9999] + bytes(64) + whole[10063:],
    "cut off": lambda whole: whole[:9999],
    "there are zeros at byte": lambda whole: whole[:8] + bytes(4096) + whole[4104:],
    "it holds zeros": lambda whole: bytes(100) + whole[100:],
    "is empty": lambda whole: b"",
    "the index has a wrong checksum": lambda w: w[:-100] + bytes([w[-100] ^ 1]) + w[-99:],
}
DAMAGED_METADATA: dict[str, Callable[[str], str]] = {
    "counts 61 messages of /camera": lambda t: t.replace("message_count: 60", "message_count: 61"),
    r"is damaged: its metadata\.yaml": lambda t: t[: t.index("name: /") + len("name:")] + "\n",
    "is damaged": lambda t: t.replace("name: /instruction", "name:"),
}


def test_each_damage_has_its_own_reason(tmp_path: Path) -> None:
    bag = tmp_path / "bag"
    write(bag, messages())
    file, metadata = bag / "bag.mcap", bag / "metadata.yaml"
    whole, noted = file.read_bytes(), metadata.read_text()
    for reason, damage in DAMAGE.items():
        file.write_bytes(damage(whole))
        with pytest.raises(UserError, match=reason):
            read(bag)
    file.write_bytes(whole)
    for reason, change in DAMAGED_METADATA.items():
        metadata.write_text(change(noted))
        with pytest.raises(UserError, match=reason):
            read(bag)
    metadata.unlink()
    with pytest.raises(UserError, match=r"no metadata\.yaml.*give the file itself"):
        read(bag)
    assert len(read(file)) == 66
    with pytest.raises(UserError, match="there is no bag"):
        read(tmp_path / "nothing")


def test_a_garbage_message_is_named_with_its_topic(tmp_path: Path) -> None:
    written = messages(10)
    written[5] = (written[5][0], written[5][1], b"\0\1\0\0" + b"\xff" * 40)
    write(tmp_path / "bag", written)
    with pytest.raises(UserError, match="damaged message on /camera/image_raw/compressed"):
        read(tmp_path / "bag")


@pytest.mark.parametrize("damage", [zero, flip, cut])
def test_a_damaged_database_is_one_sentence_or_other_bytes(
    damage: Callable[[bytearray, random.Random], None], tmp_path: Path
) -> None:
    """sqlite3 has no checksums: what its pages cannot tell, the pictures' own check does."""
    written, bag = messages(), tmp_path / "bag"
    write_sqlite(bag, written)
    whole = (bag / "bag.db3").read_bytes()
    for seed in range(60):
        data = bytearray(whole)
        damage(data, random.Random(seed))
        (bag / "bag.db3").write_bytes(data)
        try:
            assert len(read(bag)) == len(written)
        except UserError as error:
            assert str(error).count("\n") == 0


def test_a_full_disk_ends_the_bag_and_what_came_before_can_be_read(tmp_path: Path) -> None:
    """A limit on a file's size is what a full disk is: writes fail, the rest goes on."""
    written = messages(3000, 2000)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (2_500_000, 3_300_000, 4_194_304):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            bag = write(tmp_path / f"bag{limit}", written)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "File too large" in bag.problem and "can be read" in bag.problem
        kept = read(tmp_path / f"bag{limit}")
        assert kept == written[: len(kept)] and len(kept) == bag.messages
        assert limit - 2 * 1_100_000 < sum(len(cdr) for *_, cdr in kept) < limit


def test_where_nothing_can_be_written_it_is_said_before_the_recording(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="nothing can be recorded"):
        BagWriter(tmp_path / "file" / "bag", TOPICS)
    write(tmp_path / "bag", [])
    with pytest.raises(UserError, match="is there already"):
        BagWriter(tmp_path / "bag", TOPICS)


def test_a_killed_recorder_leaves_a_bag_that_is_named_as_cut_off(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path;"
        "from observe.test_bag import BagWriter, TOPICS, messages;"
        "bag = BagWriter(Path(sys.argv[1]), TOPICS);"
        "[bag.write(topic, stamp, cdr) for stamp, topic, cdr in messages(100)];"
        "os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(tmp_path / "bag")]
    done = subprocess.run(command, env=environment, check=False)
    assert done.returncode == -9
    with pytest.raises(UserError, match=r"no metadata\.yaml"):
        read(tmp_path / "bag")
    with pytest.raises(UserError, match=r"cut off.*mcap recover"):
        read(tmp_path / "bag/bag.mcap")


def test_a_bag_that_is_closed_while_messages_come_is_whole(tmp_path: Path) -> None:
    """Before, a recorder that was ended by Ctrl-C left a bag that replay refused as damaged."""
    folder = tmp_path / "bag"
    writer = BagWriter(folder, {"instruction": "std_msgs/msg/String"})
    cdr = cdr_of("instruction", {"data": "x" * 100})
    begun, done = threading.Event(), threading.Event()

    def write_on() -> None:
        while not done.is_set():
            writer.write("instruction", 1 + writer.messages, cdr)
            if writer.messages > 2000:
                begun.set()

    thread = threading.Thread(target=write_on)
    thread.start()
    begun.wait(60)
    writer.close()
    done.set()
    thread.join()
    assert sum(1 for _ in Bag(folder).read(("instruction",))) == writer.messages > 0
