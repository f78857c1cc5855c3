"""ROS parameters from a dataclass, which declares names, ranges and descriptions.

A nested dataclass gives dotted names (``limits.speed``); fields are those of ``options.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node
from rclpy.parameter import Parameter

from ...errors import UserError
from ...options import changed, field_error, flat_fields, wanted

T = TypeVar("T")


class Parameters(Generic[T]):
    """The parameters of one node as one frozen dataclass, ``value``; each change replaces it.

    A bad value is refused with a reason that names the parameter, and the old value stays. A
    parameter with a bad initial value keeps its default; that is logged and listed in ``problems``
    (parameter name -> sentence) until a good value is set. ``on_change`` is called with the names
    of each good change, in the thread that serves parameters. ``fixed`` fields are refused while
    ``frozen``: from the start, or once a managed node is configured.
    """

    def __init__(
        self, node: Node, default: T, on_change: Callable[[frozenset[str]], None] | None = None
    ) -> None:
        self.value = default
        self.problems: dict[str, str] = {}
        self.frozen = True
        self._fields = flat_fields(default)
        self._on_change = on_change
        for name, (start, metadata) in self._fields.items():
            self._declare(node, name, start, metadata)
        node.add_on_set_parameters_callback(self._set)

    def start_value(self) -> T:
        """The initial value; raises UserError for a bad ``fixed`` parameter, which could not be
        corrected."""
        for name, problem in self.problems.items():
            if self._fields[name][1].get("fixed"):
                raise UserError(f"parameter {problem}")
        return self.value

    def _declare(self, node: Node, name: str, start: Any, metadata: Any) -> None:
        descriptor = _descriptor(start, metadata)
        try:
            value = node.declare_parameter(name, start, descriptor).value
            self.value = changed(self.value, {name: _fit(name, start, value, metadata)})
        except (ValueError, InvalidParameterValueException, InvalidParameterTypeException) as bad:
            if node.has_parameter(name):
                node.set_parameters([Parameter(name, value=start)])
            else:
                node.declare_parameter(name, start, descriptor, ignore_override=True)
            said = str(bad) if isinstance(bad, ValueError) else ""  # rclpy's do not say it well
            self.problems[name] = said or f"{name} must be {wanted(start, metadata)}"
            node.get_logger().error(f"parameter {self.problems[name]}; it stays at {start!r}")

    def _set(self, parameters: list[Parameter]) -> SetParametersResult:
        mine = {p.name: p.value for p in parameters if p.name in self._fields}
        try:
            fitted = {name: _fit(name, *self._with(name, value)) for name, value in mine.items()}
            self.value = changed(self.value, fitted)
        except ValueError as bad:
            return SetParametersResult(successful=False, reason=f"parameter {bad}")
        for name in mine:
            self.problems.pop(name, None)
        if self._on_change is not None and mine:
            self._on_change(frozenset(mine))
        return SetParametersResult(successful=True)

    def _with(self, name: str, value: Any) -> tuple[Any, Any, Any]:
        start, metadata = self._fields[name]
        fixed = self.frozen and metadata.get("fixed")
        if fixed and value != flat_fields(self.value)[name][0]:
            raise ValueError(
                f"{name} is read at the start only; set it there and start again "
                "(a managed node: clean it up, set it, configure it again)"
            )
        return start, value, metadata


def refuse_unknown_parameters(node: Node) -> None:
    """Raise UserError if the node was given a parameter that it does not declare."""
    known = node._parameters  # rclpy has no public name for either
    unknown = [
        name
        for name in node._parameter_overrides
        if name not in known and not name.startswith("qos_overrides.")
    ]
    if not unknown:
        return
    said = []
    for name in sorted(unknown):
        near = get_close_matches(name, known, 1)
        said.append(f"{name} (did you mean {near[0]}?)" if near else name)
    where = node.get_fully_qualified_name()
    raise UserError(
        f"{where} has no parameter {', '.join(said)}; look at the parameter file and at -p"
    )


def _fit(name: str, start: Any, value: Any, metadata: Any) -> Any:
    """Convert ``value`` to the field's type; raises ValueError naming the parameter."""
    if type(start) is float and type(value) is int:
        value = float(value)  # YAML and `ros2 param set` take 1 for an integer
    error = field_error(name, start, value, metadata)
    if error:
        raise ValueError(error)
    return value


def _descriptor(start: Any, metadata: Any) -> ParameterDescriptor:
    descriptor = ParameterDescriptor(description=metadata.get("about", ""))
    constraints = ["one of " + ", ".join(metadata["choices"])] if "choices" in metadata else []
    constraints += ["read at the start only"] if metadata.get("fixed") else []
    descriptor.additional_constraints = "; ".join(constraints)
    if type(start) is float:
        descriptor.dynamic_typing = True  # an integer is accepted too; _fit checks
    if "range" in metadata:
        low, high = metadata["range"]
        if type(start) is int:
            descriptor.integer_range = [IntegerRange(from_value=int(low), to_value=int(high))]
        else:
            descriptor.floating_point_range = [
                FloatingPointRange(from_value=float(low), to_value=float(high))
            ]
    return descriptor
