"""Sessions whose caches are copied side by side get what each gets over its own cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from helpers.checkpoints import FAMILIES, prompt_of, vlm
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.models.cache import KeyValueCache
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.passes import attention as attention_module
from edge_cloud_spec.models.passes.attention import PaddedAttention, Segment
from edge_cloud_spec.models.session import PassRequest, Session
from edge_cloud_spec.models.vlm import Vlm

CLOSE = 1e-4
TOKENS = st.integers(0, 250)


@st.composite
def drafts(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Tokens of the prefix that are not computed yet, and a tree: tokens and parents."""
    tokens = draw(st.lists(TOKENS, max_size=6))
    parents = [draw(st.integers(-1, node - 1)) for node in range(len(tokens))]
    return draw(st.lists(TOKENS, min_size=1, max_size=3)), tokens, parents


def opened(model: Vlm, computed: Sequence[int]) -> list[Session]:
    """Sessions with so many computed tokens after their prompts; the rest of their caches is what
    memory may hold."""
    sessions = [model.open(prompt_of(model, place)) for place in range(len(computed))]
    for session, count in zip(sessions, computed, strict=True):
        session.extend(range(count))
        session.logits_after(-1)
        cache = session._cache
        assert cache is not None
        end = session.prompt_rows + session._computed
        cache.rows(end, cache.capacity).fill_(float("nan"))
    return sessions


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=8, deadline=None)
@given(
    wanted=st.lists(drafts(), min_size=2, max_size=5),
    computed=st.lists(st.integers(0, 9), min_size=5, max_size=5),
)
def test_a_padded_pass_gives_the_rows_and_caches_of_one_session_after_the_other(
    family: str, wanted: list[tuple[list[int], list[int], list[int]]], computed: list[int]
) -> None:
    model = vlm(family)
    results = []
    for padded in (True, False):
        sessions = opened(model, computed[: len(wanted)])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PaddedAttention, "pays", lambda *_, padded=padded: padded)
            for _ in range(2):  # the second reads the rows that the first has written
                requests = []
                for session, (tail, tokens, parents) in zip(sessions, wanted, strict=True):
                    session.extend(tail)
                    requests.append(PassRequest(session, tokens, parents))
                rows = model.forward_together(requests)
                for session in sessions:
                    session.commit([0] if len(session._nodes) else [])
        assert all(isinstance(each, np.ndarray) for each in rows)
        results.append(rows)
    for ours, theirs in zip(*results, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() < CLOSE


def test_small_sessions_of_like_sizes_are_padded_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layout = vlm().transformer.cache_layout

    def segments(*sizes: tuple[int, int]) -> list[Segment]:
        cache = KeyValueCache(layout, 1, KvMemory())
        return [Segment(cache, start, count) for start, count in sizes]

    monkeypatch.setattr(attention_module, "SMALL", 200 * layout.row_bytes)
    assert PaddedAttention.pays(segments((90, 5), (100, 5), (70, 3)), layout)
    assert not PaddedAttention.pays(segments((90, 5)), layout)  # alone
    assert not PaddedAttention.pays(segments((190, 5), (190, 11)), layout)  # too large
    assert not PaddedAttention.pays(segments((180, 5), (9, 5), (9, 5)), layout)  # one is long
    assert not PaddedAttention.pays(segments((90, 90), (90, 2), (90, 2), (90, 2)), layout)


def test_the_embedded_fleets_sessions_share_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model, passes = vlm(), []
    keep = PaddedAttention.keep

    def count(attention: PaddedAttention) -> None:
        passes.append(len(attention._segments))
        keep(attention)

    monkeypatch.setattr(PaddedAttention, "keep", count)
    sessions = opened(model, [3, 4, 5])
    model.forward_together([PassRequest(session, [7, 8]) for session in sessions])
    assert passes == [3]
