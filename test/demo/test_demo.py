"""The demo: what it tells is what the topics said, and it leaves a report and no process behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("mujoco")
from hypothesis import given
from hypothesis import strategies as st
from rosbags.highlevel import AnyReader

from edge_cloud_spec.cli import main
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.demo.bag import types
from edge_cloud_spec.demo.console_view import words_of
from edge_cloud_spec.demo.decision import ShownRound
from edge_cloud_spec.demo.draft_text import after, joined
from edge_cloud_spec.demo.run_event import DecisionFinished, RoundSettled
from edge_cloud_spec.demo.run_log import STATS, RunLog
from edge_cloud_spec.demo.run_result import PERMANENT_FAILURES, result_of
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.nodes.processes import Processes, Program
from edge_cloud_spec.wire.codec import encode_client, encode_server
from edge_cloud_spec.wire.messages import DraftMessage, Verdict

needs_pair = pytest.mark.skipif(
    not (EMBEDDED / "target").is_dir(), reason="the embedded pair is not in this checkout"
)
HEADER = SimpleNamespace(stamp=SimpleNamespace(sec=5, nanosec=7))
STAY = """
import signal, time
for number in (2, 15):
    signal.signal(number, signal.SIG_IGN)
print('here', flush=True)
time.sleep(600)
"""


def message(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(request_id="r", header=HEADER, **fields)


def seconds(value: float) -> SimpleNamespace:
    return SimpleNamespace(sec=int(value), nanosec=int(value % 1 * 1e9))


def draft(
    base: int, words: list[str], parents: tuple[int, ...] | None = None, hash: int = 1
) -> SimpleNamespace:
    tree = Draft((0,) * len(words), parents)
    payload = encode_client(DraftMessage(PrefixDigest(base, hash), tree, base))
    prefix = {"base_length": base, "base_hash": hash}
    return message(round=base, words=words, draft_time=seconds(0.25), payload=payload, **prefix)


def verdict(base: int, *path: int, hash: int = 1) -> SimpleNamespace:
    payload = encode_server(Verdict(PrefixDigest(base, hash), path, 3, ""))
    prefix = {"base_length": base, "base_hash": hash, "accepted": len(path)}
    return message(kind=0, verify_time=seconds(0.5), text="", payload=payload, **prefix)


def settled(position: int, text: str, tokens: list[int], **fields: Any) -> SimpleNamespace:
    last = {"verified": True, "finished": False, "finish_reason": "", "answer": text, **fields}
    return message(position=position, text=text, tokens=tokens, **last)


def outcome(**fields: Any) -> SimpleNamespace:
    place = {"target": "red box", "distance": 0.8, "bearing": 3.0, "reach": 1.0, "at": "red box"}
    state = {"standing": True, "success": True, "x": 0.0, "y": 0.0, "yaw": 0.0}
    return SimpleNamespace(data=json.dumps({**place, **state, **fields}))


def said(text: str) -> SimpleNamespace:
    return SimpleNamespace(data=text)


@pytest.mark.parametrize("words_first", [True, False])
def test_a_round_tells_accepted_rejected_and_the_clouds_own_words(words_first: bool) -> None:
    run_log = RunLog()
    assert run_log.on_message("draft", draft(0, ["turn", "left", "medium", ";"]), 1.0) == []
    answers = [
        ("verified_tokens", settled(0, "turn left small", [1, 2, 3])),
        ("verdict", verdict(0, 0, 1)),
    ]
    news = [
        item
        for topic, answer in (answers if words_first else answers[::-1])
        for item in run_log.on_message(topic, answer, 2.0)
    ]
    [item] = news
    assert isinstance(item, RoundSettled)
    assert item.round.kept == ("turn", "left")
    assert item.round.branches == (("medium", ";"),) and item.round.others == 0
    assert item.round.own == "small"
    assert (item.round.drafting, item.round.sent, item.round.answered) == (0.75, 1.0, 2.0)
    assert words_of(item.round).plain == "turn left [-medium;-] {+small+}"
    assert item.decision.stamp == 5_000_000_007


def settle(
    run_log: RunLog, draft: SimpleNamespace, verdict: SimpleNamespace, text: str
) -> ShownRound:
    run_log.on_message("draft", draft, 1.0)
    run_log.on_message("verdict", verdict, 2.0)
    [news] = run_log.on_message("verified_tokens", settled(0, text, [1]), 2.0)
    assert isinstance(news, RoundSettled)
    return news.round


def test_a_trees_draft_is_told_as_branches_and_not_as_one_chain() -> None:
    words = ["turn", "move", "left", "right", "small", "large"]
    tree = draft(0, words, (-1, -1, 0, 0, 2, 3))
    round_ = settle(RunLog(), tree, verdict(0, 0, 3), "turn right medium")
    assert words_of(round_).plain == "turn right [-large-] (+3) {+medium+}"
    round_ = settle(RunLog(), tree, verdict(0, 0), "turn around")
    assert words_of(round_).plain == "turn [-left small | right large-] (+1) {+around+}"
    round_ = settle(RunLog(), tree, verdict(0), "stop")
    assert words_of(round_).plain == "[-turn left small | move-] (+2) {+stop+}"


def test_a_pushed_draft_for_another_guess_is_not_the_rounds() -> None:
    run_log = RunLog()
    run_log.on_message("draft", draft(0, ["turn", ";"], hash=8), 0.5)
    round_ = settle(run_log, draft(0, ["stop", ";"], hash=9), verdict(0, 0, hash=9), "stop.")
    assert words_of(round_).plain == "stop [-;-] {+.+}"
    run_log.on_message("draft", draft(3, ["left"], hash=8), 1.5)
    assert [r.base for r in run_log.decisions["r"].rounds.values()] == [0]


@given(st.data())
def test_every_drafted_word_is_kept_told_or_counted(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    parents = tuple(data.draw(st.integers(-1, node - 1)) for node in range(size))
    tree, path = Draft((0,) * size, parents), []
    while children := list(tree.children(path[-1] if path else -1)):
        if data.draw(st.booleans()):
            break
        path.append(data.draw(st.sampled_from(children)))
    words = [f"w{node}" for node in range(size)]
    round_ = settle(RunLog(), draft(0, words, parents), verdict(0, *path), "x")
    told = [word for branch in round_.branches for word in branch]
    assert round_.kept == tuple(words[node] for node in path)
    assert len({*told, *round_.kept}) + round_.others == size and round_.others >= 0


def test_a_decision_is_told_once_when_its_end_and_its_cost_are_known() -> None:
    run_log = RunLog()
    cost = dict.fromkeys(STATS, 1)
    assert not run_log.on_message("decode_stats", message(**cost), 1.0)
    end = settled(3, "", [], finished=True, finish_reason="end", answer="action: stop;")
    [news] = run_log.on_message("verified_tokens", end, 1.1)
    assert isinstance(news, DecisionFinished)
    assert news.decision.answer == "action: stop;"


def test_words_of_any_tokenizer_are_joined_and_taken_away_again() -> None:
    assert joined(["turn", "left", ";", "reason", ":"]) == "turn left; reason:"
    assert joined(["turn", " left", ";"]) == "turn left;"
    assert joined([";", "<|im_end|>"]) == ";"
    assert after(" turn left small;", ["turn", "left"]) == "small;"
    assert after(" turn left small;", [" turn", " le", "ft"]) == "small;"
    assert after("turn left", ["move"]) == ""
    assert after("turn left", []) == "turn left"


@pytest.mark.parametrize(
    ("state", "expected", "why"),
    [
        ({}, True, "faces it"),
        ({"success": False, "at": "blue box"}, False, "stopped at the blue box"),
        ({"success": False, "at": "", "distance": 1.4}, False, "too far away, 1.40 m"),
        ({"success": False, "at": "", "bearing": 70.0}, False, "without facing"),
    ],
)
def test_only_a_stop_at_the_named_thing_counts(
    state: dict[str, Any], expected: bool, why: str
) -> None:
    run_log = RunLog()
    run_log.on_message("sim/outcome", outcome(**state), 1.0)
    run_log.on_message("instruction_status", said("following find the red box"), 1.0)
    run_log.on_message("nav_status", said("idle r stop"), 2.0)
    assert result_of(run_log, "find the red box", 2.0, 60.0) is None  # it may only be resting
    run_log.on_message("instruction_status", said("done find the red box"), 2.0)
    end = result_of(run_log, "find the red box", 2.1, 60.0)
    assert end is not None
    assert end.success is expected
    assert why in end.text


def test_a_refused_instruction_and_a_late_robot_are_failures_with_a_reason() -> None:
    run_log = RunLog()
    run_log.on_message("sim/outcome", outcome(success=False, distance=2.0), 1.0)
    late = result_of(run_log, "find the red box", 61.0, 60.0)
    assert late is not None and not late.success and "2.00 m from the red box" in late.text
    run_log.on_message("instruction_status", said("failed the instruction is empty"), 1.0)
    refused = result_of(run_log, "", 1.0, 60.0)
    assert refused is not None and not refused.success and "is empty" in refused.text


def fault(text: str, kind: int = 3) -> SimpleNamespace:
    return message(kind=kind, text=text, payload=b"")


def ended(reason: str) -> SimpleNamespace:
    return settled(0, "", [], finished=True, finish_reason=reason)


@pytest.mark.parametrize("reason", sorted(PERMANENT_FAILURES))
def test_what_trying_again_cannot_mend_ends_the_run_at_once(reason: str) -> None:
    run_log = RunLog()
    run_log.on_message("sim/outcome", outcome(success=False, distance=2.0), 1.0)
    run_log.on_message("verified_tokens", ended(reason), 2.0)
    end = result_of(run_log, "find the red box", 2.0, 90.0)
    assert end is not None and not end.success and reason in end.text
    run_log.on_message("verdict", fault("the token is wrong; give --token-file"), 2.0)
    end = result_of(run_log, "find the red box", 2.0, 90.0)
    assert end is not None and "the token is wrong" in end.text


@pytest.mark.parametrize("reason", ["internal", "overloaded", "unknown_session", "timeout", "end"])
def test_what_trying_again_may_mend_does_not_end_the_run(reason: str) -> None:
    run_log = RunLog()
    run_log.on_message("verdict", message(kind=1, payload=b"opened"), 1.0)
    run_log.on_message("verdict", fault("the link is lost", kind=4), 2.0)
    run_log.on_message("verified_tokens", ended(reason), 3.0)
    assert result_of(run_log, "find the red box", 3.0, 90.0) is None


def test_a_cloud_that_was_never_reached_ends_the_run_with_the_first_decision() -> None:
    run_log = RunLog()
    run_log.on_message("verdict", fault("cannot reach the cloud at nowhere:1", kind=4), 1.0)
    assert result_of(run_log, "find the red box", 2.0, 90.0) is None
    run_log.on_message("verified_tokens", ended("timeout"), 11.0)
    end = result_of(run_log, "find the red box", 11.0, 90.0)
    assert end is not None and "cannot reach the cloud at nowhere:1" in end.text


def test_processes_that_will_not_end_are_ended(tmp_path: Path) -> None:
    stubborn = Program("stubborn", [sys.executable, "-c", STAY])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edge_cloud_spec.nodes.processes.GRACE", 0.2)
        with Processes([stubborn], {}, tmp_path) as processes:
            while "here" not in (tmp_path / "stubborn.log").read_text():
                time.sleep(0.02)
            pid = processes.pids["stubborn"]
            processes.check()
    assert not alive(pid)


def test_a_part_that_ends_by_itself_is_named_with_its_last_words(tmp_path: Path) -> None:
    program = Program(
        "verifier", [sys.executable, "-c", "raise SystemExit('error: no such model')"]
    )
    said = r"verifier ended by itself \(exit status 1\): error: no such model"
    with Processes([program], {}, tmp_path) as processes, pytest.raises(UserError, match=said):
        while True:
            processes.check()
            time.sleep(0.02)


def test_nothing_outlives_a_demo_that_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from edge_cloud_spec.nodes.processes import Processes, Program\n"
        f"program = Program('child', [sys.executable, '-c', {STAY.replace('(2, 15)', '()')!r}])\n"
        f"with Processes([program], {{}}, pathlib.Path({str(tmp_path)!r})) as p:\n"
        "    print(p.pids['child'], flush=True)\n"
        "    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--preset", "warp"], "there is no preset 'warp'"),
        (["--preset", "edge_only"], "allow it with --allow-unverified"),
        (["--timeout", "0"], "--timeout must be more than 0"),
        (["--out", __file__], "give --out a folder"),
        (["--out", str(Path(__file__).parent)], "is no part of a report"),
        (["--cloud", "nowhere"], "cloud must be HOST:PORT"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo", *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.startswith("error: ") and said.count("\n") == 1


def test_what_is_no_bag_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["replay", str(tmp_path / "nothing")]) == 2
    assert "there is no bag" in capsys.readouterr().err
    assert main(["replay", str(tmp_path)]) == 2
    assert "cannot be read as a bag" in capsys.readouterr().err


def test_our_messages_are_types_of_the_bag() -> None:
    fields = [name for name, _ in types().fielddefs["edge_cloud_spec/msg/Draft"][1]]
    assert {"words", "base_length", "payload"} <= set(fields)


@needs_pair
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    demo = subprocess.Popen(
        [sys.executable, "-m", "edge_cloud_spec.cli", "demo", "--out", str(tmp_path / "run")],
        env={**os.environ, "DEMO_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert demo.stdout is not None
    assert any("up after" in line for line in demo.stdout)
    demo.send_signal(signal.SIGINT)
    rest = demo.stdout.read()
    assert demo.wait() == 130, rest
    assert "Traceback" not in rest
    assert not marked(mark)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One run of the demo with the embedded pair."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    command = [sys.executable, "-m", "edge_cloud_spec.cli", "demo", "--seed", "0"]
    done = subprocess.run(
        [*command, "--out", str(folder)], capture_output=True, text=True, check=False
    )
    return folder, done


@needs_pair
def test_the_demo_reaches_the_named_thing_and_tells_how(
    run: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = run
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done: the robot stopped" in done.stdout
    assert re.search(r"words .*\{\+.+\+\}", done.stdout), "the cloud corrected something"
    figures = json.loads((folder / "figures.json").read_text())
    assert figures["success"] and figures["outcome"]["distance"] <= figures["outcome"]["reach"]
    assert 0.3 < figures["acceptance"] < 1.0
    assert figures["tokens"] >= figures["accepted"]
    assert figures["rows"][-1]["action"] == "stop"


@needs_pair
def test_the_report_holds_together(
    run: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = run
    page = (folder / "index.html").read_text()
    links = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert {"path.png", "timeline.png", "figures.json", "bag/"} <= set(links)
    assert any(link.startswith("camera.") for link in links)
    for link in links:
        path = folder / link
        assert path.is_dir() or path.stat().st_size > 500, link


@needs_pair
def test_the_bag_reads_back_with_its_own_types(
    run: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = run
    figures = json.loads((folder / "figures.json").read_text())
    actions, answers = [], {}
    with AnyReader([folder / "bag"]) as reader:
        present = {c.topic for c in reader.connections if c.msgcount}
        for connection, _, raw in reader.messages():
            content = reader.deserialize(raw, connection.msgtype)
            if connection.topic == "/nav_command":
                actions.append(content.text)
            elif connection.topic == "/verified_tokens":
                answers[content.request_id] = content.answer
    assert {
        "/camera/image_raw/compressed",
        "/odom",
        "/draft",
        "/verdict",
        "/sim/outcome",
    } <= present
    assert actions[-1] == "stop"
    assert list(answers.values()) == [row["answer"] for row in figures["rows"]]


@needs_pair
def test_a_replayed_bag_gives_the_same_decisions(
    run: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    folder, _ = run
    out = tmp_path / "replay.json"
    command = [sys.executable, "-m", "edge_cloud_spec.cli", "replay", str(folder / "bag")]
    done = subprocess.run(
        [*command, "--json", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())["rows"]
    figures = json.loads((folder / "figures.json").read_text())
    assert [row["recorded"] for row in rows] == [row["answer"] for row in figures["rows"]]
    assert all(row["equal"] for row in rows)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def marked(mark: str) -> list[str]:
    """Command lines of the processes whose environment has the mark."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found
