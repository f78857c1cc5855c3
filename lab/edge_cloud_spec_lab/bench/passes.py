"""``bench passes``: the time of a pass over many sessions, compared with the memory bound.

Random weights of a published shape, on a GPU or, with the tiny shape, anywhere: times do not depend
on the contents of weights and caches, so nothing is loaded or prefilled. The bound is the bytes of
weights and caches that a pass reads, over the device's bandwidth, measured in the same run. It also
times transformers' step of one session, early exits, and a draft head's step.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch

from edge_cloud_spec.models.cache import KeyValueCache
from edge_cloud_spec.models.checkpoint import quiet_libraries
from edge_cloud_spec.models.draft_head import DraftHead, head_modules
from edge_cloud_spec.models.exits import Adapter, Exits
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.load import DTYPES, choose
from edge_cloud_spec.models.pass_request import PassRequest
from edge_cloud_spec.models.passes.transformer import Transformer
from edge_cloud_spec.models.session import Session, forward_together

from .command import Options, Row
from .options import check_counts, counts


@dataclass(frozen=True)
class TextShape:
    """The sizes of a Qwen2.5-VL's text model."""

    hidden: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int


# As the checkpoints' config.json have them; tiny is for machines without a GPU.
TEXT_SHAPES = {
    "tiny": TextShape(64, 128, 3, 4, 2, 512),
    "qwen2-vl-2b": TextShape(1536, 8960, 28, 12, 2, 151_936),
    "qwen2.5-vl-3b": TextShape(2048, 11_008, 36, 16, 2, 151_936),
    "qwen2.5-vl-7b": TextShape(3584, 18_944, 28, 28, 4, 152_064),
}


class RandomTarget:
    """A random model: transformers' own, and after ``take_over`` ours. Raises UserError."""

    def __init__(self, shape: TextShape, device: str, dtype: str) -> None:
        from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

        self.shape, self.device, self.dtype = shape, torch.device(device), DTYPES[dtype]
        half = shape.hidden // shape.heads // 2
        side = 3 * half // 8
        text = {
            "vocab_size": shape.vocabulary,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.mlp,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [half - 2 * side, side, side],
            },
        }
        vision = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32}
        config = Qwen2_5_VLConfig(
            text_config=text, vision_config={**vision, "out_hidden_size": shape.hidden}
        )
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            with quiet_libraries(), self.device:
                self.model: Any = Qwen2_5_VLForConditionalGeneration(config).eval()
        finally:
            torch.set_default_dtype(before)

    def take_over(self) -> None:
        """Build our transformer from its layers; transformers' forward no longer works then."""
        model, self.model = self.model, None
        text = model.model.language_model
        read = [*text.layers.parameters(), *model.lm_head.parameters()]
        self.weight_bytes = sum(each.nbytes for each in read)  # by a pass: all but the embedding's
        self.transformer = Transformer(text, model.lm_head)

    def cache_bytes(self, rows: int) -> int:
        """The bytes of ``rows`` tokens of a session's keys and values."""
        return rows * self.transformer.cache_layout.row_bytes

    def session(self, rows: int, seed: int = 0) -> Session:
        """A session after a prompt of ``rows`` tokens, whose cache holds random numbers."""
        cache = KeyValueCache(self.transformer.cache_layout, rows + 128, KvMemory())
        generator = torch.Generator(self.device).manual_seed(seed)
        cache.rows(0, rows).normal_(generator=generator)
        never: Any = None  # nothing is evicted here
        session = Session(self.transformer, self.shape.vocabulary, rows, never)
        session.adopt(cache, 0, (), np.zeros(self.shape.vocabulary, np.float32))
        return session


T = TypeVar("T")
COPIED = 2**28  # bytes of the copy that the bandwidth is measured with; on a CPU a quarter
EXIT_DEPTHS = (0.25, 0.5)  # shares of the layers, after which the exits look on
SHORTLIST = 4096  # tokens of an exit's head
RANK = 128  # of an exit's adapter


OPTIONS: Options = {
    "--shape": {"choices": TEXT_SHAPES, "default": "tiny", "help": "(%(default)s)"},
    "--device": {"default": "cpu", "help": "cpu or cuda (%(default)s)"},
    "--dtype": {"default": "auto", "help": "auto: bfloat16; on a CPU float32"},
    "--nodes": {"type": counts, "default": "1,4,8,16", "help": "(%(default)s)"},
    "--robots": {"type": counts, "default": "1,4,16,64", "help": "sessions (%(default)s)"},
    "--prompt": {"type": int, "default": 512, "help": "rows before (%(default)s)"},
    "--trials": {"type": int, "default": 20, "help": "of each (%(default)s)"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """Run the suite; returns a row per number of sessions and of nodes."""
    check_counts(args, "prompt", "trials")
    args.device, dtype = choose(args.device, args.dtype)
    target = RandomTarget(TEXT_SHAPES[args.shape], args.device, dtype)
    theirs = _transformers_ms(target, args)
    target.take_over()
    bandwidth = _bandwidth(target)
    print(f"{bandwidth / 1e9:.0f} GB/s, transformers' step {theirs:.2f} ms", file=sys.stderr)
    rows = [
        _row(target, args, count, size, bandwidth) for count in args.robots for size in args.nodes
    ]
    peer = {"dtype": dtype, "transformers_ms": theirs, "head_ms": _head_ms(target, args)}
    return [row | peer for row in rows]


def _row(
    target: RandomTarget, args: argparse.Namespace, robots: int, nodes: int, bandwidth: float
) -> Row:
    sessions = [target.session(args.prompt) for _ in range(robots)]
    plain = _median_ms(args.trials, _pass(target, sessions, nodes, None))
    with_exits = _median_ms(args.trials, _pass(target, sessions, nodes, _exits(target)))
    read = target.weight_bytes + robots * target.cache_bytes(args.prompt + nodes)
    limit = 1e3 * read / bandwidth
    return {
        "shape": args.shape,
        "device": args.device,
        "robots": robots,
        "nodes": nodes,
        "verify_ms": plain,
        "limit_ms": limit,
        "limit_ratio": plain / limit,
        "exits_ratio": with_exits / plain,
        "passes_per_s": 1e3 * robots / plain,
    }


def _pass(
    target: RandomTarget, sessions: list[Any], nodes: int, on_layer: Any
) -> Callable[[], object]:
    tokens = list(range(1, nodes + 1))
    requests = [PassRequest(session, tokens, None, on_layer) for session in sessions]

    def run_pass() -> object:
        results = forward_together(target.transformer, target.shape.vocabulary, requests)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    return run_pass


def _exits(target: RandomTarget) -> Callable[[int, Any], None]:
    """Time the early exits: an adapter and a short head after some layers."""
    layers = [max(1, round(depth * target.shape.layers)) for depth in EXIT_DEPTHS]
    adapters = {layer: Adapter(target.shape.hidden, RANK) for layer in layers}
    vlm: Any = SimpleNamespace(transformer=target.transformer, vocabulary=target.shape.vocabulary)
    exits = Exits(vlm, adapters, range(min(SHORTLIST, target.shape.vocabulary)))

    def on_layer(layer: int, hidden: Any) -> None:
        if layer + 1 in exits.adapters:
            with torch.inference_mode():
                exits.logits(layer + 1, hidden).argmax(-1)

    return on_layer


def _head_ms(target: RandomTarget, args: argparse.Namespace) -> float:
    """The time in which a head of the target drafts a token for one session; its caches keep rows
    for it from now on."""
    vlm: Any = SimpleNamespace(
        transformer=target.transformer,
        vocabulary=target.shape.vocabulary,
        memory=None,
        use_memory=lambda _: None,
    )
    modules = head_modules(target.transformer, str(target.device)).to(target.dtype)
    head = DraftHead(vlm, modules.requires_grad_(False), "random")
    cache = target.session(args.prompt).cache
    assert cache is not None
    hidden = torch.zeros(1, target.shape.hidden, dtype=target.dtype, device=target.device)

    def draft() -> object:
        with torch.inference_mode():
            embedding, at = target.transformer.embed([1]), args.prompt - 1
            return head.logits(head.rows(embedding, hidden, [at], cache, at))

    return _median_ms(args.trials, draft)


def _transformers_ms(target: RandomTarget, args: argparse.Namespace) -> float:
    """The time of one session's step by transformers' forward and cache."""
    from transformers import DynamicCache

    model = target.model
    ids = torch.zeros(1, args.prompt, dtype=torch.long, device=target.device)
    with torch.inference_mode():
        cache = DynamicCache(config=model.config.text_config)
        model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        kept = cache.get_seq_length()

        def step() -> object:
            places = torch.full((3, 1, 1), kept, device=target.device)
            out = model(
                input_ids=ids[:, :1],
                position_ids=places,
                past_key_values=cache,
                use_cache=True,
            ).logits.argmax(-1)
            cache.crop(kept - cache.get_seq_length())
            return out

        return _median_ms(args.trials, step)


def _bandwidth(target: RandomTarget) -> float:
    """The device's bandwidth, bytes per second, measured by a large copy."""
    size = COPIED if target.device.type == "cuda" else COPIED // 4
    source = torch.zeros(size, dtype=torch.uint8, device=target.device)
    into = torch.empty_like(source)
    return 2 * size / (_median_ms(10, lambda: into.copy_(source)) / 1e3)


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of ``work``, and its time including the GPU's, s."""
    _synchronize()
    begun = time.perf_counter()
    result = work()
    _synchronize()
    return result, time.perf_counter() - begun


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _median_ms(trials: int, work: Callable[[], object]) -> float:
    """The median of ``trials`` times, after three warm-up runs."""
    return 1e3 * statistics.median([timed(work)[1] for _ in range(trials + 3)][3:])
