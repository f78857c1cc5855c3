"""What robots' files, containers, services and policies name is there."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml
from helpers.documents import line_error
from helpers.parameters_page import NODES
from helpers.sros2_policy import Policy

from edge_cloud_spec.bringup.graph import GraphSettings, graph
from edge_cloud_spec.bringup.parameter_file import ParameterFile
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.nodes.navigator import NodeSettings
from edge_cloud_spec.nodes.topics import DRAWN, TOPICS
from edge_cloud_spec.options import field_error, flat_fields

ROOT = Path(__file__).resolve().parents[2]
ROBOTS = sorted((ROOT / "config/robots").glob("*.yaml"))
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
SERVICES = sorted((ROOT / "docker").glob("*.service"))
POLICY = Policy(ROOT / "docs/sros2/policy.xml")


@pytest.mark.parametrize("path", ROBOTS, ids=lambda path: path.stem)
def test_a_robots_file_has_only_parameters_that_exist_in_their_ranges(path: Path) -> None:
    for section, values in ParameterFile.read(path).sections:
        known = flat_fields(NODES[section.removeprefix("/**/")])
        for name, value in values.items():
            default, metadata = known[name]
            assert type(value) is type(default), name
            assert not field_error(name, default, value, metadata)
    assert (ROOT / f"docs/robots/{path.stem}.md").is_file(), "a page each"
    settings = GraphSettings(sim="false", parameters=str(path))
    assert settings.driving[0] == "stop_and_go", "its camera's lag was not measured"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_copies_and_installs_what_there_is(path: Path) -> None:
    text = path.read_text().replace("\\\n", " ")
    for source in re.findall(r"^COPY (\S+) ", text, re.MULTILINE):
        assert (ROOT / source).exists(), source
    for name in re.findall(r"-r \S*?(requirements/\S+)", text):
        assert (ROOT / name).is_file(), name
    entry = re.search(r"^ENTRYPOINT (\[.*\])", text, re.MULTILINE)
    command = re.search(r"^CMD (\[.*\])", text, re.MULTILINE)
    assert entry and command
    words = [*yaml.safe_load(entry[1]), *yaml.safe_load(command[1])]
    words = words[words.index("--") + 1 :] if "--" in words else words
    assert not line_error(shlex.join(words))
    assert re.search(r"^USER (?!root)", text, re.MULTILINE), "not as root"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
def test_the_images_user_reads_secrets_that_were_made_under_umask_077() -> None:
    """docs/deployment.md's commands, on files of the names that docs/certificates.md gives."""
    uids = {re.search(r"useradd .*--uid (\d+)", path.read_text())[1] for path in DOCKERFILES}  # type: ignore[index]
    (uid,) = uids
    page = (ROOT / "docs/deployment.md").read_text()
    commands = re.findall(r"^sudo (install [^#\n]*)", page, re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is closed to others
        os.chmod(folder, 0o755)
        made, installed = Path(folder, "made"), Path(folder, "installed")
        made.mkdir(0o700)
        for name in ("ca.pem", "token", "server.pem", "server.key"):
            (made / name).write_text(name)
            (made / name).chmod(0o600)
        for command in commands:
            words = command.replace("/etc/edge-cloud-spec", str(installed)).split()
            subprocess.run(words, cwd=made, umask=0o077, check=True)
        files = sorted(installed.iterdir())
        read = ["cat", *map(str, files)]
        seen = subprocess.run(read, user=int(uid), group=int(uid), capture_output=True, check=True)
        assert len(files) == 4 and seen.stdout == "".join(f.name for f in files).encode()
        assert subprocess.run(read, user=int(uid) + 1, capture_output=True).returncode


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_a_service_starts_an_image_that_is_built_and_ends_it_in_time(path: Path) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(path.read_text().replace("\\\n", " "))
    start = shlex.split(unit["Service"]["ExecStart"])
    images = {re.search(r"-t (\S+)", file.read_text())[1] for file in DOCKERFILES}  # type: ignore[index]
    (image,) = [at for at, word in enumerate(start) if word in images and start[at - 1] != "--name"]
    assert not line_error(shlex.join(w for w in start[image + 1 :] if w != "$ARGUMENTS"))
    assert "--env-file" not in start, "docker keeps the quotes that systemd takes off"
    grace = int(re.search(r"--time (\d+)", unit["Service"]["ExecStop"])[1])  # type: ignore[index]
    assert grace < int(unit["Service"]["TimeoutStopSec"])


def test_the_policy_names_each_topic_and_each_node_and_no_others() -> None:
    beside = {"camera/image_raw", "/tf", "/tf_static", "/rosout", "/parameter_events"}
    said = {topic for topic in POLICY.topics if not topic.startswith("~")}
    assert said == {*TOPICS, *DRAWN, *beside}, "write who may use it into docs/sros2/policy.xml"
    ours = [
        spec
        for spec in graph(GraphSettings(rviz=True, record="bags"))
        if spec.package == "edge_cloud_spec"
    ]
    nodes = {name for spec in ours if spec.is_node for name in spec.nodes or (spec.name,)}
    assert set(POLICY.nodes) == {*nodes, "operator"}


def test_the_policy_lets_one_node_alone_say_what_moves_the_robot() -> None:
    owners = {"verified_tokens": "drafter", "verdict": "cloud_bridge", "pulse": "navigator"}
    for topic, owner in owners.items():
        assert POLICY.who("publish", topic) == {owner}
    assert POLICY.who("publish", "cmd_vel") == {"navigator", "stop_guard"}
    assert POLICY.who("publish", "instruction") == {"operator", "instruction_server"}
    assert POLICY.nodes["operator"]["publish"] <= {
        *("instruction", "e_stop", "/rosout", "/parameter_events")
    }
    assert not POLICY.nodes["operator"]["reply"] and not POLICY.nodes["operator"]["request"]


def test_the_collision_monitor_stands_behind_our_navigator() -> None:
    file = yaml.safe_load((ROOT / "config/nav2/collision_monitor.yaml").read_text())
    values = file["collision_monitor"]["ros__parameters"]
    ours, theirs = values["cmd_vel_in_topic"], values["cmd_vel_out_topic"]
    assert ours in TOPICS and theirs not in TOPICS and values["odom_frame_id"] in TOPICS
    assert values["base_frame_id"] == NodeSettings().base_frame
    assert values["enable_stamped_cmd_vel"] == NodeSettings().output.stamped
    for zone in values["polygons"]:
        corners = yaml.safe_load(values[zone]["points"])
        assert len(corners) == 4 and all(len(corner) == 2 for corner in corners)
    assert set(values["observation_sources"]) <= values.keys()
    page = (ROOT / "docs/nav2_collision_monitor.md").read_text()
    slow = yaml.safe_load(page.split("```yaml")[1].split("```")[0])["stop_zone"]
    fastest = NavigatorSettings().limits.speed
    assert slow["action_type"] == "slowdown" and round(fastest * slow["slowdown_ratio"], 2) == 0.0
