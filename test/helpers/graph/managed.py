"""The lifecycle manager of a node that somebody else runs."""

from __future__ import annotations

from helpers.graph.peer import Peer
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState


class Manager:
    """Calls the services that ``ros2 lifecycle`` calls."""

    def __init__(self, name: str, peer: Peer) -> None:
        self._name, self._peer = name, peer
        self.change("none", again=True)  # until the node's answers to transitions reach us

    @property
    def state(self) -> str:
        answer = self._peer.call(GetState, f"{self._name}/get_state", GetState.Request())
        return str(answer.current_state.label)

    def change(self, transition: str, again: bool = False) -> bool:
        """Whether the node has made this transition."""
        request = ChangeState.Request(transition=Transition(label=transition))
        answer = self._peer.call(ChangeState, f"{self._name}/change_state", request, again)
        return bool(answer.success)
