"""``bench fleet``: many robots and one server; tokens per second, rounds and fairness.

The server batches waiting sessions (``batched``), runs one session after the other
(``one_at_a_time``), or has both models (``server_only``, SpecEdge's baseline); with ``--engine``
its target may be a vLLM server (``vllm``; embedded). Harness ``scripted``: at published costs, in
virtual time, with the real robots and worker; ``embedded``: real clients, a real server.
"""

from __future__ import annotations

import argparse

from edge_cloud_spec.edge.decode_options import DecodeOptions
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import VLLM
from edge_cloud_spec.options import arguments

from ..command import Options, Row
from ..options import check_counts, counts

SERVERS = ("batched", "one_at_a_time", "server_only")
# The fields that a terminal shows, with their headings; --json has all.
COLUMNS = {
    "server": "server",
    "robots": "robots",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_spread": "+-",
    "round_ms_p50": "round p50",
    "round_ms_p99": "round p99",
    "draft_ms_p50": "draft p50",
    "verify_ms_p50": "verify p50",
    "requests_per_round": "requests",
    "request_ms": "ms/request",
    "token_ms_mean": "ms/token",
    "tokens_per_verify": "tokens/verify",
    "fairness": "fairness",
    "throughput_ratio": "x server-only/2",
    "token_ratio": "ms/token x",
    "throughput_ratio_same": "x server-only",
    "equal": "equal",
}


OPTIONS: Options = {
    "--harness": {
        "choices": ["scripted", "embedded"],
        "default": "scripted",
        "help": "published costs in virtual time, or the embedded target and real clients whose "
        "drafts are recorded (%(default)s)",
    },
    "--robots": {"type": counts, "default": [1, 2, 4, 8], "help": "with commas"},
    "--server": {"default": ",".join(SERVERS), "help": "with commas (%(default)s)"},
    "--engine": {"default": "", "help": f"{VLLM}http://HOST:PORT of the embedded target, too"},
    "--seeds": {"type": int, "default": 3, "help": "runs of each row (%(default)s)"},
    "--seconds": {"type": float, "default": 10.0, "help": "of each run (%(default)s)"},
    "--tokens": {"type": int, "default": 256, "help": "of an answer (%(default)s)"},
    "--think": {"type": float, "default": 0.0, "help": "s between answers, in the mean"},
    "--jitter": {"type": float, "default": 0.0, "metavar": "MS", "help": "of each way"},
    "--cost-profile": {"default": "specedge-32b", "help": "of kind server (%(default)s)"},
    **arguments(DecodeOptions(preset="specedge"), "preset"),
}


def run(args: argparse.Namespace) -> list[Row]:
    """Run the suite; returns a row per server and number of robots."""
    args.server = args.server.split(",")
    if unknown := set(args.server) - set(SERVERS):
        raise UserError(f"--server is one of {', '.join(SERVERS)}, not {', '.join(unknown)}")
    check_counts(args, "seeds", "tokens")
    if args.seconds <= 0 or min(args.think, args.jitter) < 0:
        raise UserError("--seconds is above 0, --think and --jitter are 0 or more")
    if args.engine and args.harness != "embedded":
        raise UserError("--engine is a real server's: take --harness embedded, too")
    if args.harness == "embedded":
        from .embedded import embedded_rows  # torch, which scripted models do without

        return embedded_rows(args)
    from .scripted import scripted_rows

    return scripted_rows(args)
