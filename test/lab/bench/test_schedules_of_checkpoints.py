"""Short decodes of real models over a link that does what it likes, whose verifiers evict what they
know of them at any time; and whether they would notice."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest
from helpers.checkpoints import checkpoint, headed, text_pair

from edge_cloud_spec.models.cache import KeyValueCache
from edge_cloud_spec.models.recurrent import RecurrentState
from edge_cloud_spec.presets import load_preset, preset_names
from edge_cloud_spec_lab.bench.schedules import (
    of_checkpoints,
    random_faults,
    random_schedule,
    run_schedule,
)

VERIFIED = [name for name in preset_names() if load_preset(name).verified]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Directories of a target and a drafter of a family, whose texts depend on the prompt."""
    return functools.cache(lambda family: text_pair(tmp_path_factory.mktemp(family), family))


@pytest.mark.parametrize("family", ["llama", "qwen3_5", "qwen3_5_text", "headed"])
def test_answers_are_generates_own_whatever_is_lost_or_evicted(family: str, pair: Any) -> None:
    models = (headed(), checkpoint()) if family == "headed" else pair(family)
    seen: Counter[str] = Counter()
    for _, counts, failures in random_faults(VERIFIED, 3, range(24), tuple(map(str, models))):
        assert failures == []
        seen.update(counts)
    assert seen["schedules"] == 24 and min(seen["resumed"], seen["evicted"]) > 5


@pytest.mark.parametrize(
    ("owner", "name", "family"),
    [
        pytest.param(KeyValueCache, "gather", "llama", id="rows of the nodes that are kept"),
        pytest.param(RecurrentState, "gather", "qwen3_5_text", id="what those nodes wrote"),
    ],
)
def test_schedules_of_checkpoints_notice(
    owner: type, name: str, family: str, pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, lambda *_: None)
    target, drafter = map(str, pair(family))
    schedules = (
        of_checkpoints(random_schedule(["mc_tslt", "specedge"], 1, n), target, drafter)
        for n in range(60)
    )
    assert any(run_schedule(schedule).verdict == "wrong" for schedule in schedules)
