"""The endpoint's benchmark, on few chats, with the servers in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.served_answers import worker_of
from helpers.endpoint import RunningEndpoint
from helpers.suites import arguments, rows

from edge_cloud_spec import Decoder
from edge_cloud_spec_lab.bench import endpoint as suite

FEW = ("--chats", "6", "--answers", "1", "--pairs", "1", "--rtt", "4")
ONE = ("--chats", "1", "--answers", "0", "--pairs", "0")


@contextmanager
def endpoint_here(*options: str) -> Iterator[RunningEndpoint]:
    given = dict(zip(options[::2], options[1::2], strict=True))
    drafter, preset = given.get("--drafter", ""), given["--preset"]
    with (
        Decoder(given["--cloud"], drafter, preset=preset) as decoder,
        RunningEndpoint(decoder) as endpoint,
    ):
        endpoint.pid = os.getpid()  # type: ignore[attr-defined]
        yield endpoint


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "VerifierProcess", lambda options: Cloud(worker_of(*options)))
    monkeypatch.setattr(suite, "EndpointProcess", endpoint_here)
    monkeypatch.setattr(suite, "FAULTY", 1.0)
    monkeypatch.setattr(suite, "FAULTS", ("cut", "moved"))  # nobody waits for these
    monkeypatch.setattr(suite, "FIRST_PIECES", 2)
    monkeypatch.setattr(suite, "DIFFERENT_VIEWS", 3)
    monkeypatch.setattr(suite, "LONG_ANSWER", 12)
    monkeypatch.setattr(suite, "SIZES", (suite.SHORT_ANSWER, 12))
    monkeypatch.setattr(suite, "OVERHEAD_FORMS", ("text",))


def test_chats_over_a_link_that_breaks_are_the_targets_own_and_all_is_timed(
    tmp_path: Path, here: None
) -> None:
    pytest.importorskip("openai")
    measured = rows("endpoint", tmp_path, *FEW)
    parts: dict[str, list[dict[str, Any]]] = {}
    for row in measured:
        parts.setdefault(row["part"], []).append(row)
    chats = parts["chats"]
    assert {(row["form"], row["rule"]) for row in chats} == {
        (form, rule) for form in suite.FORMS for rule in ("greedy", "coupled")
    }
    assert all(row["equal"] == row["chats"] == 1 for row in chats)
    assert any(row["faults"] for row in chats) and any(row["accepted"] for row in chats)
    assert [row["preset"] for row in parts["speed"]] == ["auto", "cloud_ar"]
    assert all(row["first_ms"] > 4 and row["up_bytes"] > 0 for row in parts["speed"])
    assert [row["client"] for row in parts["overhead"]] == ["endpoint", "sdk"]


def test_an_answer_that_is_another_is_seen(
    here: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openai")
    monkeypatch.setattr(suite, "_own", lambda *_: ("another", ()))
    measured = suite.run(arguments("endpoint", *ONE))
    assert [(row["form"], row["equal"], row["chats"], row["passed"]) for row in measured] == [
        ("text", 0, 1, False)
    ] * 2
    assert capsys.readouterr().out.count("is not ('another', ())") == 2
