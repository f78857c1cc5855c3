"""Managed nodes, configured and activated by a lifecycle manager or by themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partialmethod
from typing import Any, TypeVar

from rcl_interfaces.msg import ParameterDescriptor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from ...errors import TRACEBACKS, UserError, sentence
from ...health import Health, Level, worst_of
from ...nav.e_stop import EStopMessage
from .diagnostics import Diagnostics
from .e_stop import subscribe_e_stop
from .heartbeat import Pulse
from .parameters import Parameters, refuse_unknown_parameters
from .subscription_thread import SubscriptionThread

T = TypeVar("T")

AUTOSTART = "autostart"
ROS_TIME_STANDS = (
    "ROS time stands still: use_sim_time is true, and nothing publishes /clock; start what "
    "simulates, or leave use_sim_time out"
)
TRANSITION_WAIT_S = 0.5  # s that ``close`` waits for a transition
_ENTITY_KINDS = ("publisher", "subscription", "timer", "service", "client")
_SUCCESS = TransitionCallbackReturn.SUCCESS
_FAILURE = TransitionCallbackReturn.FAILURE
_ERROR = TransitionCallbackReturn.ERROR


class ManagedNode(LifecycleNode):
    """A lifecycle node; a subclass implements its transitions in four methods.

    ``load`` (configure) and ``begin`` (activate) may raise UserError; then the transition fails,
    and ``problem`` has its text. ``halt`` (deactivate) stops the robot first and cannot fail.
    ``unload`` (cleanup) frees what ``load`` took; a UserError keeps the node inactive. They run in
    the executor's thread; ``halt`` and ``unload`` also in the main thread, at the program's end,
    but never two of them at once. The node is ``active`` once ``begin`` has ended, and no longer
    when ``halt`` begins. ``load`` makes what callbacks of other threads, as those of ``e_stop``,
    use; ``begin`` enters what it starts into the stack ``started``, which is closed after ``halt``,
    or when ``begin`` fails. This class destroys publishers, subscriptions and timers made
    in ``load`` and ``begin`` after ``unload`` and ``halt``.

    Publishers are plain ones: a lifecycle publisher drops messages of an inactive node, but an
    inactive node here publishes only reports and stops, which must go out.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.problem = ""  # why the last transition failed
        self.clock_problem = ""
        self._ros_time = -1  # ns, at the last look
        self.configured = False
        self.active = False
        self.started = ExitStack()
        self.pulses = [Pulse("executor")]  # of the threads that must not hang
        self._brings_up = self._closed = False
        self._transitions = threading.Lock()  # held during one
        self._stops: SubscriptionThread | None = None
        about = "configure and activate without a lifecycle manager; read at the start only"
        descriptor = ParameterDescriptor(description=about, read_only=True)
        self.autostart = bool(self.declare_parameter(AUTOSTART, True, descriptor).value)
        self.diagnostics = Diagnostics(self)
        self._parameters_of: list[Parameters[Any]] = []
        self._loaded: list[tuple[str, Any]] = []
        self._begun: list[tuple[str, Any]] = []
        self._answer_refused_transitions()
        self.diagnostics.report(self._diagnose)

    # What a subclass implements

    def load(self) -> None:
        """Read parameters and files, load models, create publishers."""

    def begin(self) -> None:
        """Subscribe, and start threads."""

    def halt(self) -> None:
        """Stop the robot, then what ``begin`` started."""

    def unload(self) -> None:
        """Free what ``load`` took."""

    def diagnose(self) -> Health:
        """The health of an active node; called once a second."""
        raise NotImplementedError

    # For a subclass

    def parameters(
        self, default: T, on_change: Callable[[frozenset[str]], None] | None = None
    ) -> Parameters[T]:
        """Declare parameters; ``fixed`` ones can be set until the node is configured."""
        parameters = Parameters(self, default, on_change)
        parameters.frozen = False
        self._parameters_of.append(parameters)
        return parameters

    def subscribe_e_stop(self, callback: Callable[[EStopMessage], None]) -> None:
        """Call back for each ``e_stop``, in every state of the node, in a separate thread."""
        self._stops = subscribe_e_stop(self, callback)

    # For the program

    def bring_up(self) -> None:
        """Configure and activate; raises UserError."""
        self._brings_up = True  # the caller reports the problem, once
        try:
            if self.trigger_configure() != _SUCCESS or self.trigger_activate() != _SUCCESS:
                raise UserError(self.problem)
        finally:
            self._brings_up = False

    @property
    def in_transition(self) -> bool:
        """Whether a transition is under way."""
        return self._transitions.locked()

    def destroy_node(self) -> None:
        """With what rclpy leaves: it keeps the participant, which others would see for 20 s."""
        super().destroy_node()  # type: ignore[no-untyped-call]  # rclpy's
        self._state_machine.destroy_when_not_in_use()

    def close(self) -> None:
        """Halt and unload finally; for the main thread, as the executor may hang.

        A transition under way is waited for, but not for a model that loads; none begins any more.
        """
        self._closed = True
        if self._transitions.acquire(timeout=TRANSITION_WAIT_S):
            try:
                if self.active:
                    self.active = False
                    self.halt()
                    self.started.close()
                if self.configured:
                    self.configured = False
                    self.unload()
            except UserError as error:
                self.get_logger().warning(str(error))
            finally:
                self._transitions.release()
        if self._stops is not None:
            self._stops.close()

    # Transitions

    def _transition(
        self,
        carry_out: Callable[[ManagedNode], None],
        otherwise: TransitionCallbackReturn,
        state: LifecycleState,
    ) -> TransitionCallbackReturn:
        self.problem = ""
        with self._transitions:
            if self._closed:
                return otherwise
            self.pulses[0].rest()  # a model may take minutes to load
            try:
                carry_out(self)
            except Exception as error:
                failed = f"{carry_out.__name__.strip('_')} failed: {error!r}"
                self.problem = sentence(error) or failed
                TRACEBACKS.debug(failed, exc_info=True)
            finally:
                self.pulses[0].beat()
        if not self.problem:
            return _SUCCESS
        if not self._brings_up:
            self.get_logger().error(self.problem)
        return otherwise

    def _configure(self) -> None:
        refuse_unknown_parameters(self)
        for parameters in self._parameters_of:
            parameters.start_value()
        self._make(self.load, self._loaded)
        self._freeze(True)
        self.configured = True

    def _activate(self) -> None:
        self._make(self.begin, self._begun)
        self.active = True

    def _deactivate(self) -> None:
        self.active = False
        try:
            self.halt()
        finally:
            self.started.close()
            self._destroy(self._begun)

    def _clean_up(self) -> None:
        self.unload()
        self._destroy(self._loaded)
        self.configured = False
        self._freeze(False)

    def _shut_down(self) -> None:
        if self.active:
            self._deactivate()
        if self.configured:
            self._clean_up()

    on_configure = partialmethod(_transition, _configure, _FAILURE)
    on_activate = partialmethod(_transition, _activate, _FAILURE)
    on_deactivate = partialmethod(_transition, _deactivate, _ERROR)  # which leads to ``on_error``
    on_cleanup = partialmethod(_transition, _clean_up, _FAILURE)
    on_shutdown = partialmethod(_transition, _shut_down, _ERROR)  # from any state
    # After it the node is unconfigured, so that it can be configured again.
    on_error = partialmethod(_transition, _shut_down, _FAILURE)

    def _freeze(self, frozen: bool) -> None:
        for parameters in self._parameters_of:
            parameters.frozen = frozen

    # Entities

    def _entities(self) -> list[tuple[str, Any]]:
        return [(kind, entity) for kind in _ENTITY_KINDS for entity in getattr(self, f"{kind}s")]

    def _make(self, make: Callable[[], None], made: list[tuple[str, Any]]) -> None:
        """Call ``make`` and add the entities it created to ``made``; destroy them if it fails."""
        known = {id(entity) for _, entity in self._entities()}
        try:
            make()
        except BaseException:
            self.started.close()
            self._destroy([each for each in self._entities() if id(each[1]) not in known])
            raise
        made += [each for each in self._entities() if id(each[1]) not in known]

    def _destroy(self, entities: list[tuple[str, Any]]) -> None:
        for kind, entity in entities:
            getattr(self, f"destroy_{kind}")(entity)
        entities.clear()

    # Reports

    def _diagnose(self) -> Health:
        before, self._ros_time = self._ros_time, self.get_clock().now().nanoseconds
        self.clock_problem = ROS_TIME_STANDS if self._ros_time == before else ""
        if self.active:
            found = self.diagnose()
            clock = Health(Level.ERROR, ROS_TIME_STANDS, check="clock")
            return worst_of([*(found.parts or [found]), clock]) if self.clock_problem else found
        state = "inactive" if self.configured else "unconfigured"
        return Health(Level.WARN, f"{state}: {self.problem}" if self.problem else state)

    def _answer_refused_transitions(self) -> None:
        """Answer transitions that are invalid in the current state; rclpy raises, and never
        answers."""
        service = self._service_change_state
        change_state = service.callback

        def answer(request: Any, response: Any) -> Any:
            try:
                return change_state(request, response)
            except Exception as error:
                self.get_logger().warning(f"no such transition now: {error}")
                TRACEBACKS.debug("no such transition now", exc_info=True)
                response.success = False
                return response

        service.callback = answer
