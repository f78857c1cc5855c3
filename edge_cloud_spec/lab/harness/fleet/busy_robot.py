"""A robot that decodes without a pause while its verifiers come and go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ....edge.client import ClientSettings, VerifierClient
from ....edge.events import Emit, LinkLost, LinkUp
from ....edge.runner import DecodeRunner, DecodeSettings
from ....models.prompt import Request
from ....presets import load_preset
from ....share import rules_text
from ..replayed_drafts import ReplayedDrafts

Clock = Callable[[], float]


@dataclass(frozen=True)
class Recovery:
    """What one robot saw of an event, s after it: the loss of its link, another, a token there.

    ``lost_s`` and ``moved_s`` are None for a robot that kept its link; ``token_s`` is its next
    token then.
    """

    lost_s: float | None
    moved_s: float | None
    token_s: float


@dataclass
class RobotLog:
    """What became of one robot's decodes; times are of the robot's clock, s."""

    begun: list[float] = field(default_factory=list)
    emitted: list[float] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)
    connected: list[float] = field(default_factory=list)  # again, there or elsewhere
    wrong: list[str] = field(default_factory=list)
    decodes: int = 0

    def is_past(self, event: float) -> bool:
        """Whether a whole decode was begun and ended after it, so that its replica is alive."""
        return sum(begun > event for begun in self.begun[-3:]) >= 2

    def recovery(self, event: float) -> Recovery:
        """What it saw, once it ``is_past`` it.

        Tokens that were on their way when its replica died say nothing: what counts is the first
        on the last link since then.
        """
        lost = next((at - event for at in self.lost if at > event), None)
        connected = [at for at in self.connected if at > event]
        since = connected[-1] if connected else event
        token = next(at for at in self.emitted if at > since)
        return Recovery(lost, connected[-1] - event if connected else None, token - event)


class BusyRobot(threading.Thread):
    """Decodes one request again and again, and compares each answer with the undisturbed one."""

    def __init__(
        self,
        address: str,
        request: Request,
        answer: tuple[int, ...],
        model: Any,
        clock: Clock = time.perf_counter,
    ) -> None:
        """model: makes the prompts; the drafts are of the answer."""
        super().__init__(daemon=True)
        self.log, self.over = RobotLog(), threading.Event()
        self._request, self._answer, self._model, self._clock = request, answer, model, clock
        self._link = VerifierClient(ClientSettings(address))

    def ask_front(self) -> None:
        """Let the next decode be where the front places it, and not where the last one was."""
        self._link.forget_replica()

    def run(self) -> None:
        drafts: Any = ReplayedDrafts(self._model, self._answer)
        runner = DecodeRunner(drafts, self._model.spec(rules_text(), 128))
        chosen = DecodeSettings(load_preset("dsd"), patience=60.0)
        while not self.over.is_set():
            said: list[int] = []

            def on_emit(emit: Emit, said: list[int] = said) -> None:
                if emit.position != len(said):
                    self.log.wrong.append("a token twice, or left out")
                said.extend(emit.tokens)
                self.log.emitted.append(self._clock())

            self.log.begun.append(self._clock())
            done = runner.run(self._request, chosen, self.log.decodes, self._connect, on_emit)
            self.log.decodes += 1
            if not done.completed or tuple(said) != self._answer:
                self.log.wrong.append(done.text or done.reason or "another answer")
        self._link.close()

    def _connect(self, on_receive: Callable[[Any], None]) -> Any:
        def note(item: Any) -> None:
            if isinstance(item, LinkLost):
                self.log.lost.append(self._clock())
            elif isinstance(item, LinkUp):
                self.log.connected.append(self._clock())
            on_receive(item)

        return self._link.connect(note)
