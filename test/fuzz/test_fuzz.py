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
from fuzz import Broken, drafts, peers, robot, signals, spoil, verifier
from fuzz.answers import Answer, flaws_of
from fuzz.draft_flaws import FLAWS, twins
from fuzz.peers import Hostile
from fuzz.scenes import Scene, scenes
from fuzz.target import SPEC, Target
from helpers.bounded_toy import BoundedSession
from helpers.cloud.grpc_cloud import Cloud

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.cloud.session import validation
from edge_cloud_spec.decoding.random_source import SeededRandomSource
from edge_cloud_spec.decoding.split import (
    SparseResidual,
    resample,
)
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.edge import answer
from edge_cloud_spec.wire.messages import (
    Fault,
)

# The whole


def test_a_sample_of_mutated_frames_does_no_harm() -> None:
    """In a process of its own: an error in the log fails a run, and gRPC's poller, one for all
    loops of a process, logs one where another test's loop was closed before its last event."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        counts = pool.submit(verifier.run, 1200, 1).result()
    assert counts["frames"] >= 1200
    assert min(counts["bad_draft"], counts["bad_request"], counts["verdict"]) > 150
    assert min(counts["evictions"], counts["residual"]) > 20
    assert robot.run(2000, 1)["bad_verdict"] > 200


def _brings_back_changed(adopt: Any, session: BoundedSession, *refilled: Any) -> None:
    adopt(session, *refilled)
    session._states[-1] += (1,)


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "what"),
    [
        (validation, "check_draft", lambda *_: None, "internal"),
        (verifier, "BoundedTarget", lambda _: Target(0.1), "not the target's own"),
        # an evicted session
        (BoundedSession, "_adopt", _brings_back_changed, "not the target's own"),
        (Worker, "_run_pass", lambda *_: None, "no answer"),
    ],
)
def test_a_verifier_that_is_wrong_is_found_out(
    owner: Any, name: str, wrong: Any, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, owner, name, wrong)
    if what == "no answer":
        monkeypatch.setattr(peers, "DEADLINE_S", 0.5)
    with pytest.raises(Broken, match=what):
        verifier.run(2000, 1)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_burst_of_signals_ends_a_program_that_has_just_begun() -> None:
    assert signals.run(1, 1).total() == 2, "its node, and how it ended"


def test_a_robot_that_trusts_what_it_is_told_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "residual_error", lambda *_: "")
    with pytest.raises(Broken):
        robot.run(2000, 1)


def test_what_grows_is_named() -> None:
    before = {"memory": 2**28, "sessions": 7, "threads": 4, "tasks": 26}
    assert verifier.grown(before | {"memory": 2**28 + 2**24}, before) == []
    said = verifier.grown({what: 10 * number for what, number in before.items()}, before)
    assert {text.split(":")[0] for text in said} == set(before)


# The cloud's side


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(Worker(Target(), SPEC, Target(0.5))) as running:  # type: ignore[arg-type]
        yield running


WITH_GIANTS = (0, 3, 4, 6)  # a kind of each payload


def flawed(random: Random, place: drafts.Place, giants: int) -> dict[str, bytes]:
    """Every malformed draft there is, for this session."""
    frames = {f"a million, {n}": drafts.giant(n, place) for n in range(giants)}
    siblings = {} if place.opening.replacement else {"equal siblings": twins}
    for name, error in (FLAWS | siblings).items():
        draft = drafts.proper_draft(random, place)
        error(draft, random)
        frames[name] = drafts.frame_of(draft, place.draft_base)
    return frames


@pytest.mark.parametrize("kind", range(len(drafts.KINDS)))
def test_every_malformed_draft_is_refused_by_name_and_the_session_goes_on(
    cloud: Cloud, kind: int
) -> None:
    giants = drafts.GIANTS if kind in WITH_GIANTS else 0

    async def session() -> None:
        async with grpc.aio.insecure_channel(cloud.address) as channel:
            peer = Hostile(channel, Random(kind), Counter(), kind=kind)
            await peer.open(kind)
            for name, frame in flawed(Random(kind), peer.place, giants).items():
                await peer.say(frame)
                (said,) = await peer.fence()
                assert isinstance(said, Fault), name
                assert said.code in ("bad_draft", "bad_request"), name
                assert name != "equal siblings" or "proposed twice" in said.text
            proper = drafts.proper_draft(Random(kind), peer.place, list(peer.own[:2]) or None)
            assert await peer.draft(proper) is not None
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
        error(spoiled, Random(name))
        came = robot.trial(scene, spoiled.frame)
        assert came in ("bad_verdict", "bad_row", "refused by the codec"), name


@pytest.mark.parametrize("tail_mass", [0.0, 0.5])
def test_a_rejection_where_both_models_agree_does_not_hang_the_robot(tail_mass: float) -> None:
    """No trial of the rejection sampling would ever be kept."""
    both = TokenDistribution(np.array([1 - tail_mass, tail_mass]))
    told = SparseResidual(np.array([0]), np.array([1 - tail_mass]), tail_mass, (), ())
    drawn = {resample(told, both, at, SeededRandomSource(1), both) for at in range(50)}
    assert drawn == ({0, 1} if tail_mass else {0})
