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
from edge_cloud_spec.dialects import dialect_names, load_dialect
from edge_cloud_spec.history import History, HistorySpec, Turn
from edge_cloud_spec.models import processor as processor_module
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import ORDERS
from edge_cloud_spec.models.token_grammar import GrammarCompiler, TokenGrammar
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.nav.answer import CLAUSES_FORM
from edge_cloud_spec.wire.messages import Close, Generation, Open, Opened, Verdict, key_of

WORDS = ["find", "the", "red", "door", "box", "go", "left", "7", "-", ",", "secret"]


def any_opening(rng: random.Random) -> Open:
    """What a robot may ask: any words, pictures, order and grammar."""
    frames = rng.choices(range(6), k=rng.randint(1, 3))
    grammar = rng.choice(["", "start: /[a-z ;:]+/", "start: /[a-z ]+/"])
    return Open(
        1,
        " ".join(rng.choices(WORDS, k=rng.randint(1, 12))),
        jpeg(frames[0]),
        rng.choice(ORDERS),
        replace(GREEDY, grammar=grammar),
        "greedy",
        key=key_of(b"secret"),
        lookup=rng.random() < 0.5,
        history=History(tuple(Turn.of(jpeg(each), "action: search;") for each in frames[1:])),
        generation=Generation(),
    )


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
    target, dialect = load(checkpoint(), threads=1, check=False), load_dialect(dialect_name)
    identity = "" if dialect.form == CLAUSES_FORM else dialect.identity
    spec = target.spec("You guide a robot.", 4, dialect.user_text, identity)
    spec = replace(spec, history=replace(dialect.history, frames=8))
    worker = Worker(target, spec, clock=lambda: 0.0, dialect=dialect)
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


@pytest.mark.parametrize("dialect", dialect_names())
@pytest.mark.parametrize("seed", [0, 1])
def test_a_robot_finds_the_same_whatever_another_was_told_and_showed(
    seed: int, dialect: str
) -> None:
    """A verifier that has served somebody; then one robot asks the very same, or something else."""
    rng = random.Random(f"{seed} {dialect}")
    first, other, asked = (any_opening(rng) for _ in range(3))
    told, untold = (
        work_of(dialect, [("c", first), ("a", before), ("b", asked)]) for before in (asked, other)
    )
    assert told == untold and told["decode_image"] > 0


def test_a_robot_that_asks_again_finds_what_it_has_sent() -> None:
    """The control: the counts tell one who asks that the same was asked before."""
    asked = any_opening(random.Random(3))
    new, again = (work_of("internvla_n1", [(each, asked), ("b", asked)]) for each in "ab")
    assert again["rows that were known"] > new["rows that were known"]
    assert again["decode_image"] == 0 < new["decode_image"]


def test_between_two_pictures_of_one_robot_others_have_their_turn() -> None:
    """However many a request has, another robot waits for one of them at most."""
    target = load(checkpoint(), threads=1, check=False)
    spec = replace(target.spec("You guide a robot.", 4), history=HistorySpec(8))
    turns = tuple(Turn.of(jpeg(10 + n), "action: search;") for n in range(8))
    with counted() as work:
        worker = Worker(target, spec, clock=lambda: float(work["decode_image"]))  # 1 s each
        worker._scheduler.estimator.observe(1, 0.01)
        many, few = Robot(worker), Robot(worker)
        many.say(Open(1, "find", jpeg(1), ORDERS[0], GREEDY, "greedy", history=History(turns)))
        worker.run_one()
        few.say(Open(1, "find", jpeg(2), ORDERS[0], GREEDY, "greedy"))
        worker.run_one()
        assert few.count(Opened) and not many.count(Opened)
        while not many.count(Opened):
            before = work["decode_image"]
            worker.run_one()
            assert work["decode_image"] <= before + 2  # one of each
        assert work["decode_image"] >= len(turns) + 2
