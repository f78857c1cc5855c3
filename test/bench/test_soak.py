"""A short soak: nothing is lost and nothing is left; and what is lost or left does not pass."""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edge_cloud_spec.cli import main
from edge_cloud_spec.cloud.session.counters import Counters
from edge_cloud_spec.edge.answer import VerifiedPrefix
from edge_cloud_spec.edge.drafts import Drafts
from edge_cloud_spec.edge.measures import Measures
from edge_cloud_spec.lab.bench import leaks
from edge_cloud_spec.lab.bench.leaks import count_resources, threads_left
from edge_cloud_spec.lab.bench.soak import MessageCounts, discrepancies
from edge_cloud_spec.lab.harness import virtual
from edge_cloud_spec.lab.harness.emulated_link import LinkProfile
from edge_cloud_spec.lab.harness.proxy import Proxy
from edge_cloud_spec.lab.harness.regimes import custom_regime
from edge_cloud_spec.lab.harness.virtual import VirtualHarness
from edge_cloud_spec.presets import load_preset, preset_names
from edge_cloud_spec.wire.codec import decode_client
from edge_cloud_spec.wire.messages import Close

CHEAP = "--regime custom --draft-ms 2 --verify-ms 6 --ar-ms 6 --alpha 0.7 --rtt 10"


def soak(folder: Path, options: str, status: int = 0) -> list[dict[str, Any]]:
    path = folder / "rows.json"
    assert main(["bench", "soak", *options.split(), "--json", str(path)]) == status
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def test_minutes_of_every_preset_with_outages(tmp_path: Path) -> None:
    options = "--seconds 240 --tokens 40 120 --outage 7,1.5 --seed 3"
    *presets, whole = soak(tmp_path, options)
    assert {row["preset"] for row in presets} == {
        name for name in preset_names() if load_preset(name).verified
    }
    assert all(row["passed"] and row["answers"] == row["equal"] > 0 for row in presets)
    assert whole["passed"] and whole["threads_left"] == whole["objects_grown"] == 0
    assert whole["resumed"] > 10
    assert whole["rounds"] == whole["cloud_verdicts"]
    assert whole["drafts_sent"] > whole["cloud_drafts"]  # outages swallow some


def test_seconds_over_grpc_with_an_outage(tmp_path: Path) -> None:
    options = "--harness grpc --seconds 3 --tokens 20 60 --jitter 4 --outage 1.5,0.1"
    *_, whole = soak(tmp_path, f"{CHEAP} {options}")
    assert whole["passed"]
    assert whole["sessions_grown"] == whole["tasks_grown"] == whole["threads_left"] == 0


def test_a_thread_that_is_about_to_end_is_not_left_and_one_that_stays_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = set(threading.enumerate())
    threading.Thread(target=time.sleep, args=(0.2,)).start()
    assert not threads_left(before)
    monkeypatch.setattr(leaks, "ENDING_S", 0.01)
    with closing(Proxy("127.0.0.1:1", LinkProfile(5.0))):
        assert threads_left(before) == ["proxy"]


def test_a_wrong_answer_fails_the_soak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(virtual, "own_answer", lambda seed, policy, tokens: (1,) * tokens)
    options = "--seconds 1 --tokens 9 9 --presets dsd"
    *_, whole = soak(tmp_path, f"{CHEAP} {options}", status=1)
    assert not whole["passed"]
    assert "answers are not the target's own" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("robot_side", "cloud_side", "complaint"),
    [
        ({"equal": 1}, {}, "1 answers are not"),
        ({"emitted": 19}, {}, "emitted 19 tokens of 20"),
        ({}, {"verdicts": 7}, "8 rounds and 7 verdicts"),
        ({"on_drafts": 7}, {}, "7 rounds on drafts, 6 judged"),
        ({}, {"late": 1}, "of 10 drafts that came, 9 are"),
        ({"sent": 12}, {}, "2 drafts of 12 did not come"),
        ({}, {"refused": 1, "late": 1}, "1 drafts were refused"),
    ],
)
def test_books_that_do_not_agree_are_told(
    robot_side: dict[str, int], cloud_side: dict[str, int], complaint: str
) -> None:
    ours = {"answers": 2, "equal": 2, "tokens": 20, "emitted": 20, "rounds": 8, "on_drafts": 6}
    theirs = {"drafts": 10, "judged": 6, "repeated": 1, "late": 2, "unused": 1, "verdicts": 8}

    def cloud(**changed: int) -> Counters:
        counters = Counters(**{**theirs, **changed})
        counters.answers.drafts = 6
        return counters

    assert not discrepancies(MessageCounts(**ours, sent=10), cloud(), lossless=True)
    wrong = MessageCounts(**{**ours, "sent": 10, **robot_side})
    (told,) = discrepancies(wrong, cloud(**cloud_side), lossless=True)
    assert complaint in told


def test_a_session_whose_end_is_not_heard_and_a_decoder_that_is_held_are_counted() -> None:
    regime = custom_regime(10.0, draft_ms=2.0, verify_ms=6.0, ar_ms=6.0, alpha=0.7)
    there = VirtualHarness(regime, LinkProfile(5.0))
    there.robot.decode(load_preset("dsd"), 9, seed=0)
    there.rest(1.0)
    before = count_resources(there)
    assert not any(count_resources(there).growth(before).values())
    receive: Any = there.worker.receive

    def but_close(stream: Any, data: bytes) -> None:
        if not isinstance(decode_client(data), Close):
            receive(stream, data)

    there.worker.receive = but_close  # type: ignore[method-assign]
    there.robot.decode(load_preset("dsd"), 9, seed=1)
    held = Drafts(VerifiedPrefix(0), "ids", load_preset("dsd"), Measures())
    there.rest(1.0)
    growth = count_resources(there).growth(before)
    assert growth["sessions"] == 1
    assert growth["objects"] == 2, held  # the session and this one
