"""Drafter, bridge and navigator as managed nodes, over the services that `ros2 lifecycle` calls."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.graph.managed import Manager
from helpers.graph.nodes_here import node_here
from helpers.graph.peer import REPLY_TIMEOUT
from helpers.navigator_bench import Bench
from rclpy.lifecycle import TransitionCallbackReturn
from std_msgs.msg import Bool

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.nav.e_stop import EStopMessage
from edge_cloud_spec.nodes.cloud_bridge import CloudBridge
from edge_cloud_spec.nodes.drafter import DrafterNode
from edge_cloud_spec.nodes.instruction_server import InstructionServer
from edge_cloud_spec.nodes.navigator import NavigatorNode

CYCLES = 3
FEW = 2  # threads that DDS begins and ends when it likes; one that leaks in each cycle makes more
TURN = "action: turn left large;"
NODES = ("navigator", "cloud_bridge", "drafter")


SUCCESS = TransitionCallbackReturn.SUCCESS

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start_managed(launch: Start) -> Start:
    def begin(name: str, *parameters: str) -> subprocess.Popen[str]:
        given = [part for each in ("autostart:=false", *parameters) for part in ("-p", each)]
        return launch(["-m", f"edge_cloud_spec.nodes.{name}"], *given)

    return begin


def status_of(process: subprocess.Popen[str], name: str) -> int:
    """Of the kernel's, such as ``Threads``, or ``VmRSS`` in kB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1])


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit status after SIGINT, and what was written on stderr."""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=REPLY_TIMEOUT)
    return process.returncode, errors


@pytest.mark.parametrize("name", NODES)
def test_a_node_goes_back_and_forth_without_a_leak(
    name: str, bench: Bench, start_managed: Start
) -> None:
    process = start_managed(name)
    manager = Manager(name, bench)
    assert manager.state == "unconfigured"
    assert not manager.change("activate"), "refused, and answered"
    threads: list[int] = []
    memory: list[int] = []
    for _ in range(CYCLES):
        assert manager.change("configure") and manager.state == "inactive"
        for _ in range(2):
            assert manager.change("activate") and manager.state == "active"
            threads.append(status_of(process, "Threads"))
            assert manager.change("deactivate") and manager.state == "inactive"
        assert manager.change("cleanup") and manager.state == "unconfigured"
        memory.append(status_of(process, "VmRSS"))
    assert max(threads[-2:]) <= min(threads[:2]) + FEW, threads
    assert memory[-1] < memory[0] * 1.1, memory
    assert manager.change("shutdown") and manager.state == "finalized"
    status, errors = end(process)
    assert status == 0 and "Traceback" not in errors


def participants() -> int:
    """Fast DDS' threads in this process: each participant has some."""
    names = [task.read_text("utf-8") for task in Path("/proc/self/task").glob("*/comm")]
    return sum(name.startswith("dds.") for name in names)


@pytest.mark.parametrize("kind", [NavigatorNode, InstructionServer])
def test_a_node_that_was_destroyed_is_in_no_graph(kind: Any) -> None:
    """Its process ends by itself, and would be seen there for 20 s."""
    before = participants()
    with node_here(kind):
        assert participants() > before
    assert participants() == before


def test_only_an_active_navigator_moves_and_what_came_before_moves_nothing(
    bench: Bench, start_managed: Start
) -> None:
    start_managed("navigator")
    manager = Manager("navigator", bench)
    assert manager.change("configure")
    bench.until(lambda: bench.states and bench.said("stopped", "-", "the navigator is not active"))
    assert not bench.words.get_subscription_count(), "nothing is kept for later"
    assert manager.change("activate")
    for each in (bench.words, bench.instruction, bench.e_stop):
        bench.until(each.get_subscription_count)
    bench.match("navigator")
    bench.until(lambda: bench.state.state == "idle")
    bench.say(TURN, "r1", instruction="find it")
    bench.until(lambda: bench.turning)

    assert manager.change("deactivate")
    moved = len(bench.twists)
    bench.until(lambda: bench.said("stopped", "r1", "the navigator is not active"))
    before = bench.state.stops
    bench.publish("find it")
    bench.say(TURN, "r2", instruction="find it")
    bench.e_stop.publish(Bool(data=True))  # the only message that an inactive navigator hears
    bench.until(lambda: bench.state.e_stopped)

    assert manager.change("activate")
    for each in (bench.words, bench.instruction):
        bench.until(each.get_subscription_count)
    bench.until(lambda: bench.state.detail == "e_stop is on")
    bench.e_stop.publish(Bool(data=False))
    bench.until(lambda: bench.state.detail.startswith("released: publish an instruction"))
    bench.say(TURN, "r3", instruction="find it")
    bench.until(lambda: bench.said("stopped", "r3"))
    bench.publish("find it")
    bench.until(lambda: bench.state.state == "idle")
    bench.say(TURN, "r4", instruction="find it", stops=before)
    bench.until(lambda: bench.said("idle", "r4", "refused: its frame is from before"))
    assert not any(abs(twist.angular.z) > 0 for twist in bench.twists[moved:])
    assert [command.request_id for command in bench.commands] == ["r1"]
    bench.say(TURN, "r5", instruction="find it")
    bench.until(lambda: bench.turning)


@pytest.mark.parametrize(
    ("kind", "given", "why"),
    [
        (CloudBridge, {"authority": "/no/authority.pem"}, "/no/authority.pem cannot be read"),
        (CloudBridge, {"cloud": "nowhere"}, "nowhere"),
        (DrafterNode, {"model.path": "/no/model"}, "/no/model"),
        (DrafterNode, {"model.max_pixels": 100}, "stands for 256 pixels; give as many or more"),
        (
            DrafterNode,
            {"dialect": "klingon"},
            "no dialect 'klingon'; choose one of around, clauses",
        ),
        (NavigatorNode, {"lead_time": 0.5}, "no parameter lead_time"),
    ],
)
def test_a_node_that_cannot_be_configured_says_why(
    kind: Any, given: dict[str, object], why: str
) -> None:
    with node_here(kind, **given) as node, pytest.raises(UserError, match=why):
        node.bring_up()


@pytest.mark.parametrize(
    ("module", "given", "why"),
    [
        (".nodes.navigator", "limits.sped:=0.2", "limits.sped (did you mean limits.speed?)"),
        ("_lab.simulator.simulator", "camera_rat:=3.0", "camera_rat (did you mean camera_rate?)"),
    ],
)
def test_a_node_that_cannot_be_configured_ends_with_one_sentence_and_status_2(
    module: str, given: str, why: str, launch: Start
) -> None:
    process = launch(["-m", f"edge_cloud_spec{module}"], "-p", given)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    others = ("type hash", "tf2_msgs is not installed")
    said = [line for line in errors.splitlines() if not any(text in line for text in others)]
    assert len(said) == 1 and said[0].startswith("error: ") and why in said[0], errors


def test_without_autostart_a_failed_configure_can_be_mended(
    bench: Bench, start_managed: Start, tmp_path: Path
) -> None:
    process = start_managed("cloud_bridge", "token_file:=/no/token")
    manager = Manager("cloud_bridge", bench)
    for _ in range(2):
        assert not manager.change("configure") and manager.state == "unconfigured"
    token = tmp_path / "token"
    token.write_text("secret")
    assert bench.set_parameters_of("cloud_bridge", {"token_file": str(token)}) == [""]
    assert manager.change("configure")
    [refusal] = bench.set_parameters_of("cloud_bridge", {"token_file": "/another"})
    assert "read at the start only" in refusal, "fixed once it is configured"
    assert manager.change("activate") and manager.state == "active"
    status, errors = end(process)
    assert status == 0 and "Traceback" not in errors
    assert errors.count("file /no/token with the token or key cannot be read") == 2


def each_line(kind: Any, names: tuple[str, ...], act: Callable[[], None]) -> Any:
    """A trace that acts before each line of these methods."""
    codes = {
        getattr(owner, name).__code__
        for owner in kind.__mro__
        for name in names
        if name in vars(owner)
    }

    def trace(frame: Any, event: str, arg: object) -> Any:
        if frame.f_code in codes and event == "line":
            act()
        return trace if frame.f_code in codes else None

    return trace


@contextmanager
def tracing(trace: Any) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


TRANSITIONS = (
    "_configure",
    "load",
    "_activate",
    "begin",
    "_deactivate",
    "halt",
    "_clean_up",
    "unload",
)


@pytest.mark.parametrize("kind", [NavigatorNode, DrafterNode])
def test_an_e_stop_is_carried_out_between_any_two_lines_of_a_transition(kind: Any) -> None:
    """Its thread waits for nobody: what its callback uses is there before the node says so."""
    pressed: list[bool] = []

    def press() -> None:
        if not (kind is NavigatorNode and node._lock.locked()):  # else it would wait for that
            pressed.append(len(pressed) % 2 == 0)
            node._on_e_stop(EStopMessage(pressed[-1]))

    with node_here(kind) as node, tracing(each_line(kind, TRANSITIONS, press)):
        for _ in range(2):
            node.bring_up()
            assert node.active
            assert node.trigger_deactivate() == node.trigger_cleanup() == SUCCESS
            assert not node.active and not node.problem
    assert len(pressed) > 50


@pytest.mark.parametrize("kind", [NavigatorNode, CloudBridge, DrafterNode])
def test_a_begin_that_fails_at_any_line_leaves_nothing_half_made(kind: Any) -> None:
    left = 0

    def fail() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise UserError("on purpose")

    with node_here(kind) as node:
        assert node.trigger_configure() == SUCCESS
        before = list(threading.enumerate()), len(node._entities())
        for lines in range(100):
            left = lines
            with tracing(each_line(kind, ("begin",), fail)):
                began = node.trigger_activate() == SUCCESS
            if began:
                break
            assert not node.active and node.problem == "on purpose"
            assert (list(threading.enumerate()), len(node._entities())) == before
        assert began and node.active and lines > 3
        assert node.trigger_deactivate() == SUCCESS
        assert (list(threading.enumerate()), len(node._entities())) == before
