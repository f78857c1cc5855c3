"""Tables of transitions as law, as in h11: what is not listed is refused."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

State = TypeVar("State", bound=Enum)
Trigger = TypeVar("Trigger", bound=Enum)
Transitions = Mapping[State, Mapping[Trigger, State]]


class OutOfTurn(Exception):
    """Something happened that the table does not list for this state; the text says what."""


def follow_table(table: Transitions[State, Trigger], state: State, trigger: Trigger) -> State:
    """The state after this trigger; raises OutOfTurn where the table has none."""
    if trigger not in table[state]:
        raise OutOfTurn(f"{trigger.value}, while {state.value}")
    return table[state][trigger]
