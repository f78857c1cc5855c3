"""A session computes what transformers' own forward computes, however it is driven."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers.checkpoints import FAMILIES, full_logits, prompt_of, vlm
from hypothesis import given, settings
from hypothesis import strategies as st

CLOSE = 1e-4


def assert_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == np.float32
    assert ours.shape == theirs[:, : ours.shape[1]].shape
    assert np.abs(ours - theirs[:, : ours.shape[1]]).max() < CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_chain_in_one_pass_equals_the_full_forward(family: str) -> None:
    prompt, tokens = prompt_of(vlm(family)), [5, 90, 33, 7, 100]
    session = vlm(family).open(prompt)
    assert_close(session.forward(tokens), full_logits(family, prompt, tokens))


@pytest.mark.parametrize("family", FAMILIES)
def test_one_token_at_a_time_equals_the_full_forward(family: str) -> None:
    prompt, tokens = prompt_of(vlm(family)), [5, 90, 33, 7, 100]
    session = vlm(family).open(prompt)
    rows = [session.forward([])[0]]
    for token in tokens:
        session.extend([token])
        rows.append(session.forward([])[0])
    assert session.length == 5
    assert_close(np.stack(rows), full_logits(family, prompt, tokens))


@pytest.mark.parametrize("family", FAMILIES)
def test_tree_scores_each_branch_as_if_it_were_alone(family: str) -> None:
    prompt = prompt_of(vlm(family))
    session = vlm(family).open(prompt)
    session.extend([11, 12])
    tokens, parents = [20, 21, 22, 23, 24, 25], [-1, -1, 0, 0, 1, 4]
    rows = session.forward(tokens, parents)
    for path in ([0, 2], [0, 3], [1, 4, 5]):
        branch = full_logits(family, prompt, [11, 12, *(tokens[node] for node in path)])
        assert_close(rows[[0, *(node + 1 for node in path)]], branch[2:])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_without_its_mask_would_be_noticed(family: str) -> None:
    """Negative control: the same nodes as a chain give other logits by far more than the bound."""
    session = vlm(family).open(prompt_of(vlm(family)))
    tree = session.forward([20, 21, 22], [-1, -1, 0])
    chain = session.forward([20, 21, 22])
    assert np.abs(tree[2:] - chain[2:]).max() > 10 * CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_commit_keeps_the_path_and_rolls_back_the_rest(family: str) -> None:
    prompt = prompt_of(vlm(family))
    session = vlm(family).open(prompt)
    session.forward([20, 21, 22, 23, 24, 25], [-1, -1, 0, 0, 1, 4])
    session.commit([1, 4])
    assert session.tokens == (21, 24)
    expected = full_logits(family, prompt, [21, 24, 30, 31])
    assert_close(session.forward([]), expected[2:3])
    assert_close(session.forward([30, 31]), expected[2:])


@pytest.mark.parametrize("family", FAMILIES)
def test_what_comes_after_a_committed_path_can_be_kept(family: str) -> None:
    session = vlm(family).open(prompt_of(vlm(family)))
    rows = session.forward([20, 21, 22, 23, 24, 25, 26], [-1, -1, 0, 1, 1, 4, 3])
    session.commit([1], [3, 4, 5])
    assert session.tokens == (21,)
    assert np.abs(session.logits_after(-1) - rows[2]).max() < CLOSE
    assert np.abs(session.logits_after(2) - rows[6]).max() < CLOSE
    again = vlm(family).open(prompt_of(vlm(family)))
    whole = again.forward([21, 23, 24, 25, 30, 31], [-1, 0, 0, 2, 3, 1])
    assert np.abs(session.grow([30, 31], [2, 0]) - whole[5:]).max() < CLOSE
    session.commit([1, 2, 3])
    assert session.tokens == (21, 24, 25, 30)
    assert np.abs(session.forward([])[0] - whole[5]).max() < CLOSE
    with pytest.raises(ValueError, match="do not all come after"):
        session.forward([1, 2], [-1, -1])
        session.commit([0], [1])


@pytest.mark.parametrize("family", FAMILIES)
def test_truncate_forgets_what_came_after(family: str) -> None:
    prompt = prompt_of(vlm(family))
    session = vlm(family).open(prompt)
    session.forward([20, 21, 22, 23])
    session.commit([0, 1, 2, 3])
    session.truncate(2)
    session.extend([40])
    expected = full_logits(family, prompt, [20, 21, 40, 41])
    assert_close(session.forward([41]), expected[3:])
    session.truncate(3)
    assert_close(session.forward([]), expected[3:4])
    session.truncate(0)
    assert_close(session.forward([]), expected[:1])


@pytest.mark.parametrize("family", FAMILIES)
def test_grown_tree_equals_one_made_at_once(family: str) -> None:
    session = vlm(family).open(prompt_of(vlm(family)))
    at_once = session.forward([20, 21, 22, 23, 24], [-1, -1, 1, 0, 2])
    first = session.forward([20, 21], [-1, -1])
    second = session.grow([22, 23], [1, 0])
    third = session.grow([24], [2])
    grown = np.concatenate([first, second, third])
    assert np.abs(grown - at_once).max() < CLOSE
    session.commit([1, 2, 4])
    assert np.abs(session.forward([])[0] - at_once[5]).max() < CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_two_sessions_on_one_model_do_not_disturb_each_other(family: str) -> None:
    model = vlm(family)
    one, two = prompt_of(model, 1), prompt_of(model, 2, "search for the red chair near the door")
    sessions = [model.open(one), model.open(two)]
    rows: list[list[np.ndarray]] = [[], []]
    for token in (9, 8, 7):
        for session, kept in zip(sessions, rows, strict=True):
            session.extend([token])
            kept.append(session.forward([])[0])
    assert_close(np.stack(rows[0]), full_logits(family, one, [9, 8, 7])[1:])
    assert_close(np.stack(rows[1]), full_logits(family, two, [9, 8, 7])[1:])


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_last_prompt_shares_is_taken_over_unchanged(family: str) -> None:
    model = vlm(family)
    texts = ("find the silver bottle", "find the silver bottle now", "find the red chair")
    prompts = [prompt_of(model, seed, text) for seed in (1, 1, 2) for text in texts]
    for prompt in [*prompts, prompts[-1]]:
        assert_close(model.open(prompt).forward([3]), full_logits(family, prompt, [3]))


def test_cache_grows_beyond_its_first_capacity() -> None:
    prompt = prompt_of(vlm())
    session = vlm().open(prompt)
    tokens = [index % 250 for index in range(400)]
    for start in range(0, 400, 50):
        session.forward(tokens[start : start + 50])
        session.commit(range(50))
    assert_close(session.forward([1]), full_logits("qwen3_vl", prompt, [*tokens, 1])[400:])


def test_exits_are_called_after_each_layer_with_the_rows_that_are_returned() -> None:
    model = vlm()
    session = model.open(prompt_of(model))
    session.extend([4, 5])
    seen: list[tuple[int, torch.Tensor]] = []
    rows = session.forward([6, 7], on_layer=lambda layer, hidden: seen.append((layer, hidden)))
    assert [layer for layer, _ in seen] == [0, 1, 2]
    with torch.inference_mode():
        last = model.transformer.logits(seen[-1][1], model.vocabulary).numpy()
    assert np.abs(last - rows).max() < CLOSE


def test_misuse_is_refused() -> None:
    session = vlm().open(prompt_of(vlm()))
    session.forward([1, 2, 3], [-1, 0, 0])
    with pytest.raises(ValueError, match="not a path"):
        session.commit([0, 1, 2])
    with pytest.raises(ValueError, match="parent"):
        session.forward([1, 2], [0, -1])
    with pytest.raises(ValueError, match="not all below"):
        session.extend([99_999])
    with pytest.raises(ValueError, match="not all below"):
        session.forward([-1])
    with pytest.raises(ValueError, match="truncate"):
        session.truncate(1)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_course_of_a_session_ends_at_the_logits_of_its_prefix(data: st.DataObject) -> None:
    prompt = prompt_of(vlm())
    session = vlm().open(prompt)
    token = st.integers(0, 250)
    prefix: list[int] = []
    for _ in range(data.draw(st.integers(1, 6))):
        step = data.draw(st.sampled_from(["tree", "extend", "truncate", "look"]))
        if step == "tree":
            tokens = data.draw(st.lists(token, min_size=1, max_size=6))
            parents = [data.draw(st.integers(-1, index - 1)) for index in range(len(tokens))]
            session.forward(tokens, parents)
            leaf = data.draw(st.integers(-1, len(tokens) - 1))
            path: list[int] = []
            while leaf >= 0:
                path.insert(0, leaf)
                leaf = parents[leaf]
            session.commit(path)
            prefix += [tokens[node] for node in path]
        elif step == "extend":
            more = data.draw(st.lists(token, max_size=3))
            session.extend(more)
            prefix += more
        elif step == "truncate":
            length = data.draw(st.integers(0, len(prefix)))
            session.truncate(length)
            prefix = prefix[:length]
        else:
            session.forward([])
    assert session.tokens == tuple(prefix)
    assert_close(session.forward([9]), full_logits("qwen3_vl", prompt, [*prefix, 9])[-2:])


class Enough(Exception):
    """A pass is not wanted any more."""


def stop_after(layer: int) -> Callable[[int, torch.Tensor], None]:
    def on_layer(index: int, hidden: torch.Tensor) -> None:
        if index == layer:
            raise Enough

    return on_layer


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layer", [0, 1])
def test_an_interrupted_pass_leaves_the_session_as_it_was(family: str, layer: int) -> None:
    prompt = prompt_of(vlm(family))
    session = vlm(family).open(prompt)
    session.extend([11, 12])
    with pytest.raises(Enough):
        session.forward([40, 41], None, stop_after(layer))
    first = session.forward([20, 21], [-1, -1])
    with pytest.raises(Enough):
        session.grow([60, 61, 62], [0, 1, 2], stop_after(layer))
    rows = session.grow([22, 23], [0, 2])
    branch = full_logits(family, prompt, [11, 12, 20, 22, 23])
    assert_close(np.concatenate([first[:2], rows]), branch[2:])
    session.commit([0, 2])
    assert session.tokens == (11, 12, 20, 22)
    assert_close(session.forward([23])[1:], branch[-1:])
