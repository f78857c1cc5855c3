"""What other distributions add to this package, as the lab does: commands, checks of doctor, and
``drives``, which read a recorded drive for ``commission``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from . import __version__
from .errors import library_errors, refuse


def load_plugins(group: str) -> Iterator[Any]:
    """The objects that entry points of the group ``edge_cloud_spec.GROUP`` name. Raises UserError
    for one that is not of this version, or cannot be imported."""
    for point in entry_points(group=f"edge_cloud_spec.{group}"):
        name, version = (point.dist.name, point.dist.version) if point.dist else ("?", "?")
        other = f"{name} is of version {version}, edge-cloud-spec of {__version__}"
        refuse((version != __version__, f"{other}: install both from one checkout"))
        with library_errors(f"{name} cannot be imported", "install it again"):
            plugin = point.load()
        yield plugin
