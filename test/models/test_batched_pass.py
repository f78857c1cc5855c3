"""Sessions in one pass get what they would get alone, and what one of them does costs itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers.checkpoints import FAMILIES, full_logits, prompt_of, vlm
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.models.passes.transformer import OnLayer
from edge_cloud_spec.models.session import PassRequest, Session

CLOSE = 1e-4
PLACES = 4  # sessions of a pass in the property test


def rows_of(result: np.ndarray | Exception) -> np.ndarray:
    assert isinstance(result, np.ndarray), result
    return result


def assert_close(ours: np.ndarray | Exception, theirs: np.ndarray) -> None:
    ours = rows_of(ours)
    assert ours.shape == theirs[:, : ours.shape[1]].shape
    assert np.abs(ours - theirs[:, : ours.shape[1]]).max() < CLOSE


class Stopped(Exception):
    """What an exit raises here."""


def stop_at(layer: int) -> OnLayer:
    def on_layer(index: int, hidden: torch.Tensor) -> None:
        if index == layer:
            raise Stopped

    return on_layer


def keep_in(seen: list[np.ndarray]) -> OnLayer:
    return lambda layer, hidden: seen.append(hidden.numpy().copy())


@pytest.mark.parametrize("family", FAMILIES)
def test_sessions_in_one_pass_get_the_logits_they_would_get_alone(family: str) -> None:
    model = vlm(family)
    texts = ("find the silver bottle", "search for the red chair", "find the silver bottle")
    prompts = [prompt_of(model, seed, text) for seed, text in enumerate(texts)]
    sessions = [model.open(prompt) for prompt in prompts]
    sessions[0].extend([3, 4, 5])
    together = model.forward_together(
        [
            PassRequest(sessions[0]),
            PassRequest(sessions[1], [20, 21, 22], [-1, 0, 0]),
            PassRequest(sessions[2]),  # needs no pass
        ]
    )
    assert_close(together[0], full_logits(family, prompts[0], [3, 4, 5])[3:])
    assert_close(rows_of(together[1])[[0, 1, 3]], full_logits(family, prompts[1], [20, 22]))
    assert_close(together[2], full_logits(family, prompts[2], []))
    sessions[1].commit([0, 2])
    again = model.forward_together([PassRequest(session, [8]) for session in sessions])
    assert_close(again[0], full_logits(family, prompts[0], [3, 4, 5, 8])[3:])
    assert_close(again[1], full_logits(family, prompts[1], [20, 22, 8])[2:])
    assert_close(again[2], full_logits(family, prompts[2], [8]))


def test_each_exit_gets_the_rows_of_its_own_session_only() -> None:
    model = vlm()
    drafts = ([7, 8, 9], [11], [12, 13])

    def opened() -> list[Session]:
        sessions = [model.open(prompt_of(model, seed)) for seed in range(3)]
        sessions[1].extend([5, 6])
        return sessions

    together: list[list[np.ndarray]] = [[], [], []]
    alone: list[list[np.ndarray]] = [[], [], []]
    model.forward_together(
        [
            PassRequest(session, draft, None, keep_in(seen))
            for session, draft, seen in zip(opened(), drafts, together, strict=True)
        ]
    )
    for session, draft, seen in zip(opened(), drafts, alone, strict=True):
        session.forward(draft, None, keep_in(seen))
    for ours, theirs in zip(together, alone, strict=True):
        assert len(ours) == model.transformer.layer_count
        for at, expected in zip(ours, theirs, strict=True):
            assert at.shape == expected.shape
            assert np.abs(at - expected).max() < CLOSE


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
    seen: list[np.ndarray] = []
    sessions[1].forward([50, 51])  # nodes that the failed request takes away
    result = model.forward_together(
        [
            PassRequest(sessions[0], [20, 21], None, keep_in(seen)),
            request_of(sessions[1]),
            PassRequest(sessions[2], [30]),
        ]
    )
    assert isinstance(result[1], expected)
    assert_close(result[0], full_logits("qwen3_vl", prompts[0], [20, 21]))
    assert_close(result[2], full_logits("qwen3_vl", prompts[2], [30]))
    assert len(seen) == model.transformer.layer_count
    with pytest.raises(ValueError, match="not a path"):
        sessions[1].commit([0])
    assert_close(sessions[1].forward([40]), full_logits("qwen3_vl", prompts[1], [40]))
    sessions[0].commit([0, 1])
    assert sessions[0].tokens == (20, 21)


def test_a_pass_that_all_exits_end_is_not_finished() -> None:
    model = vlm()
    sessions = [model.open(prompt_of(model, seed)) for seed in range(2)]
    late: list[int] = []

    def on_layer(layer: int, hidden: torch.Tensor) -> None:
        late.append(layer)
        if layer == 1:
            raise Stopped

    stops = (stop_at(0), on_layer)
    results = model.forward_together(
        [PassRequest(s, [1], None, stop) for s, stop in zip(sessions, stops, strict=True)]
    )
    assert [type(result) for result in results] == [Stopped, Stopped]
    assert late == [0, 1]


def test_a_session_twice_in_a_pass_is_refused() -> None:
    model = vlm()
    ours = model.open(prompt_of(model))
    first, again = model.forward_together([PassRequest(ours, [20]), PassRequest(ours, [21])])
    assert_close(first, full_logits("qwen3_vl", prompt_of(model), [20]))
    assert isinstance(again, ValueError)
    ours.commit([0])  # the refused request has not touched it
    assert ours.tokens == (20,)


def test_what_ends_the_pass_itself_leaves_no_session_with_nodes() -> None:
    model = vlm()
    sessions = [model.open(prompt_of(model, seed)) for seed in range(2)]

    def interrupt(layer: int, hidden: torch.Tensor) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.forward_together(
            [PassRequest(sessions[0], [1]), PassRequest(sessions[1], [2], None, interrupt)]
        )
    for session in sessions:
        with pytest.raises(ValueError, match="not a path"):
            session.commit([0])


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_course_in_company_ends_where_it_ends_alone(data: st.DataObject) -> None:
    """Random drafts, commits and failures; in each pass another set of the sessions."""
    model = vlm()
    prompts = [prompt_of(model, seed) for seed in range(PLACES)]
    sessions = [model.open(prompt) for prompt in prompts]
    prefixes: list[list[int]] = [[] for _ in sessions]
    for _ in range(data.draw(st.integers(1, 4))):
        chosen = data.draw(st.lists(st.sampled_from(range(PLACES)), min_size=1, unique=True))
        requests = []
        for index in chosen:
            tokens = data.draw(st.lists(st.integers(0, 250), max_size=5))
            parents = [data.draw(st.integers(-1, node - 1)) for node in range(len(tokens))]
            on_layer = stop_at(1) if data.draw(st.integers(0, 4)) == 0 else None
            requests.append(PassRequest(sessions[index], tokens, parents, on_layer))
        for index, request, result in zip(
            chosen, requests, model.forward_together(requests), strict=True
        ):
            if isinstance(result, Stopped):
                assert request.on_layer is not None
                continue
            assert len(rows_of(result)) == 1 + len(request.tokens)
            assert request.parents is not None
            node, path = data.draw(st.integers(-1, len(request.tokens) - 1)), []
            while node >= 0:
                path.insert(0, node)
                node = request.parents[node]
            sessions[index].commit(path)
            more = data.draw(st.lists(st.integers(0, 250), max_size=2))
            sessions[index].extend(more)
            prefixes[index] += [*(request.tokens[node] for node in path), *more]
    results = model.forward_together([PassRequest(session, [9]) for session in sessions])
    for prompt, prefix, result in zip(prompts, prefixes, results, strict=True):
        assert_close(result, full_logits("qwen3_vl", prompt, [*prefix, 9])[-2:])
