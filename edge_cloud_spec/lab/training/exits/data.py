"""What exits learn from: rows of the target's own answers, computed as a draft's rows are.

The target answers each request greedily and sampled; the answer is then scored in one pass, with
the hidden rows after the chosen layers and the final logits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ....decoding.policy import GREEDY, SamplingPolicy
from ....decoding.propose import coupled_token
from ....errors import UserError
from ....models.passes.target_rows import on_host
from ....models.prompt import ORDERS, PromptSpec, Request
from ....models.session import PassRequest, Session
from ....models.vlm import Vlm

GROUP = 32  # requests that are answered together, and whose rows are one file
TOP = 64  # tokens of a row's distribution that are kept
TEMPERATURE = 0.8  # of the sampled answers
PICTURES = (".jpg", ".jpeg", ".png")
REPORT_INTERVAL = 20.0  # seconds


@dataclass(frozen=True, eq=False)
class Rows:
    """N positions of answers.

    hidden: float32 [N, layers, E] after each exit's layer. ids, shares: int64 and float32 [N, TOP],
    the final pass's likeliest tokens with their probabilities.
    """

    hidden: Tensor
    ids: Tensor
    shares: Tensor

    def __len__(self) -> int:
        return len(self.hidden)


def join(parts: Sequence[Rows]) -> Rows:
    """Several sets of rows as one."""
    return Rows(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Rows)))


def simulated_requests(folder: Path, count: int, seed: int, processes: int) -> Iterator[Request]:
    """Simulated views, rendered into ``folder``, and what the pair may be asked about them."""
    from ...sim.camera import encode_jpeg  # the simulator is needed for these only
    from ..tiny.data import draw_instruction, draw_names, make_views

    rng = np.random.default_rng((seed, 0xE71))
    views = make_views(folder, seed, count, "mixed", processes)
    for index in range(len(views)):
        names = draw_names(views.things(index), 4, rng)
        instruction = draw_instruction(names[rng.integers(len(names))], rng)
        jpeg = encode_jpeg(views.images[index], 90)
        yield Request(instruction, jpeg, ORDERS[rng.integers(len(ORDERS))])


def picture_requests(folder: Path, prompts: Path, seed: int) -> Iterator[Request]:
    """The pictures of a folder in turn, each with a random line of a text file; endless.

    UserError: a file cannot be read, or there is no picture or no line.
    """
    try:
        pictures = sorted(p for p in folder.iterdir() if p.suffix.lower() in PICTURES)
        lines = prompts.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the pictures or prompts cannot be read: {error}") from None
    lines = [line.strip() for line in lines if line.strip()]
    if not pictures or not lines:
        raise UserError(f"{folder} has no JPEG or PNG picture, or {prompts} no instruction")
    rng = np.random.default_rng((seed, 0xE72))
    return (
        Request(
            lines[rng.integers(len(lines))],
            picture.read_bytes(),
            ORDERS[rng.integers(len(ORDERS))],
        )
        for picture in cycle(pictures)
    )


class Collector:
    """Rows of one target's answers, a file for every GROUP requests, so that a run can continue."""

    def __init__(
        self, vlm: Vlm, spec: PromptSpec, layers: Sequence[int], seed: int, folder: Path
    ) -> None:
        """layers: the hidden rows after so many layers of the target are kept."""
        self._vlm, self._spec, self._layers = vlm, spec, tuple(layers)
        self._seed, self._folder = seed, folder
        self._source = f"{vlm.identity} {self._layers} {spec.max_tokens}"

    def collect(self, requests: Iterator[Request], count: int) -> Rows:
        """The rows of ``count`` requests; files that are in the folder are read instead.

        UserError: such a file is of another training.
        """
        parts: list[Rows] = []
        begun = reported = time.monotonic()
        for start in range(0, count, GROUP):
            some = list(islice(requests, min(GROUP, count - start)))
            path = self._folder / f"rows_{self._seed}_{start}_{len(some)}.pt"
            parts.append(self._read(path) if path.exists() else self._make(path, some, start))
            done, now = start + len(some), time.monotonic()
            if now - reported > REPORT_INTERVAL or done == count:
                speed = done / (now - begun)
                print(f"answers: {done} of {count} requests, {speed:.1f}/s", flush=True)
                reported = now
        return join(parts)

    def _read(self, path: Path) -> Rows:
        stored = torch.load(path, weights_only=True)
        if stored.pop("of") != self._source:
            raise UserError(
                f"{path} is of another target, --layers or --max-tokens: choose another --out"
            )
        return Rows(**stored)

    def _make(self, path: Path, requests: Sequence[Request], start: int) -> Rows:
        """Answer these requests and score each answer."""
        sessions, policies = [], []
        for index, request in enumerate(requests, self._seed + start):
            prompt = self._vlm.prompt(request, self._spec)
            for policy in (GREEDY, SamplingPolicy(TEMPERATURE, seed=index)):
                sessions.append(self._vlm.open(prompt))
                policies.append(policy)
        answers = generate(self._vlm, sessions, policies, self._spec)
        pairs = zip(sessions, answers, strict=True)
        rows = join([answer_rows(session, answer, self._layers) for session, answer in pairs])
        write_whole(path, {"of": self._source, **vars(rows)})
        return rows


def write_whole(path: Path, content: object) -> None:
    """Save with torch, so that the file is there with all its content or not at all."""
    part = path.with_suffix(".part")
    torch.save(content, part)
    part.replace(path)


def generate(
    vlm: Vlm, sessions: Sequence[Session], policies: Sequence[SamplingPolicy], spec: PromptSpec
) -> list[list[int]]:
    """The target's own answers, at most ``spec.max_tokens`` long, a token of each a pass."""
    answers: list[list[int]] = [[] for _ in sessions]
    rows = [session.forward(())[0] for session in sessions]
    live = list(range(len(sessions)))
    for position in range(spec.max_tokens):
        for index in live:
            answers[index].append(coupled_token(rows[index], policies[index], position))
        live = [index for index in live if answers[index][-1] not in spec.end_ids]
        if not live:
            break
        for index in live:
            sessions[index].extend(answers[index][-1:])
        passes = vlm.forward_together([PassRequest(sessions[index]) for index in live])
        for index, logits in zip(live, passes, strict=True):
            if isinstance(logits, Exception):
                raise logits
            rows[index] = on_host(logits)[0]
    return answers


def answer_rows(session: Session, answer: Sequence[int], layers: Sequence[int]) -> Rows:
    """The rows after each token of an answer but the last, scored in one pass like a draft."""
    seen: dict[int, np.ndarray] = {}

    def on_layer(index: int, hidden: Tensor) -> None:
        if index + 1 in layers:
            seen[index + 1] = hidden.float().cpu().numpy().copy()

    session.truncate(0)
    logits = torch.from_numpy(session.forward(answer, on_layer=on_layer)[1:-1])
    top = torch.topk(logits.softmax(-1), min(TOP, logits.shape[-1]))
    hidden = np.stack([seen[layer][:-1] for layer in layers], 1)
    return Rows(torch.from_numpy(hidden), top.indices, top.values)
