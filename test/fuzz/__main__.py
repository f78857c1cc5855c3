"""So much random input to a verifier, a robot, a navigator, a decoder, the readers of answers, an
endpoint; so many of its clients that vanish, or requests over which its memory is watched; or so
many bursts of signals to nodes.

PYTHONPATH=test .venv/bin/python -m fuzz navigator --count 1000000 --seed 0
"""

from __future__ import annotations

import argparse
import sys
import warnings

from fuzz import Broken, clients, decoder, dialects, endpoint, navigator, robot, signals, verifier

FUZZERS = {
    "verifier": verifier.run,
    "robot": robot.run,
    "navigator": navigator.run,
    "decoder": decoder.run,
    "dialects": dialects.run_all,
    "endpoint": endpoint.run,
    "clients": clients.vanishing,
    "memory": clients.memory,
    "signals": signals.run,
}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("what", choices=FUZZERS)
    parser.add_argument(
        "--count",
        type=int,
        default=100_000,
        help="frames, events, answers, requests or bursts",
    )
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("error", RuntimeWarning)  # NaN that numpy went on with
    try:
        found = FUZZERS[given.what](given.count, given.seed)
    except Broken as broken:
        print(f"FAILED: {broken}", file=sys.stderr)
        return 1
    for name, count in sorted(found.items()):
        print(f"{count:10} {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
