"""What crosses between the host and the device in a pass; "meta" stands for a GPU's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import ALL_FAMILIES, LAYERS, checkpoint
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from edge_cloud_spec.models.cache import KeyValueCache
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.passes.attention import PaddedAttention
from edge_cloud_spec.models.session import PassRequest, Session
from edge_cloud_spec.models.vlm import Vlm

PROMPTS = (20, 23, 21)  # rows that are computed
TREE = [-1, 0, 0, 2]


class Traffic(TorchFunctionMode):
    """Calls that copy from one side to the other; one that needs a number of "meta" raises."""

    def __init__(self) -> None:
        super().__init__()
        self.crossed: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, result))
        sides = {each.device.type for each in leaves if isinstance(each, Tensor)}
        if func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], Tensor):
            sides.add("cpu")  # where the numbers come from
        if len(sides) > 1:
            self.crossed.append(getattr(func, "__name__", str(func)))
        return result


def sessions_of(model: Vlm) -> list[Session]:
    row = np.zeros(model.vocabulary, np.float32)
    made = []
    for rows in PROMPTS:
        cache = KeyValueCache(model.transformer.cache_layout, rows, KvMemory())
        never: Any = None  # nothing is evicted here
        made.append(Session(model.transformer, model.vocabulary, rows, never))
        made[-1].adopt(cache, 0, (), row)
    return made


def crossed_by_layers(model: Vlm, sessions: Sequence[Session], tree: bool) -> list[list[str]]:
    """What crosses before the end of the first layer, until that of the last, and after it."""
    ends: list[int] = []
    parents = TREE if tree else None
    requests = [PassRequest(each, [5, 6, 7, 8], parents) for each in sessions[1:]]
    first = PassRequest(sessions[0], [9, 3], None, lambda *_: ends.append(len(traffic.crossed)))
    with Traffic() as traffic:
        results = model.forward_together([first, *requests])
    assert all(isinstance(each, Tensor) and each.device.type == "meta" for each in results)
    assert len(ends) == LAYERS
    crossed = traffic.crossed
    return [crossed[: ends[0]], crossed[ends[0] : ends[-1]], crossed[ends[-1] :]]


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("how", ["apart", "padded"])
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_a_pass_reads_nothing_of_its_device_and_sends_all_to_it_before_its_layers(
    family: str, how: str, tree: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read waits for the device; so does, in CUDA, each write from ordinary memory."""
    monkeypatch.setattr(PaddedAttention, "pays", lambda *_: how == "padded")
    model = load(checkpoint(family), device="meta", dtype="bfloat16", check=False)
    sessions = sessions_of(model)
    crossed_by_layers(model, sessions, tree)  # makes what later passes share
    for session in sessions:
        session.commit([0])
    before, among, after = crossed_by_layers(model, sessions, tree)
    assert (among, after) == ([], [])
    # Token ids, positions; where the rows are padded; a mask for each tree, and who descends from
    # whom in it.
    trees = 4 if model.transformer.cache_layout.recurrent is not None else 2
    assert len(before) == 2 + (how == "padded") + trees * tree


def test_what_crosses_is_seen() -> None:
    there = torch.zeros(4, device="meta")
    with Traffic() as traffic:
        there[:2] = torch.ones(2)
        torch.ones(4).to("meta")
        torch.tensor([1, 2], device="meta")
        there[:2] = torch.ones(2, device="meta") + there[2:]
        assert len(traffic.crossed) == 3
        for read in (there[0].item, there.tolist, there.cpu, lambda: bool(there[0])):
            with pytest.raises((NotImplementedError, RuntimeError)):
                read()
