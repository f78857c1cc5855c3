"""A real vLLM as the target's engine: its answers, and what becomes of a robot where it fails.

``make vllm`` runs this: ``EDGE_CLOUD_SPEC_VLLM`` names the venv.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.served_answers import (
    POLICY,
    TARGET,
    answers,
    opening_of,
    refused,
    worker_of,
)
from helpers.cloud.vllm_serve import VllmServe
from helpers.wide_checkpoint import write_wide

from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.models.load_drafter import DraftModelSettings, load_drafter
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec_lab.bench.requests import sample_requests
from edge_cloud_spec_lab.harness.grpc_robot import GrpcRobot

VENV = os.environ.get("EDGE_CLOUD_SPEC_VLLM")
if not VENV:
    why = "not tried: answers, faults and caches of a real vLLM (make vllm does, in ten minutes)"
    pytest.skip(why, allow_module_level=True)

REPLY_TIMEOUT_S = "5"  # less than a robot has
DRAFTING = ["dsd", "auto", "picospec", "specedge", "fsd", "best_first", "mc_dsd", "cloud_lookup"]
LONG = 100  # tokens of an answer without end, which repeats itself
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
SPLIT = ["dssd", "dssd_top_k", "dssd_dense", "tslt", "mc_tslt"]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServe]:
    folder = tmp_path_factory.mktemp("vllm")
    write_wide(TARGET, folder / "target")
    with VllmServe(Path(VENV or ""), folder / "target", folder / "log") as server:
        server.start()
        yield server


def on(vllm: VllmServe, *options: str) -> Any:
    return worker_of("--target", f"vllm:{vllm.url}", "--checkpoint", str(TARGET), *options)


@pytest.mark.parametrize("rule", ["greedy", "coupled", "rejection"])
def test_every_preset_says_what_it_says_with_our_own_engine(vllm: VllmServe, rule: str) -> None:
    names = ["dsd", "mc_dsd", *SPLIT] if rule == "rejection" else [*DRAFTING, *SPLIT, "cloud_ar"]
    here = worker_of("--target", str(TARGET), "--device", "cpu", "--dtype", "float32")
    assert answers(on(vllm), names, rule, 2, seed=5) == answers(here, names, rule, 2, seed=5)
    assert vllm.metric("vllm:prefix_cache_hits_total") > 0


def test_a_server_that_speculates_says_the_same_and_gains_what_it_does(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """By n-grams, which need no second model; it has no logits processor then."""
    folder, names = tmp_path_factory.mktemp("speculates"), ["dsd", "auto", "specedge", "cloud_ar"]
    write_wide(TARGET, folder / "target")
    speculation = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    options = {"logits-processors": None, "speculative-config": json.dumps(speculation)}
    with VllmServe(Path(VENV or ""), folder / "target", folder / "log") as server:
        server.start(options)
        for rule in ("greedy", "coupled"):
            here = worker_of("--target", str(TARGET), "--device", "cpu", "--dtype", "float32")
            assert answers(on(server), names, rule, 2, seed=5) == answers(
                here, names, rule, 2, seed=5
            )
        models = on(server, "--max-tokens", str(LONG))._models
        accepted = server.metric(ACCEPTED)
        session, said = endless(models), []
        while len(said) < LONG - 1:
            said += (new := models.server.submit(models._run(session)).result())
            session.extend(new)
        assert server.metric(ACCEPTED) > accepted
        alone = models.server.submit(models._run(endless(models, said[:1]))).result()
        assert said[: len(alone) + 1] == [*said[:1], *alone]


def endless(models: Any, said: Sequence[int] = ()) -> Any:
    """A session after these tokens whose answer has no end."""
    models.spec = replace(models.spec, end_ids=(models.spec.vocabulary - 1,))
    opening = opening_of(sample_requests(5, 1)[0], rule="greedy", policy=GREEDY)
    prompt = models.speaker.prompt(opening.request, models.spec)
    return models.open(replace(opening, verified=tuple(said)), prompt)


class Robots:
    """Eight robots of one verifier before the server. ``at``: what is done with the ``after``-th
    request of it from now on."""

    def __init__(self, vllm: VllmServe, models: Any, robots: list[GrpcRobot]) -> None:
        self.vllm, self.models, self._robots = vllm, models, robots
        self.at: Callable[[dict[str, Any]], None] = lambda body: None
        self.after = 0
        generate = self.models.server.generate

        async def asked(body: dict[str, Any]) -> Any:
            self.after -= 1
            if self.after == 0:
                self.at(body)
            return await generate(body)

        self.models.server.generate = asked

    def decode(self, number: int = 0, rule: str = "greedy") -> Any:
        """What this robot makes of its request."""
        policy = GREEDY if rule == "greedy" else POLICY
        request = sample_requests(6, 8)[number]
        settings = DecodeSettings(load_preset("dsd"), rule, policy)
        return self._robots[number].decode(request, settings)

    def together(self) -> list[Any]:
        """The answers of all of them, at once."""
        with ThreadPoolExecutor(len(self._robots)) as pool:
            outcomes = list(pool.map(self.decode, range(len(self._robots))))
        assert all(outcome.completed for outcome in outcomes), outcomes
        return [outcome.tokens for outcome in outcomes]


@pytest.fixture(scope="module")
def robots(vllm: VllmServe) -> Iterator[Robots]:
    worker = on(vllm, "--api-timeout", REPLY_TIMEOUT_S)
    with Cloud(worker) as cloud, ExitStack() as stack:
        made = (
            GrpcRobot(cloud.address, load_drafter(DraftModelSettings()), worker._models.spec)
            for _ in range(8)
        )
        yield Robots(vllm, worker._models, [stack.enter_context(robot) for robot in made])


@pytest.fixture
def whole(robots: Robots) -> Any:
    """What is decoded without a fault."""
    return robots.decode().tokens


def ended(outcome: Any, whole: Any, complaint: str, reason: str) -> None:
    """In one sentence, and what was verified before is the target's."""
    refused(outcome, complaint, reason)
    assert outcome.tokens == whole[: len(outcome.tokens)]


@pytest.mark.parametrize("after", [1, 3])
def test_a_slow_server_costs_its_decode_alone(robots: Robots, whole: Any, after: int) -> None:
    robots.after, robots.at = after, lambda body: robots.vllm.signal(signal.SIGSTOP)
    outcome = robots.decode()
    robots.vllm.signal(signal.SIGCONT)
    ended(outcome, whole, f"has not answered within {REPLY_TIMEOUT_S} s", "overloaded")
    assert robots.decode().tokens == whole


def test_scores_that_are_no_numbers_are_asked_for_again(robots: Robots) -> None:
    """V1 says what is in its memory for cached positions: some of it is NaN, which is no JSON."""
    here = worker_of("--target", str(TARGET), "--device", "cpu", "--dtype", "float32")
    assert answers(on(robots.vllm), ["dsd"], "greedy", 20, 7) == answers(
        here, ["dsd"], "greedy", 20, 7
    )


def test_eight_robots_at_once_have_the_answers_of_one(robots: Robots) -> None:
    assert robots.together() == [robots.decode(number).tokens for number in range(8)]


# Each of these starts the server again: they come last.


def test_an_engine_that_dies_ends_its_decodes_until_it_is_started_again(
    robots: Robots, whole: Any
) -> None:
    robots.after, robots.at = 3, lambda body: robots.vllm.kill_engine()
    outcome = robots.decode()
    ended(outcome, whole, "", "overloaded")
    robots.vllm.kill()
    ended(robots.decode(), whole, "cannot be reached", "overloaded")
    robots.vllm.start()
    assert robots.decode().tokens == whole


def test_a_server_that_is_killed_in_mid_round_and_is_another_one_afterwards(
    robots: Robots, whole: Any
) -> None:
    sampled = robots.decode(rule="coupled").tokens
    robots.after, robots.at = 3, lambda body: robots.vllm.kill()
    ended(robots.decode(), whole, "", "overloaded")
    robots.vllm.start({"served-model-name": "other"})
    ended(robots.decode(), whole, "serves other now", "bad_request")
    robots.vllm.kill()
    robots.vllm.start({"logits-processors": None})  # whole rows do as well, of a small vocabulary
    assert robots.decode().tokens == whole and robots.decode(rule="coupled").tokens == sampled
    assert not robots.models._samples


def test_a_full_server_that_forgets_pictures_is_slower_alone(robots: Robots, whole: Any) -> None:
    together = robots.together()
    robots.vllm.kill()
    robots.vllm.start(
        {"max-num-seqs": "2", "num-gpu-blocks-override": "18", "mm-processor-cache-gb": "0"}
    )
    assert robots.decode().tokens == whole
    assert robots.together() == together
