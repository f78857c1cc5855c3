"""The head of a checkpoint that drafts for it: its rows are those of its definition, whatever the
session did before, and what it says never changes an answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.checkpoints import CLOSE, headed, jpeg, prompt_of, random_head, reference, vlm
from helpers.checkpoints import difference as logits_apart
from torch import Tensor

from edge_cloud_spec.models.draft_head import DraftHead, HeadSession
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import Prompt
from edge_cloud_spec.models.session import Session
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.request import Picture

HEADED = ("qwen3_5", "qwen3_5_text", "qwen2_vl", "qwen3")  # one of each kind of attention


def with_head(family: str) -> tuple[Vlm, DraftHead]:
    model = load(headed(family), check=False)
    head = DraftHead.load(headed(family), model)
    assert head is not None
    return model, head


def session_of(head: DraftHead, model: Vlm, prompt: Prompt) -> tuple[Session, HeadSession]:
    target = model.open(prompt)
    return target, head.beside(target, prompt)


class PlainHead:
    """A head of these weights by its definition, over whole sequences and without a cache."""

    def __init__(self, family: str, seed: int = 0) -> None:
        self.weights = random_head(vlm(family, seed), seed)
        self.model = reference(family)
        self.text = getattr(self.model.model, "language_model", self.model.model)
        self.one = 1.0 if family.startswith("qwen3_5") else 0.0  # what its norms add to a weight

    def norm(self, name: str, rows: Tensor) -> Tensor:
        weight = self.one + self.weights[name + ".weight"]
        return (
            rows
            * (rows.square().mean(-1, keepdim=True) + self.text.config.rms_norm_eps).rsqrt()
            * weight
        )

    def linear(self, name: str, rows: Tensor) -> Tensor:
        bias = self.weights.get(f"layers.0.{name}.bias")
        return F.linear(rows, self.weights[f"layers.0.{name}.weight"], bias)

    def rotated(self, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """rows [n, heads, dim]; cos, sin: [n, dim or a part of it]."""
        part, rest = rows[..., : cos.shape[-1]], rows[..., cos.shape[-1] :]
        half = part.shape[-1] // 2
        turned = torch.cat([-part[..., half:], part[..., :half]], -1)
        return torch.cat([part * cos[:, None] + turned * sin[:, None], rest], -1)

    def rows(self, embeddings: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The head's rows [n, E] of the target's, and of the embeddings of the tokens after."""
        count, config = len(hidden), self.text.config
        read = [
            self.norm("pre_fc_norm_embedding", embeddings),
            self.norm("pre_fc_norm_hidden", hidden),
        ]
        fused = torch.cat(read, -1) @ self.weights["fc.weight"].T
        normed = self.norm("layers.0.input_layernorm", fused)
        size = len(self.weights["layers.0.self_attn.k_proj.weight"]) // config.num_key_value_heads
        query, key, value = (
            self.linear(f"self_attn.{name}_proj", normed).view(count, -1, size) for name in "qkv"
        )
        gate: Tensor | None = None
        if query.shape[1] == 2 * config.num_attention_heads:
            query, gate = query[:, ::2], query[:, 1::2]
        if "layers.0.self_attn.q_norm.weight" in self.weights:
            query = self.norm("layers.0.self_attn.q_norm", query)
            key = self.norm("layers.0.self_attn.k_norm", key)
        query, key = (self.rotated(each, cos, sin) for each in (query, key))
        group = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(group, 1) for each in (key, value))
        scores = torch.einsum("ihd,jhd->hij", query, key) * size**-0.5
        scores += torch.full((count, count), -torch.inf).triu(1)
        attended = torch.einsum("hij,jhd->ihd", scores.softmax(-1), value)
        if gate is not None:
            attended = attended * gate.sigmoid()
        fused = fused + self.linear("self_attn.o_proj", attended.flatten(1))
        normed = self.norm("layers.0.post_attention_layernorm", fused)
        inner = F.silu(self.linear("mlp.gate_proj", normed)) * self.linear("mlp.up_proj", normed)
        return self.norm("norm", fused + self.linear("mlp.down_proj", inner))

    @torch.inference_mode()
    def logits(self, prompt: Prompt, tokens: Sequence[int], drafted: Sequence[int]) -> np.ndarray:
        """[1 + drafted, V]: after a prefix of prompt and tokens, and after each token drafted."""
        ids = torch.tensor([*prompt.input_ids.tolist(), *tokens, *drafted])[None]
        embeddings = self.model.get_input_embeddings()(ids)[0]
        inputs: dict[str, Any] = {}
        positions = torch.arange(ids.shape[1]).expand(3, 1, -1)
        if prompt.images:
            types = (ids == self.model.config.image_token_id).int()
            grids = torch.tensor([image.grid for image in prompt.images])
            pixels = torch.cat([torch.from_numpy(image.pixels()) for image in prompt.images])
            inputs = {"mm_token_type_ids": types, "image_grid_thw": grids}
            positions = self.model.model.get_rope_index(ids, **inputs)[0]
            inputs |= {"pixel_values": pixels, "position_ids": positions}
            pictures = self.model.model.get_image_features(pixels, grids, return_dict=True)
            embeddings[types[0].bool()] = torch.cat(tuple(pictures.pooler_output))
        hidden = self.model.model(input_ids=ids, **inputs).last_hidden_state[0]
        cos, sin = self.text.rotary_emb(embeddings, positions)
        cos, sin = cos[0].reshape(-1, cos.shape[-1]), sin[0].reshape(-1, sin.shape[-1])
        known, found = ids.shape[1] - len(drafted) - 1, []
        for end in range(known, ids.shape[1]):
            rows = self.rows(embeddings[1 : end + 1], hidden[:end], cos[:end], sin[:end])
            found.append(rows[-1])
            hidden = torch.cat([hidden[:end], rows[-1:], hidden[end + 1 :]])
        logits: Tensor = self.model.lm_head(torch.stack(found))
        return logits.numpy()


plain_head = cache(PlainHead)


def difference(rows: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(rows - expected[:, : rows.shape[1]]).max() / expected.std())


def drafted_rows(drafts: HeadSession, drafted: Sequence[int]) -> np.ndarray:
    rows = [drafts.logits_after(-1)]
    for token in drafted:
        rows += [*drafts.grow([token], [len(drafts.nodes) - 1])]
    return np.stack(rows)


@pytest.mark.parametrize("family", HEADED)
def test_what_a_head_says_is_its_definition(family: str) -> None:
    """After the prompt with its picture, after verified tokens, and after its own."""
    model, head = with_head(family)
    prompt = prompt_of(model)
    target, drafts = session_of(head, model, prompt)
    found = drafted_rows(drafts, [5])
    assert difference(found, plain_head(family).logits(prompt, [], [5])) < CLOSE
    target.forward([7, 8, 9])
    target.commit([0, 1])
    target.extend([30])
    drafts.commit([])
    drafts.extend([7, 8, 30])
    found = drafted_rows(drafts, [40, 41, 42])
    assert difference(found, plain_head(family).logits(prompt, [7, 8, 30], [40, 41, 42])) < CLOSE
    other = plain_head(family).logits(prompt, [7, 8, 31], [40, 41, 42])
    assert difference(found, other) > 100 * CLOSE


@pytest.mark.parametrize("family", ["qwen3_5_text", "qwen2_vl"])
@pytest.mark.parametrize("known", [True, False])
def test_drafts_that_need_a_larger_cache_leave_the_targets_rows_as_they_are(
    family: str, known: bool
) -> None:
    """known: the target's logits after the prefix, as its last token is computed; and nodes."""
    model, head = with_head(family)
    prompt = prompt_of(model)
    target, drafts = session_of(head, model, prompt)
    target.forward([7, 8, 9])
    target.commit([0, 1, 2])
    if known:
        target.forward([30, 31])
    else:
        target.extend([30])
    drafts.extend(target.tokens)
    before = target.cache.capacity
    for place in range(before):
        drafts.grow([place % 90], [len(drafts.nodes) - 1])
    assert target.cache.capacity > before
    if known:
        target.commit([0])
    rows = target.forward([40, 41])
    assert logits_apart(rows[1:], family, prompt, [7, 8, 9, 30, 40, 41]) < CLOSE
    drafts.extend([] if not known else [30])
    found = drafted_rows(drafts, [5])
    assert difference(found, plain_head(family).logits(prompt, [7, 8, 9, 30], [5])) < CLOSE


@pytest.mark.parametrize("family", HEADED)
def test_of_a_known_prompt_a_head_computes_one_row_again(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, head = with_head(family)
    prompt, computed = prompt_of(model), []
    rows = DraftHead.rows

    def counted(self: DraftHead, embeddings: Tensor, *rest: Any) -> Tensor:
        computed.append(len(embeddings))
        return rows(self, embeddings, *rest)

    monkeypatch.setattr(DraftHead, "rows", counted)
    for _ in range(2):
        target, drafts = session_of(head, model, prompt)
        found = drafts.logits_after(-1)[None]
        assert difference(found, plain_head(family).logits(prompt, [], [])) < CLOSE
        target.close()
    assert computed == [len(prompt.input_ids) - 1, 1]


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3"])
def test_after_prompts_that_begin_alike_a_head_is_its_definition(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last row that prompts have in common reads a token that they have not."""
    model, head = with_head(family)
    spec = model.spec(8)
    pictures = [(0, 0), (1, 1), (0, 1), (0, 0)] if model.reads_pictures else [()] * 4
    texts = ["find the cup", "find the red cup", "find the ball", "find the cup and the ball"]
    for seeds, text in zip(pictures, texts, strict=True):
        request = spec.request(*(Picture.of(jpeg(seed)) for seed in seeds), text * 6)
        prompt = model.prompt(request, spec)
        target, drafts = session_of(head, model, prompt)
        found = drafted_rows(drafts, [5])
        assert difference(found, plain_head(family).logits(prompt, [], [5])) < CLOSE
        target.close()
    assert model.memory.prefix_hits > 0
