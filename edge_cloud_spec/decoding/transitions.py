"""Tables of state transitions; a transition that is not listed is refused, as in h11."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

State = TypeVar("State", bound=Enum)
Trigger = TypeVar("Trigger", bound=Enum)
Transitions = Mapping[State, Mapping[Trigger, State]]


class OutOfTurn(Exception):
    """A trigger that the table does not list for the current state; the text says which."""


def follow_table(table: Transitions[State, Trigger], state: State, trigger: Trigger) -> State:
    """The state after this trigger; raises OutOfTurn if the table lists none."""
    if trigger not in table[state]:
        raise OutOfTurn(f"{trigger.value}, while {state.value}")
    return table[state][trigger]
