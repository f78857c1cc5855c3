"""Hundreds of short decodes over a link that does what it likes; and whether they would notice."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from edge_cloud_spec.cloud.session.session import CloudSession
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.propose import FinishedDraft
from edge_cloud_spec.edge.drafts import Drafts
from edge_cloud_spec.edge.events import Effect, Work
from edge_cloud_spec.edge.rounds import Rounds
from edge_cloud_spec.presets import load_preset, preset_names
from edge_cloud_spec.wire.messages import DraftMessage
from edge_cloud_spec_lab.bench.schedules import (
    COUNTS,
    Schedule,
    ScheduleResult,
    random_faults,
    random_schedule,
    run_schedule,
    single_and_paired_faults,
)
from edge_cloud_spec_lab.harness.virtual_decode import MESSAGE_FAULTS, Conditions

VERIFIED = [name for name in preset_names() if load_preset(name).verified]


def fates(
    presets: list[str], seed: int, first: int = 0
) -> Iterator[tuple[Schedule, ScheduleResult]]:
    schedules = (random_schedule(presets, seed, number) for number in range(first, first + 2000))
    return ((schedule, run_schedule(schedule)) for schedule in schedules)


def test_nothing_is_emitted_that_the_cloud_does_not_hold_and_every_decode_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = dict.fromkeys(COUNTS, 0)
    for _, counts, failures in random_faults(VERIFIED, 0, range(400)):
        assert failures == []
        seen = {name: seen[name] + counts[name] for name in COUNTS}
    assert seen["schedules"] == 400
    assert seen["wrong"] == seen["hung"] == seen["failed"] == 0
    assert min(seen["resumed"], seen["fallbacks"], seen["timeout"]) > 15  # the rare is there
    failed = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert failed == [], "the verifier's own errors, which a robot's retry would hide"


@pytest.mark.parametrize("preset", ["picospec", "dssd"])
def test_every_fault_at_every_message_and_every_two(preset: str) -> None:
    told = list(single_and_paired_faults(Schedule(preset, "rejection", 3, tokens=2)))
    assert {kind for schedule, _ in told for _, kind in schedule.faults} == set(MESSAGE_FAULTS)
    assert {len(schedule.faults) for schedule, _ in told} == {0, 1, 2}
    assert {end.verdict for _, end in told} == {"", "timeout"}


SEND = Rounds._send


def misremembered(self: Rounds, draft: FinishedDraft, now: float) -> list[Effect]:
    """Send a draft, and take every third for another one."""
    effects = SEND(self, draft, now)
    request = self.request
    assert request is not None and isinstance(request.message, DraftMessage)
    if request.message.round % 3 == 0:
        tokens = tuple(1 if token == 0 else token - 1 for token in draft.draft.tokens)
        other = replace(request.message, draft=replace(request.message.draft, tokens=tokens))
        self.request = replace(request, message=other)
    return effects


def test_a_verdict_read_against_another_draft_is_noticed_and_nothing_of_it_emitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a robot that holds another draft than it sent: one that compares, one that does not."""
    monkeypatch.setattr(Rounds, "_send", misremembered)
    with monkeypatch.context() as blind:
        blind.setattr(PrefixDigest, "short", property(lambda self: 0))
        found = (schedule for schedule, end in fates(["picospec"], 1) if end.verdict == "wrong")
        wrong = list(islice(found, 20))
    assert len(wrong) == 20
    for end in map(run_schedule, wrong):
        assert end.counts["diverged"] and end.verdict not in ("wrong", "hung")


def draft_on(self: Drafts) -> list[Work]:
    """As it once was: drafts went on while all of P was awaited."""
    self.drop_unverified()
    return []


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "presets", "first"),
    [
        pytest.param(
            Drafts,
            "pause",
            draft_on,
            VERIFIED,
            3420,
            id="drafts that are sent while all of P is awaited",
        ),
        pytest.param(
            CloudSession,
            "can_resume_at",
            lambda self, here: self._answer.was_at(here),
            ["cloud_sd"],
            190,
            id="a session, found by its tokens alone, whose verdicts go across where its robot is",
        ),
    ],
)
def test_schedules_notice(
    owner: type,
    name: str,
    wrong: Any,
    presets: list[str],
    first: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Random ones; ``first``: the number of those before, which would take their time."""
    monkeypatch.setattr(owner, name, wrong)
    assert any(end.verdict == "failed" for _, end in fates(presets, 1, first))


EARLIER = ((3, "moved"), (7, "moved"), (9, "repeated"))
ONE_CUT = Conditions(jitter=0.5, cuts=0.5, outage=0.0, draft_pass=0.3)
DOZEN_CUTS = Conditions(0.4, 0.5, duplicated=0.3, cuts=0.5, outage=1.0, cloud_job=0.0)
HAND_OVERS = Conditions(0.05, 0.0, 0.0, True, 3.0, 12, 0.0, 0.8, cloud_job=0.0, draft_pass=0.3)
CUTS_AND_MOVES = Conditions(0.05, 0.1, 0.3, False, 3.0, 12, 0.3, 0.8, cloud_job=0.2, draft_pass=0.1)
RESUMED = (
    *((3, "moved"), (7, "repeated"), (8, "moved"), (9, "cut"), (19, "late")),
    *((20, "moved"), (26, "moved"), (43, "cut"), (47, "lost")),
)
MOVES = ((2, "moved"), (3, "moved"), (4, "moved"), (11, "moved"))
LATE = ((0, "lost"), (7, "cut"), (8, "lost"), (9, "late"))


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(
            Schedule("dssd_dense", "rejection", 471930041, EARLIER, 4, 3, True, 1, ONE_CUT),
            id="a robot that a verdict of an earlier session took further opens another",
        ),
        pytest.param(
            Schedule("picospec", "rejection", 2972700308, (), 8, 7, True, 1, DOZEN_CUTS),
            id="a row that is awaited comes though the session was opened again",
        ),
        pytest.param(
            Schedule(
                "dssd",
                "rejection",
                1351530639,
                tuple(sorted((*MOVES, *LATE))),
                2,
                12,
                True,
                1,
                HAND_OVERS,
            ),
            id="a draft of before a row was asked for, that comes late, does not end the decode",
        ),
        pytest.param(
            Schedule("cloud_sd", "greedy", 1704200345, RESUMED, 16, 12, True, 1, CUTS_AND_MOVES),
            id="what answers a resume is no answer to the open that comes after it",
        ),
    ],
)
def test_what_once_failed(schedule: Schedule) -> None:
    end = run_schedule(schedule)
    assert end.verdict == ""
    assert end.counts["fallbacks"] or schedule.preset in ("dssd_dense", "cloud_sd")
