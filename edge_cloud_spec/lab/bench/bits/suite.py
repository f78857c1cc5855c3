"""The command line of ``bench bits``."""

from __future__ import annotations

import argparse
import time

import numpy as np

from ....errors import UserError
from ....models import EMBEDDED
from ....models.load import load
from ....models.prompt import Prompt
from ....models.vlm import Vlm
from ....share import rules_text
from ..command import Row
from ..requests import sample_requests
from .company import Company
from .cost import pass_times
from .known_rows import KnownRows

DTYPES = ("float32", "bfloat16")
SIZES = (1, 2, 4, 8, 16)  # sessions of a timed pass


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The suite's options."""
    parser.add_argument("--rows", type=int, default=1000, help="compared, of a kind (%(default)s)")
    parser.add_argument("--sessions", type=int, default=32, help="at most, in a pass (%(default)s)")
    parser.add_argument("--prompts", type=int, default=4, help="with pictures (%(default)s)")
    parser.add_argument("--gamma", type=int, default=4, help="timed drafts' length (%(default)s)")
    parser.add_argument("--trials", type=int, default=30, help="of each timed pass (%(default)s)")
    parser.add_argument("--target", default=str(EMBEDDED / "target"))
    parser.add_argument("--threads", type=int, default=1, help="of torch (default %(default)s)")


def run(args: argparse.Namespace) -> list[Row]:
    """Two rows of bits for each dtype (fixed; and free, which must differ in float32), and a row of
    times for each number of sessions."""
    if min(args.rows, args.sessions, args.prompts, args.gamma) < 1 or args.trials < 0:
        raise UserError("--rows, --sessions, --prompts and --gamma must be at least 1")
    rows: list[Row] = []
    for dtype in DTYPES:
        models = {
            passes: load(args.target, dtype=dtype, threads=args.threads, passes=passes)
            for passes in ("fixed", "free")
        }
        for passes, vlm in models.items():
            count = compared(vlm, args.rows, args.sessions, args.prompts, args.seed)
            rows.append({"what": "bits", "dtype": dtype, "passes": passes, **count})
            if passes == "fixed":
                rows[-1]["passed"] = count["differ"] == 0
            elif dtype == "float32":  # else the comparison shows nothing
                rows[-1]["passed"] = count["differ"] > 0
        if args.trials:
            prompts = _prompts(models["free"], args.prompts, args.seed)
            times = pass_times(models, prompts, SIZES, args.gamma, args.trials)
            rows += [{"what": "time", "dtype": dtype, **each} for each in times]
    return rows


def compared(vlm: Vlm, rows: int, sessions: int, prompts: int, seed: int) -> Row:
    """Random passes of up to so many sessions, until at least ``rows`` rows are compared."""
    rng = np.random.default_rng(seed)
    known = [KnownRows(vlm, prompt, rng) for prompt in _prompts(vlm, prompts, seed)]
    company = Company(vlm, known, sessions, rng)
    reported = time.monotonic()
    while company.count.rows < rows:
        company.turn()
        if time.monotonic() - reported > 30:
            reported = time.monotonic()
            print(f"{company.count.rows} rows, {company.count.differing} differ", flush=True)
    count = company.count
    return {
        "rows": count.rows,
        "differ": count.differing,
        "sessions": count.sessions,
        "width": count.width,
    }


def _prompts(vlm: Vlm, count: int, seed: int) -> list[Prompt]:
    spec = vlm.spec(rules_text(), 128)
    return [vlm.prompt(request, spec) for request in sample_requests(seed, count)]
