"""What is wrong with a fleet's options, or missing for it, is one sentence."""

from __future__ import annotations

import sys

import pytest

from edge_cloud_spec.cli import main


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--replicas", "0"], "--replicas must be at least 1"),
        (["--replicas", "3", "--max-replicas", "2"], "--max-replicas not below it"),
        (["--replicas", "2", "--metrics", "nowhere"], "--metrics is HOST:PORT"),
        (["--replicas", "2"], "pip install 'edge-cloud-spec[fleet]'"),
    ],
)
def test_it_is_said(
    options: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # it is not installed
    assert main(["serve", *options]) != 0
    assert said in capsys.readouterr().err
