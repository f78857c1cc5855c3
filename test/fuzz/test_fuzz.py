"""Malformed frames: refused by name, to no harm, on both sides; the fuzzer finds what is not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random
from typing import Any

import grpc.aio
import numpy as np
import pytest
from fuzz import drafts, peers, robot
from fuzz.answers import Answer, flaws_of
from fuzz.draft_flaws import FLAWS, twins
from fuzz.peers import Bystander, Hostile, Peer
from fuzz.scenes import Scene, scenes
from fuzz.target import SPEC, Target
from fuzz.verifier import Report, ResourceCounts, run
from helpers.bounded_toy import BoundedSession
from helpers.cloud.grpc_cloud import Cloud
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.cloud.session import validation
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.random_source import SeededRandomSource
from edge_cloud_spec.decoding.split import (
    SparseResidual,
    Split,
    fallback_error,
    resample,
    residual_error,
    sparse_residual,
)
from edge_cloud_spec.decoding.token_distribution import TokenDistribution, distribution_of
from edge_cloud_spec.edge import answer
from edge_cloud_spec.wire.codec import decode_server, encode_server
from edge_cloud_spec.wire.messages import (
    Fault,
    ServerMessage,
    Verdict,
)

# The whole


def run_apart(frames: int, seed: int) -> Report:
    """In a process of its own.

    An error in the log fails a run, and gRPC's poller, one for all loops of a process, logs one
    where another test's loop was closed before its last event.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(run, frames, seed).result()


def test_a_sample_of_mutated_frames_does_no_harm() -> None:
    report = run_apart(3000, seed=1)
    assert not report.failures, report.failures[0]
    assert report.frames >= 3000
    assert report.evictions > 30
    assert report.answers["bad_draft"] > 300
    assert report.answers["bad_request"] > 300
    assert report.answers["verdict"] > 300
    assert report.answers["residual"] > 30
    assert report.robot["bad_verdict"] > 300


def test_a_verifier_that_does_not_check_drafts_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(validation, "check_draft", lambda draft, vocabulary: None)
    assert any("internal" in failure for failure in run(1000, 1).failures)


def test_a_verifier_whose_verdicts_are_not_the_targets_own_is_found_out() -> None:
    assert run(2000, 1, Target(0.1)).failures


def test_a_verifier_whose_evicted_sessions_come_back_changed_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adopt = BoundedSession._adopt

    def changed(session: BoundedSession, *refilled: Any) -> None:
        adopt(session, *refilled)
        session._states[-1] += 1

    monkeypatch.setattr(BoundedSession, "_adopt", changed)
    assert any("not" in failure for failure in run(2000, 1).failures)


def test_a_verifier_that_does_not_answer_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "DEADLINE_S", 0.5)
    monkeypatch.setattr(Worker, "_run_pass", lambda *_: None)
    assert any("no answer" in failure for failure in run(2000, 1).failures)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_robot_that_trusts_what_it_is_told_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "residual_error", lambda *_: "")
    failures: list[str] = []
    robot.fuzz_robot(2000, 1, Counter(), failures)
    assert failures


def test_what_grows_is_named() -> None:
    before = ResourceCounts(memory=2**28, sessions=7, threads=4, tasks=26)
    assert ResourceCounts(2**28 + 2**24, 7, 4, 26).grown(before) == []
    grown = ResourceCounts(2**29, 64, 40, 300).grown(before)
    assert [text.split(":")[0] for text in grown] == ["memory", "sessions", "threads", "tasks"]


# The cloud's side


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(Worker(Target(), SPEC, Target(0.5))) as running:  # type: ignore[arg-type]
        yield running


async def refusals(peer: Peer, frames: dict[str, bytes]) -> dict[str, list[ServerMessage]]:
    answers = {}
    for name, frame in frames.items():
        await peer.say(frame)
        answers[name] = await peer.fence()
    return answers


def flawed(random: Random, place: drafts.Place) -> dict[str, bytes]:
    """Every malformed draft there is, for this session."""
    frames = {f"a million, {n}": drafts.giant(n, place) for n in range(drafts.GIANTS)}
    for name, error in FLAWS.items():
        draft = drafts.proper_draft(random, place)
        error(draft, random)
        frames[name] = drafts.frame_of(draft, place.draft_base)
    return frames


@pytest.mark.parametrize("kind", range(len(drafts.KINDS)))
def test_every_malformed_draft_is_refused_by_name_and_the_session_goes_on(
    cloud: Cloud, kind: int
) -> None:
    async def session() -> None:
        async with grpc.aio.insecure_channel(cloud.address) as channel:
            peer = Hostile(channel, Random(kind), Counter(), kind=kind)
            await peer.open(kind)
            assert peer.place is not None
            for name, answers in (await refusals(peer, flawed(Random(kind), peer.place))).items():
                (said,) = answers
                assert isinstance(said, Fault), name
                assert said.code in ("bad_draft", "bad_request"), name
            proper = drafts.proper_draft(Random(kind), peer.place, list(peer.own[:2]) or None)
            assert await peer.draft(proper) is not None
            await peer.close()

    asyncio.run(session())


def test_equal_siblings_drawn_without_replacement_are_a_bad_draft(cloud: Cloud) -> None:
    kind = next(i for i, (*_, replacement) in enumerate(drafts.KINDS) if not replacement)

    async def session() -> None:
        async with grpc.aio.insecure_channel(cloud.address) as channel:
            peer = Bystander(channel, Random(0), Counter())
            await peer.open(kind)
            assert peer.place is not None
            draft = drafts.proper_draft(Random(0), peer.place)
            twins(draft)
            frame = drafts.frame_of(draft, peer.place.draft_base)
            ((said,),) = (await refusals(peer, {"twins": frame})).values()
            assert isinstance(said, Fault)
            assert said.code == "bad_draft"
            assert "proposed twice" in said.text
            await peer.close()

    asyncio.run(session())


# The robot's side


@pytest.mark.parametrize("scene", scenes(), ids=lambda scene: scene.name)
def test_every_malformed_answer_ends_the_decode_with_a_reason_and_moves_nothing(
    scene: Scene,
) -> None:
    assert robot.trial(scene, scene.due) in ("went on", "end", "length")
    for name, error in flaws_of(scene).items():
        spoiled = Answer.of(scene.due)
        error(spoiled)
        came = robot.trial(scene, spoiled.frame)
        assert came in ("bad_verdict", "bad_row", "refused by the codec"), name


@given(
    seed=st.integers(0, 10**6),
    vocabulary=st.sampled_from([2, 5, 300]),
    spread=st.sampled_from([0.0, 1.0, 20.0, 300.0]),
    temperature=st.sampled_from([0.05, 1.0, 100.0]),
    policy_top_k=st.sampled_from([0, 3]),
    split=st.builds(Split, st.just("sparse"), st.integers(1, 40), st.integers(0, 20)),
)
def test_what_an_honest_cloud_tells_is_never_refused(
    seed: int,
    vocabulary: int,
    spread: float,
    temperature: float,
    policy_top_k: int,
    split: Split,
) -> None:
    random = np.random.default_rng(seed)
    policy = SamplingPolicy(temperature, policy_top_k, seed=seed)
    target, draft = (
        distribution_of((spread * random.standard_normal(vocabulary)).astype(np.float32), policy)
        for _ in range(2)
    )
    told = sparse_residual(target, split, 0, SeededRandomSource(seed))
    verdict = decode_server(encode_server(Verdict(PrefixDigest(0, 0), (), None, residual=told)))
    assert isinstance(verdict, Verdict)
    assert isinstance(verdict.residual, SparseResidual)
    assert residual_error(verdict.residual, split, draft, vocabulary) == ""
    if told.tail_mass:
        assert fallback_error(target, verdict.residual, draft, vocabulary) == ""


@pytest.mark.parametrize("tail_mass", [0.0, 0.5])
def test_a_rejection_where_both_models_agree_does_not_hang_the_robot(tail_mass: float) -> None:
    """No trial of the rejection sampling would ever be kept."""
    both = TokenDistribution(np.array([1 - tail_mass, tail_mass]))
    told = SparseResidual(np.array([0]), np.array([1 - tail_mass]), tail_mass, (), ())
    drawn = {resample(told, both, at, SeededRandomSource(1), both) for at in range(50)}
    assert drawn == ({0, 1} if tail_mass else {0})
