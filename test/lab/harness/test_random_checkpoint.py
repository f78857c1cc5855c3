"""A random pair agrees as often as it was asked to, so that timing it means something."""

from __future__ import annotations

from pathlib import Path

from helpers.checkpoints import jpeg

from edge_cloud_spec.models.load import load
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec_lab.harness.random_checkpoint import CheckpointShape, make_pair


def test_greedy_tokens_of_a_random_pair_agree_at_the_given_share(tmp_path: Path) -> None:
    shapes = CheckpointShape(hidden=64), CheckpointShape(hidden=32)
    target, drafter = (load(path) for path in make_pair(tmp_path, *shapes, agreement=0.75))
    request = CLAUSES.request("find the silver bottle", jpeg())
    spec = target.spec(64)
    one, two = (model.open(model.prompt(request, spec)) for model in (target, drafter))
    equal, seen = 0, []
    for _ in range(200):
        token, guess = int(one.forward([])[0].argmax()), int(two.forward([])[0].argmax())
        equal += token == guess
        seen.append(token)
        one.extend([token])
        two.extend([token])
    assert abs(equal / 200 - 0.75) < 0.1
    assert len(set(seen)) > 100  # no two tokens repeated for ever
    assert not set(seen) & set(target.end_ids)
