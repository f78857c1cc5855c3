"""The figures of a run, as ``figures.json`` holds them: times in ms, shares from 0 to 1."""

from __future__ import annotations

import platform
from itertools import pairwise
from typing import Any

from ... import __version__
from ...observe.decision import Decision, branched, joined
from ...observe.run_log import RunLog
from .run_result import RunResult

_SUMS = ("tokens", "rounds", "drafted", "accepted", "stale", "up_bytes", "down_bytes")
_TIMES = ("draft_ms", "verify_ms", "link_ms", "total_ms")


def figures(
    run: dict[str, Any], run_log: RunLog, result: RunResult, started: float
) -> dict[str, Any]:
    """All figures of a run; ``started`` is the seconds that the graph took to start."""
    decisions = [d for d in run_log.decisions.values() if d.stats]
    total = {name: sum(d.stats[name] for d in decisions) for name in _SUMS}
    times = {name: round(sum(d.stats[name] for d in decisions), 2) for name in _TIMES}
    return {
        **run,
        "success": result.success,
        "ending": result.text,
        "outcome": run_log.outcome,
        "start_ms": round(1e3 * started),
        "drive_ms": round(1e3 * result.seconds),
        "decisions": len(decisions),
        **total,
        "acceptance": round(total["accepted"] / total["drafted"], 4) if total["drafted"] else None,
        "tokens_per_s": round(1e3 * total["tokens"] / (times["total_ms"] or 1.0), 2),
        "tokens_per_round": round(total["tokens"] / (total["rounds"] or 1), 3),
        **times,
        "path_m": round(path_length(run_log), 3),
        "versions": {"edge_cloud_spec": __version__, "python": platform.python_version()},
        "rows": [row(decision) for decision in run_log.decisions.values()],
    }


def row(decision: Decision) -> dict[str, Any]:
    """One decision, its rounds included."""
    stats = {k: round(v, 3) if isinstance(v, float) else v for k, v in decision.stats.items()}
    return {
        "decision": decision.number,
        "request": decision.request,
        "at_ms": round(1e3 * decision.begun),
        "answer": decision.answer,
        "action": decision.action,
        "verified": decision.verified,
        "distance": decision.pose.get("distance"),
        "bearing": decision.pose.get("bearing"),
        **stats,
        "words": [
            {
                "accepted": joined(r.kept),
                "rejected": branched(r.branches),
                "other_branches": r.others,
                "own": r.own if r.drafted else (r.settled or "").strip(),
            }
            for r in sorted(decision.rounds.values(), key=lambda r: r.base)
        ],
    }


def path_length(run_log: RunLog) -> float:
    """Metres that the robot drove."""
    places = [complex(o["x"], o["y"]) for _, o in run_log.outcomes]
    return float(sum(abs(b - a) for a, b in pairwise(places)))
