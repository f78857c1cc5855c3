"""What a ROS distribution asks of a package that is released into it, as files can show it."""

from __future__ import annotations

import re
from pathlib import Path

import docutils.core
import docutils.utils
import pytest
from catkin_pkg.changelog import BulletList, Changelog, populate_changelog_from_rst
from catkin_pkg.package import parse_package
from helpers.changelog_rst import releases
from packaging.requirements import Requirement

from edge_cloud_spec import __version__

# catkin_pkg calls pyparsing, and docutils itself, by names of old.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ROOT = Path(__file__).resolve().parents[2]
RELEASING = (ROOT / "docs/releasing.md").read_text()
PACKAGE = ROOT / "package.xml"

# Looked up in ros/rosdistro, commit 8468e88c of 2026-08-22. Keys of rosdep/python.yaml that are
# packages of Debian and Ubuntu, and not of pip, by the name that pip has for them:
KEYS = {
    "grpcio": "python3-grpcio",
    "jinja2": "python3-jinja2",
    "numpy": "python3-numpy",
    "pillow": "python3-pil",
    "protobuf": "python3-protobuf",
    "pyyaml": "python3-yaml",
}
# Packages that are released into Humble, Jazzy, Kilted, Lyrical and Rolling:
RELEASED = {
    *("action_msgs", "ament_cmake", "ament_cmake_pytest", "ament_cmake_python"),
    *("ament_index_python", "builtin_interfaces", "diagnostic_msgs", "geometry_msgs", "launch"),
    *("launch_ros", "lifecycle_msgs", "nav_msgs", "rcl_interfaces", "rclpy"),
    *("robot_state_publisher", "rosidl_default_generators", "rosidl_default_runtime", "rviz2"),
    *("rviz_default_plugins", "sensor_msgs", "std_msgs", "tf2_msgs", "visualization_msgs"),
}


def dependencies(distribution: str) -> set[str]:
    """What package.xml names, where ROS has this distribution."""
    package = parse_package(str(PACKAGE))
    package.evaluate_conditions({"ROS_DISTRO": distribution})
    every = [
        *package.buildtool_depends,
        *package.build_depends,
        *package.exec_depends,
        *package.test_depends,
    ]
    return {each.name for each in every if each.evaluated_condition}


def test_package_xml_is_one_that_catkin_has_nothing_against() -> None:
    warnings: list[str] = []
    package = parse_package(str(PACKAGE), warnings=warnings)
    assert not warnings and package.version == __version__


@pytest.mark.parametrize("distribution", ["humble", "jazzy", "kilted", "lyrical", "rolling"])
def test_each_dependency_of_package_xml_is_a_package_or_a_key_of_rosdep(distribution: str) -> None:
    known = RELEASED | set(KEYS.values())
    unknown = dependencies(distribution) - known
    assert not unknown, "look it up in ros/rosdistro, and add it to the list with the date"
    assert ("python3-grpcio" in dependencies(distribution)) == (distribution != "humble")


def test_what_pip_installs_has_a_key_in_package_xml_or_is_named_as_what_hinders_a_release() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    (block,) = re.findall(r"^dependencies = \[\n(.*?)^\]", pyproject, re.MULTILINE | re.DOTALL)
    names = {Requirement(text).name for text in re.findall(r'^ +"(.*)",', block, re.MULTILINE)}
    assert {"grpcio", "numpy"} <= names
    for name in names:
        if name in KEYS:
            assert KEYS[name] in dependencies("jazzy"), name
        else:
            assert f"`{name}`" in RELEASING, name


def bullets(text: str) -> int:
    """How many items bloom reads in the versions of a CHANGELOG.rst; raises where it is no good
    reStructuredText."""
    docutils.core.publish_doctree(text, settings_overrides={"halt_level": 2, "report_level": 5})
    read = populate_changelog_from_rst(Changelog(), text).foreach_version()
    lists = (each for _, _, content in read for each in content if isinstance(each, BulletList))
    return sum(len(each.bullets) for each in lists)


def test_changelog_rst_holds_the_releases_of_the_changelog_and_can_take_the_next_one() -> None:
    source = (ROOT / "CHANGELOG.md").read_text()
    written = (ROOT / "CHANGELOG.rst").read_text()
    assert written == releases(source), "run: make changelog"
    assert f"\n{__version__} (" in written
    work, released, _ = re.split(r"\n## (?:\d.\d.\d|2026-11-21)", source, maxsplit=2)
    assert bullets(written) == released.count("\n- ") > 40
    coming = releases(source.replace("## Unreleased", "## 99.0.0 (2026-12-31)"))
    assert bullets(coming) == (work + released).count("\n- ")
    with pytest.raises(docutils.utils.SystemMessage):
        bullets(written + "- **open\n")
