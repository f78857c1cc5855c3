"""Foxglove's layout: topics, types and fields that exist, and panels that are all laid out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("rclpy")

from edge_cloud_spec.nodes.topics import DRAWN, TOPICS
from edge_cloud_spec.share import share

LAYOUT = json.loads((share() / "config/foxglove.json").read_text())
PANELS = LAYOUT["configById"]
TABLE = {f"/{topic.lstrip('/')}": kind for topic, (kind, _) in {**TOPICS, **DRAWN}.items()}
OTHERS = {"/robot_description"}  # robot_state_publisher's
# Those of Foxglove's own panels that are used; the part of an id before its !.
KINDS = {
    *("Image", "3D", "RawMessages", "StateTransitions", "Plot", "DiagnosticSummary", "Publish"),
}


def topics(config: Any) -> Iterator[str]:
    """Every text in a panel's settings, and every key, that names a topic."""
    if isinstance(config, dict):
        for key, value in config.items():
            yield from topics(key)
            yield from topics(value)
    elif isinstance(config, list):
        for value in config:
            yield from topics(value)
    elif isinstance(config, str) and config.startswith("/"):
        yield config


def placed(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    else:
        yield from placed(node["first"])
        yield from placed(node["second"])


def test_every_topic_and_field_exists() -> None:
    named = set(topics(PANELS))
    assert len(named) > 10
    for path in named - OTHERS:
        topic, *fields = path.split(".")
        assert topic in TABLE, path
        for field in fields:
            assert field in TABLE[topic].get_fields_and_field_types(), path


def test_what_is_published_has_the_topics_type() -> None:
    for name, config in PANELS.items():
        if name.startswith("Publish!"):
            kind = TABLE[config["topicName"]]
            assert config["datatype"] == f"{kind.__module__.partition('.')[0]}/msg/{kind.__name__}"
            assert json.loads(config["value"]).keys() <= kind.get_fields_and_field_types().keys()


def test_every_panel_is_laid_out_once_and_is_one_of_foxgloves() -> None:
    assert sorted(placed(LAYOUT["layout"])) == sorted(PANELS)
    assert {name.partition("!")[0] for name in PANELS} <= KINDS


def test_a_wrong_topic_would_be_found() -> None:
    assert set(topics({"a": [{"value": "/no_such.data"}], "/x": 1})) == {"/no_such.data", "/x"}
    assert "/no_such" not in TABLE
