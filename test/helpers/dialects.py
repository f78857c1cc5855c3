"""Dialects that are not shipped."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import yaml

from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.nav.answer import Dialect

THINKING = r"""
summary: sentences with numbers, after a thought
form: "I {action}!"
thinks_until: </think>
actions:
  walk {amount} m/s for 1 s: move forward {amount} m
  turn (left) by {amount}\: turn left {amount} degrees
  halt.: stop
examples:
  "it is far</think>\n\nI walk 0.5 m/s for 1 s!": move forward 0.5 m
  "I halt.!": null
"""


def made(folder: Path | None, fields: str | dict[str, Any], name: str = "own") -> Dialect:
    """The dialect of these fields, or of this YAML; raises UserError."""
    if folder is None:
        with tempfile.TemporaryDirectory() as own:
            return made(Path(own), fields, name)
    path = folder / f"{name}.yaml"
    text = fields if isinstance(fields, str) else yaml.safe_dump(fields, allow_unicode=True)
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return load_dialect(str(path))
