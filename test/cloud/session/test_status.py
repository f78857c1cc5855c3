"""The tables of robot and cloud: each pair is listed or refused, and no message is one of these."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest
from helpers.cloud.verification import BASE, cloud_of, draft, opened, says, split_opening

from edge_cloud_spec.cloud.session import session
from edge_cloud_spec.cloud.session.events import Proposed
from edge_cloud_spec.cloud.session.session import CloudSession, Status, Trigger
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.split import Split
from edge_cloud_spec.decoding.transitions import OutOfTurn
from edge_cloud_spec.edge import rounds
from edge_cloud_spec.wire.messages import (
    Close,
    DraftMessage,
    Generate,
    Generation,
    Resume,
    RowRequest,
)

TABLES: dict[str, tuple[Any, type[Enum], type[Enum], Enum]] = {
    "robot": (rounds.TRANSITIONS, rounds.Mode, rounds.Trigger, rounds.Mode.READING),
    "cloud": (session.TRANSITIONS, Status, Trigger, Status.FINISHED),
}


@pytest.mark.parametrize("side", TABLES)
def test_status_every_one_is_reached_and_left_and_every_trigger_is_used(side: str) -> None:
    table, states, triggers, end = TABLES[side]
    assert set(table) == set(states) and all(end in row.values() for row in table.values())
    assert {then for row in table.values() for then in row.values()} == set(states)
    assert {trigger for row in table.values() for trigger in row} == set(triggers)


def after(*events: Any, cloud: CloudSession | None = None) -> CloudSession:
    cloud = cloud or cloud_of()
    for event in events:
        cloud.handle(event)
    return cloud


def blocked() -> CloudSession:
    cloud = after(draft(1, 2))
    cloud.turn(Trigger.PASS_BLOCKED)
    return cloud


def resampling() -> CloudSession:
    cloud = opened(split_opening(Split("dense")), 40)
    return after(RowRequest(BASE), says(1), cloud=cloud)


IN: dict[Status, Callable[[], CloudSession]] = {
    Status.WAITING: cloud_of,
    Status.DRAFTING: lambda: after(Generate(BASE, Generation(speculative=True))),
    Status.SCORING: lambda: after(draft(1, 2)),
    Status.BLOCKED: blocked,
    Status.RESAMPLING: resampling,
    Status.FINISHED: lambda: after(Close()),
}
DRAWN = Draft((3,), values=(0.9,))
MESSAGES: dict[str, Callable[[PrefixDigest], Any]] = {
    "draft": lambda here: draft(3, base=here),
    "hint": lambda here: DraftMessage(here, Draft((3,)), 1, hint=True),
    "pushed": lambda here: draft(3, base=here.extend((5, 6))),
    "resampled": lambda here: DraftMessage(here.extend((4,)), DRAWN, 1, resampled=4),
    "elsewhere": lambda here: draft(3, base=BASE.extend((8, 8, 8))),
    "generate": Generate,
    "resume": lambda here: Resume("s", here),
    "row request": RowRequest,
    "close": lambda here: Close(4),
}


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("status", Status)
def test_status_no_message_of_a_robot_is_out_of_turn(status: Status, message: str) -> None:
    """Twice, and then all others: they are answered, kept, counted or refused with a fault."""
    cloud = IN[status]()
    assert cloud.status is status
    for kind in (message, message, *MESSAGES):
        cloud.handle(MESSAGES[kind](cloud.digest))
    assert cloud.status is Status.FINISHED


@pytest.mark.parametrize("status", Status)
def test_status_what_the_worker_reports_is_awaited_or_refused(status: Status) -> None:
    rows, proposed = says(*[1] * 3), Proposed(Draft((1, 2)))
    for event, awaited in ((rows, Status.SCORING), (proposed, Status.DRAFTING)):
        cloud = IN[status]()
        if status is awaited:
            assert cloud.handle(event)
            continue
        tokens = list(cloud.tokens)
        with pytest.raises(OutOfTurn):
            cloud.handle(event)
        assert (cloud.status, cloud.tokens) == (status, tokens)
