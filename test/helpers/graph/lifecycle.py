"""A lifecycle manager's side of a managed node."""

from __future__ import annotations

from helpers.graph.peer import Peer
from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState

CONFIGURE = Transition.TRANSITION_CONFIGURE
ACTIVATE = Transition.TRANSITION_ACTIVATE
DEACTIVATE = Transition.TRANSITION_DEACTIVATE
CLEAN_UP = Transition.TRANSITION_CLEANUP
SHUT_DOWN = Transition.TRANSITION_UNCONFIGURED_SHUTDOWN
NO_SUCH = 250
UNCONFIGURED = State.PRIMARY_STATE_UNCONFIGURED
INACTIVE = State.PRIMARY_STATE_INACTIVE
ACTIVE = State.PRIMARY_STATE_ACTIVE
FINALIZED = State.PRIMARY_STATE_FINALIZED


class Manager:
    """Calls the services that ``ros2 lifecycle`` calls."""

    def __init__(self, name: str, peer: Peer) -> None:
        self._name, self._peer = name, peer
        self._is_answered = False  # whether the node's answers to transitions reach us

    @property
    def state(self) -> int:
        answer = self._peer.call(GetState, f"{self._name}/get_state", GetState.Request())
        return int(answer.current_state.id)

    def change(self, transition: int) -> bool:
        """Whether the node has made this transition."""
        if not self._is_answered:
            self._is_answered = True
            self._change(NO_SUCH, again=True)
        return self._change(transition, again=False)

    def _change(self, transition: int, again: bool) -> bool:
        request = ChangeState.Request(transition=Transition(id=transition))
        answer = self._peer.call(ChangeState, f"{self._name}/change_state", request, again)
        return bool(answer.success)
