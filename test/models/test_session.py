"""A session computes what transformers' own forward computes, however it is driven, in whatever
kind of pass and company, whether or not it loses its cache; what one does costs itself alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.checkpoints import ALL_FAMILIES, CLOSE, FAMILIES, difference, fresh, prompt_of, vlm
from helpers.driven_session import DrivenSession
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from edge_cloud_spec.errors import MemoryFull
from edge_cloud_spec.lru_cache import LruCache
from edge_cloud_spec.models import recurrent as recurrent_module
from edge_cloud_spec.models import session as session_module
from edge_cloud_spec.models.cache import CacheLayout, KeyValueCache
from edge_cloud_spec.models.drafter import ALL_ROWS
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.pass_request import PassRequest
from edge_cloud_spec.models.passes import attention as attention_module
from edge_cloud_spec.models.passes.attention import PaddedAttention, PassItem
from edge_cloud_spec.models.passes.target_rows import on_host
from edge_cloud_spec.models.passes.transformer import OnLayer
from edge_cloud_spec.models.prompt import Prompt
from edge_cloud_spec.models.recurrent import RecurrentLayout
from edge_cloud_spec.models.session import Session
from edge_cloud_spec.models.vlm import Vlm

TEXTS = ("find the silver bottle", "search for the red chair near the door", "find it")
KINDS = ("apart", "padded", "on a device", "bounded")  # of passes


def bounded(family: str, sessions: float) -> Vlm:
    """A model with memory for so many sessions; none is held, and no prefix is kept."""
    model = fresh(family)
    model.use_memory(KvMemory(int(sessions * model.open(prompt_of(model)).cache.size)))
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

    def nothing(layout: CacheLayout, rows: int) -> list[Tensor]:
        return [torch.full(shape, torch.nan) for shape in layout._shapes(rows)]

    def no_writes(layout: RecurrentLayout, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        state, window, writes = allocate(layout, rows)
        return state.fill_(torch.nan), window.fill_(torch.nan), writes.fill_(torch.nan)

    allocate = RecurrentLayout._allocate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CacheLayout, "_allocate", nothing)
        patch.setattr(RecurrentLayout, "_allocate", no_writes)
        patch.setattr(recurrent_module, "WRITES", 13)  # so that states move often
        patch.setattr(recurrent_module, "KEPT_ROWS", 4)
        patch.setattr(recurrent_module, "CHUNK_ROWS", 11)
        if kind in ("apart", "padded"):
            padded = kind == "padded"
            patch.setattr(PaddedAttention, "pays", lambda each, _: padded and len(each) > 1)
            patch.setattr(attention_module, "copied_rows", lambda rows, _: rows + 5)
        if kind == "on a device":
            patch.setattr(session_module, "on_device", lambda rows: rows)
        yield


class Torch(DrivenSession):
    """One that is interrupted, and loses its cache."""

    def add(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        if self.dice.random() < 0.5:
            with pytest.raises(Stopped):
                self.session.grow(tokens, parents, stop_at(int(self.dice.integers(3))))
        super().add(tokens, parents)

    def lose(self) -> None:
        """Between the steps after which it has its cache again it may change."""
        session = self.session
        session.evict()
        assert session.cache is None
        if self.dice.random() < 0.5:
            steps, turn = session.restore(), cycle([3, 40, 7])
            while not steps.step(next(turn)):
                self.act([self.commit, self.extend, self.truncate, self.truncate])
            assert session.cache is not None


def check(family: str, prompt: Prompt, tokens: Sequence[int], row: Any) -> None:
    assert difference(row[None], family, prompt, list(tokens)) < CLOSE


class Course:
    """Sessions that are driven at random; their rows are compared with transformers' own."""

    def __init__(self, family: str, kind: str) -> None:
        self.dice = np.random.default_rng(1)
        self.model = bounded(family, 1.5) if kind == "bounded" else fresh(family)
        self.most = 1 if kind == "bounded" else len(TEXTS)  # sessions of a pass
        self.rows = torch.Tensor if kind == "on a device" else np.ndarray
        prompts = [prompt_of(self.model, *each) for each in enumerate(TEXTS)]
        self.driven = [
            Torch(self.model.open(prompt), partial(check, family, prompt), self.dice)
            for prompt in prompts
        ]

    def forward(self) -> None:
        """Any sessions together; some are stopped by an exit."""
        size = self.dice.integers(1, self.most + 1)
        places = self.dice.choice(len(TEXTS), size, replace=False)
        chosen, requests = [self.driven[at] for at in places], []
        for one in chosen:
            on_layer = stop_at(1) if self.dice.random() < 0.25 else None
            requests.append(PassRequest(one.session, *one.drafted(0), on_layer))
        results = self.model.forward_together(requests)
        for one, request, rows in zip(chosen, requests, results, strict=True):
            one.nodes = []
            if isinstance(rows, Exception):
                assert isinstance(rows, Stopped) and request.on_layer is not None
                continue
            one.nodes = list(zip(request.tokens, request.parents or (), strict=True))
            assert len(rows) == 1 + len(request.tokens)
            assert isinstance(rows, self.rows) or not request.tokens  # which may need no pass
            node = one.node(len(request.tokens))
            one.check_at(node, rows[node + 1])

    def turn(self) -> None:
        one = self.driven[self.dice.integers(len(TEXTS))]
        often = [self.forward, one.grow, one.commit]
        one.act([*often, *often, one.look, one.lose, one.extend, one.truncate, one.truncate])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_any_course_in_any_kind_of_pass_gives_the_rows_of_transformers(
    family: str, kind: str
) -> None:
    with passes(kind):
        course = Course(family, kind)
        memory = course.model.memory
        for _ in range(45):
            course.turn()
            assert memory.in_use <= (memory.limit or memory.in_use)
        for one in course.driven:
            one.nodes = [(9, -1)]
            one.check_at(0, one.session.forward([9])[1])
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


@pytest.mark.parametrize("family", ALL_FAMILIES)
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


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_other_masks_and_other_rows_would_be_noticed(family: str) -> None:
    """Negative control: they give other logits by far more than the bound."""
    model = vlm(family)
    session, other = model.open(prompt_of(model)), model.open(prompt_of(model, 2, TEXTS[1]))
    tree = session.forward([20, 21, 22], [-1, -1, 0])
    chain = session.forward([20, 21, 22])
    assert np.abs(tree[2:] - chain[2:]).max() > 10 * CLOSE
    session.cache = other.cache
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
    monkeypatch.setattr(attention_module, "MAX_COPIED_BYTES", 200 * layout.row_bytes)
    gpu = SimpleNamespace(total_memory=attention_module.GPU_SHARE * 500 * layout.row_bytes)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
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


def test_sessions_whose_copies_find_no_memory_are_attended_to_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, copied = vlm(), []
    sessions = [model.open(prompt_of(model, seed)) for seed in (1, 2)]
    requests = [PassRequest(session, [5, 6]) for session in sessions]
    alone = [on_host(rows) for rows in model.forward_together(requests)]

    def full(*arguments: Any) -> None:
        copied.append(arguments)
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(PaddedAttention, "pays", lambda *_: True)
    monkeypatch.setattr(PaddedAttention, "__init__", full)
    for rows, expected in zip(model.forward_together(requests), alone, strict=True):
        assert np.abs(on_host(rows) - expected).max() < CLOSE
    assert len(copied) == 1


def test_the_session_that_was_used_the_longest_ago_gives_way() -> None:
    model = bounded(FAMILIES[0], 3.5)
    sessions = [model.open(prompt_of(model, seed)) for seed in (1, 2, 3)]
    sessions[0].forward([5])
    sessions[1].waits = True
    sessions.append(model.open(prompt_of(model, 4)))
    assert [session.cache is not None for session in sessions] == [
        True,
        True,
        False,
        True,
    ]  # 1 waits
    sessions[2].forward([5])
    assert [each.cache is not None for each in sessions] == [False, True, True, True]


def test_sessions_of_one_pass_keep_their_caches_and_who_finds_no_room_is_told_alone() -> None:
    model = bounded(FAMILIES[0], 2.5)
    prompts = [prompt_of(model, seed) for seed in (1, 2, 3)]
    sessions = [model.open(prompt) for prompt in prompts]
    assert sessions[0].cache is None
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


# A prompt's pass in steps, and a draft scored with it

TOKENS = [5, 90, 33]
ALIKE = ("find the silver bottle", "find the silver bottle now", "find the red chair")


def error(family: str, session: Session, seed: int, text: str = ALIKE[0]) -> float:
    """How far the logits after the prompt and some tokens are from transformers' own."""
    return difference(session.forward(TOKENS), family, prompt_of(vlm(family), seed, text), TOKENS)


@pytest.mark.parametrize("family", ALL_FAMILIES)
@settings(max_examples=6)
@given(
    cuts=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    asked=st.lists(st.tuples(st.integers(1, 2), st.sampled_from(ALIKE)), min_size=2, max_size=5),
)
def test_however_prompts_are_cut_in_turns_the_rows_are_the_same(
    family: str, cuts: list[int], asked: list[tuple[int, str]]
) -> None:
    """What they share is taken over at any cut, and a session computes between their steps."""
    model = fresh(family)
    between = model.open(prompt_of(model, *asked[0]))
    for first, second in pairwise(asked):
        prefills = [model.prefill(prompt_of(model, *each)) for each in (first, second)]
        steps, turn = [False, False], 0
        while not all(steps):
            steps = [prefill.step(cuts[turn % len(cuts)]) for prefill in prefills]
            turn += 1
            between.forward([3, 4], [-1, -1])
        for prefill, each in zip(prefills, (first, second), strict=True):
            assert error(family, prefill.session, *each) < CLOSE
    assert error(family, between, *asked[0]) < CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_the_vision_part_is_a_step_of_its_own_and_others_have_their_rows_at_most(
    family: str,
) -> None:
    model = fresh(family)
    prefill = model.prefill(prompt_of(model))
    left = prefill.rows_left
    assert not prefill.step(ALL_ROWS)
    assert prefill.rows_left == left
    with pytest.raises(ValueError, match="not computed yet"):
        _ = prefill.session
    while not prefill.step(16):
        assert left - prefill.rows_left == 16
        left = prefill.rows_left
    assert prefill.rows_left == 0
    assert prefill.step(16)  # nothing changes after the last


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_a_prompt_that_is_asked_again_needs_no_pass_and_another_does(family: str) -> None:
    model = fresh(family)
    first = model.open(prompt_of(model, 1)).logits_after(-1)
    prefill = model.prefill(prompt_of(model, 1))
    assert prefill.rows_left == 0
    prefill.draft(TOKENS)  # there is no pass to score it in
    assert prefill.step(1)
    assert np.array_equal(prefill.session.logits_after(-1), first)
    assert error(family, prefill.session, 1) < CLOSE
    assert model.prefill(prompt_of(model, 1, ALIKE[1])).rows_left > 0


def test_known_logits_have_the_vocabulary_that_is_asked_for() -> None:
    model = fresh()
    whole = model.vocabulary
    first = model.open(prompt_of(model, 1)).logits_after(-1)
    model.crop(whole - 7)
    assert len(model.open(prompt_of(model, 1)).logits_after(-1)) == whole - 7
    model.crop(whole)
    assert np.abs(model.open(prompt_of(model, 1)).logits_after(-1) - first).max() < CLOSE


def test_an_evicted_session_comes_back_from_the_prompt_that_is_kept() -> None:
    model = fresh()
    asked, answered = (model.open(prompt_of(model, 1)) for _ in range(2))
    answered.extend(TOKENS)
    expected = answered.logits_after(-1)
    assert asked.evict() and answered.evict()
    assert asked.restore().step(1)  # no row is left
    assert not answered.restore().step(len(TOKENS) - 1)  # the answer's are
    assert np.abs(answered.logits_after(-1) - expected).max() < CLOSE
    assert np.array_equal(asked.logits_after(-1), model.open(prompt_of(model, 1)).logits_after(-1))


def test_a_picture_that_is_known_is_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = vlm()
    prompts = [prompt_of(model, seed) for seed in range(40, 44)]
    with monkeypatch.context() as patch:
        patch.setattr("edge_cloud_spec.models.processor.decode_image", None)
        again = prompt_of(model, 40)
        assert again.digest == prompts[0].digest
        with pytest.raises(TypeError):
            prompt_of(model, 44)  # a new one is
    assert np.array_equal(again.images[0].pixels(), prompts[0].images[0].pixels())


DRAFT = [5, 90, 33, 7, 12]
PARENTS = {"chain": None, "tree": [-1, 0, 0, -1, 3], "siblings": [-1, -1, -1, -1, -1]}


def opened(model: Vlm, tokens: Any = (), parents: Any = None, step: int = ALL_ROWS) -> Session:
    """A session after a prompt of which nothing is kept; this draft is scored with it."""
    model.use_memory(KvMemory())
    prefill = model.prefill(prompt_of(model))
    prefill.draft(tokens, parents)
    while not prefill.step(step):
        prefill.draft(tokens, parents)
    return prefill.session


@pytest.mark.parametrize("family", ALL_FAMILIES)
@pytest.mark.parametrize(
    "scored, shape, step, passes",
    [
        *((DRAFT, shape, step, 0) for shape in PARENTS for step in (ALL_ROWS, 7)),
        ([5, 91], "chain", ALL_ROWS, 1),
        (DRAFT, "tree", ALL_ROWS, 1),  # as a chain
        (DRAFT[:2], "chain", ALL_ROWS, 1),
        ([*DRAFT, 1], "chain", ALL_ROWS, 1),
        ([2**31], "chain", ALL_ROWS, 1),  # a token that there is not ends nothing
    ],
)
def test_a_draft_scored_with_the_prompt_needs_no_pass_and_another_has_its_own(
    family: str,
    scored: Sequence[int],
    shape: str,
    step: int,
    passes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, parents = vlm(family), PARENTS[shape]
    expected = opened(model).forward(DRAFT, parents)
    session = opened(model, scored, None if passes else parents, step)
    made: list[int] = []
    forward = model.transformer.forward

    def counted(hidden: Any, *given: Any, **options: Any) -> Any:
        made.append(len(hidden))
        return forward(hidden, *given, **options)

    monkeypatch.setattr(model.transformer, "forward", counted)
    assert np.abs(session.forward(DRAFT, parents) - expected).max() < CLOSE
    assert len(made) == passes


@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_what_is_committed_of_it_is_as_if_it_were_said_token_by_token(
    family: str, loses: bool
) -> None:
    model = vlm(family)
    session = opened(model, DRAFT, PARENTS["tree"])
    assert not loses or session.evict()
    session.forward(DRAFT, PARENTS["tree"])
    session.commit([0, 2])
    session.extend([8])
    rows = session.forward([4])
    assert difference(rows, family, prompt_of(model), [DRAFT[0], DRAFT[2], 8, 4]) < CLOSE
