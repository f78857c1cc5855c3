"""`ros2 launch edge_cloud_spec go2_nav.launch.py`: the node graph of `bringup/graph.py`."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from ament_index_python.packages import PackageNotFoundError, get_package_prefix
from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import (
    DeclareLaunchArgument,
    LogInfo,
    OpaqueFunction,
    RegisterEventHandler,
    TimerAction,
)
from launch.event_handlers import OnProcessExit, OnProcessIO
from launch.events.process import ProcessExited, ProcessIO
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from edge_cloud_spec.bringup.exits import DELAY_S, EndAll, ExitRules
from edge_cloud_spec.bringup.graph import GraphSettings, NodeSpec, graph
from edge_cloud_spec.bringup.launch_arguments import (
    ARGUMENTS,
    default_text,
    installed,
    refuse_unknown,
    settings_of,
)
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.nodes.runtime.parent import ENDS_WITH_LAUNCH
from edge_cloud_spec.wire.channel import check_free

LINES = 30  # of a process's output that are kept to be quoted
EXIT_S = "4.0"  # for SIGINT, before SIGTERM; a node that cannot close ends by force after 3 s
KILL_S = "0.8"  # after that, before SIGKILL: all have ended within 5 s


def _parameters(spec: NodeSpec) -> dict[str, Any]:
    # a text is a text, also one that YAML would read as a number, or as an error (a URDF)
    return {
        name: ParameterValue(value, value_type=str) if isinstance(value, str) else value
        for name, value in spec.parameters
    }


class _Graph:
    """The processes of one launch, and what follows when one of them ends."""

    def __init__(self, settings: GraphSettings) -> None:
        self._settings = settings
        self._exits = ExitRules()

    def start(self, spec: NodeSpec) -> list[LaunchDescriptionEntity]:
        """The process, and handlers of its output and its end."""
        action, lines, begun = self._action(spec), deque[str](maxlen=LINES), time.monotonic()

        def keep(event: ProcessIO) -> None:
            lines.extend(event.text.decode("utf-8", "replace").splitlines())

        def on_exit(
            event: ProcessExited, context: LaunchContext
        ) -> list[LaunchDescriptionEntity] | None:
            if context.is_shutdown:
                return None
            lived = time.monotonic() - begun
            then = self._exits.on_exit(spec.name, spec.role, event.returncode, lived, lines)
            if then is None:
                return None
            if isinstance(then, EndAll):
                # Raising is what makes `ros2 launch` shut down with a status that is not 0; the
                # sentence is said again when all have ended, so that it stands last.
                atexit.register(print, f"error: {then.why}", file=sys.stderr)
                raise UserError(then.why)
            timer = TimerAction(period=DELAY_S, actions=self.start(spec))
            return [LogInfo(msg=then.why), timer]

        return [
            RegisterEventHandler(OnProcessIO(target_action=action, on_stdout=keep, on_stderr=keep)),
            RegisterEventHandler(OnProcessExit(target_action=action, on_exit=on_exit)),
            action,
        ]

    def _action(self, spec: NodeSpec) -> Node:
        node: dict[str, Any] = {}
        if spec.is_node:
            node = {
                "name": None if spec.nodes else spec.name,
                "namespace": spec.namespace,
                "parameters": [*self._settings.parameter_files, _parameters(spec)],
                "remappings": list(spec.remappings),
            }
        return Node(
            package=spec.package,
            executable=spec.name,
            arguments=list(spec.arguments),
            output="screen",
            additional_env={ENDS_WITH_LAUNCH: str(os.getpid())},
            sigterm_timeout=EXIT_S,
            sigkill_timeout=KILL_S,
            **node,
        )


def _executable(package: str, name: str) -> bool | None:
    try:
        return (Path(get_package_prefix(package)) / "lib" / package / name).exists()
    except PackageNotFoundError:
        return None


def _start(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    # All that can be wrong is found before anything is started: launch leaves what it has started
    # alone when a later action raises. A UserError ends it with its sentence, and status 1.
    included = not any(text.endswith(Path(__file__).name) for text in sys.argv)
    refuse_unknown(context.argv, included)
    settings = settings_of({name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS})
    wanted = graph(settings)
    specs = installed(wanted, _executable)
    missing = [spec.package for spec in wanted if spec not in specs]
    if settings.starts_verifier:
        check_free(settings.address)
    processes = _Graph(settings)
    return [
        LogInfo(msg="drive: {}: {}".format(*settings.driving)),
        LogInfo(msg=f"obstacles: {settings.looking}"),
        *(LogInfo(msg=f"{package} is not installed; starting without it") for package in missing),
        *(entity for spec in specs for entity in processes.start(spec)),
    ]


def generate_launch_description() -> LaunchDescription:
    """The arguments, and the graph that they ask for."""
    declared = [
        DeclareLaunchArgument(name, default_value=default_text(name), description=meta["about"])
        for name, (_, meta) in ARGUMENTS.items()
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=_start)])
