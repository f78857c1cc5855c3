"""A session that loses its cache and has it again gives the rows of one that never lost it."""

from __future__ import annotations

from copy import copy
from itertools import cycle

import numpy as np
import pytest
from helpers.checkpoints import FAMILIES, full_logits, prompt_of, vlm
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.errors import MemoryFull
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.session import Session
from edge_cloud_spec.models.vlm import Vlm

CLOSE = 1e-4
TEXT = "search for the red chair near the door"


def bounded(family: str, sessions: float) -> Vlm:
    """A model with memory for so many sessions; none is held, and no prefix is kept."""
    model = copy(vlm(family))  # other tests have it with memory without a bound
    model.use_memory(KvMemory())
    model.open(prompt_of(model))
    model.use_memory(KvMemory(int(sessions * cache_bytes(model))))
    return model


def cache_bytes(model: Vlm) -> int:
    """What the cache of a session takes."""
    memory = KvMemory()
    before, model.memory = model.memory, memory
    session = model.open(prompt_of(model))
    model.memory = before
    assert session.resident
    return memory.in_use


class Twin:
    """The same calls to a session that is evicted and to one that is not; their rows are equal."""

    def __init__(self, evicted: Session, kept: Session) -> None:
        self.evicted, self.kept = evicted, kept
        self.nodes = 0

    def look(self, ours: np.ndarray, theirs: np.ndarray) -> None:
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() < CLOSE
        assert self.evicted.tokens == self.kept.tokens

    def step(self, data: st.DataObject) -> None:
        token = st.integers(0, 250)
        name = data.draw(
            st.sampled_from(["tree", "grow", "commit", "extend", "truncate", "after", "evict"])
        )
        if name in ("tree", "grow"):
            before = self.nodes if name == "grow" else 0
            tokens = data.draw(st.lists(token, min_size=1, max_size=5))
            parents = [data.draw(st.integers(-1, before + i - 1)) for i in range(len(tokens))]
            if name == "grow":
                self.look(self.evicted.grow(tokens, parents), self.kept.grow(tokens, parents))
            else:
                self.look(self.evicted.forward(tokens, parents), self.kept.forward(tokens, parents))
            self.nodes = before + len(tokens)
        elif name == "commit":
            nodes = data.draw(st.integers(0, self.nodes))
            path = self.path_to(nodes - 1)
            for session in (self.evicted, self.kept):
                session.commit(path)
            self.nodes = 0
        elif name == "extend":
            more = data.draw(st.lists(token, max_size=3))
            for session in (self.evicted, self.kept):
                session.extend(more)
            self.nodes = 0
        elif name == "truncate":
            length = data.draw(st.integers(0, self.kept.length))
            for session in (self.evicted, self.kept):
                session.truncate(length)
            self.nodes = 0
        elif name == "after":
            node = data.draw(st.integers(-1, self.nodes - 1))
            self.look(self.evicted.logits_after(node), self.kept.logits_after(node))
        elif data.draw(st.booleans()):
            self.evicted.evict()
            assert not self.evicted.resident
        else:
            self.come_back_in_steps(data)

    def come_back_in_steps(self, data: st.DataObject) -> None:
        """Between the steps its robot does what changes the answer."""
        self.evicted.evict()
        refill, turn = self.evicted.restore(), cycle([3, 40, 7])
        while not refill.step(next(turn)):
            if self.nodes == 0 and data.draw(st.integers(0, 3)) == 0:
                length = data.draw(st.integers(0, self.kept.length))
                for session in (self.evicted, self.kept):
                    session.truncate(length)
                    session.extend([length + 1])
        assert self.evicted.resident

    def path_to(self, node: int) -> list[int]:
        parents, path = self.kept._nodes.parents, []
        while node >= 0:
            path.insert(0, node)
            node = parents[node]
        return path


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=8)
@given(data=st.data())
def test_any_course_with_evictions_gives_the_rows_of_one_without(
    family: str, data: st.DataObject
) -> None:
    """Two sessions, and memory for one and a half: each use of one evicts the other."""
    model = bounded(family, 1.5)
    kept, memory = copy(model), model.memory
    kept.use_memory(KvMemory())
    prompts = [prompt_of(model, 1), prompt_of(model, 2, TEXT)]
    twins = [Twin(model.open(prompt), kept.open(prompt)) for prompt in prompts]
    for _ in range(data.draw(st.integers(2, 9))):
        data.draw(st.sampled_from(twins)).step(data)
        assert memory.in_use <= memory.reserved <= (memory.limit or 0)
    for twin in twins:
        twin.look(twin.evicted.forward([9]), twin.kept.forward([9]))
    assert memory.evictions > 0
    assert memory.restored_rows > 0


def test_rows_that_were_not_computed_again_would_be_noticed() -> None:
    """Negative control: a cache of another prompt gives other rows by far more than the bound."""
    model = bounded(FAMILIES[0], 4)
    one, two = model.open(prompt_of(model, 1)), model.open(prompt_of(model, 2, TEXT))
    right = one.forward([3, 4])
    one._cache = two._cache
    assert np.abs(one.forward([3, 4]) - right).max() > 10 * CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_the_session_that_was_used_the_longest_ago_gives_way(family: str) -> None:
    model = bounded(family, 3.5)
    sessions = [model.open(prompt_of(model, seed)) for seed in (1, 2, 3)]
    sessions[0].forward([5])
    sessions[1].waits = True
    fourth = model.open(prompt_of(model, 4))
    assert [session.resident for session in sessions] == [True, True, False]  # 1 waits for a pass
    expected = full_logits(family, prompt_of(model, 3), [5])
    rows = sessions[2].forward([5])
    assert np.abs(rows - expected[:, : rows.shape[1]]).max() < CLOSE
    assert [session.resident for session in sessions] == [False, True, True]
    assert fourth.resident


def test_sessions_of_one_pass_keep_their_caches_and_who_finds_no_room_is_told_alone() -> None:
    from edge_cloud_spec.models.session import PassRequest

    model = bounded(FAMILIES[0], 2.5)
    prompts = [prompt_of(model, seed) for seed in (1, 2, 3)]
    sessions = [model.open(prompt) for prompt in prompts]
    assert not sessions[0].resident
    results = model.forward_together([PassRequest(session, [5, 6]) for session in sessions[::-1]])
    assert isinstance(results[2], MemoryFull)
    for prompt, rows in zip(prompts[:0:-1], results[:2], strict=True):
        assert isinstance(rows, np.ndarray)
        expected = full_logits(FAMILIES[0], prompt, [5, 6])[:, : rows.shape[1]]
        assert np.abs(rows - expected).max() < CLOSE
    rows = sessions[0].forward([5, 6])  # the pass is over: another one gives way
    expected = full_logits(FAMILIES[0], prompts[0], [5, 6])[:, : rows.shape[1]]
    assert np.abs(rows - expected).max() < CLOSE


def test_a_cache_that_cannot_grow_beside_itself_is_restored_larger() -> None:
    """Growing needs both; evicted, the session comes back with room for the rows it wanted."""
    model = bounded(FAMILIES[0], 2.2)
    prompt = prompt_of(model)
    session = model.open(prompt)
    long = list(range(1, 251))
    with pytest.raises(MemoryFull):
        session.forward(long)
    assert session.evict()
    rows = session.forward(long)
    expected = full_logits(FAMILIES[0], prompt, long)[:, : rows.shape[1]]
    assert np.abs(rows - expected).max() < CLOSE


def test_what_will_never_fit_is_refused_with_what_to_do() -> None:
    model = bounded(FAMILIES[0], 0.5)
    with pytest.raises(MemoryFull, match="larger --kv-memory") as refused:
        model.open(prompt_of(model))
    assert refused.value.retry_s == 0
    assert model.memory.in_use == 0
