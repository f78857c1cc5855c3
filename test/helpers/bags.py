"""Bags for tests: those of ``examples/make_bag.py``, and copies with a message changed.

Most bags turn alike in the same rooms: each picture is rendered once in a process.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rosbags.rosbag2 import StoragePlugin, Writer

from edge_cloud_spec.observe.bag_writer import VERSION, types
from edge_cloud_spec_lab.bags.bag import Bag
from edge_cloud_spec_lab.sim.camera import Camera, Eye

_PATH = Path(__file__).resolve().parents[2] / "examples/make_bag.py"
_RENDER = Camera.render
_RENDERED: dict[tuple[int, Eye], np.ndarray] = {}  # by the room's seed


def make_bag(folder: Path, **options: Any) -> Path:
    """``write_bag`` of the example; its path."""

    def render(camera: Camera, eye: Eye) -> np.ndarray:
        view = options.get("seed", 0), eye
        if view not in _RENDERED:
            _RENDERED[view] = _RENDER(camera, eye)
        return _RENDERED[view]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Camera, "render", render)
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
    kinds = {topic: kind for topic, kind in source.topics.items() if topic.endswith(only)}
    with Writer(copy, version=VERSION, storage_plugin=storage) as writer:
        known = {
            topic: writer.add_connection(topic, kind, typestore=store)
            for topic, kind in kinds.items()
        }
        for stamp, topic, message in source.read({topic: topic for topic in kinds}):
            if topic.endswith(of):
                change(message)
            writer.write(known[topic], stamp, store.serialize_cdr(message, kinds[topic]))
    return copy
