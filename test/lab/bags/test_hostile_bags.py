"""A bag may be a stranger's: what would cost more than its bytes is refused by one sentence, or
passed over if nobody wants it.

Each is read in a process that may hold little; nothing is asserted about time, and what would not
end fails by the timeout.
"""

from __future__ import annotations

import os
import random
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

import pytest

pytest.importorskip("rosbags")
import lz4.frame
from backports import zstd
from helpers.mcap_file import block, message, record, text
from helpers.mcap_file import write_mcap as mcap
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.observe.bag_writer import types
from edge_cloud_spec_lab.bags import storage as bag_storage
from edge_cloud_spec_lab.bags.bag import Bag
from edge_cloud_spec_lab.bags.storage import MAX_BLOCK

MB = 1 << 20
BOMB = 1280 * MB  # of zeros: more than a reader may hold
CDR = b"\0\1\0\0" + struct.pack("<I", 4) + b"cup\0"


def defined(definition: str = "string data\n", kind: bytes = b"std_msgs/msg/String") -> bytes:
    """The schema and the channel of /instruction, whose type is defined so."""
    schema = text(kind) + text(b"ros2msg") + text(definition.encode())
    channel = struct.pack("<HH", 1, 1) + text(b"/instruction") + text(b"cdr") + text(b"")
    return record(3, struct.pack("<H", 1) + schema) + record(4, channel)


@lru_cache
def zstd_zeros(count: int) -> bytes:
    compressor = zstd.ZstdCompressor(level=1)
    made = [compressor.compress(bytes(16 * MB)) for _ in range(count // 16 // MB)]
    return b"".join([*made, compressor.flush()])


def lz4_zeros(count: int) -> bytes:
    compressor = lz4.frame.LZ4FrameCompressor()
    begun = compressor.begin()
    made = [compressor.compress(bytes(16 * MB)) for _ in range(count // 16 // MB)]
    return b"".join([begun, *made, compressor.flush()])


def hidden_index(path: Path) -> Path:
    """An index within a message, where the footer points: of other bytes, compressed otherwise."""
    at = 8 + len(record(1, text(b"ros2") + text(b""))) + len(defined())
    bomb = zstd_zeros(BOMB)
    raw = message(bomb)
    honest = indexed(at, 49 + len(raw), b"", len(raw), len(raw))
    bytes_before = 49 + len(raw) - len(bomb)  # rosbags looks 53 bytes after where a block begins
    lying = indexed(at + bytes_before - 53, 53 + len(bomb), b"zstd", len(bomb), 16)
    content = defined() + block(raw, len(raw)) + message(defined() + lying + record(2, bytes(20)))
    start = at + 49 + len(raw) + 31
    return mcap(path, content, honest, start)


def indexed(at: int, length: int, compression: bytes, stored: int, size: int) -> bytes:
    named = struct.pack("<QQQQ", 1, 1, at, length) + text(struct.pack("<HQ", 1, at))
    named += struct.pack("<Q", 64) + text(compression) + struct.pack("<QQ", stored, size)
    return record(8, named)


OURS = b"edge_cloud_spec/msg/Draft"  # the definition of ROS's own types is nobody's choice
PARTS = f"Part[] data\n{'=' * 80}\nMSG: edge_cloud_spec/msg/Part\n"


def small_parts(path: Path) -> Path:
    """An object of some hundred bytes for each of its bytes."""
    raw = message(b"\0\1\0\0" + struct.pack("<I", 48 * MB) + bytes(48 * MB))
    content = defined(PARTS + "bool one\n", OURS) + block(zstd.compress(raw), len(raw), b"zstd")
    return mcap(path, content)


HOSTILE_MCAP: dict[str, Callable[[Path], Path]] = {
    "says_16": lambda p: mcap(p, block(zstd_zeros(BOMB), 16, b"zstd")),
    "says_16_lz4": lambda p: mcap(p, block(lz4_zeros(BOMB), 16, b"lz4")),
    "says_so": lambda p: mcap(p, block(zstd_zeros(BOMB), BOMB, b"zstd")),
    "too_many": lambda p: mcap(
        p, defined() + b"".join(large_block(stamp) for stamp in range(1, 11))
    ),
    "of_one_time": lambda p: mcap(p, defined() + large_block(1) * 5),
    "long_record": lambda p: mcap(p, record(9, bytes(MAX_BLOCK + 1))),
    "lying_record": lambda p: mcap(p, struct.pack("<BQ", 12, 1 << 62)),
    "many_topics": lambda p: mcap(
        p,
        b"".join(
            record(4, struct.pack("<HH", n, 0) + text(b"/%d" % n) + text(b"cdr") + text(b""))
            for n in range(9000)
        ),
    ),
    "long_types": lambda p: mcap(p, defined("#" * 5 * MB + "\n", OURS)),
    "same_type_again": lambda p: mcap(
        p,
        defined("# " + "x" * 100_000 + "\nstring data\n")
        + b"".join(
            record(4, struct.pack("<HH", n, 1) + text(b"/%d" % n) + text(b"cdr") + text(b""))
            for n in range(2, 4000)
        ),
    ),
    "long_array": lambda p: mcap(p, defined("string[2000000000] data\n", OURS) + message(CDR)),
    "empty_parts": lambda p: mcap(
        p,
        defined(PARTS + "uint8[0] none\n", OURS) + message(b"\0\1\0\0" + struct.pack("<I", 0)),
    ),
    "small_parts": small_parts,
    "hidden_index": hidden_index,
}
# Nobody wants what is odd in these: nothing is read of it.
PASSED_OVER = {
    *("long_record", "long_types", "same_type_again"),
    *("check", "default", "virtual_table", "same_topic_again", "nameless", "timeless"),
    *("aliases", "aliases_within", "nested", "nested_blocks", "long", "file_again"),
    *("many_topics_of_metadata", "messages_compressed"),
}


@lru_cache
def large_message() -> tuple[bytes, int]:
    """A message of almost ``MAX_BLOCK`` bytes, compressed, and its size."""
    raw = message(CDR + bytes(MAX_BLOCK - 1000))
    return zstd.compress(raw, level=1), len(raw)


def large_block(stamp: int) -> bytes:
    return block(*large_message(), b"zstd", stamp)


TABLES = {
    "topics": "create table topics(id integer primary key, name text, type text, "
    "serialization_format text, offered_qos_profiles text)",
    "messages": "create table messages(id integer primary key, topic_id integer, "
    "timestamp integer, data blob)",
}
ENDLESS = "with recursive c(x) as (select 1 union all select x + 1 from c)"
HOSTILE_SQL: dict[str, tuple[str, ...]] = {
    "endless_view": (
        "insert into topics values (1, '/instruction', 'std_msgs/msg/String', 'cdr', '')",
        "drop table messages",
        f"create view messages as {ENDLESS} select x as id, 1 as topic_id, x as timestamp, "
        "zeroblob(1) as data from c",
    ),
    "endless_topics": (
        "drop table topics",
        f"create view topics as {ENDLESS} select x as id, 'a' as name, 'b' as type, "
        "'cdr' as serialization_format, '' as offered_qos_profiles from c",
    ),
    "generated_column": (
        "drop table messages",
        "create table messages(id integer primary key, topic_id integer, timestamp integer, "
        "data blob as (zeroblob(999999999)))",
        "insert into messages(topic_id, timestamp) values (1, 1)",
    ),
    "check": (
        "create table more(x check (length(hex(zeroblob(400000000))) > 0))",
        "pragma ignore_check_constraints = on",
        "insert into more values (1)",
    ),
    "expression_index": ("create index more on messages(abs(topic_id) + 1)",),
    "trigger": ("create trigger t after delete on messages begin select 1; end",),
    "default": ("create table more(a, b default 1)",),
    "virtual_table": ("create virtual table more using fts5(a)",),
    "same_topic_again": (
        "drop table topics",
        "create table topics(id integer, name text, type text, serialization_format text, "
        "offered_qos_profiles text)",
        f"insert into topics {ENDLESS} select 1, 'a' || x, 'std_msgs/msg/String', 'cdr', '' "
        "from c limit 100000",
        f"insert into messages {ENDLESS} select x, 1, x, zeroblob(8) from c limit 100000",
    ),
    "nameless": ("insert into topics values (2, zeroblob(9), 'a/msg/B', 'cdr', '')",),
    "timeless": ("insert into messages values (1, 1, 'noon', zeroblob(8))",),
}


def database(path: Path, statements: Iterable[str] = ()) -> Path:
    with sqlite3.connect(path) as connection:
        for statement in (*TABLES.values(), *statements):
            connection.execute(statement)
    connection.close()
    return path


ALIASES = "a0: &a0 [x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 40)
)
TOPIC = (
    "{topic_metadata: {name: /instruction, type: std_msgs/msg/String, serialization_format: cdr, "
    "offered_qos_profiles: %s}, message_count: 0}"
)
NAMED = "{topic_metadata: {name: a}, message_count: 0}"
HOSTILE_METADATA = {
    "aliases": ALIASES + "rosbag2_bagfile_information: {custom_data: {a: *a39}}\n",
    "aliases_within": "rosbag2_bagfile_information:\n  relative_file_paths: [x.mcap]\n"
    f"  topics_with_message_count: [{TOPIC % repr('a: [&a x, *a]')}]\n",
    "nested": "[" * 100_000,
    "nested_blocks": "- " * 100_000,
    "long": "x: " + "y" * (2 * MB),
    "file_again": "rosbag2_bagfile_information:\n  topics_with_message_count: []\n"
    f"  relative_file_paths: [{', '.join(['x.mcap'] * 5_000)}]\n",
    "many_topics_of_metadata": "rosbag2_bagfile_information:\n  relative_file_paths: [x.mcap]\n"
    f"  topics_with_message_count: [{', '.join([NAMED] * 5000)}]\n",
    "compressed": "rosbag2_bagfile_information:\n  relative_file_paths: [x.mcap.zstd]\n"
    "  compression_mode: FILE\n  compression_format: zstd\n  topics_with_message_count: []\n",
    "messages_compressed": "rosbag2_bagfile_information:\n  relative_file_paths: [x.mcap]\n"
    "  compression_mode: MESSAGE\n  compression_format: zstd\n  topics_with_message_count: []\n",
}


def folder(path: Path, metadata: str) -> Path:
    path.mkdir()
    mcap(path / "x.mcap", defined())
    if "x.mcap.zstd" in metadata:
        (path / "x.mcap.zstd").write_bytes(zstd_zeros(BOMB))
    (path / "metadata.yaml").write_text(metadata)
    return path


ROOM_MB = 1200  # of address space beyond what the imports take
READ = """
import resource, sys
from pathlib import Path
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.observe.bag_writer import types
from edge_cloud_spec_lab.bags.bag import Bag
types()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]), -1))
for path in sys.argv[2:]:
    try:
        print("read", sum(1 for _ in Bag(Path(path)).read({"": "/instruction"})))
    except UserError as error:
        print("refused", repr(str(error)))
"""


def reading(*bags: Path, room: int = ROOM_MB * MB) -> list[str]:
    """What becomes of each bag: ``read`` and its messages, or ``refused`` and the sentence."""
    command = [sys.executable, "-c", READ, str(room), *map(str, bags)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = done.stdout.splitlines()
    assert len(found) == len(bags)
    return found


def test_each_hostile_bag_is_refused_by_one_sentence_in_little_memory(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.db3")
    bags = [
        *(make(tmp_path / f"{name}.mcap") for name, make in HOSTILE_MCAP.items()),
        *(database(tmp_path / f"{name}.db3", sql) for name, sql in HOSTILE_SQL.items()),
        *(folder(tmp_path / name, written) for name, written in HOSTILE_METADATA.items()),
        tmp_path / "pipe.db3",
    ]
    # The same without what is hostile, so that what refuses them is not how they were made.
    raw = b"".join(message(CDR, stamp) for stamp in range(1, 9))
    plain = [
        mcap(tmp_path / "plain.mcap", defined() + raw),
        mcap(tmp_path / "block.mcap", defined() + block(raw, len(raw))),
        mcap(tmp_path / "zstd.mcap", defined() + block(zstd.compress(raw), len(raw), b"zstd")),
        mcap(tmp_path / "lz4.mcap", defined() + block(lz4.frame.compress(raw), len(raw), b"lz4")),
        database(
            tmp_path / "plain.db3",
            (
                "insert into topics values (1, '/instruction', 'std_msgs/msg/String', 'cdr', '')",
                f"insert into messages {ENDLESS} select x, 1, x, x'{CDR.hex()}' from c limit 8",
            ),
        ),
    ]
    empty = HOSTILE_METADATA["messages_compressed"].replace("MESSAGE", "NONE")
    *found, whole = reading(*bags, *plain, folder(tmp_path / "folder", empty))
    for bag, said in zip(bags, found, strict=False):
        passed_over = bag.stem in PASSED_OVER
        assert said == "read 0" if passed_over else said.startswith("refused"), (bag.name, said)
        assert passed_over or str(bag) in said
        assert "\\n" not in said and "MemoryError" not in said
    assert found[len(bags) :] == ["read 8"] * len(plain)
    assert whole == "read 0"


def test_what_is_held_to_be_put_in_order_has_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that each begin before all others are held together."""
    blocks = [message(CDR, 1) + message(CDR, stamp) for stamp in range(20, 1, -1)]
    bag = mcap(tmp_path / "late.mcap", defined() + b"".join(block(b, len(b)) for b in blocks))
    held = len(blocks) * (bag_storage.HELD_MESSAGE_BYTES + len(CDR))
    for most in (2 * held, held // 2):
        monkeypatch.setattr(bag_storage, "MAX_AT_ONCE", most)
        stamps = (at for at, *_ in Bag(bag).read({"": "/instruction"}))
        if most > held:
            assert list(stamps) == sorted([1] * 19 + [*range(2, 21)])
            continue
        with pytest.raises(UserError, match="out of order: `mcap sort`"):
            list(stamps)


@pytest.mark.parametrize("storage", [StoragePlugin.MCAP, StoragePlugin.SQLITE3])
def test_numbers_that_lie_are_one_sentence_in_little_memory(
    storage: StoragePlugin, tmp_path: Path
) -> None:
    """Eight bytes of an honest bag say something large, or any: lengths, offsets, sizes, counts."""
    writer = Writer(tmp_path / "honest", version=9, storage_plugin=storage)
    if storage == StoragePlugin.MCAP:
        writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
    with writer:
        topic = writer.add_connection("/instruction", "std_msgs/msg/String", typestore=types())
        for stamp in range(1, 400):
            writer.write(topic, stamp * 10**9, CDR)
    (file,) = (tmp_path / "honest").glob("honest.*")
    whole, rng, bags = file.read_bytes(), random.Random(20), [tmp_path / "honest"]
    for number in range(80):
        data, at = bytearray(whole), rng.randrange(len(whole) - 8)
        value = rng.choice((1 << 31, 1 << 34, 1 << 62, rng.getrandbits(64))) >> rng.choice((0, 8))
        width = rng.choice((2, 4, 8))
        data[at : at + width] = value.to_bytes(8, "little")[:width]
        bags.append(tmp_path / f"{number}{file.suffix}")
        bags[-1].write_bytes(data)
    first, *found = reading(*bags)
    assert first == "read 399"
    assert sum(said.startswith("refused") for said in found) > 5
    assert not any("\\n" in said or "MemoryError" in said for said in found)
