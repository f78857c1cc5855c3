"""Reading presets: ``config/presets/NAME.yaml``, or another file."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from .decoding.preset import Preset, Speculation
from .decoding.shape import BestFirst
from .errors import UserError, one_line
from .share import share


def preset_names() -> tuple[str, ...]:
    """The names of the packaged presets, sorted."""
    return tuple(sorted(path.stem for path in (share() / "config/presets").glob("*.yaml")))


def load_preset(name: str) -> Preset:
    """Read a preset by its name, or from the path of a YAML file; raises UserError."""
    path = Path(name) if name.endswith(".yaml") else share() / f"config/presets/{name}.yaml"
    if not path.is_file():
        raise UserError(f"there is no preset {name!r}; choose one of {', '.join(preset_names())}")
    try:
        chosen = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"preset {path} cannot be read: {one_line(error)}") from None
    if not isinstance(chosen, dict):
        raise UserError(f"preset {path}: a mapping of fields is expected")
    unknown = set(chosen) - {field.name for field in fields(Preset)}
    if unknown:
        raise UserError(f"preset {path}: unknown field {', '.join(sorted(map(str, unknown)))}")
    try:
        return Preset(name=path.stem, **_parts(chosen))
    except TypeError as error:
        raise UserError(f"preset {path}: {error}") from None


def _parts(chosen: dict[str, Any]) -> dict[str, Any]:
    """YAML's lists and mappings as the preset's own types; raises TypeError."""
    parts = dict(chosen)
    if "drafter" not in parts or "summary" not in parts:
        raise TypeError("it needs the fields drafter and summary")
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
