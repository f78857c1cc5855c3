"""``make parameters``: docs/parameters.md, from the declarations in the code.

The nodes' settings, the arguments of the launch file and the options of ``serve``, each with its
default, what it takes and what it is for.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from edge_cloud_spec.bringup.launch_arguments import ARGUMENTS
from edge_cloud_spec.cloud.command import add_serve_arguments
from edge_cloud_spec.lab.simulator.simulator import SimulatorSettings
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.nodes.cloud_bridge import BridgeSettings
from edge_cloud_spec.nodes.instruction_server import InstructionServerSettings
from edge_cloud_spec.nodes.monitor import MonitorSettings
from edge_cloud_spec.nodes.navigator import NodeSettings
from edge_cloud_spec.nodes.runtime.parameters import flat_fields
from edge_cloud_spec.nodes.stop_guard import GuardSettings
from edge_cloud_spec.observe.recorder import RecorderSettings
from edge_cloud_spec.pilot.settings import DrafterSettings

NODES: dict[str, object] = {
    "drafter": DrafterSettings(),
    "cloud_bridge": BridgeSettings(),
    "navigator": NodeSettings(),
    "stop_guard": GuardSettings(),
    "instruction_server": InstructionServerSettings(),
    "monitor": MonitorSettings(),
    "recorder": RecorderSettings(),
    "simulator": SimulatorSettings(),
}
INTRODUCTION = """# Parameters and options

`make parameters` writes this page from the declarations in the code; a test compares the two.
`*`: read at the start only. Others may be changed while the node runs (`ros2 param set`). Beside
these each node has `hardware_id` (a robot's name in `/diagnostics`), and drafter, bridge and
navigator have `autostart`. How a parameter file is given, and what happens to a wrong one:
[interfaces](interfaces.md#parameters)."""


def page() -> str:
    """The page's text."""
    sections = ["\n".join(part) for part in (_nodes(), _launch(), _serve())]
    return "\n".join([INTRODUCTION, *sections]) + "\n"


def _nodes() -> Iterator[str]:
    for node, settings in NODES.items():
        fields = flat_fields(settings).items()
        yield from _table(
            f"## The node `{node}`",
            "parameter",
            ((name, value, _takes(value, meta), meta["about"]) for name, (value, meta) in fields),
        )


def _takes(default: Any, metadata: Any) -> str:
    """The values that a field takes; ``*``: at the start only."""
    if "choices" in metadata:
        values = ", ".join(f"`{choice}`" if choice else "empty" for choice in metadata["choices"])
    elif "range" in metadata:
        values = "{:.12g} to {:.12g}".format(*metadata["range"])
    else:
        values = "`true`, `false`" if isinstance(default, bool) else "text"
    return values + (" `*`" if metadata["fixed"] else "")


def _launch() -> Iterator[str]:
    rows = ((f"{name}:=", default, about) for name, (default, about) in ARGUMENTS.items())
    yield from _table("## Arguments of `go2_nav.launch.py`", "argument", rows)


def _serve() -> Iterator[str]:
    parser = argparse.ArgumentParser(add_help=False)
    add_serve_arguments(parser)
    yield "\n## Options of `edge-cloud-spec serve`"
    for group in parser._action_groups:  # argparse has no public names for these
        rows = [
            (action.option_strings[0], _default(action.default), _about(action))
            for action in group._group_actions
        ]
        if rows:
            yield from _table(f"### {(group.title or '').capitalize()}", "option", rows)


def _about(action: argparse.Action) -> str:
    """What an option is for; its default has a column."""
    values = ", ".join(action.choices or ())
    about = (action.help or "").replace(" (%(default)s)", "").replace("(%(default)s)", "")
    return about or f"one of {values}"


def _default(value: Any) -> Any:
    embedded = isinstance(value, str) and value == str(EMBEDDED / "target")
    return "the embedded target" if embedded else value


def _table(title: str, first: str, rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    filled = [[f"`{name}`", _code(default), *rest] for name, default, *rest in rows]
    heads = [first, "default", *(["takes"] if len(filled[0]) == 4 else []), "what it is for"]
    yield f"\n{title}\n"
    yield _line(heads)
    yield "|" + "---|" * len(heads)
    yield from map(_line, filled)


def _code(default: Any) -> str:
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return "" if default in ("", None) else f"`{default}`"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
