"""Random events to the navigator; an independent checker holds it to its promises (``checker``).

PYTHONPATH=test .venv/bin/python -m fuzz.navigator --events 1000000 --seed 0
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from itertools import islice
from random import Random

from fuzz.navigator.checker import Broken, Checker
from fuzz.navigator.scene import Scene, settings

from edge_cloud_spec.nav.navigator import Navigator
from edge_cloud_spec.nav.settings import Settings
from edge_cloud_spec.nav.status import AWAITS_INSTRUCTION

EPISODE = 2000  # events, then another navigator


def run(events: int, seed: int, progress: bool = False) -> Counter[str]:
    """So many events to navigators; what came of them. Raises Broken."""
    counts: Counter[str] = Counter()
    for number in range(-(-events // EPISODE)):
        try:
            counts += episode(f"{seed} {number}", min(EPISODE, events - number * EPISODE))
        except Broken as broken:
            raise Broken(f"seed {seed}, episode {number}: {broken}") from None
        if progress and number % 100 == 99:
            print(f"{(number + 1) * EPISODE} events", file=sys.stderr, flush=True)
    return counts


def episode(seed: str, events: int) -> Counter[str]:
    """One navigator, and what it is sent."""
    random = Random(seed)
    scene = Scene(random, now=random.uniform(10.0, 1000.0))
    first = settings(random) if random.random() < 0.5 else Settings(allow_unverified=True)
    navigator = Navigator(first, random.getrandbits(32))
    checker = Checker(first, scene.decisions)
    scene.heard(navigator.stops, False, False, checker.velocity)
    for event in islice(scene.events(), events):
        if isinstance(event, Settings):
            checker.set(event, navigator.configure(event), scene.now)
        else:
            checker.saw(event, navigator.on(event, scene.now), scene.now)
        waiting = navigator.status.detail == AWAITS_INSTRUCTION
        scene.heard(navigator.stops, waiting, navigator.moving, checker.velocity)
    return checker.counts


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begin = time.perf_counter()
    try:
        counts = run(arguments.events, arguments.seed, progress=True)
    except Broken as broken:
        print(f"FAILED: {broken}", file=sys.stderr)
        return 1
    took = time.perf_counter() - begin
    print(f"{arguments.events} events in {took:.0f} s, no promise broken: {dict(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
