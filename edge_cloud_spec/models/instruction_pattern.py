"""The pattern of instructions that a checkpoint was trained on, where it has one."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ..errors import UserError

FILE = "edge_cloud_spec.json"


def instruction_pattern(directory: str | Path) -> re.Pattern[str] | None:
    """The pattern of instructions that a checkpoint understands; None where it has none.

    Raises UserError when the file is damaged.
    """
    path = Path(directory) / FILE
    if not path.is_file():
        return None
    try:
        return re.compile(json.loads(path.read_text(encoding="utf-8"))["instructions"])
    except (OSError, ValueError, KeyError, TypeError, re.error) as error:
        raise UserError(f"{path} cannot be read ({error}): copy it anew from the model") from None
