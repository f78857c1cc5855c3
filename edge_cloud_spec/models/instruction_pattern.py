"""The instructions that a checkpoint was trained on, where it says so."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ..errors import UserError
from ..instruction import KnownInstructions

FILE = "edge_cloud_spec.json"


def known_instructions(directory: str | Path) -> KnownInstructions | None:
    """The instructions that a checkpoint understands; None where it does not say.

    Raises UserError when the file is damaged.
    """
    path = Path(directory) / FILE
    if not path.is_file():
        return None
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        pattern = re.compile(said["instructions"])
        return KnownInstructions(pattern, tuple(said["phrases"]), tuple(said["names"]))
    except (OSError, ValueError, KeyError, TypeError, re.error) as error:
        raise UserError(f"{path} cannot be read ({error}): copy it anew from the model") from None


def instruction_pattern(directory: str | Path) -> re.Pattern[str] | None:
    """Their pattern alone."""
    known = known_instructions(directory)
    return None if known is None else known.pattern
