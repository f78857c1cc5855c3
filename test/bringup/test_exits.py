"""What follows when a process of the graph ends by itself."""

from __future__ import annotations

import pytest

from edge_cloud_spec.bringup.exits import (
    MAX_RESPAWNS,
    SETTLED_S,
    EndAll,
    ExitRules,
    Respawn,
    Role,
    last_words,
)
from edge_cloud_spec.bringup.graph import GraphSettings, graph

SAID = ["a line", "error: no such file", "[INFO] closing"]


@pytest.mark.parametrize(
    ("name", "role", "status", "why"),
    [
        *(("navigator", Role.NEEDED, n, f"exit status {n}): no such file") for n in (0, 1, 2, 3)),
        ("navigator", Role.NEEDED, -9, "killed by SIGKILL, perhaps out of memory)"),
        ("navigator", Role.NEEDED, -15, "killed by SIGTERM)"),
        ("bridge", Role.RESPAWNED, 0, "exit status 0): no such file"),
        ("bridge", Role.RESPAWNED, 2, "exit status 2): no such file"),
    ],
)
def test_a_navigator_that_ends_and_what_cannot_start_or_was_ended_by_somebody_is_the_end_of_all(
    name: str, role: Role, status: int, why: str
) -> None:
    """What it said before a signal killed it is not given as the cause."""
    then = ExitRules().on_exit(name, role, status, 500.0, SAID)
    assert then == EndAll(f"{name} ended ({why}")


def test_a_crash_is_respawned_a_bounded_number_of_times() -> None:
    exits = ExitRules()
    for _ in range(MAX_RESPAWNS):
        then = exits.on_exit("drafter", Role.RESPAWNED, -9, 1.0, SAID)
        assert isinstance(then, Respawn) and "SIGKILL" in then.why
    assert isinstance(exits.on_exit("simulator", Role.RESPAWNED, 3, 1.0, []), Respawn), "its own"
    assert isinstance(exits.on_exit("drafter", Role.RESPAWNED, 3, 1.0, SAID), EndAll)


def test_one_that_ran_for_long_is_respawned_again() -> None:
    exits = ExitRules()
    for _ in range(3 * MAX_RESPAWNS):
        then = exits.on_exit("drafter", Role.RESPAWNED, 1, SETTLED_S, SAID)
        assert isinstance(then, Respawn)


@pytest.mark.parametrize("status", [0, 2, -11])
def test_a_window_may_be_closed(status: int) -> None:
    assert ExitRules().on_exit("rviz2", Role.OPTIONAL, status, 1.0, SAID) is None


def test_last_words_are_the_last_error_else_the_last_line() -> None:
    assert last_words(SAID) == "error: no such file"
    assert last_words(["one", "two", " "]) == "two"
    assert last_words([]) == "no output"


def test_only_the_navigator_is_needed_and_only_rviz_is_optional() -> None:
    roles = {spec.name: spec.role for spec in graph(GraphSettings(rviz=True))}
    assert [name for name, role in roles.items() if role is Role.NEEDED] == ["navigator"]
    assert [name for name, role in roles.items() if role is Role.OPTIONAL] == ["rviz2"]
