"""When a run is over, and whether the robot did what it was told."""

from __future__ import annotations

from dataclasses import dataclass

from .run_log import RunLog

LASTING = {
    *("unauthenticated", "not_a_verifier", "too_large", "bad_request", "prompt_mismatch"),
    *("bad_opened", "bad_verdict", "bad_row", "bad_draft"),
}
"""Ends of a decision that come again however often it is tried."""

COMING_TO_REST = 4.0  # s after "done" within which the base must stand


@dataclass(frozen=True)
class RunResult:
    """How a run ended after ``seconds`` of driving, in one sentence."""

    success: bool
    text: str
    seconds: float


def ending(story: RunLog, instruction: str, now: float, timeout: float) -> RunResult | None:
    """How the run has ended by ``now``; None while it goes on.

    Success is: the drafter says the instruction is done, and the simulator says that the base
    stands within reach of the named thing, facing it.
    """
    state, _, detail = story.instruction_status.partition(" ")
    if state == "failed":
        return RunResult(False, f"not done: {detail}", now)
    if why := _in_vain(story):
        return RunResult(False, f"not done: {why}", now)
    outcome = story.outcome
    if state == "done" and detail == instruction.strip():
        settled = [at for at, status in story.statuses if status.startswith(("idle", "stopped"))]
        rested = bool(settled) and outcome.get("standing", False)
        if rested or now > _last_words(story) + COMING_TO_REST:
            return _judged(story, now)
    if now > timeout:
        return RunResult(False, f"not done after {timeout:g} s: {_where(story)}", now)
    return None


def _in_vain(story: RunLog) -> str:
    """Why waiting longer is in vain; empty where it may not be."""
    finishes = [decision.finish for decision in story.decisions.values()]
    lasting = next((finish for finish in finishes if finish in LASTING), "")
    if lasting:
        return story.trouble or f"the drafter gives up with {lasting}; its log says why"
    reached = story.opened or not story.trouble
    return story.trouble if "timeout" in finishes and not reached else ""


def _last_words(story: RunLog) -> float:
    ended = [d.ended for d in story.decisions.values() if d.ended == d.ended]
    return max(ended, default=0.0)


def _judged(story: RunLog, now: float) -> RunResult:
    outcome = story.outcome
    where = _where(story)
    if outcome.get("success"):
        return RunResult(True, f"done: the robot stopped {where}, and faces it", now)
    if not outcome.get("standing"):
        return RunResult(False, f"not done: the robot says stop but moves on, {where}", now)
    if outcome.get("at"):
        return RunResult(False, f"not done: it stopped at the {outcome['at']}, {where}", now)
    if outcome["distance"] > outcome["reach"]:
        return RunResult(False, f"not done: it stopped too far away, {where}", now)
    return RunResult(False, f"not done: it stopped without facing the thing, {where}", now)


def _where(story: RunLog) -> str:
    outcome = story.outcome
    return f"{outcome['distance']:.2f} m from the {outcome['target']}"
