"""Prints a run on the console as it happens: colours on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.text import Text

from edge_cloud_spec.edge.events import ANSWERED
from edge_cloud_spec.observe.decision import Fate, ShownRound, words_of_round
from edge_cloud_spec.wire.messages import CUT

from .run_log import (
    ActionStarted,
    Decision,
    DecisionFinished,
    ProblemReported,
    RoundSettled,
    RunEvent,
)

WORDS_COLUMN = 9  # columns before the words
MARKS: dict[Fate, tuple[str, str, str]] = {  # before the words, their style, behind them
    "accepted": ("", "green", ""),
    "rejected": ("[-", "red strike", "-]"),
    "left": ("(+", "dim", ")"),
    "own": ("{+", "bold yellow", "+}"),
    "unverified": ("", "magenta", ""),
    "missed": ("", "bold red", ""),
}


class ConsoleView:
    """Prints run events.

    Consecutive words share a line, which ends when something else is printed.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.words = Text()
        self._decision = ""
        self._problems: dict[str, float] = {}

    def print_line(self, text: str, style: str = "") -> None:
        """Print one line."""
        self.flush()
        self.console.print(Text(text, style), soft_wrap=True)

    def node_ready(self, name: str, seconds: float) -> None:
        """Print that a process of the graph is up."""
        self.print_line(f"  up after {seconds:5.1f} s  {name}", "dim")

    def show(self, event: RunEvent) -> None:
        """Print one event."""
        match event:
            case RoundSettled(decision, round_):
                self._round(decision, round_)
            case ActionStarted(decision):
                where = Text(_where(decision.where))
                self._line("motion", Text(decision.action, "bold cyan"), where)
            case DecisionFinished(decision):
                self._cost(decision)
            case ProblemReported(text):
                self._problem(text)

    def _round(self, decision: Decision, round_: ShownRound) -> None:
        if decision.request != self._decision:
            self.flush()
            self._decision = decision.request
            self.console.print(Text(f"decision {decision.number}", "bold"))
        words = words_of(round_, decision.verified)
        if self.words.plain and not words.plain.startswith((";", ":", ",")):
            self.words.append(" ")
        self.words.append_text(words)

    def _cost(self, decision: Decision) -> None:
        stats = decision.stats
        if decision.finish not in ANSWERED:
            self._problem(f"decision {decision.number} ended without an answer: {decision.finish}")
            return
        cut = ", then cut off" if decision.finish == CUT else ""
        parts = [f"{stats['tokens']} tokens{cut}, {stats['tokens_per_second']:.0f} a second"]
        if stats["drafted"]:
            parts.append(f"{stats['accepted']} of {stats['drafted']} drafted ones accepted")
        if stats["rounds"]:
            parts.append(f"{stats['rounds']} round trips")
            parts.append(f"up {size(stats['up_bytes'])}, down {size(stats['down_bytes'])}")
        self._line("cost", Text("; ".join(parts), "dim"))

    def _problem(self, text: str) -> None:
        now = time.monotonic()
        if now - self._problems.get(text, -10.0) > 5.0:  # a repeat is printed every few seconds
            self._problems[text] = now
            self._line("trouble", Text(text, "yellow"))

    def _line(self, head: str, *parts: Text) -> None:
        self.flush()
        text = Text(f"{head:>{WORDS_COLUMN - 1}} ", "dim")
        text.append_text(Text("   ").join(part for part in parts if part.plain))
        self.console.print(text, soft_wrap=True)

    def flush(self) -> None:
        """End the line of words."""
        if self.words.plain:
            words, self.words = self.words, Text()
            self._line("words", words)


def words_of(round_: ShownRound, verified: bool = True) -> Text:
    """Accepted words as they are, rejected ones in [- -], the cloud's token in {+ +}.

    A tree's branches are separated by |; (+9) stands for nine words of branches off the accepted
    path. Words that the robot did not draft have no marks.
    """
    text = Text()
    for words in words_of_round(round_, verified):
        before, style, behind = MARKS[words.fate]
        if not round_.draft.words:
            before = behind = ""
        text.append(" " if text.plain else "")
        text.append(f"{before}{words.text}{behind}", style)
    return text


def size(count: float) -> str:
    """A number of bytes with a readable unit."""
    return f"{count:.0f} B" if count < 1000 else f"{count / 1000:.1f} kB"


def _where(outcome: dict[str, Any]) -> str:
    if not outcome:
        return ""
    side = "left" if outcome["bearing"] > 0 else "right"
    return (
        f"{outcome['target']}: {outcome['distance']:.2f} m, "
        f"{abs(outcome['bearing']):.0f} degrees {side}"
    )
