"""Two thousand short decodes over a link that does what it likes; and whether they would notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from edge_cloud_spec.cloud.session.events import Action as CloudAction
from edge_cloud_spec.cloud.session.verification import Verification
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.propose import FinishedDraft
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.drafts import Drafts
from edge_cloud_spec.edge.events import Action, Work
from edge_cloud_spec.edge.rounds import Rounds
from edge_cloud_spec.lab.bench.schedules import (
    COUNTS,
    Schedule,
    ScheduleResult,
    random_faults,
    random_schedule,
    run_schedule,
    single_and_paired_faults,
)
from edge_cloud_spec.lab.harness.virtual_decode import FAULTS, Conditions
from edge_cloud_spec.presets import load_preset, preset_names
from edge_cloud_spec.wire.messages import DraftMessage, Opened, Resume

NOWHERE = PrefixDigest(10_000, 0)  # where no answer ever is
VERIFIED = [name for name in preset_names() if load_preset(name).verified]


def fates(
    presets: list[str], seed: int, count: int = 2000
) -> Iterator[tuple[Schedule, ScheduleResult]]:
    schedules = (random_schedule(presets, seed, number) for number in range(count))
    return ((schedule, run_schedule(schedule)) for schedule in schedules)


def test_nothing_is_emitted_that_the_cloud_does_not_hold_and_every_decode_ends() -> None:
    seen = dict.fromkeys(COUNTS, 0)
    for _, counts, failures in random_faults(VERIFIED, 0, range(2000)):
        assert failures == []
        seen = {name: seen[name] + counts[name] for name in COUNTS}
    assert seen["schedules"] == 2000
    assert seen["wrong"] == seen["hung"] == seen["failed"] == 0
    assert min(seen["resumed"], seen["fallbacks"], seen["timeout"]) > 50  # the rare is there


@pytest.mark.parametrize("preset", ["picospec", "dssd"])
def test_every_fault_at_every_message_and_every_two(preset: str) -> None:
    told = list(single_and_paired_faults(Schedule(preset, "rejection", 3, tokens=2)))
    assert {kind for schedule, _ in told for _, kind in schedule.faults} == set(FAULTS)
    assert {len(schedule.faults) for schedule, _ in told} == {0, 1, 2}
    assert {end.verdict for _, end in told} == {"", "timeout"}


def draft_on(self: Drafts) -> list[Work]:
    """As it once was: drafts went on while all of P was awaited."""
    self.drop_unverified()
    return []


SEND = Rounds._send


def misremembered(self: Rounds, draft: FinishedDraft, now: float) -> list[Action]:
    """Send a draft, and take every third for another one."""
    actions = SEND(self, draft, now)
    request = self.request
    assert request is not None and isinstance(request.message, DraftMessage)
    if request.message.round % 3 == 0:
        tokens = tuple(1 if token == 0 else token - 1 for token in draft.draft.tokens)
        other = replace(request.message, draft=replace(request.message.draft, tokens=tokens))
        self.request = replace(request, message=other)
    return actions


def test_they_notice_drafts_that_are_sent_while_all_of_p_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Drafts, "pause", draft_on)
    assert any(end.verdict == "failed" for _, end in fates(VERIFIED, 0))


def test_a_verdict_read_against_another_draft_is_noticed_and_nothing_of_it_emitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a robot that holds another draft than it sent: one that compares, one that does not."""
    monkeypatch.setattr(Rounds, "_send", misremembered)
    with monkeypatch.context() as blind:
        blind.setattr(PrefixDigest, "short", property(lambda self: 0))
        wrong = [schedule for schedule, end in fates(["picospec"], 1) if end.verdict == "wrong"]
    assert wrong
    assert all(run_schedule(schedule).counts["diverged"] for schedule in wrong)
    assert not [
        schedule for schedule in wrong if run_schedule(schedule).verdict in ("wrong", "hung")
    ]


def test_they_notice_a_session_that_forgets_the_place_before_an_adopted_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resume = Verification._on_resume

    def forgets(self: Verification, message: Resume) -> list[CloudAction]:
        known = message.base == self.digest or message.base in self._history
        return resume(self, message if known else Resume(message.session, NOWHERE))

    monkeypatch.setattr(Verification, "_on_resume", forgets)
    found = (end for _, end in fates(VERIFIED, 0) if end.verdict == "failed")
    assert "unknown_prefix" in next(found).why


def test_they_notice_a_session_whose_verdicts_go_across_where_its_robot_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was found again by its tokens alone, and never answered the robot's request there."""
    monkeypatch.setattr(Verification, "stands_at", lambda self, here: self._answer.was_at(here))
    assert any(end.verdict == "failed" for _, end in fates(["cloud_sd"], 1))


def test_they_notice_a_session_that_has_no_row_for_anothers_rejection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was found again, and knew the place of a row by its own draft alone."""
    row = Verification._on_row_request

    def own_alone(self: Verification, base: PrefixDigest) -> list[CloudAction]:
        last = self._history.last
        return row(self, base) if last is None or base == last else []

    def stands_at(self: Verification, here: PrefixDigest) -> bool:
        return here == self.digest or here in self._history

    monkeypatch.setattr(Verification, "_on_row_request", own_alone)
    monkeypatch.setattr(Verification, "stands_at", stands_at)
    assert any(end.verdict == "failed" for _, end in fates(["picospec"], 1))


def test_they_notice_a_session_that_is_taken_for_the_one_before_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As once: what the first verifier says after the second did not answer is dropped."""
    left: dict[EdgeDecoder, str] = {}
    reopen, opened = EdgeDecoder._reopen, EdgeDecoder._on_opened

    def remembers(self: EdgeDecoder) -> list[Action]:
        left[self] = self._answer.session or left.get(self, "")
        return reopen(self)

    def drops(self: EdgeDecoder, message: Opened, now: float) -> list[Action]:
        return [] if message.session == left.get(self) else opened(self, message, now)

    monkeypatch.setattr(EdgeDecoder, "_reopen", remembers)
    monkeypatch.setattr(EdgeDecoder, "_on_opened", drops)
    assert any(end.verdict == "failed" for _, end in fates(["cloud_ar"], 1))


def test_a_row_that_is_awaited_comes_though_the_session_was_opened_again() -> None:
    """One decode of many over a link that breaks a dozen times; it once waited for ever."""
    link = Conditions(0.4, 0.5, duplicated=0.3, cuts=0.5, outage=1.0, cloud_job=0.0)
    schedule = Schedule("picospec", "rejection", 2972700308, (), 8, 7, True, 1, link)
    assert run_schedule(schedule).counts["fallbacks"]
    assert run_schedule(schedule).verdict == ""


def test_a_draft_of_before_a_row_was_asked_for_does_not_end_the_decode() -> None:
    """It reaches a verifier late, on the session that has told the row meanwhile."""
    moves = ((2, "moved"), (3, "moved"), (4, "moved"), (11, "moved"))
    faults = tuple(sorted((*moves, (0, "lost"), (7, "cut"), (8, "lost"), (9, "late"))))
    link = Conditions(0.05, 0.0, 0.0, True, 3.0, 12, 0.0, 0.8, cloud_job=0.0, draft_pass=0.3)
    schedule = Schedule("dssd", "rejection", 1351530639, faults, 2, 12, True, 1, link)
    assert run_schedule(schedule).verdict == ""
