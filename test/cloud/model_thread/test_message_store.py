"""What a verifier keeps for robots is bounded by what it costs; nothing is kept of a refusal."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from helpers.checkpoints import fresh, jpeg
from helpers.cloud.grpc_robot import opening
from helpers.cloud.worker_robot import Robot, cloud, do_all
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.cloud.model_thread.message_store import ENTRY, MessageStore, UnknownMessages
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.edge.verifier_memory import VerifierMemory
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec.nav.history import Turn
from edge_cloud_spec.request import Message, Part, Picture, Request, messages_digest
from edge_cloud_spec.wire.messages import Fault, Opened

EACH = 2**18  # bytes


def users(*parts: Part) -> tuple[Message, ...]:
    return (Message("user", parts),)


def answers(number: int) -> tuple[Message, ...]:
    said = (Message("assistant", (chr(0x1F600 + number % 80) * 4000 + str(number),)),)
    return (*users("tell me"), *said, *users(f"and {number}?"))


KINDS: dict[str, Callable[[int], tuple[Message, ...]]] = {
    "tiny pictures": lambda n: users(Picture.of(n.to_bytes(3, "big"))),
    "pictures": lambda n: users(Picture.of(n.to_bytes(3, "big") * 5000)),
    "many parts": lambda n: users(*[str(n), Picture.of(b"1")] * 100),
    "many messages": lambda n: users(str(n)) * 50,
    "answers": answers,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_takes_no_more_memory_than_its_bound(kind: str) -> None:
    store = MessageStore(EACH, 60.0, 2)
    tracemalloc.start()
    try:
        for number in range(40):
            for each in range(8):
                asked = Request(KINDS[kind](number * 8 + each), continues=True)
                assert store.keep(asked, "robot", 0.0)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert EACH / 4 < store.size <= EACH
    assert kept < 1.5 * EACH


def test_what_does_not_fit_is_not_said_to_be_kept() -> None:
    """A robot would name it in vain, decision for decision."""
    store, large = MessageStore(EACH, 60.0, 2), users(Picture.of(bytes(EACH)))
    assert not store.keep(Request(large, continues=True), "robot", 0.0) and store.size <= EACH
    assert not MessageStore(0, 60.0, 2).keep(Request(users("hello")), "robot", 0.0)


def test_of_a_request_that_none_continues_no_picture_is_kept() -> None:
    store, system = MessageStore(EACH, 60.0, 2), Message("system", ("Be brief.",))
    asked = Request((system, *users("a", Picture.of(bytes(5000)))))
    assert store.keep(asked, "robot", 0.0) and store.size < 5000
    rest = replace(asked, messages=asked.messages[1:])
    after = messages_digest(asked.messages[:1])
    assert store.completed(rest, after, "robot").messages == asked.messages


def spoken(rng: Random) -> Request:
    """A conversation of any form."""
    messages = [Message("system", (str(rng.randrange(2)),))] if rng.random() < 0.5 else []
    for _ in range(rng.randint(1, 4)):
        parts: list[Part] = [str(rng.randrange(2))]
        parts += [Picture.of(rng.randbytes(1)) for _ in range(rng.randrange(3))]
        rng.shuffle(parts)
        said = Message("assistant", (str(rng.randrange(2)),))
        messages += [Message("user", tuple(parts)), said]
    return Request(tuple(messages[:-1]), continues=rng.random() < 0.8)


@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_whatever_a_robot_names_the_verifier_has_all_of_it_or_says_that_it_does_not(
    rng: Any, entries: int
) -> None:
    """Robots of two credentials ask, and remember what the verifier said to keep; it forgets at its
    bound. No credential is given what another has sent."""
    store = MessageStore(entries * ENTRY, 60.0, 2)
    robots = {name: VerifierMemory() for name in ("a", "b")}
    sent: dict[str, set[bytes]] = {"a": set(), "b": set()}
    asked = [spoken(rng) for _ in range(4)]
    for _ in range(30):
        name, whole = rng.choice("ab"), rng.choice(asked)
        memory = robots[rng.choice("ab") if rng.random() < 0.2 else name]
        said, after = memory.shortened(whole)
        try:
            got = store.completed(said, after, name)
        except UnknownMessages:
            memory.clear()
            said, after = whole, b""
            got = store.completed(said, after, name)
        else:
            missing = {p.digest for p in whole.pictures} - {
                p.digest for p in said.pictures if p.data
            }
            assert missing <= sent[name]
        assert got == replace(whole, owner=name)
        sent[name] |= {picture.digest for picture in said.pictures if picture.data}
        if store.keep(got, name, 0.0):
            memory.add(whole)
        assert store.size <= 2 * entries * ENTRY


def conversing() -> tuple[Worker, list[Turn]]:
    target = fresh()
    worker = Worker(target, target.spec(4))
    return worker, [Turn.of(jpeg(n), "action: search;") for n in range(3)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"request": CLAUSES.request("find", jpeg(9)[:60])},
        {"request": Request(users(""))},
        {"request": Request(users("find <|im_end|>"))},
        {"verified": (10**6,)},
        {"policy": SamplingPolicy(grammar="start: (")},
        {"request": Request(users("find", Picture(b"?" * 16, b"another")))},
        {"after": b"?" * 16},
    ],
    ids=str,
)
def test_nothing_is_kept_of_a_request_that_is_refused(wrong: dict[str, Any]) -> None:
    worker, turns = conversing()
    good = replace(opening(1, jpeg(9), turns), rule="greedy", policy=GREEDY, tokenizer_digest=b"")
    robot = Robot(worker)
    assert isinstance(robot.ask(replace(good, **wrong)), Fault)
    assert worker.messages.size == 0
    robot.ask(good)  # the control
    assert robot.last(Opened).keeps and worker.messages.size > good.nbytes


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(40, 100))
def test_the_pictures_of_one_robots_sessions_have_a_bound(sizes: list[int], most: int) -> None:
    """The first is let in whatever it has; a session without its robot makes room."""
    worker = cloud(bytes_per_robot=most)
    robots = [Robot(worker) for _ in sizes]
    for number, (robot, size) in enumerate(zip(robots, sizes, strict=True)):
        robot.stream.client = "one"
        others = worker.held._sessions.values()
        lost = sum(other.opening.nbytes for other in others if other.stream is None)
        held = sum(other.opening.nbytes for other in others)
        said = robot.ask(opening(number, jpeg=b"." * size))
        assert isinstance(said, Opened) == (held == 0 or held - lost + size <= most or held == lost)
        assert sum(other.opening.nbytes for other in others) <= max(most, size)
        if number % 3 == 2:
            robot.leave()
            do_all(worker)
