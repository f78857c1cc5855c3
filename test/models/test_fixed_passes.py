"""With fixed passes a row has the same bits in any company, and the check finds what breaks it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import FAMILIES, checkpoint, prompt_of, vlm
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.lab.bench.bits import Company, KnownRows
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.passes.fixed_pass import (
    FixedAttention,
    RowCounts,
    common,
    equal_counts,
    paths_of,
)
from edge_cloud_spec.models.vlm import Vlm


@functools.cache
def known(family: str, dtype: str, seed: int) -> KnownRows:
    model = vlm(family, dtype=dtype, passes="fixed")
    return KnownRows(model, prompt_of(model, seed), np.random.default_rng(seed))


def differing(model: Vlm, rows: list[KnownRows], seed: int, turns: int, sessions: int) -> int:
    company = Company(model, rows, sessions, np.random.default_rng(seed))
    for _ in range(turns):
        company.turn()
    assert company.count.rows >= turns
    return company.count.differing


@settings(max_examples=5, deadline=None)
@given(st.sampled_from(FAMILIES), st.sampled_from(["float32", "bfloat16"]), st.integers(0, 2**31))
def test_a_row_has_the_same_bits_in_any_company(family: str, dtype: str, seed: int) -> None:
    rows = [known(family, dtype, seed) for seed in (0, 1)]
    model = vlm(family, dtype=dtype, passes="fixed")
    assert differing(model, rows, seed, turns=6, sessions=8) == 0


def test_free_passes_give_other_bits() -> None:
    """Negative control: the comparison would find a difference."""
    rows = [KnownRows(vlm(), prompt_of(vlm(), 0), np.random.default_rng(0))]
    assert differing(vlm(), rows, 0, turns=6, sessions=6) > 0


class OtherOrder(nn.Module):
    """A product that adds in another order where it has certain numbers of rows."""

    def __init__(self, product: nn.Module, counts: tuple[int, ...]) -> None:
        super().__init__()
        self._product, self._counts = product, counts

    def forward(self, rows: Tensor) -> Tensor:
        if len(rows) not in self._counts:
            return self._product(rows)
        left = torch.arange(rows.shape[1]) < rows.shape[1] // 2
        return self._product(rows * left) + self._product(rows * ~left)


def change_the_order(model: Vlm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of some sizes that was not measured."""
    layer = model.transformer.layers[0]
    monkeypatch.setattr(layer, "_down", OtherOrder(layer._down, (6, 8, 12, 14, 20, 24, 28)))


def shorten_windows(_: Vlm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys up to the last one that a query of the call attends to, however many those are."""
    run = FixedAttention._run

    def shorter(
        self: FixedAttention, call: Any, query: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        window = int((call.mask == 0).any(0).sum())
        short = replace(call, window=window, mask=call.mask[:, :window].contiguous())
        return run(self, short, query, keys, values)

    monkeypatch.setattr(FixedAttention, "_run", shorter)


def forget_the_path(_: Vlm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree's last path stands there last, and what is committed is read from it."""
    clone = torch.Tensor.clone
    monkeypatch.setattr(
        torch.Tensor, "clone", lambda self: self if self.dim() == 3 else clone(self)
    )


@pytest.mark.parametrize(
    "plant, dtype",
    [
        (change_the_order, "float32"),
        (change_the_order, "bfloat16"),
        (shorten_windows, "float32"),
        (forget_the_path, "float32"),
    ],
)
def test_a_planted_defect_is_found(
    plant: Callable[[Vlm, pytest.MonkeyPatch], None], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(checkpoint(), dtype=dtype, passes="fixed")
    rows = [known("qwen3_vl", dtype, seed) for seed in (0, 1)]
    assert differing(model, rows, 1, turns=3, sessions=6) == 0
    plant(model, monkeypatch)
    assert differing(model, rows, 1, turns=10, sessions=6) > 0


def test_counts_with_other_bits_are_not_allowed() -> None:
    def odd(rows: Tensor) -> Tensor:
        return rows * (1.0 + 2.0**-20 * (len(rows) in (3, 15)))

    def company(rows: Tensor) -> Tensor:
        return rows + rows.sum(0) * 2.0**-20

    rows = torch.randn(64, 8)
    assert equal_counts(odd, rows, (1, 2, 3, 4, 15, 16)) == {1, 2, 4, 16}
    assert equal_counts(company, rows, (1, 16)) == frozenset()
    with pytest.raises(UserError, match="other bits"):
        common([frozenset({1, 2}), frozenset({3})], "layers")


@given(st.integers(0, 400), st.sets(st.integers(1, 64), min_size=1))
def test_blocks_hold_all_rows_and_have_allowed_sizes(count: int, sizes: set[int]) -> None:
    counts = RowCounts(tuple(sorted(sizes)))
    assert counts.padded(count) >= count
    assert set(counts.blocks(count)) <= sizes


@given(st.data())
def test_paths_hold_each_new_node_once_and_below_its_parents(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 20))
    parents = [data.draw(st.integers(-1, node - 1)) for node in range(count)]
    before = data.draw(st.integers(0, count - 1))
    attended: list[int] = []
    for path, new in paths_of(parents, before):
        assert [parents[node] for node in path] == [-1, *path[:-1]]
        attended += path[-new:]
    assert sorted(attended) == list(range(before, count))
