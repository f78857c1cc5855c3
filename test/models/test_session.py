"""A session computes what transformers' own forward computes, however it is driven, in whatever
kind of pass and company, whether or not it loses its cache; what one does costs itself alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.checkpoints import CLOSE, FAMILIES, difference, fresh, prompt_of, vlm
from torch import Tensor

from edge_cloud_spec.errors import MemoryFull
from edge_cloud_spec.lru_cache import LruCache
from edge_cloud_spec.models import session as session_module
from edge_cloud_spec.models.cache import CacheLayout, KeyValueCache
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.passes import attention as attention_module
from edge_cloud_spec.models.passes.attention import PaddedAttention, PassItem
from edge_cloud_spec.models.passes.target_rows import on_host
from edge_cloud_spec.models.passes.transformer import OnLayer
from edge_cloud_spec.models.session import PassRequest, Session
from edge_cloud_spec.models.vlm import Vlm

TEXTS = ("find the silver bottle", "search for the red chair near the door", "find it")
KINDS = ("apart", "padded", "on a device", "bounded")  # of passes


def bounded(family: str, sessions: float) -> Vlm:
    """A model with memory for so many sessions; none is held, and no prefix is kept."""
    model = fresh(family)
    cache = model.transformer.cache_layout.row_bytes * model.open(prompt_of(model))._cache.capacity
    model.use_memory(KvMemory(int(sessions * cache)))
    return model


class Stopped(Exception):
    """What an exit raises here."""


def stop_at(layer: int) -> OnLayer:
    def on_layer(index: int, hidden: torch.Tensor) -> None:
        if index == layer:
            raise Stopped

    return on_layer


@contextmanager
def passes(kind: str) -> Iterator[None]:
    """Passes of this kind, over caches that hold no numbers where nothing was computed."""

    def nothing(layout: CacheLayout, rows: int) -> torch.Tensor:
        return torch.full((layout.layers, 2, layout.heads, rows, layout.size), torch.nan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CacheLayout, "_allocate", nothing)
        if kind in ("apart", "padded"):
            padded = kind == "padded"
            patch.setattr(PaddedAttention, "pays", lambda each, _: padded and len(each) > 1)
        if kind == "on a device":
            patch.setattr(session_module, "on_device", lambda rows: rows)
        yield


class Course:
    """Sessions that are driven at random; their rows are compared with transformers' own."""

    def __init__(self, family: str, kind: str, seed: int = 1) -> None:
        self.family, self.dice = family, np.random.default_rng(seed)
        self.model = bounded(family, 1.5)
        if kind != "bounded":
            self.model = fresh(family)
        self.prompts = [prompt_of(self.model, *each) for each in enumerate(TEXTS)]
        self.sessions = [self.model.open(prompt) for prompt in self.prompts]
        self.nodes: list[list[tuple[int, int]]] = [[] for _ in TEXTS]  # token and parent
        self.most = 1 if kind == "bounded" else len(TEXTS)  # sessions of a pass
        self.rows = torch.Tensor if kind == "on a device" else np.ndarray

    def path(self, at: int, node: int) -> list[int]:
        path: list[int] = []
        while node >= 0:
            path.insert(0, node)
            node = self.nodes[at][node][1]
        return path

    def check(self, at: int, node: int, row: Any) -> None:
        """The row after a node of a session, or after its prefix (-1)."""
        drafted = [self.nodes[at][each][0] for each in self.path(at, node)]
        tokens = [*self.sessions[at].tokens, *drafted]
        assert difference(row[None], self.family, self.prompts[at], tokens) < CLOSE

    def tokens(self, least: int, most: int) -> list[int]:
        return self.dice.integers(0, 251, self.dice.integers(least, most + 1)).tolist()

    def node(self, nodes: int) -> int:
        """One of so many, or -1."""
        return int(self.dice.integers(-1, nodes))

    def drafted(self, before: int, least: int = 0) -> tuple[list[int], list[int]]:
        tokens = self.tokens(least, 5)
        return tokens, [self.node(place) for place in range(before, before + len(tokens))]

    def forward(self, _: int) -> None:
        """Any sessions together; some are stopped by an exit."""
        size = self.dice.integers(1, self.most + 1)
        chosen = self.dice.choice(len(TEXTS), size, replace=False).tolist()
        requests = []
        for at in chosen:
            on_layer = stop_at(1) if self.dice.random() < 0.25 else None
            requests.append(PassRequest(self.sessions[at], *self.drafted(0), on_layer))
        results = self.model.forward_together(requests)
        for at, request, rows in zip(chosen, requests, results, strict=True):
            self.nodes[at] = []
            if isinstance(rows, Exception):
                assert isinstance(rows, Stopped) and request.on_layer is not None
                continue
            self.nodes[at] = list(zip(request.tokens, request.parents or (), strict=True))
            assert len(rows) == 1 + len(request.tokens)
            assert isinstance(rows, self.rows) or not request.tokens  # which may need no pass
            node = self.node(len(request.tokens))
            self.check(at, node, rows[node + 1])

    def grow(self, at: int) -> None:
        session, (tokens, parents) = self.sessions[at], self.drafted(len(self.nodes[at]), 1)
        if self.dice.random() < 0.5:
            with pytest.raises(Stopped):
                session.grow(tokens, parents, stop_at(int(self.dice.integers(3))))
        rows = session.grow(tokens, parents)
        assert len(rows) == len(tokens)
        self.nodes[at] += zip(tokens, parents, strict=True)
        self.check(at, len(self.nodes[at]) - 1, rows[-1])

    def commit(self, at: int) -> None:
        nodes = self.nodes[at]
        path = self.path(at, self.node(len(nodes)))
        place = {path[-1] if path else -1: -1}
        for node, (_, parent) in enumerate(nodes):
            if parent in place and node not in path and self.dice.random() < 0.5:
                place[node] = len(place) - 1
        keep = list(place)[1:]
        tokens = self.sessions[at].tokens + tuple(nodes[node][0] for node in path)
        self.sessions[at].commit(path, keep)
        assert self.sessions[at].tokens == tokens
        self.nodes[at] = [(nodes[node][0], place[nodes[node][1]]) for node in keep]

    def extend(self, at: int) -> None:
        self.sessions[at].extend(self.tokens(0, 3))
        self.nodes[at] = []

    def truncate(self, at: int) -> None:
        """A little, mostly."""
        length = self.sessions[at].length
        left = 0 if self.dice.random() < 0.1 else length - int(self.dice.integers(1, 3))
        self.sessions[at].truncate(max(0, left))
        self.nodes[at] = []

    def look(self, at: int) -> None:
        node = self.node(len(self.nodes[at]))
        self.check(at, node, self.sessions[at].logits_after(node))

    def lose(self, at: int) -> None:
        """Between the steps after which it has its cache again it may change."""
        session = self.sessions[at]
        session.evict()
        assert not session.resident
        if self.dice.random() < 0.5:
            steps, turn = session.restore(), cycle([3, 40, 7])
            while not steps.step(next(turn)):
                self.act([self.commit, self.extend, self.truncate, self.truncate], at)
            assert session.resident

    def act(self, acts: list[Callable[[int], None]], at: int) -> None:
        acts[self.dice.integers(len(acts))](at)

    def turn(self) -> None:
        often, seldom = [self.forward, self.grow, self.commit], [self.look, self.lose]
        acts = [*often, *often, *seldom, self.extend, self.truncate, self.truncate]
        self.act(acts, int(self.dice.integers(len(TEXTS))))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_any_course_in_any_kind_of_pass_gives_the_rows_of_transformers(
    family: str, kind: str
) -> None:
    with passes(kind):
        course = Course(family, kind)
        memory = course.model.memory
        for _ in range(100):
            course.turn()
            assert memory.in_use <= memory.reserved <= (memory.limit or memory.reserved)
        for at, session in enumerate(course.sessions):
            course.nodes[at] = [(9, -1)]
            course.check(at, 0, session.forward([9])[1])
        assert memory.restored_rows > 0 and (kind != "bounded" or memory.evictions > 9)


def test_the_features_of_first_layers_are_read_from_either_transformers() -> None:
    """Before transformers 5.18 they came in one piece, found on a machine that has 5.17."""
    prompt, model = prompt_of(vlm()), fresh()
    model._features = LruCache(1)
    given = model._image_features

    def in_one_piece(*args: Any, **options: Any) -> Any:
        encoded = given(*args, **options)
        each = encoded.deepstack_features
        encoded.deepstack_features = [e if isinstance(e, Tensor) else torch.cat(e) for e in each]
        return encoded

    model._image_features = in_one_piece
    assert difference(model.open(prompt).forward([20]), "qwen3_vl", prompt, [20]) < CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_may_come_in_any_layout(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's attention of float32 gives its heads another stride, found on an H200."""
    given = F.scaled_dot_product_attention

    def heads_inside(*args: Any, **options: Any) -> Tensor:
        out = given(*args, **options)
        return out.transpose(1, 2).contiguous().transpose(1, 2)

    prompt, model = prompt_of(vlm(family)), vlm(family)
    right = model.open(prompt).forward([20, 21, 22], [-1, -1, 0])
    monkeypatch.setattr(F, "scaled_dot_product_attention", heads_inside)
    session = bounded(family, 9).open(replace(prompt, owner="another robot"))
    assert np.abs(session.forward([20, 21, 22], [-1, -1, 0]) - right).max() < CLOSE
    assert np.abs(session.forward([20]) - right[:2]).max() < CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_other_masks_and_other_rows_would_be_noticed(family: str) -> None:
    """Negative control: they give other logits by far more than the bound."""
    model = vlm(family)
    session, other = model.open(prompt_of(model)), model.open(prompt_of(model, 2, TEXTS[1]))
    tree = session.forward([20, 21, 22], [-1, -1, 0])
    chain = session.forward([20, 21, 22])
    assert np.abs(tree[2:] - chain[2:]).max() > 10 * CLOSE
    session._cache = other._cache
    assert np.abs(session.forward([20, 21, 22]) - chain).max() > 10 * CLOSE


def test_a_cache_grows_beyond_its_first_capacity() -> None:
    prompt, tokens = prompt_of(vlm()), [index % 250 for index in range(400)]
    session = vlm().open(prompt)
    for start in range(0, 400, 50):
        session.forward(tokens[start : start + 50])
        session.commit(range(50))
    assert difference(session.forward([1]), "qwen3_vl", prompt, [*tokens, 1]) < CLOSE


def test_each_exit_gets_the_rows_of_its_own_session_that_are_returned() -> None:
    model = vlm()
    drafts, seen = ([7, 8, 9], [11], [12, 13]), [[], [], []]
    sessions = [model.open(prompt_of(model, seed)) for seed in range(3)]
    sessions[1].extend([5, 6])
    requests = [
        PassRequest(session, draft, None, lambda _, hidden, own=own: own.append(hidden))
        for session, draft, own in zip(sessions, drafts, seen, strict=True)
    ]
    for rows, hidden in zip(model.forward_together(requests), seen, strict=True):
        assert len(hidden) == len(model.transformer.layers)
        with torch.inference_mode():
            last = model.transformer.logits(hidden[-1], model.vocabulary).numpy()
        assert np.abs(last - on_host(rows)[-len(last) :]).max() < CLOSE
    assert [len(own[0]) for own in seen] == [3, 2, 2]  # with the tail, the row after it too


@pytest.mark.parametrize(
    "request_of, expected",
    [
        (lambda session: PassRequest(session, [10**6]), ValueError),
        (lambda session: PassRequest(session, [-1]), ValueError),
        (lambda session: PassRequest(session, [1, 2], [0, -1]), ValueError),
        (lambda session: PassRequest(session, [1, 2], [-1]), ValueError),
        (lambda session: PassRequest(session, [1], None, stop_at(0)), Stopped),
        (lambda session: PassRequest(session, [1], None, stop_at(2)), Stopped),
    ],
)
def test_a_request_that_raises_costs_its_own_session_only(
    request_of: Callable[[Session], PassRequest], expected: type[Exception]
) -> None:
    model = vlm()
    prompts = [prompt_of(model, seed) for seed in range(3)]
    sessions = [model.open(prompt) for prompt in prompts]
    sessions[1].forward([50, 51])  # nodes that the failed request takes away
    bad = request_of(sessions[1])
    result = model.forward_together(
        [PassRequest(sessions[0], [20, 21]), bad, PassRequest(sessions[2], [30])]
    )
    assert isinstance(result[1], expected)
    assert difference(result[0], "qwen3_vl", prompts[0], [20, 21]) < CLOSE
    assert difference(result[2], "qwen3_vl", prompts[2], [30]) < CLOSE
    with pytest.raises(ValueError, match="not a path"):
        sessions[1].commit([0])
    assert difference(sessions[1].forward([40]), "qwen3_vl", prompts[1], [40]) < CLOSE


def test_a_pass_that_all_exits_end_is_not_finished_and_one_that_fails_leaves_no_nodes() -> None:
    model, late = vlm(), []
    sessions = [model.open(prompt_of(model, seed)) for seed in range(2)]

    def on_layer(layer: int, hidden: torch.Tensor) -> None:
        late.append(layer)
        stop_at(1)(layer, hidden)

    def interrupt(layer: int, hidden: torch.Tensor) -> None:
        raise KeyboardInterrupt

    stops = zip(sessions, (stop_at(0), on_layer), strict=True)
    results = model.forward_together([PassRequest(each, [1], None, stop) for each, stop in stops])
    assert [type(result) for result in results] == [Stopped, Stopped]
    assert late == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        model.forward_together(
            [PassRequest(sessions[0], [1]), PassRequest(sessions[1], [2], None, interrupt)]
        )
    for session in sessions:
        with pytest.raises(ValueError, match="not a path"):
            session.commit([0])


def test_misuse_is_refused() -> None:
    session = vlm().open(prompt_of(vlm()))
    _, again = vlm().forward_together([PassRequest(session, [20]), PassRequest(session, [21])])
    assert isinstance(again, ValueError)
    session.commit([0])  # the refused request has not touched it
    assert session.tokens == (20,)
    session.forward([1, 2, 3], [-1, 0, 0])
    for call, match in (
        (lambda: session.commit([0, 1, 2]), "not a path"),
        (lambda: session.commit([1], [2]), "not a path"),
        (lambda: session.commit([], [1]), "do not all come after"),
        (lambda: session.extend([99_999]), "not all below"),
        (lambda: session.grow([-1], [0]), "not all below"),
        (lambda: session.truncate(2), "truncate"),
    ):
        with pytest.raises(ValueError, match=match):
            call()


def test_small_sessions_of_like_sizes_are_padded_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layout = vlm().transformer.cache_layout
    cache = KeyValueCache(layout, 1, KvMemory())
    monkeypatch.setattr(attention_module, "SMALL", 200 * layout.row_bytes)
    monkeypatch.setattr(attention_module, "COPIED", 500 * layout.row_bytes)
    on_gpu = replace(layout, device=torch.device("cuda"))
    for pays, pays_on_gpu, sizes in (
        (True, True, ((90, 5), (100, 5), (70, 3))),
        (False, False, ((90, 5),)),  # one alone
        (False, True, ((190, 5), (190, 11))),  # one is too large
        (True, False, ((160, 5), (160, 5), (160, 11))),  # all together are too large
        (False, False, ((180, 5), (9, 5), (9, 5))),  # one is long
        (False, False, ((90, 90), (90, 2), (90, 2), (90, 2))),
    ):
        items = [PassItem(cache, start, [0] * count) for start, count in sizes]
        assert PaddedAttention.pays(items, layout) == pays
        assert PaddedAttention.pays(items, on_gpu) == pays_on_gpu


# Memory that is short


def test_the_session_that_was_used_the_longest_ago_gives_way() -> None:
    model = bounded(FAMILIES[0], 3.5)
    sessions = [model.open(prompt_of(model, seed)) for seed in (1, 2, 3)]
    sessions[0].forward([5])
    sessions[1].waits = True
    sessions.append(model.open(prompt_of(model, 4)))
    assert [session.resident for session in sessions] == [True, True, False, True]  # 1 waits
    sessions[2].forward([5])
    assert [session.resident for session in sessions] == [False, True, True, True]


def test_sessions_of_one_pass_keep_their_caches_and_who_finds_no_room_is_told_alone() -> None:
    model = bounded(FAMILIES[0], 2.5)
    prompts = [prompt_of(model, seed) for seed in (1, 2, 3)]
    sessions = [model.open(prompt) for prompt in prompts]
    assert not sessions[0].resident
    results = model.forward_together([PassRequest(session, [5, 6]) for session in sessions[::-1]])
    assert isinstance(results[2], MemoryFull)
    results[2] = sessions[0].forward([5, 6])  # the pass is over: another one gives way
    for prompt, rows in zip(prompts[::-1], results, strict=True):
        assert difference(rows, FAMILIES[0], prompt, [5, 6]) < CLOSE


def test_a_cache_that_cannot_grow_beside_itself_is_restored_larger() -> None:
    """Growing needs both; evicted, the session comes back with room for the rows it wanted."""
    model, long = bounded(FAMILIES[0], 2.2), list(range(1, 251))
    prompt = prompt_of(model)
    session = model.open(prompt)
    with pytest.raises(MemoryFull):
        session.forward(long)
    assert session.evict()
    assert difference(session.forward(long), FAMILIES[0], prompt, long) < CLOSE
