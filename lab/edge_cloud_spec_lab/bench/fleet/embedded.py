"""The embedded target with real clients, in separate processes, whose drafts are recorded.

Under ``greedy`` only prefixes of the target's answer are ever verified, and what follows a wrong
token is rejected with it. So the drafts along the target's answer can be recorded, and no drafter
uses the target's cores.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.cloud.vllm_server import VllmServer
from edge_cloud_spec.models import EMBEDDED, VLLM
from edge_cloud_spec.models.prompt import PromptSpec
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.request import Request

from ...harness.emulated_link import LinkProfile
from ...harness.fleet.load import FleetLoad
from ...harness.fleet.robot_processes import RobotPlan, run_robots
from ...harness.grpc_robot import verifier_options
from ...harness.scripted.model import FakeVlm
from ...harness.server import ServerProcess, VerifierProcess
from ...tokens import ANSWER_TOKENS
from ..command import Row
from ..requests import sample_requests
from .figures import figures, row_of

if TYPE_CHECKING:
    from edge_cloud_spec.models.vlm import Vlm

LIKELY = 8.0  # the logit of what the draft model says; the others have 0


@dataclass(frozen=True)
class RecordedDecode:
    """A request, the target's greedy answer ``own``, and the draft model's token at each position
    of it."""

    request: Request
    prompt_digest: bytes
    own: tuple[int, ...]
    drafted: tuple[int, ...]

    @property
    def acceptance(self) -> float:
        """The share of drafted tokens that equal the target's."""
        pairs = zip(self.own, self.drafted, strict=True)
        return sum(one == other for one, other in pairs) / len(self.own)


def record(target: Vlm, drafter: Vlm, spec: PromptSpec, request: Request) -> RecordedDecode:
    """Record the target's answer to this request, and the drafts along it."""
    session = target.open(target.prompt(request, spec))
    own: list[int] = []
    while len(own) < spec.max_tokens and not (own and own[-1] in spec.end_ids):
        own.append(int(session.logits_after(-1).argmax()))
        session.extend(own[-1:])
    prompt = drafter.prompt(request, spec)
    rows = drafter.open(prompt).forward(own[:-1])
    drafted = tuple(int(row.argmax()) for row in rows)
    return RecordedDecode(request, prompt.digest, tuple(own), drafted)


@dataclass(frozen=True)
class RecordedRobots:
    """What the robots' processes replay: recordings, and the draft model's identity."""

    spec: bytes
    identity: str
    tokenizer_digest: bytes
    vocabulary: int
    pass_s: float
    recordings: tuple[RecordedDecode, ...]


class RecordedDrafter(FakeVlm):
    """A draft model that replays recordings; a pass takes ``pass_s``."""

    def __init__(self, robots: RecordedRobots) -> None:
        self.identity, self.tokenizer_digest = robots.identity, robots.tokenizer_digest
        self.vocabulary, self._pass_s = robots.vocabulary, robots.pass_s
        self._recordings = {recording.request.digest: recording for recording in robots.recordings}

    def prompt(self, request: Request, spec: PromptSpec) -> Any:
        """The prompt of a recorded request."""
        recording = self._recordings[request.digest]
        return SimpleNamespace(digest=recording.prompt_digest, input_ids=(), recording=recording)

    def start(self, prompt: Any) -> tuple[RecordedDecode, int]:
        """The beginning of the recorded answer."""
        return prompt.recording, 0

    def after(self, state: tuple[RecordedDecode, int], token: int) -> tuple[RecordedDecode, int]:
        """The next position of the answer, whatever the token is."""
        return (state[0], state[1] + 1)

    def row(self, state: tuple[RecordedDecode, int]) -> np.ndarray:
        """Logits float32 [V]."""
        recording, place = state
        row = np.zeros(self.vocabulary, np.float32)
        row[recording.drafted[min(place, len(recording.drafted) - 1)]] = LIKELY
        return row

    def spend(self, rows: int) -> None:
        """A pass takes ``pass_s``, whatever its tokens."""
        time.sleep(self._pass_s)


def record_robots(requests: Sequence[Request]) -> RecordedRobots:
    """Record answers and drafts of the embedded pair."""
    from edge_cloud_spec.models.load import load

    target, drafter = (load(EMBEDDED / name, threads=1) for name in ("target", "drafter"))
    spec = target.spec(ANSWER_TOKENS)
    for model in (target, drafter):
        model.crop(spec.vocabulary)
    recordings = tuple(record(target, drafter, spec, request) for request in requests)
    session = drafter.open(drafter.prompt(requests[0], spec))
    started = time.perf_counter()
    for token in recordings[0].own:
        session.extend([token])
        session.logits_after(-1)
    pass_s = (time.perf_counter() - started) / len(recordings[0].own)
    return RecordedRobots(
        spec.to_bytes(),
        drafter.identity,
        drafter.tokenizer_digest,
        spec.vocabulary,
        pass_s,
        recordings,
    )


class RecordedAnswers:
    """One robot's draft model, and its recorded request, which it repeats."""

    def __init__(self, robots: RecordedRobots, robot: int) -> None:
        self.spec = PromptSpec.from_bytes(robots.spec)
        self._recording = robots.recordings[robot]
        self.draft_model: Any = RecordedDrafter(robots)

    def next(self, number: int) -> tuple[Request, tuple[int, ...]]:
        """The request, and the target's answer to it."""
        return self._recording.request, self._recording.own


def embedded_worker(limits: WorkerLimits, with_drafter: bool = False) -> Worker:
    """A worker with the embedded target, on one torch thread."""
    from edge_cloud_spec.models.load import load

    target = load(EMBEDDED / "target", threads=1)
    drafter = load(EMBEDDED / "drafter", threads=1) if with_drafter else None
    return Worker(target, target.spec(ANSWER_TOKENS), drafter, limits)


EMBEDDED_WARM_UP_SHARE = 0.15  # share of the time that is not counted
LINK_MS = (2.0, 8.0)  # a robot's delay each way is between these


def embedded_rows(args: argparse.Namespace) -> list[Row]:
    """A row per server and fleet size. The servers take turns, so that all see the same load of
    this machine. ``throughput_ratio``: relative to the one-at-a-time server of the same run.

    Each robot repeats the same request for one picture, so that after its first answer nearly all
    of the server's work is verification.
    """
    servers = [*args.server, "vllm"] if args.engine else args.server
    count = max(args.robots)
    recorded = record_robots(sample_requests(args.seed, count))
    acceptance = float(np.mean([recording.acceptance for recording in recorded.recordings]))
    print(f"{count} answers, acceptance {acceptance:.2f}", file=sys.stderr)
    rows = []
    for robots in args.robots:
        by_server: dict[str, list[Row]] = {name: [] for name in servers}
        for seed in range(args.seed, args.seed + args.seeds):
            for name in servers:
                by_server[name].append(_run(args, name, robots, recorded, seed))
        means = {
            name: row_of("embedded", name, robots, _preset_of(name), each)
            for name, each in by_server.items()
        }
        base = means.get("one_at_a_time")
        for name, row in means.items():
            pairs = zip(by_server[name], by_server.get("one_at_a_time", ()), strict=False)
            ratios = [one["tokens_per_s"] / other["tokens_per_s"] for one, other in pairs]
            if base is not None:
                row["throughput_ratio"] = row["tokens_per_s"] / base["tokens_per_s"]
                row["throughput_ratio_min"] = min(ratios)
            rows.append(row | {"acceptance": acceptance})
    return rows


def _preset_of(server: str) -> str:
    return "cloud_sd" if server == "server_only" else "dsd"


REQUEST_TIMES = {  # of vLLM's metrics, s summed over requests
    "request": "vllm:e2e_request_latency_seconds_sum",
    "queue": "vllm:request_queue_time_seconds_sum",
    "engine": "vllm:request_inference_time_seconds_sum",
    "count": "vllm:e2e_request_latency_seconds_count",
}


def _request_times(engine: str) -> dict[str, float]:
    """The times that a vLLM server has spent on requests so far."""
    server = VllmServer(engine.removeprefix(VLLM))
    return {
        part: server.submit(server.metric(name)).result() or 0.0
        for part, name in REQUEST_TIMES.items()
    }


def _run(
    args: argparse.Namespace, name: str, robots: int, recorded: RecordedRobots, seed: int
) -> Row:
    load = FleetLoad(0, args.think, args.seconds, args.jitter, seed)
    preset = load_preset(_preset_of(name))
    plans = []
    for number in range(robots):
        delay = load.random(number).uniform(*LINK_MS)
        answers = partial(RecordedAnswers, recorded, number)
        link = LinkProfile(delay, args.jitter)
        plans.append(RobotPlan(number, answers, preset, load, link))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if name == "vllm":
        started: ServerProcess = VerifierProcess(verifier_options(engine=args.engine))
    else:
        limits = WorkerLimits(sessions=max(64, 2 * robots))
        if name == "one_at_a_time":
            limits = replace(limits, batch=1)
        started = ServerProcess(partial(embedded_worker, limits, name == "server_only"))
    with started as server:
        before = _request_times(args.engine) if name == "vllm" else {}
        activities = run_robots(plans, server.address)
    row = figures(activities, EMBEDDED_WARM_UP_SHARE * args.seconds, args.seconds)
    if before:
        spent = {k: v - before[k] for k, v in _request_times(args.engine).items()}
        count = spent.pop("count")
        rounds = sum(len(activity.rounds) for activity in activities)
        row["requests_per_round"] = count / rounds
        row |= {f"{part}_ms": 1e3 * seconds / count for part, seconds in spent.items()}
    print(f"{name}, {robots} robots: {row['tokens_per_s']:.1f} tokens/s", file=sys.stderr)
    return row
