"""The one interpreter of an edge decoder's actions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ..wire.messages import ClientMessage
from .events import Action, Emit, Finish, Prepare, Send, Work


class ActionPorts(Protocol):
    """What carries out a decoder's actions: a method for each (see ``events``)."""

    def send(self, message: ClientMessage) -> None:
        """Send this to the cloud."""

    def prepare(self, spec: bytes) -> None:
        """Make the prompt of this specification; PromptReady, or Unusable, is due."""

    def work(self, work: Work) -> None:
        """Draft these branches instead of those before."""

    def emit(self, emit: Emit) -> None:
        """These tokens are settled."""

    def finish(self, finish: Finish) -> None:
        """The decode is over."""


def perform(actions: Iterable[Action], ports: ActionPorts) -> None:
    """Carry out the actions, in their order."""
    for action in actions:
        match action:
            case Send(message):
                ports.send(message)
            case Prepare(spec):
                ports.prepare(spec)
            case Work():
                ports.work(action)
            case Emit():
                ports.emit(action)
            case Finish():
                ports.finish(action)
