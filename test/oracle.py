"""What a refactoring must not change, recorded before it and compared after.

    PYTHONPATH=test python -m oracle record reports/oracle.json
    PYTHONPATH=test python -m oracle check reports/oracle.json [--quick]

Tokens and wire frames of random schedules (see ``bench schedules``), and rows of benches in virtual
time, digit for digit. A change that moves the order of events on purpose says beforehand which part
it changes; the emitted tokens are never among them. Times of this machine are left out.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from edge_cloud_spec.edge.events import Received
from edge_cloud_spec.lab.bench.schedules import decode_of, random_schedule
from edge_cloud_spec.lab.harness.virtual_decode import Decode
from edge_cloud_spec.lab.harness.virtual_time import Hung
from edge_cloud_spec.presets import load_preset, preset_names
from edge_cloud_spec.wire.codec import encode_client, encode_server

SEED = 5
SCHEDULES = 600
COST_PROFILES = "fsd-go2,pico-llama-humaneval,fsd-vicuna13b-rtx"
PRESETS = "cloud_ar,dsd,fsd,picospec,specedge,auto,cloud_lookup,dssd"
BENCHES = {
    "pipelines": f"--cost-profile {COST_PROFILES} --presets {PRESETS} --tokens 300 --answers 2",
    "payload": "--rounds 3",
    "fleet": "--robots 1,4 --seeds 1 --seconds 4",
    "mission": "--scenes 10 --renderer rays --presets cloud_ar,fsd,auto "
    "--explain full --drive stop_and_go",
}
MEASURED = ("judge", "seconds")  # in names of columns: of this machine


class RecordedDecode(Decode):
    """A decode whose frames are kept, in the order in which they were sent and heard."""

    frames: list[bytes]

    def on_event(self, event: Any) -> Any:
        if isinstance(event, Received):
            self.frames.append(encode_server(event.message))
        return super().on_event(event)

    def on_send(self, message: Any) -> None:
        self.frames.append(encode_client(message))
        super().on_send(message)


def _digest(parts: list[bytes]) -> str:
    return hashlib.sha256(b"".join(len(p).to_bytes(4, "big") + p for p in parts)).hexdigest()[:16]


def schedules() -> dict[str, dict[str, str]]:
    """Tokens and frames of each schedule, with names and secrets that are not drawn."""
    presets = [name for name in preset_names() if load_preset(name).verified]
    found: dict[str, dict[str, str]] = {"tokens": {}, "frames": {}}
    drawn = secrets.token_hex, secrets.token_bytes
    try:
        for number in range(SCHEDULES):
            names = itertools.count()
            secrets.token_hex = lambda size=16, names=names: f"{next(names):0{2 * size}x}"
            secrets.token_bytes = lambda size=16, names=names: next(names).to_bytes(size, "big")
            decode = decode_of(random_schedule(presets, SEED, number))
            decode.__class__, decode.frames = RecordedDecode, []  # type: ignore[attr-defined]
            try:
                ended = decode.run().reason
            except Hung as hung:
                ended = str(hung)
            said = json.dumps([decode.emitted, ended]).encode()
            found["tokens"][str(number)] = _digest([said])
            found["frames"][str(number)] = _digest(decode.frames)  # type: ignore[attr-defined]
    finally:
        secrets.token_hex, secrets.token_bytes = drawn
    return found


def rows_of(suite: str, options: str) -> list[dict[str, Any]]:
    """The rows of a suite of ``edge-cloud-spec bench``, without what this machine took."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.json")
        command = f"-m edge_cloud_spec.cli bench {suite} --seed {SEED} --json {file} {options}"
        done = subprocess.run(
            [sys.executable, *command.split()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if not file.exists():
            raise SystemExit(f"bench {suite}: {done.stdout.decode()[-2000:]}")
        rows = json.loads(file.read_text())
    rows = rows if isinstance(rows, list) else rows["rows"]
    return [{k: v for k, v in row.items() if not any(m in k for m in MEASURED)} for row in rows]


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """One line for each part that is not as it was."""
    lines = []
    for part in after:
        if before.get(part) == after[part]:
            continue
        old, new = before.get(part), after[part]
        if isinstance(new, list) and isinstance(old, list) and len(old) == len(new):
            changed = [n for n, (was, now) in enumerate(zip(old, new, strict=True)) if was != now]
            n = changed[0]
            first = {k: (old[n].get(k), v) for k, v in new[n].items() if old[n].get(k) != v}
        elif isinstance(new, dict) and isinstance(old, dict):
            changed = [k for k in new if old.get(k) != new[k]]
            first = changed[:5]
        else:
            changed, first = [], "another number of rows"
        lines.append(f"{part}: {len(changed)} of {len(new)} differ, the first: {first}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("record", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--quick", action="store_true", help="the schedules alone")
    parser.add_argument("--benches", default=",".join(BENCHES), help="with commas (%(default)s)")
    args = parser.parse_args()
    record: dict[str, Any] = dict(schedules())
    for suite in () if args.quick else args.benches.split(","):
        print(f"bench {suite}", file=sys.stderr)
        record[suite] = rows_of(suite, BENCHES[suite])
    if args.what == "record":
        args.file.parent.mkdir(parents=True, exist_ok=True)
        args.file.write_text(json.dumps(record))
        return 0
    found = differences(json.loads(args.file.read_text()), record)
    print("\n".join(found) or f"as recorded: {', '.join(record)}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
