"""Reads presets: ``config/presets/NAME.yaml``, or another file."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

from .decoding.preset import Preset, Speculation
from .decoding.shape import BestFirst
from .errors import UserError
from .share import config_names, read_config

preset_names = partial(config_names, "preset")


def load_preset(name: str) -> Preset:
    """Read a preset by its name, or from the path of a YAML file; raises UserError."""
    known = [field.name for field in fields(Preset)]
    path, chosen = read_config("preset", name, known, ("drafter", "summary"))
    try:
        return Preset(name=path.stem, **_parts(chosen))
    except TypeError as error:
        raise UserError(f"preset {path}: {error}") from None


def _parts(chosen: dict[str, Any]) -> dict[str, Any]:
    """Convert YAML's lists and mappings to the preset's types; raises TypeError."""
    parts = dict(chosen)
    if "expansion" in parts:
        if not isinstance(parts["expansion"], list):
            raise TypeError("expansion must be a list, such as [2, 2, 2]")
        parts["expansion"] = tuple(parts["expansion"])
    for name, kind in (("best_first", BestFirst), ("speculation", Speculation)):
        given = parts.pop(name, None)
        if given is None:
            continue  # an empty field is one that is left out
        known = [field.name for field in fields(kind)]
        if not isinstance(given, dict) or set(given) - set(known):
            raise TypeError(f"{name} must be a mapping of {', '.join(known)}")
        try:
            parts[name] = kind(**given)
        except TypeError:
            raise TypeError(f"{name} needs {', '.join(known)}") from None
    return parts
