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


def figures(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Each number of a JSON value and its name; a row is named by its texts and its round trip."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from figures(each, f"{name} {key}")
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for number, row in enumerate(value):
            texts = [each for each in row.values() if isinstance(each, str) and each]
            yield from figures(row, " ".join([name, str(number), *texts]))
    elif isinstance(value, list):
        numbers = [each for each in value if isinstance(each, float)]
        yield from figures(sum(numbers) / max(1, len(numbers)), f"{name} (mean)")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name.strip(), float(value)


def moved(kept: Path, made: Path) -> Iterator[str]:
    """A line for each figure of two files that moved by more than MOVED, or is in one alone."""
    if not kept.exists():
        yield "was not kept before"
        return
    before, after = (dict(figures(json.loads(path.read_text()))) for path in (kept, made))
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            yield f"{name}: {old} -> {new}"
        elif abs(new - old) > MOVED * abs(old):
            yield f"{name}: {old:.4g} -> {new:.4g}"


def make(name: str, words: list[str]) -> None:
    """Run the command of a file, which is there once it is whole."""
    MADE.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=MADE) as folder:
        program = [sys.executable, "-m", "edge_cloud_spec.cli", *words[1:]]
        subprocess.run(program, cwd=folder, check=True, stdout=subprocess.DEVNULL)
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
        print(f"{name}: {len(lines)} figures moved by more than {MOVED:.0%}", *lines, sep="\n  ")
        count += len(lines)
        if args.keep:
            shutil.copy(MADE / name, HERE / name)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
