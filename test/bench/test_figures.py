"""The pictures of docs/benchmarks.md."""

from __future__ import annotations

import shutil
from pathlib import Path

from edge_cloud_spec.lab.bench.figures import PICTURES

DOCS = Path(__file__).parents[2] / "docs"


def test_each_picture_of_the_page_is_drawn_from_the_json_beside_it(tmp_path: Path) -> None:
    for file in (DOCS / "figures").glob("*.json"):
        shutil.copy(file, tmp_path)
    for picture in PICTURES:
        picture(tmp_path)
    drawn = {file.name for file in tmp_path.glob("*.png")}
    assert drawn == {file.name for file in (DOCS / "figures").glob("*.png")}
    page = (DOCS / "benchmarks.md").read_text()
    assert all(f"](figures/{name})" in page for name in drawn)
