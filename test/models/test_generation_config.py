"""What generation_config.json does to logits: answers are those of transformers' ``generate``, by
chains and trees of drafts, and what is not applied is refused by name."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import helpers.checkpoints as helper
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.accept import accept
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.grammar import Allowed
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.processors import (
    UNPROCESSED,
    LogitsProcessing,
    LogitsProcessors,
    adjustment_after,
)
from edge_cloud_spec.decoding.random_source import SeededRandomSource
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.checkpoint import checkpoint_files
from edge_cloud_spec.models.pass_request import target_rows
from edge_cloud_spec.models.prompt import Prompt, PromptSpec, logits_processors
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec_lab.harness.reference import generate

TOKENS = 10
ids = st.lists(st.integers(0, 300), min_size=1, max_size=60)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "repetition_penalty": st.floats(0.5, 2.0),
    "no_repeat_ngram_size": st.integers(1, 4),
    "min_new_tokens": st.integers(0, TOKENS),
    "suppress_tokens": ids,
    "begin_suppress_tokens": ids,
}
policies = st.builds(
    SamplingPolicy,
    st.sampled_from([0.0, 0.0, 0.9, 30.0]),
    st.sampled_from([0, 0, 3, 300]),
    st.sampled_from([1.0, 1.0, 0.6]),
    st.integers(0, 99),
)


def verified(
    spec: PromptSpec,
    prompt: Prompt,
    policy: SamplingPolicy,
    guess: tuple[int, ...],
    right: int,
    tree: bool,
) -> tuple[int, ...]:
    """The answer by verdicts on drafts: ``right`` tokens of a guess, then a wrong one."""
    session, said = helper.vlm().open(prompt), ()
    processors = logits_processors(spec, prompt, None)
    rule, source = "coupled" if policy.temperature else "greedy", SeededRandomSource(policy.seed)
    while len(said) < TOKENS and not {*said} & {*spec.end_ids}:
        tokens = [*guess[len(said) : len(said) + right], 7]
        draft = Draft(tuple(tokens))
        if tree:  # each token beside a wrong one
            tokens = [each for token in tokens for each in ((token + 3) % 300, token)]
            parents = (max(2 * (node // 2) - 1, -1) for node in range(len(tokens)))
            draft = Draft(tuple(tokens), tuple(parents))
        logits = session.forward(draft.tokens, draft.parents)
        rows = target_rows(logits, adjustment_after(processors, session.tokens, draft))
        taken = accept(rule, draft, rows, policy, len(said), source)
        assert taken.token is not None
        session.commit(taken.path)
        session.extend([taken.token])
        said = session.tokens
    ends = [at + 1 for at, token in enumerate(said) if token in spec.end_ids]
    return said[: min(ends[0] if ends else TOKENS, TOKENS)]


@settings(max_examples=40, deadline=None)
@given(st.fixed_dictionaries({}, optional=FIELDS), policies, st.integers(0, 3), st.booleans())
def test_answers_by_drafts_are_those_of_generate_under_a_generation_config(
    fields: dict[str, Any], policy: SamplingPolicy, right: int, tree: bool
) -> None:
    model = helper.vlm()
    spec = replace(model.spec(TOKENS), logits=LogitsProcessing(**fields))
    spec = PromptSpec.from_bytes(spec.to_bytes())  # as a robot has it
    prompt = model.prompt(CLAUSES.request("find the silver bottle", helper.jpeg(1)), spec)
    own = generate(helper.reference("qwen3_vl"), prompt, spec, policy, **fields)
    assert verified(spec, prompt, policy, own, right, tree) == own


def test_a_forgotten_penalty_is_found_out() -> None:
    model, greedy = helper.vlm(), SamplingPolicy()
    spec = model.spec(TOKENS)
    prompt = model.prompt(CLAUSES.request("find the silver bottle", helper.jpeg(1)), spec)
    own = generate(helper.reference("qwen3_vl"), prompt, spec, greedy, repetition_penalty=1.8)
    assert verified(spec, prompt, greedy, own, 2, False) != own


def test_a_token_that_only_the_grammar_leaves_stays() -> None:
    """An answer in a grammar goes on, whatever the checkpoint excludes."""

    class Only:
        def allowed(self, answer: Any) -> Allowed:
            return np.isin(np.arange(9), (4, 5) if len(answer) else (4,))

    own = LogitsProcessing(suppress_tokens=(4,))
    processors = LogitsProcessors(9, Only(), own)
    assert processors.after(()).forced == 4
    assert processors.after((4,)).forced == 5


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(shutil.copytree(helper.checkpoint(), tmp_path / "model"))


def write(directory: Path, name: str = "generation_config.json", **fields: Any) -> None:
    content = json.loads((directory / name).read_text())
    (directory / name).write_text(json.dumps(content | fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"num_beams": 4},
        {"penalty_alpha": 0.6},
        {"guidance_scale": 1.5},
        {"sequence_bias": [[[5], -2.0]]},
        {"encoder_repetition_penalty": 1.2},
        {"encoder_no_repeat_ngram_size": 3},
        {"forced_eos_token_id": 2},
        {"exponential_decay_length_penalty": [5, 1.1]},
        {"watermarking_config": {"bias": 2.0}},
        {"stop_strings": ["stop"]},
        {"max_time": 1.0},
        {"token_healing": True},
        {"min_p": 0.1},
        {"top_h": 0.4},
        {"typical_p": 0.9},
        {"epsilon_cutoff": 0.001},
        {"eta_cutoff": 0.001},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": "strong"},
        {"no_repeat_ngram_size": -1},
        {"suppress_tokens": 5},
        {"bad_words_ids": [[5]]},
        {"min_length": 60},
    ],
    ids=str,
)
def test_what_is_not_applied_is_refused_by_name_unless_all_is_left_out(
    directory: Path, fields: dict[str, Any]
) -> None:
    write(directory, **fields)
    (name,) = fields
    with pytest.raises(UserError, match=f"generation_config.json.*{name}.*config none"):
        checkpoint_files(directory)
    assert checkpoint_files(directory, "none").logits == UNPROCESSED


def test_fields_are_read_where_transformers_reads_them(directory: Path) -> None:
    """What changes nothing, or is a request's own, is no reason to refuse."""
    usual = {"do_sample": True, "temperature": 1e-6, "top_k": 1, "top_p": 0.001, "max_length": 20}
    neutral = {"num_beams": 1, "typical_p": 1.0, "guidance_scale": None, "min_p": 0}
    write(directory, repetition_penalty=1.05, min_new_tokens=2, **usual, **neutral)
    files = checkpoint_files(directory)
    assert files.logits == LogitsProcessing(repetition_penalty=1.05, min_new_tokens=2)
    (directory / "generation_config.json").unlink()
    config = json.loads((directory / "config.json").read_text())
    write(directory, "config.json", text_config=config["text_config"] | {"repetition_penalty": 1.2})
    files = checkpoint_files(directory)
    assert files.logits == LogitsProcessing(repetition_penalty=1.2)
    assert files.end_ids == checkpoint_files(helper.checkpoint()).end_ids
