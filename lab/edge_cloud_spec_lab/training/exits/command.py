"""``edge-cloud-spec train exits``: trains adapters for early exits; the target's weights do not
change."""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import count, cycle, islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.dialects import ours
from edge_cloud_spec.edge.decode_options import DecodeOptions
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.exits import (
    EXIT_CONFIG,
    EXIT_WEIGHTS,
    Adapter,
    Exits,
    shape_of,
    weights_of,
)
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import Prompt, PromptSpec
from edge_cloud_spec.models.session import Session
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.nav.answer import ORDERS
from edge_cloud_spec.options import arguments
from edge_cloud_spec.request import USER, Message, Request
from edge_cloud_spec.share import path_of

from ...rows import Options, add_options
from ..loop import PROGRESS_REPORT_S, descend, falling, run_stage
from ..tiny.evaluation import generate

ANSWERS_TOGETHER = 32  # requests that are answered together
TOP = 64  # tokens of a row's distribution that are kept
SAMPLING_TEMPERATURE = 0.8  # of the sampled answers
PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True, eq=False)
class Rows:
    """Training data of N positions in answers.

    hidden: float32 [N, layers, E] after each exit's layer. ids, shares: int64 and float32 [N, TOP],
    the final layer's most likely tokens with their probabilities.
    """

    hidden: Tensor
    ids: Tensor
    shares: Tensor

    def __len__(self) -> int:
        return len(self.hidden)


def simulated_requests(count: int, seed: int, processes: int) -> Iterator[Request]:
    """Simulated views, each with an instruction."""
    from ...sim.camera import encode_jpeg
    from ..tiny.data import draw_instruction, draw_names, make_views

    rng = np.random.default_rng((seed, 0xE71))
    with tempfile.TemporaryDirectory() as folder:
        views = make_views(Path(folder), seed, count, "mixed", processes)
    for index in range(len(views)):
        names = draw_names(views.things(index), 4, rng)
        instruction = draw_instruction(names[rng.integers(len(names))], rng)
        jpeg = encode_jpeg(views.images[index], 90)
        yield ours().request(instruction, jpeg, ORDERS[rng.integers(len(ORDERS))])


def picture_requests(folder: Path, prompts: Path, seed: int) -> Iterator[Request]:
    """The pictures of a folder in turn, each with a random line of a text file; endless.

    UserError: a file cannot be read, or there is no picture or no line.
    """
    try:
        pictures = sorted(p for p in folder.iterdir() if p.suffix.lower() in PICTURE_SUFFIXES)
    except OSError as error:
        raise UserError(f"the pictures cannot be read: {error}") from None
    if not pictures:
        raise UserError(f"{folder} has no JPEG or PNG picture")
    lines, rng = _lines(prompts), np.random.default_rng((seed, 0xE72))
    return (
        ours().request(
            lines[rng.integers(len(lines))],
            picture.read_bytes(),
            ORDERS[rng.integers(len(ORDERS))],
        )
        for picture in cycle(pictures)
    )


def text_requests(prompts: Path, seed: int) -> Iterator[Request]:
    """Random lines of a text file, as the user's; endless. UserError: see ``picture_requests``."""
    lines, rng = _lines(prompts), np.random.default_rng((seed, 0xE73))
    return (Request((Message(USER, (lines[rng.integers(len(lines))],)),)) for _ in count())


def _lines(prompts: Path) -> list[str]:
    try:
        lines = prompts.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the prompts cannot be read: {error}") from None
    if not (kept := [line.strip() for line in lines if line.strip()]):
        raise UserError(f"{prompts} has no instruction")
    return kept


def collect(
    vlm: Vlm,
    spec: PromptSpec,
    layers: Sequence[int],
    requests: Iterator[Request],
    count: int,
    seed: int,
) -> Rows:
    """Collect the data of ``count`` requests."""
    answered = answers(vlm, spec, requests, count, seed)
    parts = [answer_rows(session, answer, layers) for _, session, answer in answered]
    return Rows(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Rows)))


def answers(
    vlm: Vlm, spec: PromptSpec, requests: Iterator[Request], count: int, seed: int
) -> Iterator[tuple[Prompt, Session, list[int]]]:
    """Answer ``count`` requests, each greedily and by sampling with ``seed``: the prompt, a session
    of it, and the answer."""
    begun = reported = time.monotonic()
    for start in range(0, count, ANSWERS_TOGETHER):
        prompts, sessions, policies = [], [], []
        for index, request in enumerate(
            islice(requests, min(ANSWERS_TOGETHER, count - start)), seed + start
        ):
            prompt = vlm.prompt(request, spec)
            for policy in (GREEDY, SamplingPolicy(SAMPLING_TEMPERATURE, seed=index)):
                prompts.append(prompt)
                sessions.append(vlm.open(prompt))
                policies.append(policy)
        said = generate(vlm, sessions, policies, spec)
        yield from zip(prompts, sessions, said, strict=True)
        done, now = min(start + ANSWERS_TOGETHER, count), time.monotonic()
        if now - reported > PROGRESS_REPORT_S or done == count:
            print(f"answers: {done} of {count} requests, {done / (now - begun):.1f}/s", flush=True)
            reported = now


def answer_rows(session: Session, answer: Sequence[int], layers: Sequence[int]) -> Rows:
    """The data after each token of an answer but the last, from one pass, as over a draft."""
    seen: dict[int, np.ndarray] = {}

    def on_layer(index: int, hidden: Tensor) -> None:
        if index + 1 in layers:
            seen[index + 1] = hidden.float().cpu().numpy().copy()

    session.truncate(0)
    logits = torch.from_numpy(session.forward(answer, on_layer=on_layer)[1:-1])
    top = torch.topk(logits.softmax(-1), min(TOP, logits.shape[-1]))
    hidden = np.stack([seen[layer][:-1] for layer in layers], 1)
    return Rows(torch.from_numpy(hidden), top.indices, top.values)


EXIT_ROWS_PER_STEP = 512  # rows of a step
PEAK_RATE = 3e-3
EXIT_WARMUP_STEPS = 50
WEIGHT_DECAY = 0.01
HELD_OUT_SHARE = 0.1  # of the rows, the last ones
MAX_HELD_OUT = 4096
MIN_SHARE = 1e-6  # of the target's tokens: a rarer one is not on the shortlist


def frequent_tokens(rows: Rows, count: int, vocabulary: int) -> tuple[int, ...]:
    """The target's ``count`` most frequent tokens (0: all), by mean probability."""
    if not count:
        return tuple(range(vocabulary))
    mass = torch.zeros(vocabulary).index_add(0, rows.ids.flatten(), rows.shares.flatten())
    likely = (mass / len(rows)).topk(min(count, vocabulary))
    return tuple(sorted(likely.indices[likely.values > MIN_SHARE].tolist()))


class ExitTrainer:
    """Trains the adapters; owns their weights, optimizer and data order."""

    def __init__(
        self,
        vlm: Vlm,
        layers: Sequence[int],
        rank: int,
        tokens: Sequence[int],
        rows: Rows,
        seed: int,
    ) -> None:
        torch.manual_seed(seed)
        adapters = {layer: Adapter(rows.hidden.shape[-1], rank) for layer in layers}
        self.exits = Exits(vlm, adapters, tokens, torch.float32)
        self._device = vlm.transformer.device
        self._modules = nn.ModuleList(adapters[layer] for layer in layers).requires_grad_()
        self._optimizer = torch.optim.AdamW(
            self._modules.parameters(), PEAK_RATE, (0.9, 0.98), weight_decay=WEIGHT_DECAY
        )
        self._steps = 0
        self._rng = np.random.default_rng((seed, 0xE73))
        place = torch.full((vlm.vocabulary,), -1)
        place[list(tokens)] = torch.arange(len(tokens))
        self._rows, self._places = rows, place[rows.ids]  # [N, TOP] among the tokens, or -1
        held_out = min(MAX_HELD_OUT, math.ceil(HELD_OUT_SHARE * len(rows)))
        self._learned = len(rows) - held_out

    def run(self, seconds: float) -> None:
        """Train for ``seconds``."""
        run_stage("training", lambda spent, _: spent / seconds, self._step, self.report)

    def measure(self) -> dict[int, tuple[float, float]]:
        """Each exit's loss on held-out data and agreement with the target's argmax, by layer."""
        chosen = np.arange(self._learned, len(self._rows))
        with torch.no_grad():
            found = [self._loss_and_agreement(each, chosen) for each in range(len(self._modules))]
        layers = self.exits.adapters
        return {
            at: (float(loss), float(hit)) for at, (loss, hit) in zip(layers, found, strict=True)
        }

    def report(self) -> str:
        """The figures of ``measure`` as one line."""
        exits = [
            f"{at} layers {hit:.3f} (loss {loss:.3f})" for at, (loss, hit) in self.measure().items()
        ]
        return "agreement after " + ", ".join(exits)

    def _step(self, progress: float) -> None:
        self._steps += 1
        rate = PEAK_RATE * min(1.0, self._steps / EXIT_WARMUP_STEPS) * falling(progress)
        chosen = self._rng.integers(self._learned, size=EXIT_ROWS_PER_STEP)
        losses = [self._loss_and_agreement(each, chosen)[0] for each in range(len(self._modules))]
        descend([self._optimizer], torch.stack(losses).sum(), rate, math.inf)

    def _loss_and_agreement(self, each: int, chosen: np.ndarray) -> tuple[Tensor, Tensor]:
        """KL(final pass || exit) of one exit on these data, and its agreement rate."""
        rows = torch.from_numpy(chosen)
        layer = list(self.exits.adapters)[each]
        hidden = self._rows.hidden[rows, each].to(self._device)
        places = self._places[rows].to(self._device)
        shares = self._rows.shares[rows].to(self._device) * (places >= 0)
        shares = shares / shares.sum(-1, keepdim=True).clamp(min=1e-9)  # sum 1 over those
        log_exit = F.log_softmax(self.exits.logits(layer, hidden), -1)
        log_exit_top = log_exit.gather(-1, places.clamp(min=0))
        divergence = (shares * (shares.clamp(min=1e-9).log() - log_exit_top)).sum(-1)
        return divergence.mean(), (log_exit.argmax(-1) == places[:, 0]).float().mean()


ANSWERS_OPTIONS: Options = {
    "--target": {"default": str(EMBEDDED / "target"), "help": "directory or hub name"},
    "--pictures": {"type": path_of, "help": "folder to learn from (default: simulated)"},
    "--prompts": {"type": path_of, "help": "text file, an instruction a line"},
    "--requests": {"type": int, "default": 4000, "help": "to answer (%(default)s)"},
    **arguments(DecodeOptions(max_tokens=48), "max_tokens"),
    "--minutes": {"type": float, "default": 4.0, "help": "of training (%(default)s)"},
    "--seed": {"type": int, "default": 1, "help": "of requests, answers and weights"},
    "--device": {"default": "cpu", "help": "cpu or cuda (default %(default)s)"},
    "--dtype": {"default": "float32", "help": "float32, bfloat16 or float16"},
    "--threads": {"type": int, "default": 2, "help": "of torch; processes that render"},
}
"""The options of training by a target's answers."""

OPTIONS: Options = {
    **ANSWERS_OPTIONS,
    "--out": {"type": path_of, "default": Path("exits"), "help": "(default %(default)s)"},
    "--layers": {"default": "", "help": "an exit after so many layers, such as 2,3"},
    "--rank": {"type": int, "default": 64, "help": "of the adapters (%(default)s)"},
    "--shortlist": {
        "type": int,
        "default": 1024,
        "help": "tokens an exit may predict, 0: all (%(default)s)",
    },
}

add_train_arguments = partial(add_options, options=OPTIONS)
"""The options of ``edge-cloud-spec train exits``."""


def run_train(args: argparse.Namespace) -> int:
    """Run the command; returns 0 when the exits are written. UserError: an invalid option."""
    if (
        min(args.requests, args.rank, args.threads) < 1
        or not args.minutes > 0
        or args.shortlist < 0
    ):
        raise UserError(
            "training needs --requests, --rank and --threads of 1 or more, --minutes above 0 and "
            "--shortlist of 0 or more"
        )
    vlm = load(args.target, device=args.device, dtype=args.dtype, threads=args.threads)
    layers = _layers(args.layers, vlm)
    spec = vlm.spec(args.max_tokens)
    rows = collect(vlm, spec, layers, asked_requests(args, vlm), args.requests, args.seed)
    tokens = frequent_tokens(rows, args.shortlist, vlm.vocabulary)
    trainer = ExitTrainer(vlm, layers, args.rank, tokens, rows, args.seed)
    trainer.run(60 * args.minutes)
    save_exits(trainer.exits, vlm, args.out, tokens if args.shortlist else ())
    print(f"{args.out}: {trainer.report()}", flush=True)
    return 0


def save_exits(exits: Exits, vlm: Vlm, folder: Path, shortlist: Iterable[int]) -> None:
    """Write the adapters (fp16) and the shortlist (empty: all tokens) into ``folder``, for
    ``Exits.load``."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        f"{layer}.{name}": value.detach().half().cpu().contiguous()
        for layer, adapter in exits.adapters.items()
        for name, value in adapter.state_dict().items()
    }
    save_file(weights, folder / EXIT_WEIGHTS)
    config = {
        **shape_of(vlm.transformer),
        "target": weights_of(vlm),
        "layers": list(exits.adapters),
        "rank": len(next(iter(exits.adapters.values())).up),
        "shortlist": sorted(shortlist),
    }
    (folder / EXIT_CONFIG).write_text(json.dumps(config) + "\n", encoding="utf-8")


def _layers(text: str, vlm: Vlm) -> tuple[int, ...]:
    """The layers before exits; by default a third and a half of all."""
    count = shape_of(vlm.transformer)["num_hidden_layers"]
    try:
        layers = {int(part) for part in text.split(",")} if text else {count // 3, count // 2}
    except ValueError:
        raise UserError(f"--layers {text}: give numbers of layers with commas, like 2,3") from None
    if not all(1 <= layer <= count for layer in layers):
        raise UserError(f"--layers {text}: give some of 1 to {count}, the target's layers")
    return tuple(sorted(layers))


def asked_requests(args: argparse.Namespace, vlm: Vlm) -> Iterator[Request]:
    """The training requests, reproducible by seed."""
    if not vlm.reads_pictures:
        if args.pictures is not None or args.prompts is None:
            raise UserError("the target reads text alone: give --prompts, without --pictures")
        return text_requests(args.prompts, args.seed)
    if (args.pictures is None) != (args.prompts is None):
        raise UserError("--pictures and --prompts go together")
    if args.pictures is not None:
        return picture_requests(args.pictures, args.prompts, args.seed)
    return simulated_requests(args.requests, args.seed, args.threads)
