"""A bag may be a stranger's: what would cost more than its bytes is refused by one sentence.

Each is read in a process that may hold little; nothing is asserted about time, and what would not
end fails by the timeout.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rosbags")
import lz4.frame
from backports import zstd
from helpers.hostile_bags import (
    CDR,
    ENDLESS,
    HOSTILE_MCAP,
    HOSTILE_METADATA,
    HOSTILE_SQL,
    MB,
    block,
    database,
    defined,
    folder,
    mcap,
    message,
)
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer

from edge_cloud_spec.observe.bag import types

ROOM_MB = 1200  # of address space beyond what the imports take
READ = """
import resource, sys
from pathlib import Path
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.observe.bag import Bag, types
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
    *found, empty_folder = reading(*bags, *plain, folder(tmp_path / "folder", empty))
    for bag, said in zip(bags, found, strict=False):
        assert said.startswith("refused"), (bag.name, said)
        assert str(bag) in said and "\\n" not in said and "MemoryError" not in said
    assert found[len(bags) :] == ["read 8"] * len(plain)
    assert "compressed as a whole" not in empty_folder


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
    assert sum(said.startswith("refused") for said in found) > 10
    assert not any("\\n" in said or "MemoryError" in said for said in found)
