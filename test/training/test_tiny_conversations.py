"""Conversations for training: the tokens and rows that transformers itself would make of them."""

from __future__ import annotations

import numpy as np
import torch

from edge_cloud_spec.lab.training.tiny.architecture import DRAFTER, SIZE, VISUAL, build_model
from edge_cloud_spec.lab.training.tiny.conversations import Batch, conversation, encode
from edge_cloud_spec.lab.training.tiny.data import QuestionEncoder, pixels_of
from edge_cloud_spec.lab.training.tiny.language import Piece
from edge_cloud_spec.lab.training.tiny.packed import ConversationForward, patches
from edge_cloud_spec.lab.training.tiny.tokenizer import TEMPLATE, build_tokenizer

ANSWERS = (
    "action: search; reason: no blue box, nothing known;",
    "action: turn left large; reason: red chair done, hallway turn left;",
    "action: move forward small; reason: enter second door far 3.0 left 10;",
)
ASKED = "first go to the red chair, then go back to the blue box"


def test_a_conversation_has_the_ids_of_the_chat_template() -> None:
    tokenizer = build_tokenizer()
    encoder = QuestionEncoder(tokenizer)
    row = conversation([[Piece(a, 1.0)] for a in ANSWERS], "action first", ASKED, encoder)
    messages: list[dict[str, object]] = []
    for number, answer in enumerate(ANSWERS):
        asked = [] if number else [{"type": "text", "text": f"{ASKED}\naction first"}]
        messages.append({"role": "user", "content": [{"type": "image"}, *asked]})
        messages.append({"role": "assistant", "content": answer})
    text = tokenizer.apply_chat_template(messages, chat_template=TEMPLATE, tokenize=False)
    text = text.replace("<|image_pad|>", "<|image_pad|>" * VISUAL)
    assert row.ids == tokenizer(text, add_special_tokens=False)["input_ids"]
    weighed = [row.ids[i] for i, weight in enumerate(row.weights) if weight == 1.0]
    assert tokenizer.decode(weighed) == "".join(ANSWERS)


def test_its_logits_are_those_of_transformers() -> None:
    model = build_model(DRAFTER, 3).eval()
    encoder = QuestionEncoder(build_tokenizer())
    row = conversation([[Piece(a, 1.0)] for a in ANSWERS], "action first", ASKED, encoder)
    images = np.random.default_rng(0).integers(0, 256, (3, SIZE, SIZE, 3), np.uint8)
    shorter = conversation([[Piece(ANSWERS[0], 1.0)]], "action first", ASKED, encoder)
    encoded = encode(model, list(images))
    batch = Batch.of([shorter, row], [encoded[:1], encoded], encoder.pad)
    last = torch.arange(len(row.ids)) + batch.ids.shape[1]
    with torch.no_grad():
        parts = batch.rows, batch.ids, batch.visual, batch.positions
        ours = ConversationForward(model).converse(*parts, last)
        pixels = patches(pixels_of(images)).flatten(0, 1).view(-1, 3, 1, 64)
        theirs = model(
            input_ids=torch.tensor([row.ids]),
            pixel_values=pixels.expand(-1, -1, 2, -1).flatten(1),
            image_grid_thw=torch.tensor([[1, 16, 16]] * 3),
            mm_token_type_ids=(torch.tensor([row.visual]) >= 0).int(),
        ).logits[0]
    assert torch.allclose(ours, theirs, atol=0.02), "encoded pictures are kept in half precision"
    assert not torch.allclose(ours, theirs.roll(1, 0), atol=0.02)
