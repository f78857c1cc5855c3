"""A YAML file from anywhere: in bounded time and memory, one sentence or what it says."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from edge_cloud_spec.bringup.graph import GraphSettings
from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.presets import load_preset

LEVELS = "abcdefghijklmn"
LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise(LEVELS)
)
MERGES = "a: &a {k: x}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in pairwise(LEVELS)
)
HOSTILE: dict[str, str | bytes] = {
    "aliases": LAUGHS,
    "aliases in examples": "examples:\n  " + LAUGHS.replace("\n", "\n  ") + "\n",
    "merged aliases": MERGES,
    "itself": "summary: &s [*s]\n",
    "deep": "summary: " + "[" * 100_000,
    "long": "summary: " + "x" * 2**19,
    "a number without end": "most: 0x" + "f" * 2**17 + "\n",
    "base 60": "most: " + ":".join(["59"] * 30_000),
    "no date": "most: 2026-99-99\n",
    "an object": "summary: !!python/object/apply:os.system ['true']\n",
    "a list as key": "? [a]\n: x\n",
    "a field twice": "summary: x\nsummary: y\n",
    "a phrase twice": "summary: x\nactions: {go: stop, halt: stop, go: search}\n",
    "two documents": "a: 1\n---\nb: 2\n",
    "NUL": b"most: \0\n",
    "no UTF-8": b"most: \xff\n",
    "wide": "examples: [" + ", ".join("[[[[a, b], c], d], e]" for _ in range(1000)) + "]\n",
}


def graph(path: str) -> Any:
    return GraphSettings(parameters=path)


@pytest.mark.parametrize("load", [load_dialect, load_preset, graph])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_yaml_file_is_one_sentence(
    tmp_path: Path, load: Callable[[str], object], name: str
) -> None:
    path, content = tmp_path / "own.yaml", HOSTILE[name]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=r"own\.yaml") as error:
        load(str(path))
    assert len(str(error.value)) < 500 and str(error.value).isprintable()


@pytest.mark.parametrize("load", [load_dialect, load_preset, graph])
def test_a_pipe_or_a_folder_is_not_waited_for_and_what_is_missing_is_named(
    tmp_path: Path, load: Callable[[str], object]
) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    for name in ("pipe.yaml", "folder.yaml", "missing.yaml"):
        with pytest.raises(UserError, match=name):
            load(str(tmp_path / name))


def test_a_file_of_another_editor_is_read(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes(b"\xef\xbb\xbfsummary: x\r\nactions: {a: stop}\r\nexamples: {a: stop}\r\n")
    with pytest.raises(UserError, match="means"):  # read to the last line
        load_dialect(str(path))
