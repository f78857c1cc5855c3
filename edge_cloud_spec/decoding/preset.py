"""Presets: the published systems as choices along the axes of one engine."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from ..errors import UserError
from ..share import share


@dataclass(frozen=True)
class Preset:
    """One choice of parts, read from ``config/presets/NAME.yaml``.

    ``drafter`` is where the draft model runs: edge, cloud or none. ``rejection_payload`` is what a
    draft carries beside its token ids under ``rejection`` (greedy and coupled need nothing).
    ``verified``: every emitted token was settled by the target. ``exact``: the emitted tokens have
    the target's own distribution.
    """

    name: str
    summary: str
    drafter: str
    draft_length: int = 0
    rejection_payload: str = "dense"
    pipeline: str = "stop_and_wait"
    verified: bool = True
    exact: bool = True

    def __post_init__(self) -> None:
        _one_of(self.name, "drafter", self.drafter, ("edge", "cloud", "none"))
        _one_of(self.name, "rejection_payload", self.rejection_payload, ("dense",))
        _one_of(self.name, "pipeline", self.pipeline, ("stop_and_wait",))
        if self.drafter == "none" and self.draft_length:
            raise UserError(f"preset {self.name}: without a drafter draft_length must be 0")
        if self.drafter != "none" and not 1 <= self.draft_length <= 64:
            raise UserError(f"preset {self.name}: draft_length must be 1 to 64")
        if self.exact and not self.verified:
            raise UserError(f"preset {self.name}: what is not verified cannot be exact")

    @property
    def drafts_on_robot(self) -> bool:
        """Whether the robot runs the draft model."""
        return self.drafter == "edge"

    @property
    def uses_cloud(self) -> bool:
        """Whether anything is sent to a cloud."""
        return self.verified

    def payload(self, rule: str) -> str:
        """What a draft carries beside its token ids under this acceptance rule."""
        return self.rejection_payload if rule == "rejection" else "ids"


def _one_of(preset: str, field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(
            f"preset {preset}: {field} must be one of {', '.join(choices)}, not {value}"
        )


def preset_names() -> tuple[str, ...]:
    """The presets that there are."""
    return tuple(sorted(path.stem for path in (share() / "config/presets").glob("*.yaml")))


def load_preset(name: str) -> Preset:
    """Read a preset by name, or by the path of a YAML file; raises UserError."""
    path = Path(name) if name.endswith(".yaml") else share() / f"config/presets/{name}.yaml"
    if not path.is_file():
        raise UserError(f"there is no preset {name!r}; choose one of {', '.join(preset_names())}")
    try:
        chosen = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"preset {path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(chosen, dict):
        raise UserError(f"preset {path}: a mapping of fields is expected")
    unknown = set(chosen) - {field.name for field in fields(Preset)}
    if unknown:
        raise UserError(f"preset {path}: unknown field {', '.join(sorted(map(str, unknown)))}")
    try:
        return Preset(name=path.stem, **chosen)
    except TypeError as error:
        raise UserError(f"preset {path}: {error}") from None
