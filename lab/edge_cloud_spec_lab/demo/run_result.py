"""Decides when a run is over, and whether the robot reached the named object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from edge_cloud_spec.instruction import normalized
from edge_cloud_spec.nav.status import DONE, GOAL_FAILED, UNKNOWN, GoalStatus
from edge_cloud_spec.wire.messages import TIMEOUT, Code

from ..running.run_log import RunLog

PERMANENT_FAILURES = {
    *(Code.UNAUTHENTICATED, Code.NOT_A_VERIFIER, Code.TOO_LARGE, Code.BAD_REQUEST),
    *(Code.PROMPT_MISMATCH, Code.BAD_OPENED, Code.BAD_VERDICT, Code.BAD_ROW, Code.BAD_DRAFT),
    Code.OUT_OF_TURN,
}
"""Finish reasons of a decision that every retry would have again."""

NOT_DONE = {
    GOAL_FAILED: "not done",
    "not_found": "not found",
    "blocked": "blocked",
    "given_up": "given up",
}
"""States of ``instruction_status`` that end a run without success, as a sentence begins."""

SETTLING_TIME = 8.0  # s after "done" within which the base must stand; legs step on the spot for 2


@dataclass(frozen=True)
class RunResult:
    """The result of a run after ``seconds`` of driving, with one sentence."""

    success: bool
    text: str
    seconds: float


def result_of(run_log: RunLog, instruction: str, now: float, timeout: float) -> RunResult | None:
    """The result of the run if it has ended by ``now``, else None.

    Success means that the drafter reports the instruction as done, and the simulator reports that
    the base stands within reach of the named object, facing it.
    """
    status = run_log.instruction_status or GoalStatus(UNKNOWN)
    if status.state in NOT_DONE:
        return RunResult(False, f"{NOT_DONE[status.state]}: {status.text}", now)
    if why := _permanent_failure(run_log):
        return RunResult(False, f"not done: {why}", now)
    outcome = run_log.outcome
    if (status.state, status.instruction) == (DONE, normalized(instruction)):
        settled = [at for at, status in run_log.statuses if status.state in ("idle", "stopped")]
        rested = bool(settled) and outcome.get("standing", False)
        if rested or now > _last_answer_at(run_log) + SETTLING_TIME:
            return _result_at_rest(run_log, now)
    if now > timeout:
        return RunResult(False, f"not done after {timeout:g} s: {_where(run_log)}", now)
    return None


def seconds_spent(run_log: RunLog, end: float) -> dict[str, float]:
    """How the seconds until ``end`` were spent: driving, deciding while standing, other
    standing."""
    outcomes = [(0.0, {"standing": True}), *run_log.outcomes]
    times = [min(max(0.0, at), end) for at, _ in outcomes] + [end]
    still = [
        span
        for span, (_, outcome) in zip(pairwise(times), outcomes, strict=True)
        if outcome["standing"]
    ]
    decisions = list(run_log.decisions.values())
    begun = [decision.begun for decision in decisions] + [end]
    deciding = [
        (decision.begun, min(t for t in (decision.acting, decision.ended, after) if t == t))
        for decision, after in zip(decisions, begun[1:], strict=True)
    ]
    stood = sum(b - a for a, b in still)
    decided = sum(max(0.0, min(b, d) - max(a, c)) for a, b in still for c, d in deciding)
    return {"driving": end - stood, "deciding": decided, "standing": stood - decided}


def spent_text(seconds: Mapping[str, Any]) -> str:
    """``seconds_spent`` as a line of text, with the total ``seconds`` of the run."""
    return (
        f"{seconds['seconds']:.1f} s: driving {seconds['driving']:.1f}, "
        f"deciding {seconds['deciding']:.1f}, standing {seconds['standing']:.1f}"
    )


def _permanent_failure(run_log: RunLog) -> str:
    """Why no retry can succeed; empty if one may."""
    finishes = [decision.finish for decision in run_log.decisions.values()]
    permanent = next((finish for finish in finishes if finish in PERMANENT_FAILURES), "")
    if permanent:
        return run_log.problem or f"the drafter gives up with {permanent}; its log says why"
    reached = run_log.opened or not run_log.problem
    return run_log.problem if TIMEOUT in finishes and not reached else ""


def _last_answer_at(run_log: RunLog) -> float:
    ended = [d.ended for d in run_log.decisions.values() if d.ended == d.ended]
    return max(ended, default=0.0)


def _result_at_rest(run_log: RunLog, now: float) -> RunResult:
    outcome = run_log.outcome
    where = _where(run_log)
    if outcome.get("success"):
        return RunResult(True, f"done: the robot stopped {where}, and faces it", now)
    if not outcome.get("standing"):
        return RunResult(False, f"not done: the robot says stop but moves on, {where}", now)
    if outcome.get("at"):
        return RunResult(False, f"not done: it stopped at the {outcome['at']}, {where}", now)
    if outcome["distance"] > outcome["reach"]:
        return RunResult(False, f"not done: it stopped too far away, {where}", now)
    return RunResult(False, f"not done: it stopped without facing the thing, {where}", now)


def _where(run_log: RunLog) -> str:
    outcome = run_log.outcome
    return f"{outcome['distance']:.2f} m from the {outcome['target']}"
