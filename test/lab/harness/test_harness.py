"""The two harnesses: one link, one robot and one cloud, in virtual time and over real gRPC."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from queue import Queue

import pytest

from edge_cloud_spec.cli import main
from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.cloud.model_thread.sessions import HeldSession, RobotStream
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.verified_answer import VerifiedAnswer
from edge_cloud_spec.edge.client import VerifierClient
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.drafts import Drafts
from edge_cloud_spec.edge.events import LinkLost, LinkUp
from edge_cloud_spec.edge.link.route import ClientSettings
from edge_cloud_spec.edge.measures import Measures
from edge_cloud_spec.models.draft_model import DraftModel
from edge_cloud_spec.presets import load_preset, preset_names
from edge_cloud_spec_lab.harness.cost_profiles import (
    CostProfile,
    custom_cost_profile,
    load_cost_profile,
)
from edge_cloud_spec_lab.harness.emulated_link import LinkProfile, read_trace
from edge_cloud_spec_lab.harness.proxy import Proxy
from edge_cloud_spec_lab.harness.scripted.model import ScriptedModels
from edge_cloud_spec_lab.harness.scripted_robot import (
    SCRIPTED_REPLY_TIMEOUT_S,
    DecodedAnswer,
    ScriptedHarness,
    ScriptedRobot,
)
from edge_cloud_spec_lab.harness.server import InProcessServer

CHEAP = custom_cost_profile(4.0, draft_ms=1.0, verify_ms=3.0, ar_ms=3.0, alpha=0.7, exit_hit=0.6)
SLOW = custom_cost_profile(4.0, draft_ms=8.0, verify_ms=24.0, ar_ms=24.0, alpha=0.7)
VERIFIED = [name for name in preset_names() if load_preset(name).verified]


# Real time, to which virtual time is held


@contextmanager
def robot_over_grpc(
    cost_profile: CostProfile, profile: LinkProfile, cloud_drafts: bool = False
) -> Iterator[ScriptedRobot]:
    """A scripted robot of a server behind a proxy; their models sleep as long as real ones compute.

    cloud_drafts: the server has a draft model, too.
    """
    clock, reply_timeout = time.perf_counter, SCRIPTED_REPLY_TIMEOUT_S + profile.longest_outage_s
    models = ScriptedModels(cost_profile, cloud_drafts)
    with (
        InProcessServer(models.worker(clock, time.sleep)) as cloud,
        Proxy(cloud.address, profile) as proxy,
        closing(VerifierClient(ClientSettings(proxy.address))) as client,
    ):
        yield ScriptedRobot(models, client.connect, clock, time.sleep, reply_timeout)


# Both harnesses


def test_both_harnesses_make_the_same_rounds() -> None:
    """Where nothing depends on what comes first, real time and virtual time differ in nothing."""
    done = []
    link = LinkProfile(CHEAP.one_way_ms)
    with robot_over_grpc(CHEAP, link) as real:
        for robot in (real, ScriptedHarness(ScriptedModels(CHEAP), link).robot):
            rounds = robot.decode(load_preset("dsd"), 60, seed=2).outcome.stats.rounds
            done.append([(r.drafted, r.accepted, r.emitted) for r in rounds])
    assert done[0] == done[1]


@pytest.mark.parametrize(
    "preset", ["cloud_ar", "cloud_sd", "cloud_lookup", "dsd", "picospec", "auto"]
)
def test_outages_are_resumed_from_where_the_link_is_hardly_up(preset: str) -> None:
    profile = LinkProfile(SLOW.one_way_ms, 5.0, outage_every_s=0.35, outage_s=0.3)
    there = ScriptedHarness(ScriptedModels(SLOW, cloud_drafts=True), profile)
    resumed(there.robot.decode(load_preset(preset), 200, seed=1))


@pytest.mark.parametrize(
    ("preset", "rows"),
    [("cloud_ar", "0,4\n.4,\n.5,4\n1.3,60,20"), ("auto", "0,4\n.9,\n1,4\n1.8,4")],
    ids=["cloud_ar", "auto"],
)
def test_outages_over_grpc_are_resumed_from_and_leave_no_thread(
    preset: str, rows: str, tmp_path: Path
) -> None:
    (tmp_path / "link.csv").write_text(rows)
    profile = LinkProfile(trace=read_trace(tmp_path / "link.csv"))
    before = set(threading.enumerate())
    resumed_and_left_in_an_outage(preset, profile)
    gc.collect()
    # gRPC's poller is told to end with the last of its objects; a moment later it may still be in
    # the list.
    new = set(threading.enumerate()) - before
    for thread in new:
        thread.join(10.0)
    assert not [thread.name for thread in new if thread.is_alive()]


def resumed_and_left_in_an_outage(preset: str, profile: LinkProfile) -> None:
    heard: Queue[object] = Queue()
    with robot_over_grpc(SLOW, profile, cloud_drafts=True) as robot:
        resumed(robot.decode(load_preset(preset), 120, seed=1))
        robot.connect(heard.put)
        while not isinstance(heard.get(timeout=60.0), LinkLost):
            pass


def resumed(answer: DecodedAnswer) -> None:
    """It was resumed, and has each of its tokens once."""
    assert answer.equal, answer.outcome.text
    assert answer.outcome.stats.resumed > 0
    assert sum(r.emitted for r in answer.outcome.stats.rounds) == len(answer.own)


def test_a_decode_that_begins_in_an_outage_waits_for_its_end() -> None:
    profile = LinkProfile(10.0, outage_every_s=5.0, outage_s=4.0)
    there = ScriptedHarness(ScriptedModels(CHEAP), profile)
    there.timeline.sleep(5.5)
    answer = there.robot.decode(load_preset("dsd"), 30, seed=1)
    assert answer.equal, answer.outcome.text
    assert there.timeline.now > 9.0
    heard: list[object] = []
    there.timeline.sleep(11.0 - there.timeline.now)
    there.robot.connect(heard.append)
    there.timeline.sleep(3.5)
    assert [type(item) for item in heard] == [LinkLost, LinkUp]


DECODE_OBJECTS = (EdgeDecoder, Drafts, DraftModel, HeldSession, RobotStream)


def decode_objects() -> int:
    gc.collect()
    # Not isinstance, which asks each object for its class: some of torch's warn when asked.
    return sum(issubclass(type(each), DECODE_OBJECTS) for each in gc.get_objects())


def test_minutes_of_every_preset_with_outages_lose_no_token_and_leave_no_object() -> None:
    """Robot and cloud count the same, and what was decoded is gone at both ends."""
    link = LinkProfile(SLOW.one_way_ms, 30.0, outage_every_s=7.0, outage_s=1.5)
    there = ScriptedHarness(ScriptedModels(SLOW, True, WorkerLimits(keep_s=3.0)), link, 3)
    robot = Counter[str]()

    def decode(preset: str, tokens: int, seed: int, policy: SamplingPolicy = GREEDY) -> None:
        answer = there.robot.decode(load_preset(preset), tokens, seed, policy)
        rounds = answer.outcome.stats.rounds
        assert answer.equal, f"{preset}, {seed}: {answer.outcome.text}"
        assert sum(each.emitted for each in rounds) == tokens
        robot["rounds"] += len(rounds)
        robot["on drafts"] += sum(each.drafted > 0 for each in rounds)
        robot["resumed"] += answer.outcome.stats.resumed

    before = decode_objects()
    held = Drafts(VerifiedAnswer(), "ids", load_preset("dsd"), Measures())
    assert decode_objects() == before + 1, "what is held on to is counted"
    del held
    for seed, preset in enumerate([*VERIFIED, *VERIFIED]):
        policy = GREEDY if seed < len(VERIFIED) else SamplingPolicy(0.8, seed=seed)
        decode(preset, 40 + 13 * seed % 80, seed, policy)
    for _ in range(5):  # sessions whose Close was lost end at the next Open
        there.timeline.sleep(8.0)
        decode("dsd", 9, seed=0)
        there.timeline.sleep(2.0)
        if decode_objects() == before:
            break
    assert decode_objects() == before and not there.worker.held
    cloud = there.worker.counters
    assert robot["resumed"] > 10 and cloud.refused == 0
    assert cloud.verdicts == robot["rounds"] and cloud.answers.drafts == robot["on drafts"]
    assert cloud.drafts == cloud.verified + cloud.repeated + cloud.late + cloud.unused


def test_the_first_token_teaches_auto_nothing_of_the_targets_pass() -> None:
    """The prefill gave it: a pass that costs nothing must not make the target look free."""
    cost_profile = load_cost_profile("fsd-go2")
    link = LinkProfile(cost_profile.one_way_ms)
    robot = ScriptedHarness(ScriptedModels(cost_profile), link).robot
    robot.decode(load_preset("cloud_ar"), 4, seed=1)
    assert robot.runner.measures.server_pass.value == pytest.approx(
        cost_profile.ar_ms / 1e3, rel=0.01
    )


def test_a_cloud_that_says_nothing_to_auto_is_given_up() -> None:
    there = ScriptedHarness(ScriptedModels(CHEAP), LinkProfile(1.0))
    heard: list[bytes] = []
    there.worker.receive = lambda _, data: heard.append(data)  # type: ignore[method-assign]
    outcome = there.robot.decode(load_preset("auto"), 20, seed=1).outcome
    assert heard and outcome.reason == "timeout"


# The command line


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--draft-ms 5 --ar-ms 9", "need --verify-ms, --alpha, --rtt too"),
        ("--cost-profile custom", "need --draft-ms, --verify-ms"),
        ("--cost-profile fsd-go2 --alpha 2", "alpha, runner-up and exit-hit are from 0 to 1"),
        ("--outage 2,60", "60,2"),
        ("--jitter -1", "delay, jitter and rate are 0 or more"),
        ("--presets dsd,edge_only", "edge_only asks no cloud"),
        ("--tokens 0", "--tokens is at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(
    options: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "pipelines", *options.split()]) == 2
    assert why in capsys.readouterr().err


def test_flags_change_a_published_cost_profile(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    options = f"--cost-profile fsd-go2 --alpha 1 --gamma 6 --presets dsd --tokens 70 --json {path}"
    assert main(["bench", "pipelines", *options.split()]) == 0
    row = json.loads(path.read_text())["rows"][0]
    assert row["tokens_per_round"] == pytest.approx(7.0)
    assert row["published"] is None  # it is not what was published any more
