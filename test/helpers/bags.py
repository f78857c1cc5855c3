"""Bags for tests: those of ``examples/make_bag.py``, and copies with a message changed."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rosbags.rosbag2 import StoragePlugin, Writer

from edge_cloud_spec.observe.bag import VERSION, Bag, types

_PATH = Path(__file__).resolve().parents[2] / "examples/make_bag.py"


def make_bag(folder: Path, **options: Any) -> Path:
    """``write_bag`` of the example; its path."""
    runpy.run_path(str(_PATH))["write_bag"](folder, **options)
    return folder


def changed(
    bag: Path,
    copy: Path,
    change: Callable[[Any], object] = lambda message: None,
    of: str | tuple[str, ...] = "",
    only: str = "",
    storage: StoragePlugin = StoragePlugin.MCAP,
) -> Path:
    """A copy of a bag, with a ``change`` to each message ``of`` topics that end so.

    ``only``: the one topic of it. The copy is whole: only what it says is another.
    """
    source, store = Bag(bag), types()
    kinds = {t.lstrip("/"): kind for t, kind in source.topics.items() if t.endswith(only)}
    with Writer(copy, version=VERSION, storage_plugin=storage) as writer:
        known = {
            name: writer.add_connection(f"/{name}", kind, typestore=store)
            for name, kind in kinds.items()
        }
        for stamp, topic, _, message in source.read(set(kinds)):
            if topic.endswith(of):
                change(message)
            writer.write(known[topic], stamp, store.serialize_cdr(message, kinds[topic]))
    return copy
