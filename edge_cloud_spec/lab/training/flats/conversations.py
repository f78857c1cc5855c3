"""Fine-tuning on conversations: the text layers learn, over pictures that are encoded once.

The vision part stays as it ships: it tells doorways apart already, and what it sees of things must
not get worse. So a conversation costs its text layers alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Qwen3VLForConditionalGeneration

from ...sim.camera import decode_jpeg
from ..loop import descend, falling
from ..tiny.architecture import GRID, MERGE, VISUAL, ModelShape, build_model, load_weights
from ..tiny.data import QuestionEncoder, Views, draw_instruction, draw_names, pixels_of
from ..tiny.language import ORDERS, Piece, pieces
from ..tiny.packed import ConversationForward
from ..tiny.tokenizer import build_tokenizer
from .episodes import Episode

TURNS = 9  # pictures of a conversation at most: eight of the past, and the present one
LENGTH = 800  # tokens of one at most
UNKNOWN = 0.3  # what the first answer is worth where the words before it are forgotten
FROM_START = 0.3  # of the conversations begin with their episode
ACTION_FIRST = 0.5
ENCODED = 16  # pictures at a time
WARMUP = 20  # steps


@dataclass
class ConversationRow:
    """A conversation as it grows: ids, what is to be learned in the place of each and what that
    weighs, its visual token or -1, and its positions; ``place`` is the next text's."""

    ids: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    visual: list[int] = field(default_factory=list)
    positions: list[tuple[int, int, int]] = field(default_factory=list)
    place: int = 0

    def text(
        self, ids: Sequence[int], weight: float = 0.0, right: Sequence[int] | None = None
    ) -> None:
        """Append text; ``right`` is learned in its place."""
        self.ids += ids
        self.targets += ids if right is None else right
        self.weights += [weight] * len(ids)
        self.visual += [-1] * len(ids)
        self.positions += [(self.place + i,) * 3 for i in range(len(ids))]
        self.place += len(ids)

    def image(self, number: int, prefix: Sequence[int]) -> None:
        """Append the picture of this number, as ``QuestionEncoder.prefix`` writes it."""
        self.text(prefix[:1])
        side = GRID // MERGE
        self.ids += prefix[1:-1]
        self.targets += prefix[1:-1]
        self.weights += [0.0] * VISUAL
        self.visual += range(number * VISUAL, (number + 1) * VISUAL)
        self.positions += [
            (self.place, self.place + i // side, self.place + i % side) for i in range(VISUAL)
        ]
        self.place += side
        self.text(prefix[-1:])


def conversation(
    answers: Sequence[Sequence[Piece]],
    order: str,
    instruction: str,
    encoder: QuestionEncoder,
    first: float = 1.0,
) -> ConversationRow:
    """A picture and its answer in turn, as the chat template writes them; as many as LENGTH holds.

    ``first``: what the first answer is worth.
    """
    row = ConversationRow()
    for number, answer in enumerate(answers):
        before = len(row.ids)
        row.image(number, encoder.prefix)
        if not number:
            row.text([*encoder.ids(f"{instruction}\n"), *encoder.ids(order)])
        row.text([encoder.start])
        for piece in answer:
            weight, right = piece.weight * (1.0 if number else first), piece.right or piece.text
            row.text(encoder.ids(piece.text), weight, encoder.ids(right))
        row.text([encoder.end], 0.1)
        if len(row.ids) > LENGTH:
            for part in (row.ids, row.targets, row.weights, row.visual, row.positions):
                del part[before:]
            break
    return row


@dataclass(frozen=True)
class ConversationBatch:
    """Rows [B, L] and the encoded pictures of each; see ``ConversationForward.converse``."""

    rows: Tensor
    ids: Tensor
    visual: Tensor
    positions: Tensor
    last: Tensor
    targets: Tensor
    weights: Tensor

    @classmethod
    def of(
        cls, rows: Sequence[ConversationRow], pictures: Sequence[np.ndarray], pad: int
    ) -> ConversationBatch:
        """Of rows and their pictures, each [T, 64, K, H]."""
        length = max(len(row.ids) for row in rows)
        turns = max(map(len, pictures))
        ids = np.full((len(rows), length), pad)
        targets = ids.copy()
        weights = np.zeros(ids.shape, np.float32)
        visual = np.full(ids.shape, -1)
        positions = np.zeros((3, *ids.shape), np.int64)
        encoded = np.zeros((len(rows), turns, *pictures[0].shape[1:]), np.float32)
        for i, (row, shown) in enumerate(zip(rows, pictures, strict=True)):
            size = len(row.ids)
            ids[i, :size], targets[i, :size] = row.ids, row.targets
            weights[i, :size], visual[i, :size] = row.weights, row.visual
            positions[:, i, :size] = np.array(row.positions).T
            encoded[i, : len(shown)] = shown
        weighs = np.flatnonzero(weights)
        return cls(
            torch.from_numpy(encoded).flatten(1, 2),
            torch.from_numpy(ids),
            torch.from_numpy(visual),
            torch.from_numpy(positions),
            torch.from_numpy(weighs - 1),
            torch.from_numpy(targets.ravel()[weighs]),
            torch.from_numpy(weights.ravel()[weighs]),
        )


class Taught:
    """What a model learns from: conversations of episodes, and questions about views.

    ``seen`` and ``viewed`` are the encoded pictures, float16 [N, 64, K, H].
    """

    def __init__(
        self, episodes: Sequence[Episode], seen: np.ndarray, views: Views, viewed: np.ndarray
    ) -> None:
        self.episodes, self.seen, self.views, self.viewed = episodes, seen, views, viewed
        self._begins = np.cumsum([0, *map(len, episodes)])
        self._shares = np.diff(self._begins) / self._begins[-1]
        self.encoder = QuestionEncoder(build_tokenizer())

    def conversations(self, count: int, rng: np.random.Generator) -> ConversationBatch:
        """So many, of up to TURNS turns."""
        rows, pictures = [], []
        for number in rng.choice(len(self.episodes), count, p=self._shares):
            episode = self.episodes[number]
            start = int(rng.integers(max(1, len(episode) - TURNS + 1)))
            start = 0 if rng.random() < FROM_START else start
            order = ORDERS[0] if rng.random() < ACTION_FIRST else ORDERS[1]
            instruction = episode.instruction
            if rng.random() < 0.2:
                instruction = instruction[0].upper() + instruction[1:] + "."
            answers = [turn.pieces(order) for turn in episode.turns[start : start + TURNS]]
            first = UNKNOWN if start else 1.0
            rows.append(conversation(answers, order, instruction, self.encoder, first))
            begin = self._begins[number] + start
            pictures.append(self.seen[begin : begin + len(answers)])
        return ConversationBatch.of(rows, pictures, self.encoder.pad)

    def questions(self, count: int, rng: np.random.Generator) -> ConversationBatch:
        """So many single frames, as the pair was trained on."""
        rows, pictures = [], []
        for index in rng.choice(len(self.views), count):
            things, order = self.views.things(index), ORDERS[rng.integers(2)]
            name = draw_names(things, 2, rng)[rng.integers(2)]
            answer = pieces(things, name, order)
            rows.append(conversation([answer], order, draw_instruction(name, rng), self.encoder))
            pictures.append(self.viewed[index : index + 1])
        return ConversationBatch.of(rows, pictures, self.encoder.pad)


def encode(model: Qwen3VLForConditionalGeneration, images: Sequence[np.ndarray]) -> np.ndarray:
    """Images uint8 [128, 128, 3] as visual tokens and deepstack features: float16 [N, 64, K, H]."""
    forward, found = ConversationForward(model), []
    with torch.inference_mode():
        for start in range(0, len(images), ENCODED):
            pixels = pixels_of(np.stack(images[start : start + ENCODED]))
            merged, features = forward.encode_images(pixels)
            found.append(torch.stack((merged, *features), 2).half().numpy())
    return np.concatenate(found)


def encoded_episodes(
    model: Qwen3VLForConditionalGeneration, file: Path, episodes: Sequence[Episode], name: str
) -> np.ndarray:
    """The encoded pictures of a file's episodes, kept beside it under the model's ``name``."""
    kept = file.with_suffix(f".{name}.npy")
    if not kept.exists():
        part = kept.with_suffix(".part.npy")
        np.save(part, encode(model, [decode_jpeg(j) for e in episodes for j in e.jpegs]))
        part.replace(kept)
    return np.asarray(np.load(kept))


@dataclass(frozen=True)
class TuningPlan:
    """How long and how fast: minutes, conversations and questions a step, peak learning rate."""

    minutes: float
    conversations: int
    questions: int
    rate: float
    seed: int = 1


class Tuner:
    """A model of the pair in fine-tuning; ``folder`` keeps its state, so that it can go on."""

    def __init__(self, shape: ModelShape, base: Path, folder: Path, plan: TuningPlan) -> None:
        self.plan, self.state = plan, folder / "tuning.pt"
        self.model = build_model(shape, plan.seed)
        load_weights(self.model, base)
        self.model.requires_grad_(False)
        text = self.model.model.language_model.requires_grad_(True)
        # not Muon: its products are in bfloat16, which processors without AVX-512 do slowly
        self.optimizer = torch.optim.AdamW(
            text.parameters(), lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.01
        )
        self.forward = ConversationForward(self.model)
        self.steps, self.spent = 0, 0.0
        if self.state.exists():
            state = torch.load(self.state, weights_only=True)
            self.steps, self.spent = state["steps"], state["spent"]
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])

    def keep(self) -> None:
        """Write the state."""
        part = self.state.with_suffix(".part")
        state = {"steps": self.steps, "spent": self.spent, "model": self.model.state_dict()}
        torch.save(state | {"optimizer": self.optimizer.state_dict()}, part)
        part.replace(self.state)

    def loss(self, batch: ConversationBatch) -> tuple[Tensor, Tensor]:
        """The loss, and the share of words that are right."""
        parts = batch.rows, batch.ids, batch.visual, batch.positions, batch.last
        logits = self.forward.converse(*parts)
        each = F.cross_entropy(logits, batch.targets, reduction="none")
        right = (logits.argmax(-1) == batch.targets).float()
        total = batch.weights.sum()
        return (each * batch.weights).sum() / total, (right * batch.weights).sum() / total

    def run(self, taught: Taught, keep_every: float = 120.0) -> None:
        """Train ``self.model`` until the plan's minutes are spent, of the processor's time."""
        plan, kept, losses = self.plan, time.monotonic(), []
        while self.spent < 60 * plan.minutes:
            begun = time.process_time()
            rng = np.random.default_rng((plan.seed, self.steps, 0xC0))
            loss, right = self.loss(taught.conversations(plan.conversations, rng))
            asked, sees = self.loss(taught.questions(plan.questions, rng))
            share = self.spent / (60 * plan.minutes)
            rate = plan.rate * min(1.0, (self.steps + 1) / WARMUP) * falling(share, 0.3)
            weight = plan.questions / (TURNS * plan.conversations)
            descend([self.optimizer], loss + min(1.0, 2 * weight) * asked, rate, 1.0)
            losses.append([v.item() for v in (loss, right, asked, sees)])
            self.steps += 1
            self.spent += time.process_time() - begun
            if self.steps % 20 == 0:
                shown = " ".join(f"{v:.3f}" for v in np.mean(losses, axis=0))
                print(f"step {self.steps}, {share:.0%}: loss and right {shown}", flush=True)
                losses.clear()
            if time.monotonic() - kept > keep_every:
                self.keep()
                kept = time.monotonic()
        self.keep()
