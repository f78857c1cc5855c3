"""Parameters out of range are refused by name, and hold the robot when it starts with them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("rclpy")
from helpers.navigator_bench import Bench
from rcl_interfaces.msg import Parameter, ParameterValue
from rcl_interfaces.srv import DescribeParameters, GetParameters, SetParameters
from std_msgs.msg import String


def test_parameters_out_of_range_are_refused_by_name(bench: Bench, start: Any) -> None:
    start()

    def put(name: str, value: ParameterValue) -> Any:
        request = SetParameters.Request(parameters=[Parameter(name=name, value=value)])
        return bench.call(SetParameters, "set_parameters", request).results[0]

    refused = put("limits.speed", ParameterValue(type=3, double_value=9.0))
    assert not refused.successful and "limits.speed" in refused.reason
    refused = put("limits.speed", ParameterValue(type=3, double_value=float("nan")))
    assert not refused.successful and "limits.speed" in refused.reason
    refused = put("odometry", ParameterValue(type=4, string_value="maybe"))
    assert not refused.successful and "odometry must be one of" in refused.reason
    refused = put("output.kind", ParameterValue(type=4, string_value="unitree_sport"))
    assert not refused.successful and "start" in refused.reason
    assert put("limits.speed", ParameterValue(type=2, integer_value=1)).successful

    got = bench.call(
        GetParameters, "get_parameters", GetParameters.Request(names=["odometry", "output.kind"])
    )
    assert [value.string_value for value in got.values] == ["auto", "twist"]
    about = bench.call(
        DescribeParameters,
        "describe_parameters",
        DescribeParameters.Request(names=["limits.speed"]),
    ).descriptors[0]
    assert about.floating_point_range[0].to_value == 1.5 and "m/s" in about.description


def test_a_bad_parameter_at_the_start_is_told_and_holds_the_robot(bench: Bench, start: Any) -> None:
    start("-p", "limits.speed:=9.0", "-p", "odometry:=maybe")
    bench.until(lambda: "limits.speed must be" in bench.states[-1])
    assert bench.states[-1].startswith("stopped")
    assert "odometry must be one of" in bench.states[-1]
    bench.say("action: turn left large;", "r1")
    bench.until(lambda: bench.said("stopped", "r1"))
    assert bench.commands == []
    good = [
        Parameter(name="limits.speed", value=ParameterValue(type=3, double_value=0.5)),
        Parameter(name="odometry", value=ParameterValue(type=4, string_value="off")),
    ]
    bench.call(SetParameters, "set_parameters", SetParameters.Request(parameters=good))
    bench.until(lambda: bench.said("stopped", "r1", "released; publish an instruction"))
    bench.instruction.publish(String(data="find it"))
    bench.until(lambda: bench.said("idle", "r1", "released"))
