"""Early exits: they foretell the verdict, with its own noise, and change nothing about it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import checkpoints as helper
from helpers.checkpoints import HIDDEN, LAYERS
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.cloud.model_thread.model_runner import CachedTarget, LocalModels
from edge_cloud_spec.cloud.model_thread.sessions import HeldSession
from edge_cloud_spec.cloud.session.events import DuePass
from edge_cloud_spec.decoding.accept import Acceptance, ExitPrediction, accept
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.processors import (
    UNPROCESSED,
    AdjustmentAfter,
    LogitsProcessing,
    LogitsProcessors,
    adjustment_after,
)
from edge_cloud_spec.decoding.propose import coupled_token
from edge_cloud_spec.decoding.random_source import SeededRandomSource
from edge_cloud_spec.decoding.target_rows import LogitRows
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.exits import Adapter, ExitPredictor, Exits
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.session import Session
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.request import Request
from edge_cloud_spec.wire.messages import Open
from edge_cloud_spec_lab.harness.toy import ToyGrammar
from edge_cloud_spec_lab.training.exits.command import save_exits

policies = st.builds(
    SamplingPolicy, temperature=st.sampled_from([0.0, 0.8, 3.0]), seed=st.integers(0, 2**32)
)


def identity() -> Adapter:
    """An adapter as it begins: it passes the hidden rows on."""
    return Adapter(HIDDEN, 4)


def random_adapter(seed: int) -> Adapter:
    torch.manual_seed(seed)
    adapter = Adapter(HIDDEN, 4)
    torch.nn.init.normal_(adapter.up)
    return adapter


def session_after(model: Vlm, count: int, policy: SamplingPolicy) -> Session:
    """A session with so many tokens of the model's own; the last of them is not computed."""
    session = model.open(helper.prompt_of(model))
    for position in range(count):
        session.extend([coupled_token(session.forward(())[0], policy, position)])
    return session


def rewind(session: Session) -> None:
    """Back to where the last token of the prefix is not computed, with the same cache before it.

    (A session opened anew may differ in the last bits: it takes over rows of the prompt before.)
    """
    last = session.tokens[-1:]
    session.truncate(len(session.tokens) - len(last))
    session.extend(last)


def drafted(
    session: Session,
    policy: SamplingPolicy,
    right: int,
    tree: bool,
    processors: LogitsProcessors | None = None,
) -> Draft:
    """Tokens of which the first ``right`` are the target's own; in a tree, with wrong siblings."""
    position = len(session.tokens)
    own: list[int] = []
    for place in range(4):
        logits = session.forward(own)[-1]
        if processors is not None:
            logits = processors.after((*session.tokens, *own)).of(logits)
        token = coupled_token(logits, policy, position + place)
        own.append(token if place < right else (token + 1) % len(logits))
    rewind(session)
    if not tree:
        return Draft(tuple(own))
    wrong = [(token + 7) % 320 for token in own]
    tokens = [token for pair in zip(wrong, own, strict=True) for token in pair]
    parents = [-1, -1, 1, 1, 3, 3, 5, 5]
    return Draft(tuple(tokens), tuple(parents))


OWN = LogitsProcessing(
    repetition_penalty=1.4,
    no_repeat_ngram_size=2,
    suppress_tokens=(5, 7),
)


def rule_of(policy: SamplingPolicy) -> str:
    return "coupled" if policy.temperature else "greedy"


def scored(
    session: Session,
    exits: Exits,
    draft: Draft,
    policy: SamplingPolicy,
    **options: Any,
) -> tuple[list[ExitPrediction], np.ndarray]:
    """The predictions that are reported during a pass, and its logits."""
    first = None if session.tokens else session.forward(())[0]
    predictions: list[ExitPrediction] = []
    predictor = ExitPredictor(
        exits,
        draft,
        policy,
        len(session.tokens),
        predictions.append,
        first=first,
        **options,
    )
    return predictions, session.forward(draft.tokens, draft.parents, predictor)


def verdict(
    draft: Draft,
    logits: np.ndarray,
    policy: SamplingPolicy,
    at: int,
    adjusted: AdjustmentAfter | None = None,
) -> Acceptance:
    rows, source = LogitRows(logits, adjusted), SeededRandomSource(policy.seed)
    return accept(rule_of(policy), draft, rows, policy, at, source)


@pytest.mark.parametrize("family", helper.ALL_FAMILIES)
def test_exits_change_no_bit_of_the_final_pass(family: str) -> None:
    model = helper.vlm(family)
    exits = Exits(model, {at: random_adapter(at) for at in (1, 2, 3)}, range(40))
    for tokens, parents in (((3, 4, 5, 6), None), ((3, 4, 5, 6), (-1, -1, 0, 1))):
        draft = Draft(tokens, parents)
        session = session_after(model, 3, SamplingPolicy())
        plain = session.forward(tokens, parents)
        rewind(session)
        predictions, logits = scored(session, exits, draft, SamplingPolicy())
        assert predictions and np.array_equal(plain, logits)


@settings(max_examples=30)
@given(
    policies,
    st.integers(0, 4),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from([None, None, "a", "b", "c"]),
    st.booleans(),
)
def test_an_exit_at_the_end_with_the_whole_head_gives_the_verdict_of_processed_logits(
    policy: SamplingPolicy, right: int, tree: bool, before: int, text: str | None, own: bool
) -> None:
    model = helper.vlm()
    exits = Exits(model, {LAYERS: identity()}, ())
    session = session_after(model, before, policy)
    grammar = ToyGrammar(text, model.vocabulary) if text else None
    processors = LogitsProcessors(model.vocabulary, grammar, OWN if own else UNPROCESSED, (3, 9))
    draft = drafted(session, policy, right, tree, processors)
    adjusted = adjustment_after(processors, session.tokens, draft)
    (prediction,), logits = scored(session, exits, draft, policy, adjusted=adjusted)
    taken = verdict(draft, logits, policy, before, adjusted)
    assert (prediction.path, prediction.token) == (taken.path, taken.token)
    assert prediction.layer == LAYERS and 0 < prediction.confidence <= 1
    assert len(prediction.path) >= right if text or own else len(prediction.path) == right


def test_guesses_of_another_seed_are_others() -> None:
    """The control: with noise of its own an exit that sees all would still not give the verdict."""
    model = helper.vlm()
    exits = Exits(model, {LAYERS: identity()}, ())
    equal = 0
    for seed in range(10):
        policy = SamplingPolicy(1.0, seed=seed)
        session = session_after(model, 1, policy)
        draft = drafted(session, policy, 2, tree=False)
        (prediction,), logits = scored(session, exits, draft, SamplingPolicy(1.0, seed=seed + 1))
        taken = verdict(draft, logits, policy, 1)
        equal += (prediction.path, prediction.token) == (taken.path, taken.token)
    assert equal < 4


def test_only_what_is_new_is_told_and_layers_without_an_exit_say_nothing() -> None:
    exits = Exits(helper.vlm(), {layer: identity() for layer in (2, 3, 4)}, range(100))
    reported: list[ExitPrediction] = []
    predictor = ExitPredictor(exits, Draft((5, 6)), SamplingPolicy(), 4, reported.append)
    torch.manual_seed(0)
    one, other = torch.randn(2, 3, HIDDEN)
    for index, hidden in enumerate((torch.full((3, HIDDEN), torch.nan), one, one, other)):
        predictor(index, hidden)
    assert [prediction.layer for prediction in reported] == [2, 4]
    assert (reported[0].path, reported[0].token) != (reported[1].path, reported[1].token)


def test_a_shortlist_takes_in_what_the_draft_proposes_and_the_row_that_is_known() -> None:
    model, policy = helper.vlm(), SamplingPolicy()
    session = session_after(model, 0, policy)
    draft = drafted(session, policy, 4, tree=False)
    exits = Exits(model, {LAYERS: identity()}, set(range(100)) - set(draft.tokens))
    reported: list[ExitPrediction] = []
    predictor = ExitPredictor(exits, draft, policy, 0, reported.append)
    session.forward(draft.tokens, None, predictor)
    assert not reported  # without the row that is known already there is no guess
    (prediction,), _ = scored(session, exits, draft, policy)
    assert prediction.path == (0, 1, 2, 3)


def test_nothing_is_guessed_after_an_end_token_or_where_the_draft_goes_on() -> None:
    model, policy = helper.vlm(), SamplingPolicy()
    exits = Exits(model, {LAYERS: identity()}, ())
    session = session_after(model, 1, policy)
    draft = drafted(session, policy, 4, tree=False)
    (ended,), _ = scored(session, exits, draft, policy, end_tokens=[draft.tokens[-1]])
    assert ended.path[-1] == draft.tokens.index(draft.tokens[-1]) and ended.token is None
    (open_,), _ = scored(
        session_after(model, 1, policy), exits, draft, policy, open_at=len(draft) - 1
    )
    assert open_.path == (0, 1, 2, 3) and open_.token is None


def test_under_rejection_there_are_no_guesses() -> None:
    model = helper.vlm()
    exits, prompt = Exits(model, {1: identity()}, range(9)), helper.prompt_of(model)
    models = LocalModels(model, model.spec(4), None, exits)

    def guesses(rule: str, draft: Draft, predictions: bool = True) -> bool:
        policy = SamplingPolicy(float(rule == "rejection"))
        opening = Open(0, Request(()), policy, rule, predictions=predictions)
        base, room = PrefixDigest(0, 0), model.vocabulary
        session = HeldSession("", opening, base, end_tokens=(0,), max_tokens=4, vocabulary=room)
        session.target, session.due = CachedTarget(model, prompt, ()), DuePass(draft, exits=True)
        return models.predictor(session, print) is not None

    assert guesses("greedy", Draft((5,)))
    assert not guesses("greedy", Draft((5,)), predictions=False)
    assert not guesses("rejection", Draft((5,)))
    assert not guesses("greedy", Draft(()))


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    model = helper.vlm()
    assert Exits.load(tmp_path, model) is None
    exits = Exits(model, {1: random_adapter(1), 3: random_adapter(3)}, range(50))
    save_exits(exits, model, tmp_path, range(50))
    again = Exits.load(tmp_path, model)
    assert again is not None and list(again.adapters) == [1, 3]
    rows = torch.randn(4, HIDDEN)
    assert torch.allclose(exits.logits(3, rows), again.logits(3, rows), atol=1e-3)
    assert np.array_equal(exits.over((60, 7, 60))[0], again.over((60, 7, 60))[0])


@pytest.mark.parametrize(
    "changed",
    [
        {"hidden_size": 64},
        {"num_hidden_layers": 28},
        {"layers": [2]},
        {"shortlist": 3},
        "{}",
        "[]",
        b"damaged",  # of the weights
        None,
    ],
)
def test_exits_of_another_model_or_without_their_weights_are_refused(
    tmp_path: Path, changed: Any
) -> None:
    model, config = helper.vlm(), tmp_path / "config.json"
    save_exits(Exits(model, {1: identity()}, range(50)), model, tmp_path, range(50))
    match changed:
        case dict():
            config.write_text(json.dumps(json.loads(config.read_text()) | changed))
        case str():
            config.write_text(changed)
        case bytes():
            (tmp_path / "exits.safetensors").write_bytes(changed)
        case None:
            (tmp_path / "exits.safetensors").unlink()
    with pytest.raises(UserError, match="train"):
        Exits.load(tmp_path, model)


def test_the_embedded_targets_exits_lie_beside_it_and_others_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, target = EMBEDDED / "target" / "exits", load(EMBEDDED / "target")
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    exits = Exits.load(folder, target)
    assert exits is not None and exits.adapters and not caplog.records
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"target": "another"}))
    assert Exits.load(tmp_path, target) is not None
    assert "were trained with other weights" in caplog.text
