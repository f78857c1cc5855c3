"""Models of text alone: what a directory of their families asks for is computed as transformers
does, or refused in a sentence; never something else."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from helpers.checkpoints import CLOSE, TEXT_FAMILIES, checkpoint, jpeg, prompt_of, vlm

from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.propose import coupled_token
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.families import FAMILIES
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.passes import layer
from edge_cloud_spec.models.prompt import PromptSpec, logits_processors
from edge_cloud_spec.request import Picture
from edge_cloud_spec_lab.harness.random_checkpoint import TINY, make_checkpoint
from edge_cloud_spec_lab.harness.reference import generate, load_reference
from edge_cloud_spec_lab.memory import footprint

LONG = "find the silver bottle near the door and then turn left at the red chair " * 4
SCALED: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "dynamic": {"factor": 4.0},
    "longrope": {
        "factor": 4.0,
        "short_factor": [1.0] * (TINY.head_dim // 2),
        "long_factor": [2.0] * (TINY.head_dim // 2),
        "original_max_position_embeddings": 32,
    },
}


def scaled(kind: str, **fields: Any) -> dict[str, Any]:
    rope = {"rope_type": kind, "rope_theta": 10000.0, **SCALED[kind], **fields}
    return {"rope_parameters": rope, "max_position_embeddings": 4096}


COMPUTED = {
    "plain": {},
    **{kind: scaled(kind) for kind in ("linear", "yarn", "llama3")},
    "wide heads": {"head_dim": 12},
    "a key head for each": {"num_key_value_heads": TINY.heads},
    "no window": {"sliding_window": None},
    "biases": {"attention_bias": True, "mlp_bias": True},  # mlp_bias: Llama's alone
    "another norm": {"rms_norm_eps": 1e-2},
    "another activation": {"hidden_act": "gelu"},
}
REFUSED = {("qwen3_5_text", "another activation")}  # see below
OF_EXPERTS: dict[str, dict[str, Any]] = {
    "weights that do not add up to 1": {"norm_topk_prob": False},
    "experts in each layer": {"mlp_only_layers": []},
    "experts in every other layer": {"mlp_only_layers": [], "decoder_sparse_step": 2},
    "one expert a row": {"num_experts_per_tok": 1},
    "all experts": {"num_experts_per_tok": 8},
}


@pytest.mark.parametrize(
    ("family", "asked"),
    [
        *sorted({*itertools.product(TEXT_FAMILIES, COMPUTED)} - REFUSED),
        *(("qwen3_moe", asked) for asked in OF_EXPERTS),
    ],
)
def test_what_a_configuration_asks_for_is_computed_as_transformers_does(
    family: str, asked: str, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path, family, text=(COMPUTED | OF_EXPERTS)[asked])
    kind = getattr(transformers, FAMILIES[family].model_class)
    theirs = kind.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ours = load(tmp_path, check=False)
    prompt = prompt_of(ours, text=LONG)
    ids = torch.from_numpy(prompt.input_ids)[None]
    assert ids.shape[1] > 64  # beyond where scaled positions begin
    with torch.inference_mode():
        row = theirs(ids).logits[0, -1].numpy()
    assert np.abs(ours.open(prompt).logits_after(-1) - row).max() < CLOSE
    if asked == "biases":
        biases = sum(name.endswith("proj.bias") for name, _ in theirs.named_parameters())
        layers = {"llama": 7, "qwen2": 3, "qwen3": 4, "qwen3_moe": 4, "qwen3_5_text": 4 / 3}
        assert biases == TINY.layers * layers[family]


@pytest.mark.parametrize(
    ("family", "fields", "said"),
    [
        *((family, scaled("dynamic"), "dynamic, which is not") for family in TEXT_FAMILIES),
        *((family, scaled("longrope"), "longrope, which is not") for family in TEXT_FAMILIES),
        *(
            (family, {"use_sliding_window": True, "max_window_layers": 1}, "sliding_attention")
            for family in ("qwen2", "qwen3")
        ),
        ("llama", {"sliding_window": 8}, "sliding_window, which is not"),  # as in Mistral's
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 8}, "sliding_window, which"),
        ("qwen3_5_text", {"hidden_act": "gelu"}, "gelu in Gated DeltaNet, which is not"),
        ("llama", scaled("linear", partial_rotary_factor=0.5), "positions of a part of each head"),
    ],
)
def test_what_our_layers_lack_is_refused_for_a_drafter_too(
    family: str, fields: dict[str, Any], said: str, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path, family, text=fields)
    with pytest.raises(UserError, match=f"(?s){said}.*config.json"):
        load(tmp_path, check=False)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_a_window_is_refused_with_what_leaves_it_out(family: str, tmp_path: Path) -> None:
    switch = {} if family == "llama" else {"use_sliding_window": True, "max_window_layers": 1}
    make_checkpoint(tmp_path / "with", family, text=switch | {"sliding_window": 8})
    with pytest.raises(UserError, match="set sliding_window to null in its config"):
        load(tmp_path / "with", check=False)
    load(make_checkpoint(tmp_path / "without", family, text=switch | {"sliding_window": None}))


def test_a_window_that_is_switched_off_is_none(tmp_path: Path) -> None:
    fields = {"sliding_window": 8, "use_sliding_window": False}
    for family in ("qwen2", "qwen3", "qwen3_moe"):
        load(make_checkpoint(tmp_path / family, family, text=fields))


@pytest.mark.parametrize("kind", ["mistral", "mixtral", "qwen2_moe", "qwen3_5_moe", "phi3"])
def test_a_family_that_is_nearly_one_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    config = json.loads((checkpoint("llama") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": kind}))
    for read in (load, footprint):
        with pytest.raises(UserError, match=f"{kind}' model: choose one of qwen2_vl, .*, llama,"):
            read(tmp_path)


def spec_of(family: str) -> PromptSpec:
    return vlm(family).spec(12)


@pytest.mark.parametrize("penalty", [None, 1.5])
@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_what_is_loaded_was_compared_and_answers_as_generate(
    family: str, penalty: float | None, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path, family, text=scaled("llama3"))
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"repetition_penalty": penalty}))
    model = load(tmp_path)
    spec, theirs = model.spec(12), load_reference(str(tmp_path), model)
    prompt = model.prompt(spec.request(LONG), spec)
    for policy in (GREEDY, SamplingPolicy(0.9, seed=4)):
        session, processors = model.open(prompt), logits_processors(spec, prompt, None)
        assert (processors is None) == (penalty is None)
        while len(session.tokens) < 12 and not {*session.tokens} & {*spec.end_ids}:
            row = session.logits_after(-1)
            row = row if processors is None else processors.after(session.tokens).of(row)
            session.extend([coupled_token(row, policy, len(session.tokens))])
        assert session.tokens == generate(theirs, prompt, spec, policy)


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_a_forward_that_differs_is_refused(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load(checkpoint(family))
    turned = layer.RotaryEmbedding.__call__
    monkeypatch.setattr(
        layer.RotaryEmbedding,
        "__call__",
        lambda self, at: (
            turned(self, [2 * each for each in at])
            if isinstance(at, list | tuple)
            else turned(self, 2 * at)
        ),
    )
    with pytest.raises(UserError, match="first answer: its logits are others than in transformers"):
        load(checkpoint(family))


def test_pictures_are_refused_by_the_target_and_by_a_drafter_that_reads_text_alone() -> None:
    picture = Picture.of(jpeg())
    for drafter, target, said in (
        ("llama", "llama", "at most 0 pictures, not 1"),
        ("qwen3_vl", "qwen3", "at most 0 pictures, not 1"),
        ("qwen3", "qwen3_vl", "qwen3:.* reads text alone: leave out the pictures"),
    ):
        spec = spec_of(target)
        with pytest.raises(UserError, match=said):
            vlm(drafter).prompt(spec.request(picture, "find it"), spec)


def test_a_model_that_reads_pictures_drafts_for_one_of_text() -> None:
    """They need only share a tokenizer."""
    spec = spec_of("qwen3")
    request = spec.request("find the silver bottle")
    assert PromptSpec.from_bytes(spec.to_bytes()) == spec
    theirs = vlm("qwen3").prompt(request, spec)
    ours = vlm("qwen3_vl").prompt(request, spec)
    assert ours.digest == theirs.digest and ours.input_ids.tolist() == theirs.input_ids.tolist()
    assert vlm("qwen3_vl").open(ours).logits_after(-1).shape == (spec.vocabulary,)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_an_older_configuration_omits_is_what_transformers_fills_in(family: str) -> None:
    own = transformers.CONFIG_MAPPING[family]().get_text_config()
    assert FAMILIES[family].rows == own.vocab_size
