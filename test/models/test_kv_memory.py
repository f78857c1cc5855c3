"""The bound of the memory for keys and values holds, whatever is taken, given back and lost."""

from __future__ import annotations

import gc
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.cloud.model_thread.engine import fault_of
from edge_cloud_spec.errors import MemoryFull
from edge_cloud_spec.models.cache import CacheLayout, KeyValueCache
from edge_cloud_spec.models.kv_memory import KvBuffer, KvMemory

ROW = 10  # bytes


class Holder:
    """Holds a buffer, and gives it back when asked."""

    def __init__(self, memory: KvMemory, rows: int) -> None:
        self.pinned = False
        self.memory = memory
        self.buffer: KvBuffer | None = memory.take(rows * ROW, lambda: bytearray(rows))
        memory.hold(self.buffer, self)

    def evict(self) -> bool:
        assert self.buffer is not None
        self.memory.give(self.buffer)
        self.buffer = None
        return True

    def __del__(self) -> None:
        if getattr(self, "buffer", None) is not None:
            self.evict()


@settings(max_examples=60)
@given(data=st.data(), limit=st.integers(50, 400))
def test_the_bound_holds_in_any_order(data: st.DataObject, limit: int) -> None:
    memory = KvMemory(limit)
    holders: list[Holder] = []
    holder: Holder | None
    for _ in range(data.draw(st.integers(1, 25))):
        name = data.draw(st.sampled_from(["take", "lose", "pin", "touch"]))
        live = [holder for holder in holders if holder.buffer is not None]
        if name == "take":
            rows = data.draw(st.integers(1, 20))
            try:
                holders.append(Holder(memory, rows))
            except MemoryFull:
                pinned = sum(holder.buffer.size for holder in live if holder.pinned)  # type: ignore[union-attr]
                assert pinned + rows * ROW > limit or rows * ROW > limit
        elif name == "lose" and holders:
            holders.pop(data.draw(st.integers(0, len(holders) - 1)))
        elif live and name == "pin":
            holder = live[data.draw(st.integers(0, len(live) - 1))]
            holder.pinned = not holder.pinned
        elif live:
            buffer = live[data.draw(st.integers(0, len(live) - 1))].buffer
            assert buffer is not None
            memory.touch(buffer)
        live, holder = [], None
        held = sum(holder.buffer.size for holder in holders if holder.buffer is not None)
        assert memory.in_use == held <= memory.peak <= limit
        assert memory.usage == held / limit


def test_what_is_given_back_is_freed_and_the_process_does_not_grow() -> None:
    layout, memory = CacheLayout(4, 8, 64, torch.float32, torch.device("cpu")), KvMemory()
    grown = [0.0, 0.0]
    for half in range(2):
        for rows in range(1000, 1100):
            KeyValueCache(layout, rows, memory).rows(0, rows).fill_(1.0)  # 16 MB
        grown[half] = 4096 * int(Path("/proc/self/statm").read_text().split()[1])
        assert memory.in_use == 0
    assert grown[1] < grown[0] + 2 * 2**25


def test_a_holder_that_is_lost_in_a_circle_gives_its_memory_back() -> None:
    memory = KvMemory(100)
    holder = Holder(memory, 10)
    holder.itself = holder  # type: ignore[attr-defined]
    holder.pinned = True
    del holder
    with pytest.raises(MemoryFull):
        Holder(memory, 1)
    gc.collect()
    assert memory.in_use == 0
    Holder(memory, 10)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
    ],
)
@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_device_with_less_than_the_bound_is_a_smaller_bound(
    error: Exception, failing: int
) -> None:
    """The allocator fails at the n-th call and after it: another gives way, or the request ends."""
    memory = KvMemory(1000)
    first = Holder(memory, 4)
    allocate = Mock(side_effect=[*[bytearray(5)] * (failing - 1), *[error] * 4])

    for _ in range(failing - 1):
        memory.take(5 * ROW, allocate)
    with pytest.raises(MemoryFull) as refused:
        memory.take(5 * ROW, allocate)
    other = RuntimeError("device-side assert")  # is not taken for one of memory
    with pytest.raises(RuntimeError, match="assert"):
        memory.take(5 * ROW, Mock(side_effect=other))
    assert first.buffer is None
    assert refused.value.retry_s > 0
    assert memory.in_use == (failing - 1) * 5 * ROW


def test_a_device_that_is_really_out_of_memory_ends_one_request_and_others_go_on() -> None:
    layout, memory = CacheLayout(6, 2, 64, torch.float32, torch.device("cpu")), KvMemory(2**70)
    first = KeyValueCache(layout, 1000, memory)
    with pytest.raises(MemoryFull):
        KeyValueCache(layout, 2**40, memory)
    with pytest.raises(RuntimeError) as torchs:
        torch.empty(2**50)
    assert fault_of(torchs.value).code == "overloaded"
    second = KeyValueCache(layout, 1000, memory)
    second.rows(0, 1000).copy_(first.rows(0, 1000).fill_(1.0))
    assert (second.rows(0, 1000) == 1.0).all()
    assert memory.in_use == 2 * 1024 * layout.row_bytes
