"""``bench passes``: the time of a pass over many sessions, beside the bound of memory.

Random weights of a published shape, on a GPU or, with the tiny shape, anywhere. The bound is the
weights and the caches that a pass reads, over the device's own bandwidth, measured in the same run.
Beside it transformers' own step of one session, vLLM's where it is installed, a drafter's step,
and what early exits cost. In the end rows of ``passes: fixed`` are compared, alone and in company.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ....errors import UserError
from ..command import Row

if TYPE_CHECKING:
    from .random_target import RandomTarget

NODES = (1, 4, 8, 16)
COPIED = 2**28  # bytes of the copy that the bandwidth is measured with; on a CPU a quarter
EXIT_DEPTHS = (0.25, 0.5)  # shares of the layers, after which the exits look on
SHORTLIST = 4096  # tokens of an exit's head
RANK = 128  # of an exit's adapter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The suite's options."""
    parser.add_argument("--shape", default="tiny", help="such as qwen2.5-vl-7b (%(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--drafter", default="", help="shape whose step is timed (none)")
    parser.add_argument(
        "--compile", default="", help="torch.compile's backend, as inductor or cudagraphs (none)"
    )
    parser.add_argument("--dtype", default="auto", help="auto: bfloat16; on a CPU float32")
    parser.add_argument("--nodes", default=",".join(map(str, NODES)), help="(%(default)s)")
    parser.add_argument("--robots", default="1,4,16,64", help="sessions (%(default)s)")
    parser.add_argument("--prompt", type=int, default=512, help="rows before (%(default)s)")
    parser.add_argument("--trials", type=int, default=20, help="of each (%(default)s)")


def run(args: argparse.Namespace) -> list[Row]:
    """A row for each number of sessions and of nodes; then one of the bits of fixed passes."""
    from ....models.load import choose
    from .bits import compared_bits
    from .random_target import SHAPES, RandomTarget
    from .vllm_step import vllm_ms

    for shape in filter(None, (args.shape, args.drafter)):
        if shape not in SHAPES:
            raise UserError(f"--shape and --drafter are of {', '.join(SHAPES)}, not {shape}")
    if args.compile == "cudagraphs" and not args.device.startswith("cuda"):
        raise UserError("--compile cudagraphs needs --device cuda")
    try:
        nodes, robots = ([int(n) for n in text.split(",")] for text in (args.nodes, args.robots))
    except ValueError:
        raise UserError("--nodes and --robots are whole numbers with commas") from None
    if min(*nodes, *robots, args.prompt, args.trials) < 1:
        raise UserError("--nodes, --robots, --prompt and --trials are at least 1")
    args.device, dtype = choose(args.device, args.dtype)
    peers: Row = {"dtype": dtype, "compile": args.compile or "none"}
    peers["vllm_ms"] = vllm_ms(SHAPES[args.shape], dtype, args.prompt)
    if args.drafter:
        drafter = RandomTarget(SHAPES[args.drafter], args.device, dtype)
        drafter.take_over()
        step = _pass(drafter, [drafter.session(args.prompt)], 1, None)
        peers |= {"drafter": args.drafter, "draft_ms": _median_ms(drafter, args.trials, step)}
        del drafter, step
    target = RandomTarget(SHAPES[args.shape], args.device, dtype)
    peers["transformers_ms"] = theirs = _transformers_ms(target, args)
    transformer = target.take_over()
    if args.compile:
        _raise_compile_limits()
        transformer.compile_layers(args.compile)
    bandwidth = _bandwidth(target)
    print(f"{bandwidth / 1e9:.0f} GB/s, transformers' step {theirs:.2f} ms", file=sys.stderr)
    rows = []
    for count in robots:
        for size in nodes:
            rows.append(_row(target, args, count, size, bandwidth) | peers)
    del target, transformer  # before the weights are made again
    kind = {"shape": args.shape, "device": args.device, "dtype": dtype, "passes": "fixed"}
    try:
        fixed = RandomTarget(SHAPES[args.shape], args.device, dtype)
        fixed.take_over("fixed")
    except UserError as error:  # what was measured stands
        return [*rows, {**kind, "what": "bits", "error": str(error)}]
    bits = compared_bits(fixed, min(32, max(robots)), args.prompt)
    return [*rows, {**kind, **bits, "passed": not bits["differ"]}]


def _raise_compile_limits() -> None:
    """A layer is compiled for each number of rows; torch's bound would leave the rest eager."""
    import torch._dynamo

    config: Any = torch._dynamo.config
    config.recompile_limit = config.accumulated_recompile_limit = 10_000


def _row(
    target: RandomTarget, args: argparse.Namespace, robots: int, nodes: int, bandwidth: float
) -> Row:
    sessions = [target.session(args.prompt) for _ in range(robots)]
    plain = _median_ms(target, args.trials, _pass(target, sessions, nodes, None))
    with_exits = _median_ms(target, args.trials, _pass(target, sessions, nodes, _exits(target)))
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
    from ....models.session import PassRequest, forward_together

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
    """What exits compute: an adapter and a short head after some of the layers."""
    import torch

    from ....models.exits import Adapter, Exits

    layers = [max(1, round(depth * target.shape.layers)) for depth in EXIT_DEPTHS]
    adapters = {layer: Adapter(target.shape.hidden, RANK) for layer in layers}
    vlm: Any = SimpleNamespace(transformer=target.transformer, vocabulary=target.shape.vocabulary)
    exits = Exits(vlm, adapters, range(min(SHORTLIST, target.shape.vocabulary)))

    def on_layer(layer: int, hidden: Any) -> None:
        if layer + 1 in exits.adapters:
            with torch.inference_mode():
                exits.logits(layer + 1, hidden).argmax(-1)

    return on_layer


def _transformers_ms(target: RandomTarget, args: argparse.Namespace) -> float:
    """A step of one session by transformers' own forward and cache."""
    import torch
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

        return _median_ms(target, args.trials, step)


def _bandwidth(target: RandomTarget) -> float:
    """Bytes a second that the device reads and writes in a large copy."""
    import torch

    size = COPIED if target.device.type == "cuda" else COPIED // 4
    source = torch.zeros(size, dtype=torch.uint8, device=target.device)
    into = torch.empty_like(source)
    return 2 * size / (_median_ms(target, 10, lambda: into.copy_(source)) / 1e3)


def _median_ms(target: RandomTarget, trials: int, job: Callable[[], object]) -> float:
    import torch

    def wait() -> None:
        if target.device.type == "cuda":
            torch.cuda.synchronize(target.device)

    times = []
    for trial in range(trials + 3):
        wait()
        started = time.perf_counter()
        job()
        wait()
        if trial >= 3:  # the first ones warm up
            times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)
