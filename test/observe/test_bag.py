"""Bags: what was written reads back; damage is named, and never taken for another recording."""

from __future__ import annotations

import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("rosbags")
from fuzz.frames import garbled
from helpers.cloud.grpc_cloud import until
from helpers.run_bag import KINDS, cdr_of
from rosbags.highlevel import AnyReader
from rosbags.rosbag2 import StoragePlugin, Writer

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.observe.bag_writer import BagWriter, types
from edge_cloud_spec_lab.bags.bag import Bag

TOPICS = {topic: KINDS[topic] for topic in ("camera/image_raw/compressed", "instruction")}
Messages = list[tuple[int, str, bytes]]
Damage = Callable[[bytearray, random.Random], None]


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
    found = Bag(bag).read({topic: f"/{topic}" for topic in TOPICS})
    return [(at, topic, bytes(types().serialize_cdr(m, TOPICS[topic]))) for at, topic, m in found]


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


def garble(data: bytearray, rng: random.Random) -> None:
    data[:] = garbled(rng, bytes(data), bytes(data))


def after_damage(bag: Path, file: Path, damage: Damage) -> Iterator[Messages | str]:
    """What is read of a bag whose file was damaged, or what is said of it; forty times."""
    whole = file.read_bytes()
    for seed in range(40):
        data = bytearray(whole)
        damage(data, random.Random(seed))
        file.write_bytes(data)
        try:
            yield read(bag)
        except UserError as error:
            assert str(error).count("\n") == 0 and str(bag) in str(error)
            yield str(error)
    file.write_bytes(whole)


@pytest.mark.parametrize("damage", [zero, garble])
def test_damage_is_one_sentence_or_changes_nothing(damage: Damage, tmp_path: Path) -> None:
    written, bag = messages(), tmp_path / "bag"
    write(bag, written)
    found = [
        *after_damage(bag, bag / "bag.mcap", damage),
        *after_damage(bag, bag / "metadata.yaml", damage),
    ]
    read_as = [one for one in found if not isinstance(one, str)]
    assert all(one == written for one in read_as) and len(found) - len(read_as) > 20
    assert read(bag) == written
    # sqlite3 has no checksums: what its pages cannot tell, the pictures' own check does.
    database = tmp_path / "database"
    write_sqlite(database, written)
    for one in after_damage(database, database / "database.db3", damage):
        assert isinstance(one, str) or len(one) == len(written)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {  # what is said of it
    "wrong checksum": lambda whole: whole[:9999] + bytes(64) + whole[10063:],
    "cut off": lambda whole: whole[:9999],
    "there are zeros at byte": lambda whole: whole[:8] + bytes(4096) + whole[4104:],
    "by its first bytes it is no bag": lambda whole: bytes(100) + whole[100:],
    "is empty": lambda whole: b"",
}


def test_each_damage_has_its_own_reason(tmp_path: Path) -> None:
    bag = tmp_path / "bag"
    write(bag, messages())
    file = bag / "bag.mcap"
    whole = file.read_bytes()
    for reason, damage in DAMAGE.items():
        file.write_bytes(damage(whole))
        with pytest.raises(UserError, match=reason):
            read(bag)
    file.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    assert len(read(bag)) == 66, "the index is not needed"
    with pytest.raises(UserError, match="there is no bag"):
        read(tmp_path / "nothing")


def test_a_garbage_message_is_named_with_its_topic(tmp_path: Path) -> None:
    written = messages(10)
    written[5] = (written[5][0], written[5][1], b"\0\1\0\0" + b"\xff" * 40)
    write(tmp_path / "bag", written)
    with pytest.raises(UserError, match="damaged message on /camera/image_raw/compressed"):
        read(tmp_path / "bag")


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
    """What is on the disk while it records is all that it leaves: nothing of it is buffered."""
    bag = BagWriter(tmp_path / "bag", TOPICS)
    for stamp, topic, cdr in messages(100):
        bag.write(topic, stamp, cdr)
    left = shutil.copytree(tmp_path / "bag", tmp_path / "left")
    bag.close()
    for path in (left, left / "bag.mcap"):
        with pytest.raises(UserError, match=r"cut off.*mcap recover"):
            read(path)


def test_a_bag_that_is_closed_while_messages_come_is_whole(tmp_path: Path) -> None:
    """Before, a recorder that was ended by Ctrl-C left a bag that replay refused as damaged."""
    folder, count = tmp_path / "bag", 10**6
    writer = BagWriter(folder, TOPICS)
    cdr = cdr_of("instruction", {"data": "x" * 100})

    def write_on() -> None:
        for stamp in range(1, count):
            writer.write("instruction", stamp, cdr)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write_on)
        until(lambda: writer.messages > 2000)
        writer.close()
        writing.result()
    assert 2000 < sum(1 for _ in Bag(folder).read({"": "/instruction"})) == writer.messages < count
