"""``make figures-check``: makes the JSON of this folder anew, and prints what moved.

Each file is made by its line of ``commands.txt`` into ``reports/figures``, unless it is there
already, so that an interrupted check goes on where it was. ``--keep`` copies what was made here.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
MADE = HERE.parents[1] / "reports" / "figures"
MOVED = 0.03  # relative; what moves by more is printed


def commands() -> dict[str, list[str]]:
    """The words of each command, by the file that it makes."""
    lines = (HERE / "commands.txt").read_text(encoding="utf-8").splitlines()
    found = [words for line in lines if (words := shlex.split(line, comments=True))]
    return {words[-1]: words for words in found}


NAMES = (
    "cost_profile",
    "preset",
    "rtt_ms",
    "server",
    "robots",
    "explain",
    "drive",
    "lookup",
    "grammar",
)


def rows(content: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The numbers of each row of a file, by the row's name; a list counts by its mean."""
    found: dict[str, dict[str, float]] = {}
    named = content.get("rows") or [{"preset": name, **row} for name, row in content.items()]
    for row in named:
        name = " ".join(str(row[each]) for each in NAMES if each in row)
        while name in found:
            name += "'"
        values = {key: fmean(one) if isinstance(one, list) else one for key, one in row.items()}
        found[name] = {
            key: one
            for key, one in values.items()
            if isinstance(one, int | float) and key not in NAMES
        }
    return found


def moved(kept: Path, made: Path) -> Iterator[str]:
    """A line for each row of two files of which a figure moved by more than MOVED."""
    if not kept.exists():
        yield "was not kept before"
        return
    before, after = (rows(json.loads(path.read_text(encoding="utf-8"))) for path in (kept, made))
    for name in {**before, **after}:
        if name not in before or name not in after:
            yield f"{name}: {'is new' if name in after else 'is gone'}"
            continue
        olds, news = before[name], after[name]
        changes = [
            f"{key} {olds[key]:.4g} -> {new:.4g}"
            for key, new in news.items()
            if key in olds and abs(new - olds[key]) > MOVED * abs(olds[key])
        ]
        if changes:
            yield f"{name}: {', '.join(changes)}"


def make(name: str, words: list[str]) -> None:
    """Run the command of a file, which is there once it is whole."""
    MADE.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=MADE) as folder:
        program = [sys.executable, "-m", "edge_cloud_spec.cli", *words[1:]]
        # It returns 1, too, where a row is not what a preset promises, which the file then says.
        ended = subprocess.run(program, cwd=folder, stdout=subprocess.DEVNULL, check=False)
        if not (Path(folder) / name).exists():
            sys.exit(f"{shlex.join(words)} ended with status {ended.returncode}, without {name}")
        (Path(folder) / name).replace(MADE / name)


def main(words: Sequence[str] | None = None) -> int:
    """Check the files that are named, else all; returns 1 if a figure moved."""
    known = commands()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", help="those to make (all)")
    parser.add_argument("--keep", action="store_true", help="copy them to docs/figures")
    args = parser.parse_args(words)
    if unknown := [name for name in args.files if name not in known]:
        parser.error(f"commands.txt makes no {', '.join(unknown)}, but {', '.join(known)}")
    count = 0
    for name in args.files or known:
        if not (MADE / name).exists():
            print(f"{name}: {shlex.join(known[name])}", flush=True)
            make(name, known[name])
        lines = list(moved(HERE / name, MADE / name))
        print(f"{name}: {len(lines)} rows moved by more than {MOVED:.0%}", *lines, sep="\n  ")
        count += len(lines)
        if args.keep:
            shutil.copy(MADE / name, HERE / name)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
