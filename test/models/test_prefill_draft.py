"""A draft that is scored with the prompt's last rows: its rows are right, and need no pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.checkpoints import FAMILIES, full_logits, prompt_of, vlm

from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.prefill import ALL_ROWS
from edge_cloud_spec.models.session import Session
from edge_cloud_spec.models.vlm import Vlm

CLOSE = 1e-4
TOKENS = [5, 90, 33, 7, 12]
TREES = {"chain": None, "tree": [-1, 0, 0, -1, 3], "siblings": [-1, -1, -1, -1, -1]}


def opened(model: Vlm, tokens: Any = (), parents: Any = None, step: int = ALL_ROWS) -> Session:
    """A session after a prompt of which nothing is kept; this draft is scored with it."""
    model.use_memory(KvMemory())
    prefill = model.prefill(prompt_of(model))
    while not prefill.step(step):
        prefill.draft(tokens, parents)
    return prefill.session


def count_passes(model: Vlm, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    passes: list[int] = []
    forward = model.transformer.forward

    def counted(hidden: Any, *given: Any, **options: Any) -> Any:
        passes.append(len(hidden))
        return forward(hidden, *given, **options)

    monkeypatch.setattr(model.transformer, "forward", counted)
    return passes


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", TREES)
@pytest.mark.parametrize("step", [ALL_ROWS, 7])
def test_its_rows_are_those_of_a_pass_of_its_own(
    family: str, shape: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, parents = vlm(family), TREES[shape]
    expected = opened(model).forward(TOKENS, parents)
    session = opened(model, TOKENS, parents, step)
    passes = count_passes(model, monkeypatch)
    rows = session.forward(TOKENS, parents)
    assert passes == []
    assert np.abs(rows - expected).max() < CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_committed_of_it_is_as_if_it_were_said_token_by_token(family: str) -> None:
    model = vlm(family)
    session = opened(model, TOKENS, TREES["tree"])
    session.forward(TOKENS, TREES["tree"])
    session.commit([0, 2])
    session.extend([8])
    rows = session.forward([4])
    whole = full_logits(family, prompt_of(model), [TOKENS[0], TOKENS[2], 8, 4])
    assert np.abs(rows - whole[3:, : rows.shape[1]]).max() < CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_another_draft_has_a_pass_of_its_own(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = vlm(family)
    expected = opened(model).forward([5, 91])
    for other in (TOKENS, TOKENS[:2], [*TOKENS, 1]):
        session = opened(model, other)
        with monkeypatch.context() as patch:
            passes = count_passes(model, patch)
            rows = session.forward([5, 91])
        assert len(passes) == 1
        assert np.abs(rows - expected).max() < CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_a_session_that_lost_its_cache_scores_it_again(family: str) -> None:
    model = vlm(family)
    expected = opened(model).forward(TOKENS)
    session = opened(model, TOKENS)
    assert session.evict()
    assert np.abs(session.forward(TOKENS) - expected).max() < CLOSE


def test_a_prompt_that_is_known_whole_needs_no_pass_and_scores_no_draft() -> None:
    model = vlm(FAMILIES[0])
    expected = opened(model).forward(TOKENS)
    again = model.prefill(prompt_of(model))
    again.draft(TOKENS)
    assert np.abs(again.finish().forward(TOKENS) - expected).max() < CLOSE


def test_a_token_that_there_is_not_ends_nothing() -> None:
    """It is refused where the pass over it is asked for, and not in the prompt's."""
    model = vlm(FAMILIES[0])
    session = opened(model, [2**31])
    with pytest.raises(ValueError, match="not all below"):
        session.forward([2**31])
    assert session.forward(TOKENS).shape[0] == 1 + len(TOKENS)
