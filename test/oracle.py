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
from unittest import mock

from edge_cloud_spec.presets import load_preset, preset_names
from edge_cloud_spec.wire.codec import encode_client, encode_server
from edge_cloud_spec.wire.messages import ServerMessage
from edge_cloud_spec_lab.bench.schedules import decode_of, random_schedule
from edge_cloud_spec_lab.harness.virtual_decode import Decode
from edge_cloud_spec_lab.harness.virtual_time import Hung

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
        if isinstance(event, ServerMessage):
            self.frames.append(encode_server(event).data)
        return super().on_event(event)

    def on_send(self, message: Any) -> None:
        self.frames.append(encode_client(message).data)
        super().on_send(message)


def _digest(parts: list[bytes]) -> str:
    return hashlib.sha256(b"".join(len(p).to_bytes(4, "big") + p for p in parts)).hexdigest()[:16]


def schedules() -> dict[str, dict[str, str]]:
    """Tokens and frames of each schedule, with names and secrets that are not drawn."""
    presets = [name for name in preset_names() if load_preset(name).verified]
    found: dict[str, dict[str, str]] = {"tokens": {}, "frames": {}}
    for number in range(SCHEDULES):
        names = itertools.count()
        with mock.patch.multiple(
            secrets,
            token_hex=lambda size=16, names=names: f"{next(names):0{2 * size}x}",
            token_bytes=lambda size=16, names=names: next(names).to_bytes(size, "big"),
        ):
            decode = decode_of(random_schedule(presets, SEED, number))
            decode.__class__, decode.frames = RecordedDecode, []  # type: ignore[attr-defined]
            try:
                ended = decode.run().reason
            except Hung as hung:
                ended = str(hung)
        said = json.dumps([decode.emitted, ended]).encode()
        found["tokens"][str(number)] = _digest([said])
        found["frames"][str(number)] = _digest(decode.frames)  # type: ignore[attr-defined]
    return found


def rows_of(suite: str, options: str) -> dict[str, Any]:
    """The rows of a suite of ``edge-cloud-spec bench`` by number, without what this machine
    took."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.json")
        command = f"-m edge_cloud_spec.cli bench {suite} --seed {SEED} --json {file} {options}"
        subprocess.run([sys.executable, *command.split()], stdout=sys.stderr)
        rows = json.loads(file.read_text())
    rows = rows if isinstance(rows, list) else rows["rows"]
    return {
        str(number): {k: v for k, v in row.items() if not any(m in k for m in MEASURED)}
        for number, row in enumerate(rows)
    }


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """One line for each part that is not as it was."""
    lines = []
    for part, new in after.items():
        old = before.get(part, {})
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        if changed:
            first = f"{changed[0]}: {old.get(changed[0])}, now {new.get(changed[0])}"
            lines.append(f"{part}: {len(changed)} of {len(new)} differ, the first is {first}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("record", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--quick", action="store_true", help="the schedules alone")
    args = parser.parse_args()
    record: dict[str, Any] = dict(schedules())
    for suite, options in () if args.quick else BENCHES.items():
        record[suite] = rows_of(suite, options)
    if args.what == "record":
        args.file.parent.mkdir(parents=True, exist_ok=True)
        args.file.write_text(json.dumps(record))
        return 0
    found = differences(json.loads(args.file.read_text()), record)
    print("\n".join(found) or f"as recorded: {', '.join(record)}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
