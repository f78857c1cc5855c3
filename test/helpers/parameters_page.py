"""``make parameters``: docs/parameters.md, from the declarations in the code.

All nodes of the graph; their settings, the arguments of the launch file and the options of
``serve``, ``endpoint`` and ``mcp``, each with its default, what it takes and what it is for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from edge_cloud_spec.agent_tools.command import ToolSettings
from edge_cloud_spec.bringup.graph import PACKAGE, GraphSettings, graph
from edge_cloud_spec.bringup.launch_arguments import ARGUMENTS
from edge_cloud_spec.cloud.command import ServeSettings
from edge_cloud_spec.endpoint.command import EndpointSettings
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.nodes.cloud_bridge import BridgeSettings
from edge_cloud_spec.nodes.health import OWNERS
from edge_cloud_spec.nodes.instruction_server import InstructionServerSettings
from edge_cloud_spec.nodes.monitor import MonitorSettings
from edge_cloud_spec.nodes.navigator import NodeSettings
from edge_cloud_spec.nodes.stop_guard import GuardSettings
from edge_cloud_spec.observe.recorder import RecorderSettings
from edge_cloud_spec.options import flag, flat_fields, span, title
from edge_cloud_spec.pilot.settings import DrafterSettings
from edge_cloud_spec_lab.running.running_graph import command
from edge_cloud_spec_lab.simulator.simulator import SimulatorSettings

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
    sections = ["\n".join(part) for part in (_graph(), _nodes(), _launch(), _commands())]
    return "\n".join([INTRODUCTION, *sections]) + "\n"


def _graph() -> Iterator[str]:
    yield "\n## All nodes\n"
    yield _line(["node", "what it does", "topics that it alone publishes"])
    yield "|---|---|---|"
    settings = GraphSettings(rviz=True, record="bags")
    for spec in graph(settings):
        folder = command(spec, settings)[2].rpartition(".")[0]
        ours = spec.package == PACKAGE and spec.is_node
        for name in (spec.nodes or (spec.name,)) if ours else ():
            text = import_module(f"{folder}.{name}").__doc__ or ""
            _, _, what = " ".join(text.partition("\n\n")[0].split()).partition(" node: ")
            topics = [f"`{topic}`" for topic, owners in OWNERS.items() if owners == (name,)]
            yield _line([f"`{name}`", what.rstrip("."), ", ".join(topics)])


def _nodes() -> Iterator[str]:
    for node, settings in NODES.items():
        rows = (
            (name, value, _takes(value, meta) + (" `*`" if meta["fixed"] else ""), meta["about"])
            for name, (value, meta) in flat_fields(settings).items()
        )
        yield from _table(f"## The node `{node}`", "parameter", rows)


def _takes(default: Any, metadata: Any) -> str:
    """The values that a field takes."""
    if "choices" in metadata:
        return ", ".join(f"`{choice}`" if choice else "empty" for choice in metadata["choices"])
    if "range" in metadata:
        return span(metadata)
    return "`true`, `false`" if isinstance(default, bool) else "text"


def _launch() -> Iterator[str]:
    rows = (
        (f"{name}:=", value, _takes(value, meta), meta["about"])
        for name, (value, meta) in ARGUMENTS.items()
    )
    yield from _table("## Arguments of `go2_nav.launch.py`", "argument", rows)


def _commands() -> Iterator[str]:
    yield "\n## Options of `edge-cloud-spec serve`"
    for group in vars(ServeSettings()).values():
        yield from _options(f"### {title(group)}", group)
    of = "## Options of `edge-cloud-spec endpoint`, beside those of the link and the drafter"
    yield from _options(of, EndpointSettings())
    yield from _options("## Options of `edge-cloud-spec mcp`", ToolSettings())


def _options(heading: str, settings: object) -> Iterator[str]:
    rows = (
        (flag(name, meta), _default(value), _takes(value, meta), meta["about"])
        for name, (value, meta) in flat_fields(settings).items()
    )
    yield from _table(heading, "option", rows)


def _default(value: Any) -> Any:
    return "the embedded target" if value == str(EMBEDDED / "target") else value


def _table(title: str, first: str, rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    filled = [[f"`{name}`", _code(default), *rest] for name, default, *rest in rows]
    heads = [first, "default", "takes", "what it is for"]
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
