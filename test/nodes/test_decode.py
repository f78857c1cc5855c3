"""The decode path through real nodes: bridge and drafter, topics between."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.cloud.api_peer import ApiPeer
from helpers.cloud.grpc_cloud import Cloud, Proxy
from helpers.cloud.served_answers import worker_of
from helpers.graph.decode_graph import INSTRUCTION, Watcher, frame
from helpers.graph.nodes_here import running
from helpers.graph.ros_domain import ros_domain

from edge_cloud_spec.decoding.noise import decision_seed
from edge_cloud_spec.msg import VerifiedTokens
from edge_cloud_spec.nodes.cloud_bridge import CloudBridge
from edge_cloud_spec.nodes.drafter import DrafterNode
from edge_cloud_spec.nodes.runtime.heartbeat import HUNG_STATUS
from edge_cloud_spec_lab.harness.random_checkpoint import make_checkpoint

BREAKS, HANGS = "find the broken door", "find the brown door"
# A drafter whose model fails with these instructions, and whose waits are shorter.
DRAFTER = f"""
import sys, time
from edge_cloud_spec.nodes.runtime import heartbeat
from edge_cloud_spec.nodes.runtime import diagnostics
heartbeat.HANG_S, heartbeat.HANG_CHECK_S = 2.0, 0.1
diagnostics.PERIOD_S = 0.2
from edge_cloud_spec.nodes.drafter import DrafterNode
from edge_cloud_spec.nodes.runtime.run import spin

class Failing(DrafterNode):
    def load(self):
        super().load()
        self.kept = self._pilot.runner.run
        self._pilot.runner.run = self.run_next

    def run_next(self, *arguments):
        if {BREAKS!r} in arguments[0].text:
            raise RuntimeError("the model broke")
        if {HANGS!r} in arguments[0].text:
            time.sleep(600)
        return self.kept(*arguments)

sys.exit(spin(Failing))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("decode")


@pytest.fixture(scope="module")
def link(folder: Path) -> Iterator[Proxy]:
    """The link to a verifier."""
    target = make_checkpoint(folder / "t", seed=1)
    worker = worker_of("--target", str(target), "--max-tokens", "12")
    with Cloud(worker) as cloud, Proxy(cloud.address) as proxy:
        yield proxy


@contextmanager
def watched(address: str) -> Iterator[Watcher]:
    """A drafter that is there, as it is seen beside a bridge to this verifier."""
    with running(CloudBridge, cloud=address), Watcher() as watcher:
        watcher.match("drafter", "cloud_bridge")
        yield watcher


@pytest.fixture(scope="module")
def watcher(folder: Path, link: Proxy) -> Iterator[Watcher]:
    model = make_checkpoint(folder / "d", seed=2)
    given = {"model.path": model, "reply_timeout": 4.0, "retry": 0.2, "preset": "dsd"}
    with running(DrafterNode, **given), watched(link.address) as watcher:
        yield watcher


def test_an_instruction_becomes_verified_words_in_order(watcher: Watcher) -> None:
    watcher.ask(INSTRUCTION)
    watcher.until(watcher.finished)
    last = watcher.finished()[0]
    mine = [m for m in watcher.heard["verified_tokens"] if m.request_id == last.request_id]
    assert last.finish_reason in ("end", "length")
    assert all(m.verified and m.instruction == INSTRUCTION for m in mine)
    position = 0
    for message in mine:
        assert message.position == position
        position += len(message.tokens)
    assert "".join(m.text for m in mine) == last.answer
    drafts = [m for m in watcher.heard["draft"] if m.request_id == last.request_id]
    assert drafts and all(len(d.words) >= 1 for d in drafts)
    watcher.until(lambda: watcher.heard["decode_stats"])
    [stats] = [m for m in watcher.heard["decode_stats"] if m.request_id == last.request_id]
    assert stats.tokens == position
    took = [d.draft_time.sec + d.draft_time.nanosec / 1e9 for d in drafts]
    assert all(0 <= seconds <= stats.total_ms / 1e3 + 1 for seconds in took)


@pytest.mark.parametrize("text", ["", "  ", "x" * 100_000, "find\x01it", "\ufffd\ufffd"])
def test_an_unusable_instruction_fails_with_a_reason_and_the_node_goes_on(
    watcher: Watcher, text: str
) -> None:
    watcher.heard["instruction_status"].clear()
    watcher.ask(text)
    watcher.until(lambda: watcher.said("failed the instruction"))
    watcher.heard["verified_tokens"].clear()
    watcher.ask(INSTRUCTION)
    watcher.until(watcher.finished)


def test_an_instruction_that_is_not_utf8_moves_nothing_and_the_node_goes_on(
    watcher: Watcher,
) -> None:
    watcher.ask("stop")
    watcher.heard["verified_tokens"].clear()
    text = b"find \xff\xfe\x00"
    cdr = b"\x00\x01\x00\x00" + len(text).to_bytes(4, "little") + text
    watcher.instruction.publish(cdr)
    watcher.ask(INSTRUCTION)
    watcher.until(watcher.finished)
    assert {m.instruction for m in watcher.heard["verified_tokens"]} == {INSTRUCTION}


@pytest.mark.parametrize("picture", [frame()[:300], b"", b"no picture"])
def test_an_unusable_frame_moves_nothing_and_the_node_goes_on(
    watcher: Watcher, picture: bytes
) -> None:
    watcher.picture = picture
    watcher.heard["verified_tokens"].clear()
    watcher.ask(INSTRUCTION)
    watcher.until(lambda: any(m.finish_reason == "bad_request" for m in watcher.finished()))
    bad = next(m for m in watcher.finished() if m.finish_reason == "bad_request")
    assert bad.answer == ""
    watcher.picture = frame()
    watcher.heard["verified_tokens"].clear()
    watcher.until(lambda: any(m.finish_reason in ("end", "length") for m in watcher.finished()))


def complete(watcher: Watcher, verified: bool) -> list[VerifiedTokens]:
    finished = [m for m in watcher.finished() if m.finish_reason in ("end", "length")]
    return [m for m in finished if m.verified == verified]


def test_under_creep_the_drafter_decides_alone_and_goes_back_to_the_cloud_by_itself(
    watcher: Watcher, link: Proxy
) -> None:
    """Timeout is 30 s: the decision that was under way in the cloud is not waited for."""
    watcher.set(when_lost="creep", reply_timeout=30.0)
    watcher.heard["verified_tokens"].clear()
    watcher.ask(INSTRUCTION)
    watcher.until(lambda: complete(watcher, verified=True))
    assert not complete(watcher, verified=False)
    link.set_out(True)
    watcher.heard["verified_tokens"].clear()
    watcher.heard["decode_stats"].clear()
    watcher.until(lambda: len(complete(watcher, verified=False)) >= 2)
    alone = {m.request_id for m in complete(watcher, verified=False)}
    words = [m for m in watcher.heard["verified_tokens"] if m.request_id in alone]
    assert words and not any(m.verified for m in words)  # every single one
    watcher.until(lambda: any(s.preset == "edge_only" for s in watcher.heard["decode_stats"]))
    link.set_out(False)
    watcher.heard["verified_tokens"].clear()
    watcher.until(lambda: complete(watcher, verified=True))
    pieces = [m for m in watcher.heard["verified_tokens"] if m.tokens]
    mixed = {m.request_id for m in pieces if m.verified} & {
        m.request_id for m in pieces if not m.verified
    }
    assert not mixed
    watcher.set(when_lost="stop", reply_timeout=4.0)


def test_each_decision_is_sampled_with_a_seed_of_its_own_and_can_be_made_again(
    watcher: Watcher,
) -> None:
    """One picture, one instruction: what stands still is not decided alike for ever."""
    watcher.set(rule="coupled", temperature=1.0, seed=7, first_decision=5)
    watcher.heard["verified_tokens"].clear()
    stats = watcher.sampled(4)
    assert [s.seed for s in stats] == [decision_seed(7, number) for number in (5, 6, 7, 8)]
    answers = {m.request_id: m.answer for m in watcher.finished()}
    first = [answers[s.request_id] for s in stats]
    assert len(set(first)) > 1
    watcher.set(first_decision=6)
    again = watcher.sampled(2)
    answers = {m.request_id: m.answer for m in watcher.finished()}
    assert [answers[s.request_id] for s in again] == first[1:3]


def test_a_decode_that_raises_ends_its_words_and_one_that_hangs_ends_the_node(
    folder: Path,
) -> None:
    """In between, a drafter that has nothing to decide is alive for longer than a hang may last.
    It is a process without a model, which a target behind an API does not ask for."""
    with (
        ros_domain(),  # the other tests' drafter is not in it
        ApiPeer() as server,
        Cloud(worker_of("--target", f"openai:{server.url}", "--model", "m")) as cloud,
        failing_drafter(folder / "drafter.log") as drafter,
        watched(cloud.address) as watcher,
    ):
        watcher.ask(BREAKS)
        watcher.until(lambda: any(m.finish_reason == "failed" for m in watcher.finished()))
        stats = watcher.heard["decode_stats"]
        watcher.until(lambda: any(s.finish_reason == "failed" for s in stats))
        watcher.heard["verified_tokens"].clear()
        watcher.ask(INSTRUCTION)
        watcher.until(lambda: complete(watcher, verified=True))
        watcher.ask("stop")
        watcher.set(reply_timeout=1.0)
        watcher.statuses.clear()
        watcher.until(lambda: sum(status.name == "/drafter" for status in watcher.statuses) > 15)
        watcher.ask(HANGS)
        watcher.until(lambda: drafter.poll() is not None)
        assert drafter.returncode == HUNG_STATUS
    errors = (folder / "drafter.log").read_text()
    assert "the thread model hangs for" in errors and "the model broke" in errors


@contextmanager
def failing_drafter(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    given = ("model.path:=bytes", "preset:=cloud_ar", "reply_timeout:=4.0", "retry:=0.2")
    parameters = [part for each in given for part in ("-p", each)]
    with log.open("w") as errors:
        command = [sys.executable, "-c", DRAFTER, "--ros-args", *parameters]
        process = subprocess.Popen(command, stderr=errors)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
