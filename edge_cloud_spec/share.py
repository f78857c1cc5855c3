"""Where the files that are not code are: `config/`, `launch/`, `package.xml`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from edge_cloud_spec.errors import UserError

_PACKAGE = "edge_cloud_spec"


def share() -> Path:
    """The folder that holds `config/` and `launch/`: the checkout, or `share/edge_cloud_spec`.

    A checkout comes first, so that an edited preset is used at once; then the ament prefixes (a
    sourced colcon workspace), then the Python environment (`pip install .`). Raises UserError where
    none of them has the files.
    """
    code = Path(__file__).parent
    # Under colcon and pip the code is in PREFIX/lib/python3.X/{site,dist}-packages (with or
    # without `local/`), beside PREFIX/share.
    prefixes = [
        *(Path(p) for p in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if p),
        Path(sys.prefix),
        *code.parents[3:6],
    ]
    for folder in [code.parent, *(prefix / "share" / _PACKAGE for prefix in prefixes)]:
        if (folder / "package.xml").is_file() and (folder / "config").is_dir():
            return folder
    raise UserError(
        "the package's config folder is missing: install it with `pip install .` or build it with "
        "colcon and source install/setup.bash"
    )


def rules_text() -> str:
    """The system text on the action language, for models other than the embedded pair."""
    return (share() / "config" / "rules.txt").read_text(encoding="utf-8")
