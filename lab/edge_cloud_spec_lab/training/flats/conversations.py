"""Fine-tuning on conversations: the text layers learn, over pictures that are encoded once.

The vision part stays as it ships: it tells doorways apart already, and what it sees of things must
not get worse. So a conversation costs its text layers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from edge_cloud_spec.nav.answer import ORDERS

from ..loop import descend, falling, run_stage
from ..tiny.architecture import MERGE, PATCH_GRID, VISUAL, ModelShape, build_model, load_weights
from ..tiny.data import QuestionEncoder, Views, draw_instruction, draw_names, pixels_of
from ..tiny.language import Piece, pieces
from ..tiny.packed import ConversationForward
from ..tiny.tokenizer import build_tokenizer
from .episodes import Episode

MAX_PICTURES = 9  # pictures of a conversation at most: eight of the past, and the present one
MAX_CONVERSATION_TOKENS = 800  # tokens of one at most
FORGOTTEN_WEIGHT = 0.3  # what the first answer is worth where the words before it are forgotten
FROM_START = 0.3  # of the conversations begin with their episode
ACTION_FIRST_SHARE = 0.5
PICTURES_ENCODED_TOGETHER = 16  # pictures at a time
TUNING_WARMUP_STEPS = 20


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
        side = PATCH_GRID // MERGE
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
    pictured: bool = True,
) -> ConversationRow:
    """A picture and its answer in turn, as the chat template writes them; as many as
    MAX_CONVERSATION_TOKENS holds.

    ``first``: what the first answer is worth. Without ``pictured``, the words alone.
    """
    row = ConversationRow()
    for number, answer in enumerate(answers):
        before = len(row.ids)
        if pictured:
            row.image(number, encoder.prefix)
        if not number:
            row.text([*encoder.ids(f"{instruction}\n"), *encoder.ids(order)])
        row.text([encoder.start])
        for piece in answer:
            weight, right = piece.weight * (1.0 if number else first), piece.right or piece.text
            row.text(encoder.ids(piece.text), weight, encoder.ids(right))
        row.text([encoder.end], 0.1)
        if len(row.ids) > MAX_CONVERSATION_TOKENS:
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
        cls, rows: Sequence[ConversationRow], pictures: Sequence[Tensor], pad: int
    ) -> ConversationBatch:
        """Of rows and their pictures, each [T, 64, K, H], on the pictures' device."""
        length = max(len(row.ids) for row in rows)
        turns, device = max(1, *map(len, pictures)), pictures[0].device
        ids = np.full((len(rows), length), pad)
        targets = ids.copy()
        weights = np.zeros(ids.shape, np.float32)
        visual = np.full(ids.shape, -1)
        positions = np.zeros((3, *ids.shape), np.int64)
        encoded = torch.zeros((len(rows), turns, *pictures[0].shape[1:]), device=device)
        for i, (row, shown) in enumerate(zip(rows, pictures, strict=True)):
            size = len(row.ids)
            ids[i, :size], targets[i, :size] = row.ids, row.targets
            weights[i, :size], visual[i, :size] = row.weights, row.visual
            positions[:, i, :size] = np.array(row.positions).T
            encoded[i, : len(shown)] = shown
        weighs = np.flatnonzero(weights)
        arrays = (
            ids,
            visual,
            positions,
            weighs - 1,
            targets.ravel()[weighs],
            weights.ravel()[weighs],
        )
        tensors = [torch.from_numpy(array).to(device) for array in arrays]
        return cls(encoded.flatten(1, 2), *tensors)


class Taught:
    """What a model learns from: conversations of episodes, and questions about views.

    ``viewed``: the views' encoded pictures, float16 [N, 64, K, H]; ``tokenizer``: of a model that
    keeps its own.
    """

    def __init__(
        self, views: Views, viewed: Tensor, tokenizer: PreTrainedTokenizerFast | None = None
    ) -> None:
        self.views, self.viewed = views, viewed
        self.episodes: list[tuple[Episode, Tensor]] = []
        self.encoder = QuestionEncoder(tokenizer or build_tokenizer())

    def add(self, episodes: Sequence[Episode], seen: Tensor) -> None:
        """Learn from these, too; ``seen``: their encoded pictures, float16 [N, 64, K, H]."""
        parts = torch.split(seen, [len(episode) for episode in episodes])
        self.episodes += zip(episodes, parts, strict=True)
        sizes = np.array([len(episode) for episode, _ in self.episodes])
        self._shares = sizes / sizes.sum()

    def conversations(self, count: int, rng: np.random.Generator) -> ConversationBatch:
        """So many, of up to MAX_PICTURES turns."""
        rows, pictures = [], []
        for number in rng.choice(len(self.episodes), count, p=self._shares):
            episode, seen = self.episodes[number]
            start = int(rng.integers(max(1, len(episode) - MAX_PICTURES + 1)))
            start = 0 if rng.random() < FROM_START else start
            order = episode.order or (ORDERS[0] if rng.random() < ACTION_FIRST_SHARE else ORDERS[1])
            instruction = episode.instruction
            if rng.random() < 0.2:
                instruction = instruction[0].upper() + instruction[1:] + "."
            answers = [turn.pieces(order) for turn in episode.turns[start : start + MAX_PICTURES]]
            first = FORGOTTEN_WEIGHT if start else 1.0
            rows.append(conversation(answers, order, instruction, self.encoder, first))
            pictures.append(seen[start : start + len(answers)])
        return ConversationBatch.of(rows, pictures, self.encoder.pad)

    def questions(self, count: int, rng: np.random.Generator) -> ConversationBatch:
        """So many of ``question``."""
        rows, pictures = zip(*(self.question(rng) for _ in range(count)), strict=True)
        return ConversationBatch.of(rows, pictures, self.encoder.pad)

    def question(self, rng: np.random.Generator) -> tuple[ConversationRow, Tensor]:
        """One about a single frame, as the pair was trained on."""
        index = int(rng.integers(len(self.views)))
        things, order = self.views.things(index), ORDERS[rng.integers(2)]
        name = draw_names(things, 2, rng)[rng.integers(2)]
        answer = pieces(things, name, order)
        row = conversation([answer], order, draw_instruction(name, rng), self.encoder)
        return row, self.viewed[index : index + 1]


@dataclass(frozen=True)
class TuningPlan:
    """How long, where and how fast: minutes, conversations and questions a step, peak learning
    rate; ``dtype`` of the products of matrices; ``turns`` of a conversation, at most."""

    minutes: float
    conversations: int
    questions: int
    rate: float
    seed: int = 1
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    turns: int = MAX_PICTURES


class Tuner:
    """A model of the pair in fine-tuning; ``folder`` keeps its state, so that it can go on."""

    def __init__(self, shape: ModelShape, base: Path, folder: Path, plan: TuningPlan) -> None:
        self.plan, self.state = plan, folder / "tuning.pt"
        self.model = build_model(shape, plan.seed)
        load_weights(self.model, base)
        self.model.requires_grad_(False)
        text = self.model.model.language_model.requires_grad_(True)
        self.forward = ConversationForward(self.model).to(plan.device)
        # not Muon: its products are in bfloat16, which processors without AVX-512 do slowly
        self.optimizer = torch.optim.AdamW(
            text.parameters(), lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.01
        )
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

    def _products(self) -> torch.autocast:
        reduced = self.plan.dtype != torch.float32
        return torch.autocast(torch.device(self.plan.device).type, self.plan.dtype, reduced)

    def encode(self, images: Sequence[np.ndarray]) -> Tensor:
        """Images uint8 [128, 128, 3] as visual tokens and deepstack features: float16
        [N, 64, K, H]."""
        found = []
        with torch.inference_mode(), self._products():
            for start in range(0, len(images), PICTURES_ENCODED_TOGETHER):
                pixels = pixels_of(np.stack(images[start : start + PICTURES_ENCODED_TOGETHER]))
                merged, features = self.forward.encode_images(pixels.to(self.plan.device))
                found.append(torch.stack((merged, *features), 2).half())
        return torch.cat(found)

    def loss(self, batch: ConversationBatch) -> tuple[Tensor, Tensor]:
        """The loss, and the share of words that are right."""
        parts = batch.rows, batch.ids, batch.visual, batch.positions, batch.last
        with self._products():
            logits = self.forward.converse(*parts).float()
        each = F.cross_entropy(logits, batch.targets, reduction="none")
        right = (logits.argmax(-1) == batch.targets).float()
        total = batch.weights.sum()
        return (each * batch.weights).sum() / total, (right * batch.weights).sum() / total

    def run(self, taught: Taught, until: float = 1.0) -> None:
        """Train ``self.model`` until this share of the plan's minutes is spent."""
        plan, before = self.plan, self.spent
        losses: list[Tensor] = []

        def progress(spent: float, _: int) -> float:
            self.spent = before + spent
            return self.spent / (60 * plan.minutes * until)

        def step(share: float) -> None:
            rng = np.random.default_rng((plan.seed, self.steps, 0xC0))
            loss, right = self.loss(taught.conversations(plan.conversations, rng))
            asked, sees = self.loss(taught.questions(plan.questions, rng))
            rate = (
                plan.rate
                * min(1.0, (self.steps + 1) / TUNING_WARMUP_STEPS)
                * falling(share * until, 0.3)
            )
            weight = plan.questions / (plan.turns * plan.conversations)
            descend([self.optimizer], loss + min(1.0, 2 * weight) * asked, rate, 1.0)
            losses.append(torch.stack((loss, right, asked, sees)).detach())
            self.steps += 1

        def report() -> str:
            self.keep()
            shown = " ".join(f"{v:.3f}" for v in torch.stack(losses).mean(0).tolist())
            losses.clear()
            return f"loss and right {shown}"

        run_stage("tuning", progress, step, report)
        self.keep()
