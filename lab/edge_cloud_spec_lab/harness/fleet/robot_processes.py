"""Robots as clients of a real server, each in its own process and on its own emulated link."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.errors import UserError

from ..emulated_link import LinkProfile
from ..grpc_robot import GrpcRobot
from ..proxy import Proxy
from .load import FleetLoad, RobotActivity

PROCESS_REPLY_TIMEOUT_S = 30.0
START_S = 180.0


@dataclass(frozen=True)
class RobotPlan:
    """The plan of one robot.

    ``make_answers``, picklable, makes its ``draft_model``, the ``spec`` of prompts, and ``next``:
    the request of a number, and the target's answer to it.
    """

    number: int
    make_answers: Callable[[], Any]
    preset: Preset
    load: FleetLoad
    link: LinkProfile


def run_robots(
    plans: Sequence[RobotPlan],
    address: str,
) -> list[RobotActivity]:
    """Let robots decode for their time; times in seconds since all began.

    Raises UserError if a robot's process fails.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    begin = context.Event()
    robots = []
    for plan in plans:
        ours, theirs = context.Pipe()
        process = context.Process(target=_run, args=(plan, address, begin, theirs), daemon=True)
        process.start()
        theirs.close()
        robots.append((process, ours))
    try:
        for _, pipe in robots:
            _receive(pipe, START_S)
        begin.set()
        seconds = plans[0].load.seconds
        return [_receive(pipe, seconds + PROCESS_REPLY_TIMEOUT_S + START_S) for _, pipe in robots]
    finally:
        for process, _ in robots:
            process.terminate()
        for process, _ in robots:
            process.join(10)


def _receive(pipe: Any, seconds: float) -> Any:
    try:
        if pipe.poll(seconds):
            return pipe.recv()
    except EOFError:
        pass
    raise UserError("a robot's process ended; see its error above")


def _run(plan: RobotPlan, address: str, begin: Any, pipe: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the bench ends its processes
    answers = plan.make_answers()
    with (
        Proxy(address, plan.link, plan.number) as proxy,
        GrpcRobot(proxy.address, answers.draft_model, answers.spec) as robot,
    ):
        robot.runner.remember(answers.spec.to_bytes())
        pipe.send("ready")
        begin.wait()
        pipe.send(_decode(plan, answers, robot))


def _decode(plan: RobotPlan, answers: Any, robot: GrpcRobot) -> RobotActivity:
    load, random, activity = plan.load, plan.load.random(plan.number), RobotActivity()
    settings = DecodeSettings(plan.preset, reply_timeout=PROCESS_REPLY_TIMEOUT_S)
    start = time.perf_counter()
    time.sleep(random.random() * min(0.2, load.seconds))  # not all at once
    while not activity.answers or time.perf_counter() - start < load.seconds:
        request, own = answers.next(activity.answers)
        activity.add(robot.decode(request, settings), own, -start)
        time.sleep(load.pause(random))
    return activity
