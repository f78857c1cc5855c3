"""A drafter in llama.cpp computes what torch computes, however it is driven; whatever becomes of
its process or its files, the robot hears one sentence and goes on. ``make gguf`` runs this."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from multiprocessing import Pipe
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_cpp")
pytest.importorskip("gguf")

from helpers.checkpoints import checkpoint, own_tokens, prompt_of
from helpers.cloud.grpc_cloud import Cloud
from helpers.driven_session import DrivenSession
from helpers.gguf_checkpoint import convert

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.digest import common_prefix
from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED, llama
from edge_cloud_spec.models.drafter import ALL_ROWS
from edge_cloud_spec.models.image import PictureLimits
from edge_cloud_spec.models.llama import LlamaDrafter, LlamaProcess, LlamaSession
from edge_cloud_spec.models.llama_process import SEQUENCES
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.load_drafter import DraftModelSettings, load_drafter
from edge_cloud_spec.models.prompt import Prompt
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec_lab.bench.decodes import sample_cases
from edge_cloud_spec_lab.harness.grpc_robot import GrpcRobot

F16 = 0.004  # of the range of a row's logits: what sixteen bits, in weights and products, change
FAMILIES = {
    "embedded": F16,
    "qwen3_vl": F16,
    # llama.cpp does not read rms_norm_eps of these: it is 1e-5 here, and 1e-6 in Qwen's own
    "qwen2_vl": 0.02,
    "qwen2_5_vl": 0.02,
}


def source(family: str) -> Path:
    return EMBEDDED / "drafter" if family == "embedded" else checkpoint(family, 1)


@pytest.fixture(scope="module")
def gguf_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The f16 file of a family, beside what belongs to it."""
    made: dict[str, Path] = {}

    def of(family: str) -> Path:
        if family not in made:
            made[family] = convert(source(family), tmp_path_factory.mktemp(family))
        return made[family]

    return of


def loaded(path: Path) -> LlamaDrafter:
    model = load_drafter(DraftModelSettings(path=str(path)))
    assert isinstance(model, LlamaDrafter)
    return model


@pytest.fixture(scope="module")
def drafter(gguf_of: Callable[[str], Path]) -> LlamaDrafter:
    """One for the tests that leave it as it was."""
    return loaded(gguf_of("embedded"))


@pytest.fixture(scope="module")
def torch_drafter() -> Vlm:
    return load(EMBEDDED / "drafter", threads=1)


def read(model: LlamaDrafter, prompt: Prompt) -> LlamaSession:
    prefill = model.prefill(prompt)
    while not prefill.step(ALL_ROWS):
        pass
    return prefill.session


def difference(ours: Any, theirs: Any) -> float:
    """The largest, as a share of the range."""
    assert ours.dtype == np.float32 and ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max(initial=0) / (np.ptp(theirs) if theirs.size else 1.0))


def driven(
    ours: LlamaSession | LlamaDrafter, theirs: Vlm, number: int = 1, bound: float = F16
) -> DrivenSession:
    """A session, after the prompt of this number unless it is given, whose rows are torch's."""
    session = theirs.open(prompt_of(theirs, number))
    ours = read(ours, prompt_of(ours, number)) if isinstance(ours, LlamaDrafter) else ours

    def check(tokens: Sequence[int], row: Any) -> None:
        same = common_prefix(session.tokens, tokens)
        session.truncate(same)
        session.extend(tokens[same:])
        assert difference(row, session.logits_after(-1)) < bound

    one = DrivenSession(ours, check, np.random.default_rng(number))
    one.look()
    return one


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_torchs_however_a_session_is_driven(
    family: str, gguf_of: Callable[[str], Path]
) -> None:
    theirs, ours = load(source(family), threads=1), loaded(gguf_of(family))
    for number in range(4):
        one = driven(ours, theirs, number, FAMILIES[family])
        for _ in range(60):
            one.turn()


def test_four_bits_show_in_this_comparison(
    gguf_of: Callable[[str], Path], torch_drafter: Vlm
) -> None:
    ours = loaded(gguf_of("embedded").with_name("q4_0.gguf"))
    row = read(ours, prompt_of(ours)).logits_after(-1)
    theirs = torch_drafter.open(prompt_of(torch_drafter)).logits_after(-1)
    assert 2 * F16 < difference(row, theirs) < 0.2


def test_a_smaller_picture_and_fewer_of_its_tokens_are_seen_alike(
    gguf_of: Callable[[str], Path],
) -> None:
    ours, theirs = loaded(gguf_of("embedded")), load(EMBEDDED / "drafter", threads=1)
    for limits in (PictureLimits(max_pixels=64 * 64), PictureLimits(max_image_tokens=20)):
        ours.limit_picture(limits)
        theirs.limit_picture(limits)
        one = driven(ours, theirs)
        assert one.session.prompt_rows == theirs.open(prompt_of(theirs)).prompt_rows
        one.grow()


def test_a_tree_of_more_nodes_than_there_are_sequences(
    drafter: LlamaDrafter, torch_drafter: Vlm
) -> None:
    one = driven(drafter, torch_drafter)
    while len(one.nodes) < 3 * SEQUENCES:
        one.grow()
    one.commit()
    one.grow()


def test_a_draft_deeper_than_there_are_sequences(drafter: LlamaDrafter, torch_drafter: Vlm) -> None:
    one, depth = driven(drafter, torch_drafter), SEQUENCES + 20
    while len(one.nodes) < depth:
        one.add([len(one.nodes)], [len(one.nodes) - 1])
    read(drafter, prompt_of(drafter, 2))  # another session has the memory meanwhile
    for parents in ([depth - 1, depth - 1, depth], [depth - 2, 3, -1]):
        one.add([1, 2, 3], parents)
    with pytest.raises(UserError, match="take a preset of smaller drafts"):
        one.session.grow([1] * SEQUENCES, [-1] * SEQUENCES)
    one.commit()
    one.grow()


def test_sessions_that_take_turns_and_pictures_that_come_again(
    drafter: LlamaDrafter, torch_drafter: Vlm
) -> None:
    some = [driven(drafter, torch_drafter, number) for number in (1, 2, 1, 3)]
    random = Random(0)
    for _ in range(60):
        random.choice(some).turn()


class Stop(Exception):
    """What a robot that wants another pass raises."""


def test_a_pass_that_is_not_wanted_any_more_changes_nothing(
    drafter: LlamaDrafter, torch_drafter: Vlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(layer: int, hidden: object) -> None:
        raise Stop

    slow = LlamaProcess._reply

    def reply(process: LlamaProcess, timeout: float, on_layer: Any) -> Any:
        if on_layer is not None:
            on_layer(0, None)  # as if no pass were so short that nothing arrives
        return slow(process, timeout, on_layer)

    monkeypatch.setattr(LlamaProcess, "_reply", reply)
    prefill, random = drafter.prefill(prompt_of(drafter, 7)), Random(0)
    while True:
        try:
            if prefill.step(random.randint(1, 30), stop if random.random() < 0.6 else None):
                break
        except Stop:
            pass
    one = driven(prefill.session, torch_drafter, 7)
    for _ in range(40):
        with suppress(Stop):
            one.session.grow([1, 2, 3], [-1, -1, 0] if random.random() < 0.5 else [-1, 0, 1], stop)
            pytest.fail("it was to be stopped")
        one.turn()
    for _ in range(SEQUENCES):
        with suppress(Stop):
            one.session.grow([1], [-1], stop)
    one.grow()


# What becomes of the process


def pid(model: LlamaDrafter) -> int:
    child = model.memory.process._child
    return child.pid


def strike(patch: pytest.MonkeyPatch, sign: signal.Signals, kind: str, nth: int = 1) -> None:
    """A process gets this signal at the nth request of a kind."""
    send, seen = LlamaProcess._send, count(1)

    def struck(process: LlamaProcess, request: Any) -> None:
        if request[0] == kind and next(seen) == nth:
            os.kill(process._child.pid, sign)
        send(process, request)

    patch.setattr(LlamaProcess, "_send", struck)


@pytest.fixture
def other(gguf_of: Callable[[str], Path]) -> LlamaDrafter:
    """One of a test's own."""
    return loaded(gguf_of("embedded"))


@pytest.mark.parametrize("kind", ["load", "begin", "encode", "decode"])
@pytest.mark.parametrize("nth", [1, 2, 4])
def test_killed_at_any_request_it_is_one_sentence_and_then_works_again(
    other: LlamaDrafter, monkeypatch: pytest.MonkeyPatch, kind: str, nth: int
) -> None:
    expected = read(other, prompt_of(other, 2)).logits_after(-1)
    strike(monkeypatch, signal.SIGKILL, kind, nth)
    failures = []
    for number in (*range(3, 10), 2):
        if kind in ("load", "begin"):  # which nobody asks for while it runs
            other.memory.process._lost("ended by the test")
            other.memory.process._ended.clear()
        try:
            session = read(other, prompt_of(other, number))
            for token in range(4):
                session.grow([token], [token - 1])
        except UserError as error:
            failures.append(str(error))
    assert len(failures) == 1 and "was killed, maybe for want of memory" in failures[0]
    assert difference(session.logits_after(-1), expected) < 1e-6


def test_a_pass_that_llama_cpp_breaks_off_leaves_nothing_behind(
    other: LlamaDrafter, torch_drafter: Vlm
) -> None:
    one = driven(other, torch_drafter)
    one.grow()
    with pytest.raises(UserError, match="invalid token"):
        other.memory.decode(np.asarray([10**6]), np.asarray([one.session._next]), [[0]], 1, None)
    assert other.memory._life == -1, "what it holds is not known: the next pass begins anew"
    one.grow()
    one.commit()
    one.grow()


def test_what_asserts_in_c_ends_the_process_alone(other: LlamaDrafter) -> None:
    session = read(other, prompt_of(other))
    many = 10_000  # more rows than it has room for
    with pytest.raises(UserError, match="status -6: the log may say why"):
        other.memory.process.ask(
            "decode", [], np.zeros(many), 1000 + np.arange(many), [[0]] * many, 0
        )
    assert session.grow([1], [-1]).shape == (1, other.vocabulary)


@pytest.mark.parametrize("kind", ["load", "begin", "encode", "decode"])
def test_a_process_that_hangs_is_ended(
    other: LlamaDrafter, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(llama, "PASS_S", 1.0)
    monkeypatch.setattr(llama, "LOAD_S", 3.0)
    process = other.memory.process
    process._lost("ended by the test")
    with monkeypatch.context() as patch:
        strike(patch, signal.SIGSTOP, kind)
        with pytest.raises(UserError, match="does not answer"):
            read(other, prompt_of(other))
    assert read(other, prompt_of(other)).tokens == ()


def test_a_picture_that_a_stopped_process_does_not_take_ends_in_time(
    other: LlamaDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama, "PASS_S", 1.0)
    process = other.memory.process
    process._lost("ended by the test")
    process.start()
    os.kill(pid(other), signal.SIGSTOP)
    with pytest.raises(UserError, match="does not answer"):
        process.ask("encode", np.zeros((2000, 2000, 3), np.uint8))


def test_a_hang_is_noticed_though_no_decode_waits_for_so_long(
    other: LlamaDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama, "PASS_S", 1.0)
    session, looks = read(other, prompt_of(other)), count(1)
    os.kill(pid(other), signal.SIGSTOP)

    def stop_often(layer: int, hidden: object) -> None:
        if not next(looks) % 20:
            raise Stop

    with pytest.raises(UserError, match="does not answer"):
        for _ in range(1000):  # decodes, of which each leaves its pass soon
            with suppress(Stop):
                session.grow([1], [-1], stop_often)
    assert session.grow([1], [-1]).shape == (1, other.vocabulary)


@pytest.mark.parametrize("gone", [False, True])
def test_a_process_that_does_not_go_is_left_behind(
    other: LlamaDrafter, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """Such as one that is stuck in a driver, whether or not its connection is closed."""
    for bound in ("PASS_S", "END_S"):
        monkeypatch.setattr(llama, bound, 0.5)
    process, number = other.memory.process, pid(other)
    os.kill(number, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "kill", lambda child: None)
        if gone:
            process._connection.close()
            process._connection = Pipe()[0]  # whose other end is closed at once
        with pytest.raises(UserError, match="the process of the draft model"):
            process.ask("begin", 100)
    os.kill(number, signal.SIGKILL)
    os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT)
    assert read(other, prompt_of(other)).tokens == ()
    assert not Path(f"/proc/{number}").exists()  # it is reaped where another starts


def test_a_process_that_cannot_be_started_is_one_sentence(
    other: LlamaDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.memory.process._lost("ended by the test")
    with monkeypatch.context() as patch:
        patch.setattr(llama.sys, "executable", "/there/is/none")  # as a fork without memory
        with pytest.raises(UserError, match=r"cannot be started \(.*\): free memory$"):
            read(other, prompt_of(other))
    assert read(other, prompt_of(other)).tokens == ()


def test_memory_that_is_not_there_is_one_sentence(other: LlamaDrafter) -> None:
    session = read(other, prompt_of(other))
    status = Path(f"/proc/{pid(other)}/status").read_text().splitlines()
    used = next(int(line.split()[1]) for line in status if line.startswith("VmSize"))
    limit = (used + 20_000) * 1024
    resource.prlimit(pid(other), resource.RLIMIT_AS, (limit, limit))
    with pytest.raises(UserError):
        other.memory.process.ask("begin", 40_000_000)
    with suppress(UserError):  # if it went on without
        other.memory._life = -1
        session.grow([1], [-1])
    assert read(other, prompt_of(other)).logits_after(-1).shape == (other.vocabulary,)


def test_a_process_that_ends_again_and_again_is_not_started_for_ever(other: LlamaDrafter) -> None:
    for _ in range(llama.RESTARTS):
        session = read(other, prompt_of(other))
        os.kill(pid(other), signal.SIGKILL)
        with pytest.raises(UserError, match=r"was killed[^;]*$"):
            session.grow([1], [-1])
    with pytest.raises(UserError, match=r"was killed.*; it did so 3 times in a short while"):
        read(other, prompt_of(other))


def test_nothing_is_left_of_a_drafter_that_nobody_has(gguf_of: Callable[[str], Path]) -> None:
    model = loaded(gguf_of("embedded"))
    read(model, prompt_of(model))
    number = pid(model)
    del model
    assert not Path(f"/proc/{number}").exists()


@pytest.mark.parametrize("preset", ["dsd", "auto", "specedge"])
def test_killed_in_a_decode_over_grpc_the_answer_is_the_targets_own(
    other: LlamaDrafter, preset: str
) -> None:
    target = load(EMBEDDED / "target", threads=1)
    spec = target.spec(48)
    with (
        Cloud(Worker(load(EMBEDDED / "target", threads=1), spec)) as cloud,
        GrpcRobot(cloud.address, other, spec) as robot,
    ):
        for number, (request, _) in enumerate(sample_cases(5, 8)):
            passes, process = count(), other.memory.process

            def kill(*_: object, passes: Any = passes, at: int = number % 4) -> None:
                if next(passes) == at:
                    os.kill(pid(other), signal.SIGKILL)

            robot.runner.on_pass = kill if number % 2 else None
            process._ended.clear()
            outcome = robot.decode(request, DecodeSettings(load_preset(preset)))
            assert outcome.completed
            assert outcome.tokens == own_tokens(target, request, spec, GREEDY)
            if preset == "dsd":
                assert ("was killed" in outcome.stats.failure) == (number % 2 == 1)


# What is in its files


@pytest.fixture
def folder(gguf_of: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(gguf_of("embedded").parent, tmp_path / "model"))


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        load_drafter(DraftModelSettings(path=str(path), **options))
    text = str(caught.value)
    assert "\n" not in text and len(text) < 600
    return text


@pytest.mark.parametrize("name", ["f16.gguf", "mmproj.gguf"])
def test_damaged_files_are_one_sentence(folder: Path, name: str) -> None:
    path, random = folder / name, Random(0)
    whole = path.read_bytes()
    for damaged in (
        b"",
        random.randbytes(5000),
        b"GGUF" + random.randbytes(5000),
        *(whole[: int(share * len(whole))] for share in (0.001, 0.01, 0.3, 0.9)),
        whole[:-1],
    ):
        path.write_bytes(damaged)
        text = refused(folder / "f16.gguf")
        assert text.startswith(f"llama.cpp cannot load {folder / 'f16.gguf'}")
        assert text.endswith("fetch the file again, or free memory")


def test_flipped_bytes_never_reach_the_robot(folder: Path, torch_drafter: Vlm) -> None:
    path, random = folder / "f16.gguf", Random(1)
    whole = path.read_bytes()
    for _ in range(12):
        damaged = bytearray(whole)
        for _ in range(20):
            damaged[random.randrange(4, 20_000)] ^= random.randrange(1, 256)
        path.write_bytes(damaged)
        with suppress(UserError):
            model = loaded(path)
            read(model, prompt_of(model))


def test_files_of_another_model_are_one_sentence(
    folder: Path, gguf_of: Callable[[str], Path]
) -> None:
    path, another = folder / "f16.gguf", gguf_of("qwen3_vl")
    whole, vision = path.read_bytes(), (folder / "mmproj.gguf").read_bytes()
    path.write_bytes(vision)
    assert "CLIP cannot be used as main model" in refused(path)
    path.write_bytes(another.read_bytes())
    shutil.copy(another.with_name("mmproj.gguf"), folder)
    assert "copy the tokenizer of the checkpoint that it was made of" in refused(path)
    path.write_bytes(whole)
    assert "mismatch between text model" in refused(path)
    (folder / "mmproj.gguf").write_bytes(vision)
    words = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = words["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]
    (folder / "tokenizer.json").write_text(json.dumps(words))
    assert "copy the tokenizer of the checkpoint that it was made of" in refused(path)


def test_what_is_missing_or_asked_for_in_vain_is_named(folder: Path) -> None:
    path = folder / "f16.gguf"
    assert "quantize is 'int4', and a GGUF file has its bits already" in refused(
        path, quantize="int4"
    )
    os.mkfifo(folder / "mmproj-f16.gguf")  # where nobody writes
    assert loaded(path).identity.startswith("gguf:")
    (folder / "mmproj-f16.gguf").unlink()
    (folder / "mmproj-second.gguf").write_bytes(b"")
    assert "mmproj-f16.gguf is missing" in refused(path)  # which of two, nobody says
    (folder / "mmproj.gguf").rename(folder / "mmproj-f16.gguf")
    assert loaded(path).identity.startswith("gguf:")
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json is missing" in refused(path)
    assert "is not a file" in refused(folder / "other.gguf")
