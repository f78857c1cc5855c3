"""Gated DeltaNet layers: the rule over trees is that of the paper token by token, and a session
returns to any of its rows, by the writes that it keeps or from a state that was kept."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.checkpoints import CLOSE, checkpoint, difference, fresh, prompt_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from edge_cloud_spec.decoding.token_tree import TokenTree
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import families
from edge_cloud_spec.models.delta_rule import CHUNK_ROWS, DeltaSizes, Lineage, after, delta_rule
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.llama import load_llama
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import Prompt
from edge_cloud_spec.models.recurrent import KEPT_ROWS, WRITES
from edge_cloud_spec.models.session import Session
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec_lab.harness.random_checkpoint import make_checkpoint

SIZES = DeltaSizes(key_heads=2, value_heads=6, key_size=4, value_size=3, kernel=4)
FAMILIES = ("qwen3_5", "qwen3_5_text")
LONG = "find the silver bottle near the door and then turn left at the red chair " * 6


def token_by_token(
    columns: Tensor, gates: tuple[Tensor, Tensor], kernel: Tensor, state: Tensor, window: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What a chain reads, and state and window after it, by equation 10 of the paper."""
    read = []
    for column, g, b in zip(columns, *gates, strict=True):
        window = torch.cat([window, column[None]])
        mixed = F.silu((window * kernel).sum(0))
        window = window[1:]
        q, k, v = mixed.split([SIZES.keys, SIZES.keys, SIZES.values])
        q, k = (each.view(2, 1, 4).expand(2, 3, 4).reshape(6, 4) for each in (q, k))
        q, k = (each * (each.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for each in (q, k))
        state = state * g.exp()[:, None, None]
        old = torch.einsum("hkv,hk->hv", state, k)
        state = state + torch.einsum("hk,hv->hkv", k, b[:, None] * (v.view(6, 3) - old))
        read.append(torch.einsum("hkv,hk->hv", state, q).flatten() / 2)
    return torch.stack(read), state, window


@settings(max_examples=40)
@given(
    parents=st.integers(1, 12).flatmap(
        lambda n: st.tuples(*(st.integers(-1, i - 1) for i in range(n)))
    ),
    before=st.integers(0, 5),
    known=st.integers(0, 11),
    seed=st.integers(0, 99),
    forgets=st.sampled_from([0.1, 30.0]),
)
def test_a_tree_is_read_as_each_of_its_paths_alone_and_leaves_the_state_of_each(
    parents: Sequence[int], before: int, known: int, seed: int, forgets: float
) -> None:
    """After a chain of earlier rows, and though some nodes are scored before the others."""
    tree, total = TokenTree((0,) * len(parents), tuple(parents)), before + len(parents)
    rng = torch.Generator().manual_seed(seed)
    state, window = (
        torch.randn(6, 4, 3, generator=rng),
        torch.randn(3, SIZES.columns, generator=rng),
    )
    columns, kernel = (torch.randn(n, SIZES.columns, generator=rng) for n in (total, 4))
    g = -forgets * torch.rand(total, 6, generator=rng)
    b = torch.rand(total, 6, generator=rng)
    writes, read = torch.full((total, SIZES.write), torch.nan), []
    first = before + min(known, len(parents) - 1)
    for start, end in ((0, first), (first, total)) if first else ((0, total),):
        nodes = tree.subtree(-1, range(max(end - before, 0)))
        lineage = Lineage.of(nodes, end, end - start, SIZES.kernel, torch.device("cpu"))
        rows = slice(start, end)
        given = columns[rows], (g[rows], b[rows]), kernel, state, window, writes[:end]
        read.append(delta_rule(SIZES, *given, lineage))
    ours = torch.cat(read)
    for node in range(-1, len(tree)):
        line = [*range(before), *(before + each for each in tree.path(node))]
        if line:
            theirs, *ends = token_by_token(columns[line], (g[line], b[line]), kernel, state, window)
            assert (ours[line[-1]] - theirs[-1]).abs().max() < 1e-4
            for one, other in zip(after(SIZES, state, window, writes[line]), ends, strict=True):
                assert (one - other).abs().max() < 1e-4
    one, other = after(SIZES, state, window, writes[:0])
    assert torch.equal(one, state) and torch.equal(other, window)


def said(session: Session, tokens: Sequence[int]) -> None:
    """Score these tokens one after the other, and commit them."""
    for token in tokens:
        session.forward([token])
        session.commit([0])


def close(session: Session, family: str, prompt: Prompt, tokens: Sequence[int]) -> bool:
    assert session.tokens == tuple(tokens)
    rows = session.forward([3, 4, 5], [-1, -1, 1])
    path = difference(rows[2:], family, prompt, [*tokens, 4, 5])
    return bool(max(path, difference(rows[1:2], family, prompt, [*tokens, 3])) < CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("back", [1, KEPT_ROWS - 1, 2 * WRITES, 3 * WRITES])
def test_a_session_rolls_back_a_little_at_once_and_far_by_computing_it_again(
    family: str, back: int
) -> None:
    model = fresh(family)
    prompt, tokens = prompt_of(model), [7 + index % 90 for index in range(3 * WRITES)]
    session = model.open(prompt)
    said(session, tokens)
    assert session.cache.recurrent.base > session.prompt_rows
    session.truncate(len(tokens) - back)
    assert (session.cache is not None) == (back < KEPT_ROWS)
    assert close(session, family, prompt, tokens[: len(tokens) - back])
    # From the state after the prompt, which is kept.
    assert model.memory.restored_rows == (0 if back < KEPT_ROWS else len(tokens) - back)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("nodes", [WRITES + 1, 4 * WRITES])
def test_more_nodes_than_there_is_room_for_writes_are_scored_alike(family: str, nodes: int) -> None:
    model = fresh(family)
    prompt, chain = prompt_of(model), [11 + index % 80 for index in range(nodes)]
    session = model.open(prompt)
    assert difference(session.forward(chain), family, prompt, chain) < CLOSE
    session.commit(range(nodes - 1))
    assert close(session, family, prompt, chain[:-1])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_of_a_long_prompt_that_is_interrupted_has_no_effect(family: str) -> None:
    """Its chunks moved the state in some layers."""
    model = fresh(family)
    prompt = prompt_of(model, text=LONG)
    prefill, rows = model.prefill(prompt), CHUNK_ROWS + 3 * WRITES

    class Stop(Exception):
        pass

    def stop(layer: int, hidden: Tensor) -> None:
        if layer == 1:
            raise Stop

    prefill.step(20)
    while prefill.rows_left:
        left = prefill.rows_left
        with pytest.raises(Stop):
            while not prefill.step(rows, stop):
                pass  # a picture
        assert prefill.rows_left == left
        prefill.step(rows)
    assert close(prefill.session, family, prompt, [])


def prompt_with(prompt: Prompt, ids: Sequence[int]) -> Prompt:
    """The prompt with other ids."""
    other = np.array(ids)
    return replace(prompt, input_ids=other, digest=prompt.digest + other.tobytes())


def longest(model: Vlm, prompt: Prompt) -> tuple[int, Session]:
    """Rows that are known of a prompt, and a session after it."""
    before = model.memory.prefix_rows
    session = model.open(prompt)
    return model.memory.prefix_rows - before, session


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_goes_on_where_a_state_is_kept_and_nowhere_else(family: str) -> None:
    model = fresh(family)
    spec = model.spec(64)
    first = model.prompt(spec.request(LONG), spec)
    ids, common = first.input_ids, 60  # as if so many began all prompts
    first, longer = replace(first, common=common), list[int]([*ids, 5, 6, 7, 8])
    assert longest(model, first)[0] == 0
    known, session = longest(model, first)
    assert known == len(ids)  # all, and its logits
    assert close(session, family, first, [])
    later = prompt_with(first, longer)
    known, session = longest(model, later)
    assert known == len(ids)  # the end of the other prompt
    assert close(session, family, later, [])
    other = prompt_with(first, [*ids[:-20], *range(30, 50)])
    known, session = longest(model, other)
    assert known == common  # not where the texts part
    assert close(session, family, other, [])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "said_tokens", [[9, 8, 7], [20 + index % 70 for index in range(2 * WRITES)]]
)
def test_the_next_prompt_of_a_mission_goes_on_after_the_answer(
    family: str, said_tokens: list[int]
) -> None:
    model = fresh(family)
    prompt = replace(prompt_of(model), grows=True)
    session = model.open(prompt)
    said(session, said_tokens)
    session.close()
    later = prompt_with(prompt, [*prompt.input_ids, *said_tokens, 30, 31, 32])
    known, session = longest(model, later)
    assert known == len(prompt.input_ids) + len(said_tokens)
    assert close(session, family, later, [])


def test_states_count_as_memory_and_go_with_the_rows_that_they_follow() -> None:
    model = fresh("qwen3_5")
    layout = model.transformer.cache_layout
    prompt = prompt_of(model)
    session = model.open(prompt)
    assert layout.recurrent is not None
    kept = layout.recurrent.state_bytes + len(prompt.input_ids) * layout.row_bytes
    assert session.cache is not None
    assert model.memory.in_use == session.cache.size + kept
    session.evict()
    assert model.memory.in_use == kept
    while model.memory.evict_one():
        pass
    assert model.memory.in_use == 0
    assert close(session, "qwen3_5", prompt, [])


def test_without_memory_for_a_state_a_prompt_is_computed_again() -> None:
    model = fresh("qwen3_5_text")
    prompt = prompt_of(model)
    cache = model.open(prompt).cache
    assert cache is not None
    model.use_memory(KvMemory(cache.size + 1000))
    for _ in range(2):
        known, session = longest(model, prompt)
        assert known == 0
        assert close(session, "qwen3_5_text", prompt, [])
        session.evict()


def test_a_state_that_is_not_the_sessions_own_would_be_noticed() -> None:
    """Negative control: another state gives other logits by far more than the bound."""
    model = fresh("qwen3_5")
    session = model.open(prompt_of(model, text=LONG))
    right = session.forward([5, 6])
    state = session.cache.recurrent
    assert state is not None and state.base > 0
    for part, least in ((state._state, 1), (state._writes, 10)):
        kept = part.clone()
        part[:, : session.prompt_rows - state.base] *= 0.5
        assert np.abs(session.forward([5, 6]) - right).max() > least * CLOSE
        part.copy_(kept)
    assert np.array_equal(session.forward([5, 6]), right)


def test_what_is_not_run_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(tmp_path, "qwen3_5_text", text={"layer_types": ["linear_attention"] * 3})
    with pytest.raises(UserError, match="no attention at all, which is not implemented"):
        load(tmp_path, check=False)
    make_checkpoint(tmp_path / "gelu", "qwen3_5_text", text={"hidden_act": "gelu"})
    with pytest.raises(UserError, match="gelu in Gated DeltaNet, which is not implemented"):
        load(tmp_path / "gelu", check=False)
    shutil.copytree(checkpoint("qwen3_5_text"), tmp_path / "own")
    gguf = tmp_path / "own" / "small.gguf"
    gguf.write_bytes(b"GGUF")
    with pytest.raises(UserError, match=r"recurrent layers.*directory of its safetensors"):
        load_llama(str(gguf))
    monkeypatch.setitem(
        families.FAMILIES, "qwen3_5_text", families.Family("Qwen9ForCausalLM", False)
    )
    with pytest.raises(UserError, match="has no Qwen9ForCausalLM: install"):
        load(checkpoint("qwen3_5_text"))
