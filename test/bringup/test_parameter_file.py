"""One's own parameter file: what it says counts, and what is mistyped is named."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from edge_cloud_spec.bringup.exits import Role
from edge_cloud_spec.bringup.graph import LOCAL_ADDRESS, GraphSettings, NodeSpec, graph
from edge_cloud_spec.bringup.parameter_file import ParameterFile, full_name
from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED, FLATS, ROOMS
from edge_cloud_spec.nav.history import MOST_TURNS
from edge_cloud_spec.options import changed
from edge_cloud_spec.pilot.settings import DrafterSettings
from edge_cloud_spec_lab.harness.server import parsed
from edge_cloud_spec_lab.running.running_graph import command

OWN = """
/**/drafter: {ros__parameters: {preset: cloud_sd, model: {threads: 2}, when_lost: creep}}
/**/navigator: {ros__parameters: {allow_unverified: true}}
/**/cloud_bridge: {ros__parameters: {cloud: "cloud.lan:443"}}
/**/simulator: {ros__parameters: {seed: 7}}
another_packages_node: {ros__parameters: {speed: 1}}
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    return str(path)


def specs_of(settings: GraphSettings) -> dict[str, NodeSpec]:
    return {spec.name: spec for spec in graph(settings)}


def test_what_the_file_says_is_not_overridden_by_defaults(own: str) -> None:
    settings = GraphSettings(parameters=own)
    specs = specs_of(settings)
    assert not {"preset", "seed"} & {name for spec in specs.values() for name, _ in spec.parameters}
    assert dict(specs["cloud_bridge"].parameters)["cloud"] == "cloud.lan:443"
    assert "cloud_verifier" not in specs, "the file names one elsewhere"
    line = command(specs["simulator"], settings)
    assert "--params-file" in line and not any("seed:=" in part for part in line)


@pytest.mark.parametrize("asked", [None, 1, 64, 129, 1024, 65_536])
def test_a_verifier_that_is_started_here_gives_what_the_robot_asks_for(
    asked: int | None, tmp_path: Path
) -> None:
    """A drafter's 1,024 tokens were the verifier's 128, and nobody said so."""
    path, dialect = tmp_path / "own.yaml", {"dialect": "navila", "history": MOST_TURNS}
    own = dialect if asked is None else dialect | {"max_tokens": asked}
    path.write_text(json.dumps({"/**/drafter": {"ros__parameters": own}}))
    for longer in (0, 2000):  # which a replay will ask for
        settings = GraphSettings(parameters=str(path), sim="false", max_tokens=longer)
        specs = specs_of(settings)
        given = {**settings.given("drafter"), **dict(specs["drafter"].parameters)}
        drafter = changed(DrafterSettings(), given)
        served = parsed(specs["cloud_verifier"].arguments).models
        assert served.max_tokens >= max(drafter.max_tokens, longer)
        assert served.pictures > drafter.loaded_dialect.history.frames == MOST_TURNS
        assert served.imposed == load_dialect(drafter.dialect)


SERVED = {"drafter": "openai:http://127.0.0.1:8080/v1", "tokenizer": "/models/small", "model": "q"}
IN_FILE = {"drafter": "path", "tokenizer": "tokenizer", "model": "name"}


@pytest.mark.parametrize("written", ["", "drafter", "tokenizer", "model"])
def test_a_drafter_behind_an_api_has_tokenizer_and_model_given_or_in_the_file(
    written: str, tmp_path: Path
) -> None:
    path, given = tmp_path / "own.yaml", {**SERVED}
    if written:
        model = f"{IN_FILE[written]}: '{given.pop(written)}'"
        path.write_text(f"/**/drafter: {{ros__parameters: {{model: {{{model}}}}}}}")
    parameters = str(path) if written else ""
    drafter = dict(specs_of(GraphSettings(parameters=parameters, **given))["drafter"].parameters)
    assert {key: drafter[f"model.{IN_FILE[key]}"] for key in given} == given
    for missing in given.keys() - {"drafter"}:
        with pytest.raises(UserError, match=r"needs tokenizer:=DIRECTORY.*and model:=NAME"):
            GraphSettings(parameters=parameters, **{**given, missing: ""})


def test_what_is_given_goes_before_the_file(own: str) -> None:
    specs = specs_of(GraphSettings(parameters=own, preset="fsd", cloud="local", seed=0))
    assert dict(specs["drafter"].parameters)["preset"] == "fsd"
    assert dict(specs["simulator"].parameters)["seed"] == 0
    assert dict(specs["cloud_bridge"].parameters)["cloud"] == LOCAL_ADDRESS
    assert "--drafter" not in specs["cloud_verifier"].arguments, "as for fsd"
    verifier = specs_of(GraphSettings(parameters=own, cloud="local"))["cloud_verifier"]
    assert "--drafter" in verifier.arguments, "as the file's preset says"
    assert GraphSettings().starts_verifier and GraphSettings().preset_name == "auto"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("/**/navigater: {ros__parameters: {}}", "did you mean navigator"),
        ("draftr: {ros__parameters: {}}", "did you mean drafter"),
        ("/other/drafter: {ros__parameters: {}}", "but the node is /go2/drafter"),
        ("a: [1\nb: {", "cannot be read: "),
        ("[1, 2]", "names no nodes"),
        ("drafter: 5", "where a node is expected"),
        ("/**/drafter: {ros__parameters: {preset: none_such}}", "none_such"),
        ("/**/cloud_bridge: {ros__parameters: {cloud: here}}", "HOST:PORT"),
        ("/**/cloud_bridge: {ros__parameters: {cloud: 'c:99999'}}", "HOST:PORT"),
        ("/**/cloud_bridge: {ros__parameters: {cloud: 'c:²'}}", "HOST:PORT"),
        ("\udcff", "cannot be read"),
        ("/**/drafter: {ros__parameters: {dialect: klingon}}", "no dialect 'klingon'"),
        ("/**/navigator: {ros__parameters: {drive: off}}", "must be continuous or stop_and_go"),
        ("/**/drafter: {ros__parameters: {when_lost: creep}}", "allow_unverified is true; set"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_in_one_sentence(
    text: str, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=why) as error:
        GraphSettings(parameters=str(path), namespace="go2")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["none.yaml", "own/none.yaml", 300 * "x", "a\0b", "."])
def test_a_path_of_no_file_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "own").touch()
    with pytest.raises(UserError, match=r"there is no|cannot be read") as error:
        GraphSettings(parameters=str(tmp_path / name))
    assert "\n" not in str(error.value) and "parameter file" in str(error.value)


@pytest.mark.parametrize("given", [{}, {"dialect": "uni_navid"}])
def test_one_dialect_is_for_all_that_ask_or_read(given: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("/**/drafter: {ros__parameters: {dialect: navila}}")
    specs = specs_of(GraphSettings(parameters=str(path), **given))
    assert dict(specs["drafter"].parameters)["dialect"] == given.get("dialect", "navila")
    arguments = specs["cloud_verifier"].arguments
    assert arguments[arguments.index("--dialect") + 1] == given.get("dialect", "navila")
    assert "--dialect" not in specs_of(GraphSettings())["cloud_verifier"].arguments


@pytest.mark.parametrize(
    ("world", "target", "drafter", "taught"),
    [
        ("flat", FLATS / "target", FLATS / "drafter", {"history": 8}),
        ("furnished", ROOMS / "target", EMBEDDED / "drafter", {"dialect": "around"}),
    ],
)
def test_in_a_world_that_a_pair_was_taught_it_decides_where_no_models_are_given(
    world: str, target: Path, drafter: Path, taught: dict[str, Any], tmp_path: Path
) -> None:
    specs = specs_of(GraphSettings(world=world))
    arguments = dict(pairwise(specs["cloud_verifier"].arguments))
    assert arguments["--target"] == str(target) and target.exists()
    assert arguments.get("--dialect") == taught.get("dialect")
    drafting = dict(specs["drafter"].parameters)
    assert drafting["model.path"] == str(drafter) and drafting["order"] == "reason first"
    assert {name: drafting.get(name) for name in ("history", "dialect")} == {
        "history": None,
        "dialect": None,
    } | taught
    assert dict(specs["navigator"].parameters)["drive"] == "stop_and_go"
    given = specs_of(GraphSettings(world=world, drive="continuous", history=4, dialect="clauses"))
    assert dict(given["navigator"].parameters)["drive"] == "continuous"
    drafting = dict(given["drafter"].parameters)
    assert (drafting["history"], drafting["dialect"]) == (4, "clauses")
    own = tmp_path / "own.yaml"
    own.write_text("/**/drafter: {ros__parameters: {model: {path: bytes}}}")
    elsewhere: dict[str, Any]
    for elsewhere in (
        {"world": "room"},
        {"sim": "false", "scan": "scan"},
        {"cloud": "cloud.lan:443"},
        {"target": "a"},
        {"drafter": "a"},
        {"parameters": str(own)},
    ):
        specs = specs_of(GraphSettings(**{"world": world} | elsewhere))
        assert "model.path" not in dict(specs["drafter"].parameters) or "drafter" in elsewhere
        for name in ("order", "history", "dialect"):
            assert name not in dict(specs["drafter"].parameters)


NAVIGATOR = "/**/navigator: {ros__parameters: {drive: %s}}\n"
LAG = "/**/drafter: {ros__parameters: {camera_lag: %s}}\n"


@pytest.mark.parametrize(
    ("given", "text", "drive", "why"),
    [
        ({}, "", "continuous", "the simulator's"),
        ({"sim": "false"}, "", "stop_and_go", "measure the drafter's camera_lag"),
        ({"sim": "false"}, LAG % "0.00", "stop_and_go", "measure the drafter's camera_lag"),
        ({"sim": "false"}, LAG % "0.08", "continuous", "camera_lag says"),
        ({"sim": "false", "drive": "continuous"}, "", "continuous", "as it was given"),
        ({"sim": "false"}, NAVIGATOR % "continuous", "continuous", "as it was given"),
        ({"sim": "false"}, NAVIGATOR % "stop_and_go" + LAG % "0.08", "stop_and_go", "as it was"),
        ({"drive": "continuous"}, NAVIGATOR % "stop_and_go", "continuous", "as it was given"),
        ({"drive": "stop_and_go"}, NAVIGATOR % "continuous", "stop_and_go", "as it was given"),
    ],
)
def test_a_robot_drives_on_only_where_it_is_known_how_old_a_picture_is(
    given: dict[str, Any], text: str, drive: str, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    settings = GraphSettings(parameters=str(path), **given)
    assert settings.driving[0] == drive and settings.driving[1].startswith(why)
    assert dict(specs_of(settings)["navigator"].parameters) == {"drive": drive, "guarded": True}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"scan": "scan"}, ""),
        ({"points": "cloud"}, ""),
        ({}, '/**/navigator: {ros__parameters: {obstacles: {points: "cloud"}}}'),
        ({}, '/**/navigator: {ros__parameters: {obstacles.scan: "scan"}}'),
        ({}, ""),
        ({}, '/**/navigator: {ros__parameters: {obstacles: {scan: ""}}}'),
    ],
)
def test_a_dialect_that_tells_free_space_needs_a_lidar(
    given: dict[str, Any], text: str, tmp_path: Path
) -> None:
    path, own = tmp_path / "own.yaml", tmp_path / "told.yaml"
    dialect = {"summary": "x", "examples": {"action: stop;": "stop"}}
    own.write_text(json.dumps(dialect | {"user_text": "{instruction} {free_space}"}))
    path.write_text(f"{text}\n/**/drafter: {{ros__parameters: {{dialect: {own}}}}}")
    has_lidar = bool(given) or "cloud" in text or '"scan"' in text
    try:
        drafter = specs_of(GraphSettings(parameters=str(path), **given))["drafter"]
    except UserError as error:
        said = "the dialect told tells {free_space}, and no lidar looks: give scan:=TOPIC"
        assert said in str(error) and not has_lidar
    else:
        assert has_lidar and dict(drafter.parameters)["dialect"] == str(own)


def test_the_guard_stops_the_base_in_the_way_in_which_the_navigator_commands_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "own.yaml"
    output = "output: {kind: unitree_sport, stamped: true}, base_frame: trunk, frame_age: 5.0"
    path.write_text(f"/**/navigator: {{ros__parameters: {{{output}, e_stop_timeout: 0.4}}}}")
    given = {"output.kind": "unitree_sport", "output.stamped": True, "base_frame": "trunk"}
    given |= {"e_stop_timeout": 0.4}
    guard = specs_of(GraphSettings(parameters=str(path), namespace="go2"))["stop_guard"]
    assert dict(guard.parameters) == given and guard.role is Role.RESPAWNED


@pytest.mark.parametrize(
    ("section", "node", "fits"),
    [
        ("/**", "/drafter", True),
        ("/**", "/a/b/drafter", True),
        ("/**/drafter", "/drafter", True),
        ("/**/drafter", "/a/b/drafter", True),
        ("/*/drafter", "/a/drafter", True),
        ("/*/drafter", "/drafter", False),
        ("drafter", "/drafter", True),
        ("drafter", "/a/drafter", False),
        ("/a/drafter", "/a/drafter", True),
        ("/**/draft", "/drafter", False),
    ],
)
def test_a_section_is_for_the_nodes_that_rcl_takes_it_for(
    section: str, node: str, fits: bool, tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(f"{section!r}: {{ros__parameters: {{a: {{b: 1}}}}}}")
    assert ParameterFile.read(path).of(node) == ({"a.b": 1} if fits else {})


def test_namespaces_may_be_nested_and_later_sections_go_before(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "/**: {ros__parameters: {a: 1, b: 1}}\ngo2: {drafter: {ros__parameters: {b: 2}}}\n"
    )
    assert ParameterFile.read(path).of(full_name("/go2/", "drafter")) == {"a": 1, "b": 2}
    assert full_name("", "drafter") == "/drafter"
