"""Shifts that are done, in a file, so that a run that was broken off goes on where it was."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import edge_cloud_spec

from ....errors import UserError
from ....models import EMBEDDED
from ....share import share
from .room_result import RoomResult
from .shift import Shift
from .variant import Variant

Done = dict[Variant, list[RoomResult]]


class DoneShifts:
    """A line of JSON for each variant of a shift; other code or costs do not find it."""

    def __init__(self, path: Path | None) -> None:
        """path: None keeps nothing. Raises UserError."""
        self._path = path
        self._known: dict[str, Any] = {}
        if path is None:
            return
        try:
            path.touch()
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1 or len(content)
            entries = [json.loads(line) for line in content[:whole].splitlines()]
            self._known = {each["key"]: each["rooms"] for each in entries}
        except OSError as error:
            raise UserError(f"--resume {path} cannot be used: {error.strerror}") from None
        except (ValueError, LookupError, TypeError):
            raise UserError(f"--resume {path} is not our own: name another file") from None
        if whole < len(content):  # the last run ended while it wrote a line
            with path.open("r+b") as file:
                file.truncate(whole)

    def missing(self, shift: Shift) -> tuple[Variant, ...]:
        """The variants of a shift that are not done."""
        return tuple(v for v in shift.variants if _key(shift, v) not in self._known)

    def results(self, shift: Shift, variant: Variant) -> list[RoomResult]:
        """Of a shift that is done."""
        return [_result(fields) for fields in self._known[_key(shift, variant)]]

    def add(self, shift: Shift, done: Done) -> None:
        """These variants of a shift are done."""
        for variant, rooms in done.items():
            key, plain = _key(shift, variant), [asdict(room) for room in rooms]
            self._known[key] = plain
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, "rooms": plain}) + "\n")


def _key(shift: Shift, variant: Variant) -> str:
    content = asdict(variant), asdict(shift.regime), shift.rooms, shift.renderer, _code()
    return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()


@cache
def _code() -> str:
    """Names the package's code, configuration and embedded models."""
    whole = hashlib.blake2b(digest_size=16)
    package = Path(edge_cloud_spec.__file__).parent
    weights = (path for path in EMBEDDED.rglob("*") if path.is_file())
    for paths in (package.rglob("*.py"), (share() / "config").rglob("*.yaml"), weights):
        for path in sorted(paths):
            whole.update(path.read_bytes())
    return whole.hexdigest()


def _result(fields: dict[str, Any]) -> RoomResult:
    answers = tuple(tuple(answer) for answer in fields["answers"])
    return RoomResult(**{**fields, "actions": tuple(fields["actions"]), "answers": answers})
