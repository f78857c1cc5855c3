"""What a verifier computes for one robot does not depend on what another has said or shown."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from helpers.checkpoints import checkpoint, jpeg
from helpers.cloud.worker_robot import Robot, do_all

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.models import processor as processor_module
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.token_grammar import GrammarCompiler, TokenGrammar
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.nav.answer import CLAUSES, ORDERS
from edge_cloud_spec.nav.history import Turn
from edge_cloud_spec.request import Message, Part, Picture, Request
from edge_cloud_spec.share import config_names
from edge_cloud_spec.wire.messages import Close, Generation, Open, Opened, Verdict, key_of

WORDS = ["find", "the", "red", "door", "box", "go", "left", "7", "-", ",", "secret"]


ANY = "any"


def any_opening(rng: random.Random, dialect: str) -> Open:
    """What a robot may ask: any words, pictures, order and grammar, in a dialect or in any form."""
    frames = rng.choices(range(6), k=rng.randint(1, 3))
    grammar = rng.choice(["", "start: /[a-z ;:]+/", "start: /[a-z ]+/"])
    if dialect == ANY:
        request = any_request(rng, frames)
    else:
        turns = [Turn.of(jpeg(each), "action: search;") for each in frames[1:]]
        asking = load_dialect(dialect)
        asking = replace(asking, history=replace(asking.history, frames=8))
        request = asking.request(any_words(rng), jpeg(frames[0]), rng.choice(ORDERS), turns)
    return Open(
        1,
        request,
        replace(GREEDY, grammar=grammar),
        "greedy",
        key=key_of(b"secret"),
        lookup=rng.random() < 0.5,
        generation=Generation(),
    )


def any_words(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))


def any_request(rng: random.Random, frames: list[int]) -> Request:
    """Texts and pictures in any order, over turns or in one message, after a system text or none,
    with candidates of the robot's own."""
    messages = [Message("system", (any_words(rng),))] if rng.random() < 0.5 else []
    parts: list[Part] = [any_words(rng)]
    for frame in frames:
        parts.insert(rng.randrange(len(parts) + 1), Picture.of(jpeg(frame)))
        parts.append(any_words(rng))
        if rng.random() < 0.3:
            answer = Message("assistant", (any_words(rng),))
            messages += [Message("user", tuple(parts)), answer]
            parts = [any_words(rng)]
    messages.append(Message("user", tuple(parts)))
    candidates = tuple(any_words(rng) for _ in range(rng.randrange(4)))
    return Request(tuple(messages), candidates, rng.random() < 0.5, rng.random() < 0.7)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """How often what costs time is done from now on."""
    work: Counter[str] = Counter()

    def counting(owner: Any, name: str) -> Any:
        does = getattr(owner, name)

        def done(*given: Any) -> Any:
            work[name] += 1
            return does(*given)

        return patch.object(owner, name, done)

    with ExitStack() as stack:
        stack.enter_context(counting(processor_module, "decode_image"))
        stack.enter_context(counting(Vlm, "_encode"))
        stack.enter_context(counting(GrammarCompiler, "_compiled"))
        stack.enter_context(counting(TokenGrammar, "_state"))
        yield work


def work_of(dialect_name: str, asked: list[tuple[str, Open]]) -> Counter[str]:
    """What the last request costs a verifier that has heard the others of these credentials."""
    target = load(checkpoint(), threads=1, check=False)
    imposed = None if dialect_name == ANY else load_dialect(dialect_name).system_text
    worker = Worker(target, target.spec(4, imposed), clock=lambda: 0.0)
    for credential, opening in asked:
        before = worker.kv_memory.prefix_rows
        robot = Robot(worker)
        robot.stream.client = robot.stream.credential = credential
        with counted() as work:
            robot.say(opening)
            do_all(worker)
            assert robot.count(Verdict), robot.heard
            robot.say(Close())
            do_all(worker)
        work["rows that were known"] = worker.kv_memory.prefix_rows - before
        work["drafted"] = sum(each.drafted for each in robot.heard if isinstance(each, Verdict))
    return work


@pytest.mark.parametrize(
    ("dialect", "seed"),
    [*((name, 0) for name in config_names("dialect")), *((ANY, n) for n in range(5))],
)
def test_a_robot_finds_the_same_whatever_another_was_told_and_showed(
    seed: int, dialect: str
) -> None:
    """A verifier that has served somebody; then one robot asks the very same, or something else."""
    rng = random.Random(f"{seed} {dialect}")
    first, other, asked = (any_opening(rng, dialect) for _ in range(3))
    told, untold = (
        work_of(dialect, [("c", first), ("a", before), ("b", asked)]) for before in (asked, other)
    )
    assert told == untold and told["decode_image"] > 0


def test_a_robot_that_asks_again_finds_what_it_has_sent() -> None:
    """The control: the counts tell one who asks that the same was asked before."""
    asked = any_opening(random.Random(3), "internvla_n1")
    new, again = (work_of("internvla_n1", [(each, asked), ("b", asked)]) for each in "ab")
    assert again["rows that were known"] > new["rows that were known"]
    assert again["decode_image"] == 0 < new["decode_image"]


def test_between_two_pictures_of_one_robot_others_have_their_turn() -> None:
    """However many a request has, another robot waits for one of them at most."""
    target = load(checkpoint(), threads=1, check=False)
    spec = target.spec(4)
    turns = tuple(Turn.of(jpeg(10 + n), "action: search;") for n in range(8))
    with counted() as work:
        worker = Worker(target, spec, clock=lambda: float(work["decode_image"]))  # 1 s each
        worker._scheduler.estimator.observe(1, 0.01)
        many, few = Robot(worker), Robot(worker)
        many.say(Open(1, CLAUSES.request("find", jpeg(1), turns=turns), GREEDY, "greedy"))
        worker.run_one()
        few.say(Open(1, CLAUSES.request("find", jpeg(2)), GREEDY, "greedy"))
        worker.run_one()
        assert few.count(Opened) and not many.count(Opened)
        while not many.count(Opened):
            before = work["decode_image"]
            worker.run_one()
            assert work["decode_image"] <= before + 2  # one of each
        assert work["decode_image"] >= len(turns) + 2
