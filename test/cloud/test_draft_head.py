"""The target's own head drafts in the cloud: whatever it says, answers are those of transformers'
``generate``, and where it is right they take fewer passes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import headed, jpeg, random_head
from helpers.cloud.grpc_robot import POLICIES
from helpers.cloud.replaying_robot import ReplayingRobot
from helpers.cloud.served_answers import opening_of, worker_of
from helpers.cloud.worker_robot import Robot, do_all
from safetensors.torch import load_file, save_file
from torch import Tensor

from edge_cloud_spec.cloud.model_thread.engine import Engine
from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.cloud.model_thread.model_runner import CachedTarget
from edge_cloud_spec.cloud.model_thread.sessions import HeldSession
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.errors import MemoryFull
from edge_cloud_spec.models.draft_head import DraftHead, HeadSession
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.request import Picture, Request
from edge_cloud_spec.wire.messages import Close, DraftMessage, Fault, Generation
from edge_cloud_spec_lab.bench.chi_square import compare
from edge_cloud_spec_lab.harness.random_checkpoint import CheckpointShape, make_checkpoint
from edge_cloud_spec_lab.harness.reference import generate, load_reference, sample

SPECULATIVE, MAY = Generation(speculative=True), Generation(may_speculate=True)
FAMILY, TOKENS = "qwen3_5", 24
OPTIONS = ("--device", "cpu", "--dtype", "float32", "--no-check")
Weights = dict[str, Tensor]


def as_it_is(weights: Weights) -> Weights:
    return weights


def of_a_cycle(weights: Weights) -> Weights:
    """A head that takes a token's embedding to the LM head: right where that alone says what
    follows, and otherwise one that repeats itself."""
    width = len(weights["fc.weight"])
    passes = torch.cat([torch.eye(width), torch.zeros(width, width)], 1)
    little = ("o_proj.weight", "down_proj.weight", "norm.weight")
    scaled = {
        name: weights[name] * 0.1 if name.endswith(little) else weights[name] for name in weights
    }
    return scaled | {"fc.weight": passes}


def broken(weights: Weights) -> Weights:
    """A head whose rows are NaN, of weights that are finite."""
    return {name: torch.full_like(tensor, 1e30) for name, tensor in weights.items()}


HEADS = (as_it_is, of_a_cycle, broken)


@cache
def target_of(root: Path, follows: bool) -> tuple[Vlm, Any]:
    """A model, and transformers' of the same checkpoint. follows: each token has one that follows
    it, whatever was before; otherwise answers depend on the whole prompt."""
    text = {"initializer_range": 0.15}
    shape = CheckpointShape(layers=4)
    if follows:
        cycle = np.random.default_rng(0).permutation(256)
        rows = np.full(400, -1)
        rows[cycle] = np.roll(cycle, -1)
        made = make_checkpoint(root / "cycle", FAMILY, CheckpointShape(hidden=64), follows=rows)
    else:
        made = make_checkpoint(root / "random", FAMILY, shape, text=text)
    model = load(made, check=False)
    return model, load_reference(str(made), model)


@cache
def own_answer(root: Path, follows: bool, request: Request, rule: str) -> tuple[int, ...]:
    """What transformers says, whichever head drafts."""
    model, reference = target_of(root, follows)
    spec = model.spec(TOKENS, None)
    return generate(reference, model.prompt(request, spec), spec, POLICIES[rule])


SAMPLES = 200


@cache
def own_samples(root: Path, request: Request, policy: SamplingPolicy) -> list[tuple[int, ...]]:
    """What transformers draws of three tokens, whichever head drafts."""
    model, reference = target_of(root, False)
    spec = model.spec(TOKENS, None)
    return sample(reference, model.prompt(request, spec), spec, policy, SAMPLES, 3)


class Cloud:
    """A worker with a head, and what transformers says."""

    def __init__(self, root: Path, change: Callable[[Weights], Weights], **options: Any) -> None:
        self.asked = 0
        self.target = root, options.pop("follows", False)
        self.model, _ = target_of(*self.target)
        head = DraftHead.of(change(random_head(self.model, 3)), self.model, "of a test")
        assert head is not None
        self.spec = self.model.spec(TOKENS, None)
        limits = WorkerLimits(**options)
        # Its clock stands still: all that is drafted pays.
        self.worker = Worker(self.model, self.spec, None, limits, lambda: 0.0, head=head)

    def ask(self, request: Request, rule: str, how: Generation, **more: Any) -> Robot:
        self.asked += 1
        opening = replace(opening_of(request, rule, POLICIES[rule]), nonce=self.asked)
        opening = replace(opening, generation=how, **more)
        robot = Robot(self.worker)
        robot.say(opening)
        return robot

    def own(self, request: Request, rule: str) -> tuple[int, ...]:
        return own_answer(*self.target, request, rule)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("targets")


def asked(many: int, spec: Any) -> list[Request]:
    """Different pictures and texts, some of them twice."""
    texts = ("find the silver bottle", "search for the red chair near the door", "find it")
    return [spec.request(Picture.of(jpeg(n % 4)), f"{texts[n % 3]} {n % 5}") for n in range(many)]


@pytest.mark.parametrize(
    ("change", "rule", "how"),  # each two of them
    [
        (as_it_is, "greedy", SPECULATIVE),
        (as_it_is, "coupled", MAY),
        (of_a_cycle, "coupled", SPECULATIVE),
        (of_a_cycle, "greedy", MAY),
        (broken, "greedy", SPECULATIVE),
        (broken, "coupled", MAY),
    ],
)
def test_whatever_a_head_says_answers_are_those_of_generate(
    root: Path, change: Callable[[Weights], Weights], rule: str, how: Generation
) -> None:
    """One after the other, the last of them known, and then several robots at once."""
    cloud = Cloud(root, change)
    requests = asked(4, cloud.spec)
    requests.append(requests[-1])
    own = [cloud.own(request, rule) for request in requests[:-1]]
    own.append(own[-1])
    alone = []
    for request in requests:
        alone.append(cloud.ask(request, rule, how))
        do_all(cloud.worker)
    together = [cloud.ask(request, rule, how) for request in requests]
    do_all(cloud.worker)
    for robots in (alone, together):
        assert [robot.said for robot in robots] == own
        assert not any(robot.count(Fault) for robot in robots)
    assert cloud.worker.counters.answers.drafted["cloud"] > 0
    assert cloud.worker.kv_memory.prefix_hits > 0


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
def test_a_head_that_is_right_takes_fewer_passes(root: Path, rule: str) -> None:
    cloud = Cloud(root, of_a_cycle, follows=True)
    (request,) = asked(1, cloud.spec)
    for how, most in ((Generation(), TOKENS), (SPECULATIVE, TOKENS // 3)):
        before = cloud.worker.counters.verdicts
        robot = cloud.ask(request, rule, how, draft_length=4)
        do_all(cloud.worker)
        assert robot.said == cloud.own(request, rule) and len(robot.said) == TOKENS
        assert TOKENS / 5 <= cloud.worker.counters.verdicts - before <= most
    assert cloud.worker.counters.answers.accepted["cloud"] > TOKENS / 2


def ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What this package has logged, as of a head that failed."""
    return [each.message for each in caplog.records if each.name.startswith("edge_cloud_spec")]


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
def test_after_evictions_and_at_another_verifier_it_drafts_on(
    root: Path, rule: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory for two of five sessions, of which some were begun elsewhere. Caches have few rows to
    spare, so that the head needs memory in its turn, of which there is none now and then."""
    monkeypatch.setattr("edge_cloud_spec.models.cache.CAPACITY_STEP_ROWS", 4)
    for module in ("session", "vlm"):
        monkeypatch.setattr(f"edge_cloud_spec.models.{module}.SPARE_ROWS", 4)
    missing, grow = 0, HeadSession.grow

    def counted(self: HeadSession, *args: Any) -> Any:
        nonlocal missing
        try:
            return grow(self, *args)
        except MemoryFull:
            missing += 1
            raise

    monkeypatch.setattr(HeadSession, "grow", counted)
    roomy = Cloud(root, of_a_cycle, follows=True)
    requests = asked(5, roomy.spec)
    alone = roomy.ask(requests[0], rule, SPECULATIVE)
    do_all(roomy.worker)
    kv_mb = 2.5 * roomy.worker.kv_memory.peak / 2**20
    cloud = Cloud(root, of_a_cycle, follows=True, kv_mb=kv_mb, batch_rows=20)
    own = [cloud.own(request, rule) for request in requests]
    assert alone.said == own[0]
    begun = [(), (), own[2][:9], own[3][:1], own[4][:17]]
    robots = [
        cloud.ask(request, rule, SPECULATIVE, verified=tokens)
        for request, tokens in zip(requests, begun, strict=True)
    ]
    do_all(cloud.worker)
    for robot, tokens, whole in zip(robots, begun, own, strict=True):
        assert (*tokens, *robot.said) == whole and not robot.count(Fault)
    assert cloud.worker.kv_memory.evictions > 0 and missing > 0
    assert cloud.worker.counters.answers.accepted["cloud"] > 2 * TOKENS
    assert not ours(caplog)


def test_of_a_known_prompt_it_waits_for_what_was_verified_elsewhere(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The prompt needs no pass, but the rows after it do."""
    cloud = Cloud(root, of_a_cycle, follows=True)
    (request,) = asked(1, cloud.spec)
    own = cloud.own(request, "greedy")
    answers, known = cloud.worker.counters.answers, 0
    for begun in ((), own[:9]):
        known = answers.accepted["cloud"]
        robot = cloud.ask(request, "greedy", SPECULATIVE, verified=begun)
        do_all(cloud.worker)
        assert (*begun, *robot.said) == own
    assert cloud.worker.kv_memory.prefix_hits == 1
    assert answers.accepted["cloud"] > known and not ours(caplog)


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
@pytest.mark.parametrize("change", HEADS)
def test_it_drafts_beside_robots_and_lookups_in_the_same_pass(
    root: Path, change: Callable[[Weights], Weights], rule: str
) -> None:
    """Chains and trees, half of them wrong; each request twice, so that its answer is known, or not
    looked up where the head is right."""
    follows = change is of_a_cycle
    cloud = Cloud(root, change, follows=follows, lookup_suffixes=0 if follows else 1000)
    for nonce, request in enumerate(asked(3, cloud.spec) * 2):
        opening = replace(opening_of(request, rule, POLICIES[rule]), nonce=nonce, lookup=True)
        opening = replace(opening, draft_identity="replayed")
        own = cloud.own(request, rule)
        robot = ReplayingRobot(cloud.worker, opening, own, Random(nonce))
        do_all(cloud.worker)
        assert tuple(robot.tokens) == own and not robot.faults
    answers = cloud.worker.counters.answers
    assert min(answers.drafted["cloud"], answers.accepted["robot"]) > 0
    assert answers.accepted["cloud" if follows else "lookup"] > 10


class OpenRobot(ReplayingRobot):
    """Sends chains whose last token's verdict is open, since another draft goes on after it."""

    def _draft(self, after: Sequence[int], rest: Sequence[int]) -> None:
        place = self._here(after)
        draft = self.sent.setdefault(place, Draft(tuple(rest[:2])))
        open_at = 1 if len(rest) > 2 else None
        self.say(DraftMessage(place, draft, 0, open_at=open_at))


def test_it_adds_nothing_after_a_token_whose_verdict_is_open(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = Cloud(root, of_a_cycle, follows=True, lookup_suffixes=0)
    found: list[tuple[Draft, int]] = []
    queue = Engine._queue_pass

    def queued(engine: Engine, session: HeldSession) -> None:
        if session.due.open_at is not None:
            found.append((session.due.draft, session.due.drafted))
        queue(engine, session)

    monkeypatch.setattr(Engine, "_queue_pass", queued)
    (request,) = asked(1, cloud.spec)
    own = cloud.own(request, "greedy")
    opening = replace(opening_of(request), lookup=True, draft_identity="replayed")
    robot = OpenRobot(cloud.worker, opening, own, Random(1))
    do_all(cloud.worker)
    assert tuple(robot.tokens) == own and not robot.faults
    assert not any([*draft.children(1)] for draft, _ in found)
    assert sum(drafted > 2 for _, drafted in found) > 1


@pytest.mark.parametrize("change", [as_it_is, of_a_cycle])
def test_answers_are_distributed_as_the_targets_where_a_head_drafts(
    root: Path, change: Callable[[Weights], Weights]
) -> None:
    cloud = Cloud(root, change)
    (request,) = asked(1, cloud.spec)
    said, policy = [], SamplingPolicy(0.8, top_k=3)
    for seed in range(SAMPLES):
        more = {"policy": replace(policy, seed=seed), "max_tokens": 3}
        robot = cloud.ask(request, "rejection", SPECULATIVE, **more)
        do_all(cloud.worker)
        said.append(robot.said)
        robot.ask(Close())
    found = compare(said, own_samples(root, request, policy))
    assert found.freedom > 5 and found.p_value > 1e-3
    assert cloud.worker.counters.answers.drafted["cloud"] > SAMPLES


@pytest.mark.parametrize("how", [SPECULATIVE, MAY, None])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("of a test"), RuntimeError("of a test")])
def test_answers_go_on_without_a_head_that_fails(
    root: Path,
    how: Generation | None,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The cloud generates, or a robot drafts: the head is asked once, and nobody hears of it."""
    cloud, calls = Cloud(root, as_it_is), 0

    def fail(*_: Any) -> Tensor:
        nonlocal calls
        calls += 1
        raise error

    monkeypatch.setattr(DraftHead, "rows", fail)
    (request,) = asked(1, cloud.spec)
    own = cloud.own(request, "greedy")
    if how is None:
        opening = replace(opening_of(request), lookup=True, draft_identity="replayed")
        replayed = ReplayingRobot(cloud.worker, opening, own, Random(1))
        do_all(cloud.worker)
        assert tuple(replayed.tokens) == own and not replayed.faults
    else:
        robot = cloud.ask(request, "greedy", how)
        do_all(cloud.worker)
        assert robot.said == own and not robot.count(Fault)
    (said,) = ours(caplog)
    assert calls == 1 and "done without" in said


def test_a_draft_models_proposal_reads_no_prompt_of_the_target(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a cache of its own, and the prompt is read in chunks, between passes."""
    target, _ = target_of(root, False)
    drafter = load(root / "random", check=False)
    rows: list[int] = []
    read = CachedTarget.read

    def noted(self: CachedTarget, most: int, due: Draft | None) -> bool:
        rows.append(most)
        return read(self, most, due)

    monkeypatch.setattr(CachedTarget, "read", noted)
    spec = target.spec(TOKENS, None)
    worker = Worker(target, spec, drafter, WorkerLimits(batch_rows=20), lambda: 0.0)
    robot = Robot(worker)
    robot.say(replace(opening_of(asked(1, spec)[0]), generation=SPECULATIVE))
    do_all(worker)
    assert len(robot.said) > 0 and worker.counters.answers.drafted["cloud"] > 0
    assert len(rows) > 2 and {*rows} == {20}


def test_serve_says_which_head_drafts_and_goes_on_without_one_that_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    target = Path(shutil.copytree(headed(), tmp_path / "target"))
    said = []
    for drafter in ("", "none"):
        worker_of("--target", str(target), "--drafter", drafter, *OPTIONS)
        said.append("head: MTP of the checkpoint, drafts 4\n" in capsys.readouterr().out)
    assert said == [True, False] and not caplog.records
    file = target / "model.safetensors"
    weights = load_file(file)
    for change in (
        {"mtp.fc.weight": torch.zeros(3, 3)},
        {"mtp.layers.1.mlp.up_proj.weight": torch.zeros(3)},
        {"mtp.norm.weight": None},
        {"mtp.fc.weight": torch.full_like(weights["mtp.fc.weight"], torch.inf)},
        {"mtp.fc.weight": weights["mtp.fc.weight"].to(torch.int8)},
        {"mtp.fc.weight": weights["mtp.fc.weight"].to(torch.float8_e4m3fn)},
    ):
        changed = {
            name: tensor for name, tensor in (weights | change).items() if tensor is not None
        }
        save_file(changed, file, {"format": "pt"})
        caplog.clear()
        worker = worker_of("--target", str(target), *OPTIONS)
        assert not worker._models.drafts_by and "head" not in capsys.readouterr().out
        (record,) = caplog.records
        assert next(iter(change)).removeprefix("mtp.") in record.message
        assert "without it" in record.message
