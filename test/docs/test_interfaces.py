"""The one list of nodes and the one of topics, and the documents that have them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from helpers.parameters_page import NODES as WITH_PARAMETERS

from edge_cloud_spec.bringup.graph import GRAPH_NODES, GraphSettings, graph
from edge_cloud_spec.nodes.health import OWNERS
from edge_cloud_spec.nodes.topics import DRAWN, TOPICS

INTERFACES = (Path(__file__).resolve().parents[2] / "docs/interfaces.md").read_text()
ROBOTS = {"camera/image_raw", "/tf", "/tf_static", "robot_description"}  # and not only ours
ACTIONS = {"navigate_by_instruction"}
ARGUMENTS = {"scan:=", "points:="}


def rows(page: str) -> dict[str, tuple[str, str]]:
    """Of the table of topics: a topic, its types and who publishes it."""
    table = page.partition("| topic | type |")[2].partition("\n\n")[0]
    found = {}
    for line in table.splitlines()[2:]:
        names, types, origin, _ = (cell.strip() for cell in line.strip("| ").split(" | ", 3))
        for name in re.findall(r"`([\w/:=]+)`", names):
            whole = name if name != "/compressed" else f"{next(reversed(found))}/compressed"
            found[whole] = (types, origin)
    return found


def type_name(kind: Any) -> str:
    package, name = kind.__module__.partition(".")[0], kind.__name__
    return f"../msg/{name}.msg" if package == "edge_cloud_spec" else f"{package}/{name}"


def test_the_graph_has_the_nodes_that_are_listed_once_and_parameters_of_no_others() -> None:
    everything = graph(GraphSettings(rviz=True, record="bags"))
    nodes = {name for spec in everything if spec.is_node for name in spec.nodes or (spec.name,)}
    assert nodes - {"rviz2"} == set(GRAPH_NODES)
    assert WITH_PARAMETERS.keys() == {*GRAPH_NODES} - {"annotator", "robot_state_publisher"}


def test_the_page_has_each_topic_once_with_its_type_and_who_alone_publishes_it() -> None:
    table, every = rows(INTERFACES), {**TOPICS, **DRAWN}
    assert table.keys() == {*every, *ROBOTS, *ACTIONS, *ARGUMENTS}
    for topic, (kind, _) in every.items():
        assert type_name(kind) in table[topic][0], topic
    for topic, owners in OWNERS.items():
        for owner in owners:
            assert owner.replace("_", " ") in table[topic][1], topic
