"""RViz's file and the robot's description: classes that RViz has, topics and frames that exist."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Any

import numpy as np
import yaml
from rclpy.time import Time
from sensor_msgs.msg import PointCloud2

from edge_cloud_spec.bringup.graph import GraphSettings, graph
from edge_cloud_spec.nav.footprint import SOURCES, Mount
from edge_cloud_spec.nodes.runtime.qos import SENSOR_DATA
from edge_cloud_spec.nodes.topics import DRAWN, TOPICS
from edge_cloud_spec.share import share
from edge_cloud_spec_lab.sim.world import World
from edge_cloud_spec_lab.simulator.simulator import SimulatorSettings, camera_transform

RVIZ = yaml.safe_load((share() / "config/go2_nav.rviz").read_text())
URDF = ElementTree.parse(share() / "config/go2.urdf").getroot()

# Of the plugin descriptions of rviz_default_plugins 14.1 (Jazzy) and 11.2 (Humble), both.
DISPLAYS = {  # and the type that each takes; None: it has no topic
    "Grid": None,
    "TF": None,
    "Image": "sensor_msgs/msg/Image",
    "MarkerArray": "visualization_msgs/msg/MarkerArray",
    "Odometry": "nav_msgs/msg/Odometry",
    "Path": "nav_msgs/msg/Path",
    "Pose": "geometry_msgs/msg/PoseStamped",
    "PoseArray": "geometry_msgs/msg/PoseArray",
    "LaserScan": "sensor_msgs/msg/LaserScan",
    "PointCloud2": "sensor_msgs/msg/PointCloud2",
    "Map": "nav_msgs/msg/OccupancyGrid",
    "Marker": "visualization_msgs/msg/Marker",
    "RobotModel": "std_msgs/msg/String",
}
TOOLS = {"MoveCamera", "Interact", "Select", "FocusCamera", "Measure", "SetGoal", "PublishPoint"}
VIEWS = {"Orbit", "XYOrbit", "TopDownOrtho", "ThirdPersonFollower", "FPS"}
PANELS = {"Displays", "Help", "Selection", "Time", "Tool Properties", "Transformation", "Views"}


def subscriptions() -> Iterator[tuple[str, dict[str, Any], str]]:
    """(topic, its settings, type) of every display."""
    for display in RVIZ["Visualization Manager"]["Displays"]:
        kind = DISPLAYS[display["Class"].removeprefix("rviz_default_plugins/")]
        topic = display.get("Topic") or display.get("Description Topic")
        assert (kind is None) == (topic is None), display
        if kind is not None and topic is not None:
            yield topic["Value"], topic, kind


def type_name(kind: type[Any]) -> str:
    return f"{kind.__module__.partition('.')[0]}/msg/{kind.__name__}"


def test_every_class_of_the_file_is_one_that_rviz_has() -> None:
    manager = RVIZ["Visualization Manager"]
    assert {p["Class"] for p in RVIZ["Panels"]} <= {f"rviz_common/{name}" for name in PANELS}
    for names, given in (
        (DISPLAYS, manager["Displays"]),
        (TOOLS, manager["Tools"]),
        (VIEWS, [manager["Views"]["Current"]]),
    ):
        assert {item["Class"] for item in given} <= {f"rviz_default_plugins/{n}" for n in names}


def test_every_topic_of_the_file_exists_with_its_type_and_a_quality_that_matches() -> None:
    # points: of a lidar, as the navigator and RViz subscribe to it
    tables = {**TOPICS, **DRAWN, "points": (PointCloud2, SENSOR_DATA)}
    described = False
    for topic, settings, kind in subscriptions():
        if topic == "robot_description":  # robot_state_publisher's, latched
            assert settings["Durability Policy"] == "Transient Local"
            described = True
            continue
        ours, qos = tables[topic]
        assert type_name(ours) == kind, topic
        if qos.reliability.name == "BEST_EFFORT":
            assert settings["Reliability Policy"] == "Best Effort", topic
        assert settings["Durability Policy"] == "Volatile"
    assert described


def test_rviz_shows_what_the_robot_is_steered_by_under_the_robots_own_names() -> None:
    """It had no lidar, and listened to odom where a robot has another name for it."""
    shown = {topic for topic, _, _ in subscriptions()}
    assert {"odom", *SOURCES, *DRAWN} - {"image_annotated/compressed"} <= shown
    named = {"odom": "/base/odom", "scan": "/front/scan", "points": "/livox/lidar"}
    rviz = graph(GraphSettings(rviz=True, **named))[-1]
    assert rviz.name == "rviz2" and set(named.items()) <= set(rviz.remappings)
    assert not graph(GraphSettings(rviz=True))[-1].remappings


def test_rviz_is_started_with_what_it_shows_and_a_robot_describes_itself() -> None:
    names = [spec.name for spec in graph(GraphSettings(rviz=True))]
    assert names[-3:] == ["annotator", "robot_state_publisher", "rviz2"]
    model = graph(GraphSettings(rviz=True))[-2]
    assert dict(model.parameters)["robot_description"] == (share() / "config/go2.urdf").read_text()
    assert "robot_state_publisher" not in {
        s.name for s in graph(GraphSettings(rviz=True, sim="false"))
    }


def test_the_description_is_one_tree_with_the_graphs_frames() -> None:
    links = [link.attrib["name"] for link in URDF.findall("link")]
    assert len(links) == len(set(links))
    parents = {
        j.find("child").attrib["link"]: j.find("parent").attrib["link"]
        for j in URDF.findall("joint")
    }
    assert len(parents) == len(URDF.findall("joint"))
    settings = SimulatorSettings()
    assert set(links) - set(parents) == {settings.base_frame}
    assert parents[settings.camera_frame] == settings.base_frame
    above = set(links)
    for _ in links:  # in a circle nobody would get to the top
        above = {parents.get(link, link) for link in above}
    assert above == {settings.base_frame}
    materials = {m.attrib["name"] for m in URDF.findall("material")}
    assert {m.attrib["name"] for m in URDF.iterfind("link/visual/material")} <= materials
    assert all(len(v.find("geometry")) == 1 for v in URDF.iterfind("link/visual"))


def test_the_descriptions_camera_is_where_the_simulators_is() -> None:
    [joint] = [j for j in URDF.findall("joint") if j.attrib["name"] == "camera_joint"]
    origin = joint.find("origin").attrib
    place, rpy = ([float(value) for value in origin[name].split()] for name in ("xyz", "rpy"))
    points = np.eye(3)
    described = Mount("", *place, *rpy).to_base(points)
    ours = camera_transform("base_link", "camera_optical_frame", Time(), World.mount).transform
    at, q = ours.translation, ours.rotation
    axis = np.array([q.x, q.y, q.z])
    turned = points + 2 * np.cross(axis, np.cross(axis, points) + q.w * points)
    assert np.allclose(described, turned + np.array([at.x, at.y, at.z]))


LAYOUT = json.loads((share() / "config/foxglove.json").read_text())
LAID_OUT = LAYOUT["configById"]
# What the annotator draws is there with RViz alone, as is the robot's description.
TABLE = {f"/{topic.lstrip('/')}": kind for topic, (kind, _) in TOPICS.items()}
# Those of Foxglove's own panels that are used; the part of an id before its !.
KINDS = {"Image", "3D", "RawMessages", "StateTransitions", "Plot", "DiagnosticSummary", "Publish"}


def texts(config: Any) -> Iterator[str]:
    """Every text in the settings, and every key."""
    if isinstance(config, str):
        yield config
    elif isinstance(config, dict):
        for key, value in config.items():
            yield key
            yield from texts(value)
    elif isinstance(config, list):
        for value in config:
            yield from texts(value)


def test_every_topic_and_field_exists_and_what_is_published_has_its_topics_type() -> None:
    named = {text for text in texts(LAID_OUT) if text.startswith("/")}
    assert len(named) > 10
    for path in named:
        topic, *fields = path.split(".")
        assert topic in TABLE, path
        for field in fields:
            assert field in TABLE[topic].get_fields_and_field_types(), path
    for name, config in LAID_OUT.items():
        if name.startswith("Publish!"):
            kind = TABLE[config["topicName"]]
            assert config["datatype"] == type_name(kind)
            assert json.loads(config["value"]).keys() <= kind.get_fields_and_field_types().keys()
    buttons = [c for c in LAID_OUT.values() if c.get("topicName") == "/e_stop"]
    assert sorted(json.loads(button["value"])["data"] for button in buttons) == [False, True]


def test_every_panel_is_laid_out_once_and_is_one_of_foxgloves() -> None:
    placed = [text for text in texts(LAYOUT["layout"]) if "!" in text]
    assert sorted(placed) == sorted(LAID_OUT)
    assert {name.partition("!")[0] for name in LAID_OUT} <= KINDS
