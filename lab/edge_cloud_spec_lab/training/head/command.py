"""``edge-cloud-spec train head``: trains a head that drafts for a target, on the rows of the
target's own answers; the target's weights do not change.

The head has the form of Qwen3.5's (``models/draft_head.py``). It is taught to read its own rows, as
it does when it drafts on, by passes that follow one another (EAGLE-3, arXiv 2503.01840).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.draft_head import (
    HEAD_CONFIG,
    HEAD_WEIGHTS,
    flaw_of,
    head_modules,
    keep_hidden,
)
from edge_cloud_spec.models.exits import shape_of, weights_of
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.passes.layer import is_plain
from edge_cloud_spec.models.prompt import Prompt
from edge_cloud_spec.models.session import Session
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.share import path_of

from ...rows import Options, add_options
from ..exits.command import ANSWERS_OPTIONS, TOP, WEIGHT_DECAY, answers, asked_requests
from ..loop import descend, falling, run_stage

TAUGHT_TOKENS = (
    3  # tokens of a chain that are taught, each after the head's own row of the one before
)
ANSWERS_PER_STEP = 8
HEAD_PEAK_RATE, HEAD_WARMUP_STEPS, LONGEST_GRADIENT = 2e-3, 50, 1.0
HELD_OUT_ANSWERS = 0.05  # of the answers, the last ones


@dataclass(frozen=True, eq=False)
class Example:
    """A prompt of P tokens and its answer of A, in the host's memory.

    embeddings, hidden: float16 [n, E] of the tokens after, and of the rows after the target's norm,
    n = P + A - 2. positions: int64 [3, n]. ids, shares [A, TOP]: the target's most likely tokens
    after the last A of these rows and their next token, with their probabilities.
    """

    embeddings: Tensor
    hidden: Tensor
    positions: Tensor
    ids: Tensor
    shares: Tensor


def example(vlm: Vlm, prompt: Prompt, session: Session, answer: list[int]) -> Example:
    """What a head can learn from an answer."""
    session.truncate(0)
    logits = torch.from_numpy(session.forward(answer)[:-1])
    assert session.cache is not None
    count = len(prompt.input_ids) + len(answer) - 2
    hidden = vlm.transformer.norm(session.cache.hidden[:count])
    embeddings, positions = vlm.inputs(prompt)
    embeddings = torch.cat([embeddings, vlm.transformer.embed(answer)])[1 : count + 1]
    after = torch.arange(len(answer)).expand(3, -1) + len(prompt.input_ids) + session.delta
    positions = torch.cat([positions, after], 1)[:, :count]
    top = torch.topk(logits.softmax(-1), min(TOP, logits.shape[-1]))
    kept = embeddings.half().cpu(), hidden.half().cpu()
    return Example(*kept, positions, top.indices, top.values)


class HeadTrainer:
    """Trains a head; owns its weights, optimizer and data order."""

    def __init__(self, vlm: Vlm, examples: list[Example], seed: int) -> None:
        torch.manual_seed(seed)
        transformer, head = vlm.transformer, vlm.transformer.lm_head
        if not is_plain(head):
            raise UserError("the target's LM head is quantized: load it with --quantize none")
        self.modules = head_modules(transformer, str(transformer.device)).float()
        self._transformer = transformer
        self._lm_head = head.weight.data[: vlm.vocabulary].float()
        self._optimizer = torch.optim.AdamW(
            self.modules.parameters(), HEAD_PEAK_RATE, (0.9, 0.98), weight_decay=WEIGHT_DECAY
        )
        self._examples, self._steps = examples, 0
        self._rng = np.random.default_rng((seed, 0xE74))
        self._learned = len(examples) - max(1, int(HELD_OUT_ANSWERS * len(examples)))

    def run(self, seconds: float) -> None:
        """Train for ``seconds``."""
        run_stage("training", lambda spent, _: spent / seconds, self._step, self.report)

    def report(self) -> str:
        """How often each token of a chain is the target's most likely one, in the answers that are
        not learned from."""
        held_out = self._examples[self._learned :][:64]
        with torch.no_grad():
            found = self._losses_and_agreements(held_out)
        return "agreement " + ", ".join(f"{float(agreed):.3f}" for _, agreed in found)

    def _step(self, progress: float) -> None:
        self._steps += 1
        rate = HEAD_PEAK_RATE * min(1.0, self._steps / HEAD_WARMUP_STEPS) * falling(progress)
        chosen = self._rng.integers(self._learned, size=ANSWERS_PER_STEP)
        found = self._losses_and_agreements([self._examples[each] for each in chosen])
        descend(
            [self._optimizer],
            torch.stack([loss for loss, _ in found]).sum(),
            rate,
            LONGEST_GRADIENT,
        )

    def _losses_and_agreements(self, chosen: list[Example]) -> list[tuple[Tensor, Tensor]]:
        """Cross entropy with the target, and agreement with its argmax, of each of the first
        TAUGHT_TOKENS tokens of a chain."""
        pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
        device = self._transformer.device
        embeddings = pad([each.embeddings for each in chosen]).to(device).float()  # [B, n, E]
        hidden = pad([each.hidden for each in chosen]).to(device).float()
        angles = [self._transformer.rotary(each.positions.to(device)) for each in chosen]
        cos = pad([cos[:, 0] for cos, _ in angles]).float()
        sin = pad([_unfolded(sin[:, 0]) for _, sin in angles]).float()
        rows = [
            (index, row, place)
            for index, each in enumerate(chosen)
            for place, row in enumerate(range(len(each.hidden) - len(each.ids), len(each.hidden)))
        ]
        where, at, places = (torch.tensor(each) for each in zip(*rows, strict=True))
        ids = torch.cat([each.ids for each in chosen]).to(device)
        shares = torch.cat([each.shares for each in chosen]).to(device)
        found: list[tuple[Tensor, Tensor]] = []
        for drafted in range(TAUGHT_TOKENS):
            hidden = self._rows(embeddings, hidden, (cos, sin))
            logits = F.linear(hidden[where, at], self._lm_head).log_softmax(-1)
            known = (places >= drafted).to(device)
            loss = -(shares * logits.gather(-1, ids)).sum(-1)
            agreed = (logits.argmax(-1) == ids[:, 0]).float()
            found.append((loss[known].mean(), agreed[known].mean()))
            hidden = F.pad(hidden, (0, 0, 1, 0))[:, :-1]  # a row reads that of the token before
        return found

    def _rows(self, embeddings: Tensor, hidden: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """The head's rows [B, n, E] after its norm."""
        head = self.modules
        read = [head["pre_fc_norm_embedding"](embeddings), head["pre_fc_norm_hidden"](hidden)]
        layer = head.get_submodule("layers.0")
        mixed = layer(head["fc"](torch.cat(read, -1)), position_embeddings=angles)
        rows: Tensor = head["norm"](mixed[0] if isinstance(mixed, tuple) else mixed)
        return rows


def _unfolded(sin: Tensor) -> Tensor:
    """Sines as transformers' layers take them, of those of ``RotaryEmbedding``."""
    half = sin[:, sin.shape[-1] // 2 :]
    return torch.cat([half, half], -1)


OPTIONS: Options = ANSWERS_OPTIONS | {
    "--out": {"type": path_of, "default": Path("head"), "help": "(default %(default)s)"},
    "--requests": ANSWERS_OPTIONS["--requests"] | {"default": 500},
}

add_train_arguments = partial(add_options, options=OPTIONS)
"""The options of ``edge-cloud-spec train head``."""


def run_train(args: argparse.Namespace) -> int:
    """Run the command; returns 0 when the head is written. UserError: an invalid option."""
    if min(args.requests, args.threads) < 1 or not args.minutes > 0:
        raise UserError("training needs --requests and --threads of 1 or more, --minutes above 0")
    vlm = load(args.target, device=args.device, dtype=args.dtype, threads=args.threads)
    keep_hidden(vlm)
    spec = vlm.spec(args.max_tokens)
    answered = answers(vlm, spec, asked_requests(args, vlm), args.requests, args.seed)
    trainer = HeadTrainer(vlm, [example(vlm, *each) for each in answered], args.seed)
    trainer.run(60 * args.minutes)
    save_head(trainer.modules, vlm, args.out)
    print(f"{args.out}: {trainer.report()}", flush=True)
    return 0


def save_head(modules: nn.ModuleDict, vlm: Vlm, folder: Path) -> None:
    """Write a head (fp16) into ``folder``, for ``DraftHead.load``. UserError: its training failed,
    so that a weight is not finite."""
    weights = {name: each.half().cpu() for name, each in modules.state_dict().items()}
    if flaw := flaw_of(weights):
        raise UserError(f"the trained head {flaw}, and is not written: train with other --seed")
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / HEAD_WEIGHTS)
    config = {**shape_of(vlm.transformer), "target": weights_of(vlm)}
    (folder / HEAD_CONFIG).write_text(json.dumps(config) + "\n", encoding="utf-8")
