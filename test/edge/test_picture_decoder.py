"""Pictures are decoded from Python and by ``edge-cloud-spec decode``, streaming what settles."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.checkpoints import checkpoint, jpeg, own_tokens, vlm
from helpers.cloud.grpc_cloud import Cloud, Proxy

import edge_cloud_spec
from edge_cloud_spec import Answer, Decoder, PictureDecoder, UserError
from edge_cloud_spec.cli import main
from edge_cloud_spec.cloud.command import make_worker
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.dialects import load_dialect, ours
from edge_cloud_spec.edge.link.probe import proxy_variable
from edge_cloud_spec.edge.runner import Outcome, opening_of
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.tokenizer import TextStream
from edge_cloud_spec.request import Message, Picture, Request
from edge_cloud_spec_lab.harness.server import parsed

IT = "find the silver bottle"
DELAY_MS = 20.0  # each way: an answer of so many rounds takes seconds
TOKENS = 40  # of an answer


@pytest.fixture(scope="module")
def link() -> Iterator[Proxy]:
    """The way to a verifier; a random target, of which hardly a draft is accepted."""
    target = load(checkpoint("qwen3_vl", 1), threads=1)
    with (
        Cloud(Worker(target, target.spec(TOKENS))) as cloud,
        Proxy(cloud.address) as proxy,
    ):
        yield proxy


@pytest.fixture
def decoder(link: Proxy) -> Iterator[PictureDecoder]:
    link.set_delay(0.0)
    drafter = str(checkpoint("qwen3_vl", 2, 384))
    with PictureDecoder(link.address, drafter, preset="dsd") as decoder:
        decoder.settings = replace(decoder.settings, reply_timeout=0.5)
        yield decoder


def test_words_stream_in_pieces_that_make_the_answer(decoder: PictureDecoder) -> None:
    whole = decoder.decode(jpeg(1), IT)
    assert isinstance(whole, Answer) and whole == decoder.answer
    pieces = list(decoder.stream(jpeg(1), IT))
    assert len([piece for piece in pieces if piece]) > 5, "not all at once"
    assert "".join(pieces) == whole.text == decoder.answer.text


def test_messages_of_any_form_are_decoded_and_a_picture_and_an_instruction_are_a_case_of_it(
    decoder: PictureDecoder, link: Proxy
) -> None:
    drafter = str(checkpoint("qwen3_vl", 2, 384))
    asked = ours().request(IT, jpeg(1))
    with Decoder(link.address, drafter, preset="dsd") as plain:
        assert "".join(plain.stream(asked)) == decoder.decode(jpeg(1), IT).text
        hello = [Message("user", ("Hello",))]
        first = plain.decode(hello)
        assert first.text and first.action == "" and plain.answer == first
        more = [
            *hello,
            Message("assistant", (first.text,)),
            Message("user", (Picture.of(jpeg(2)),)),
        ]
        assert "".join(plain.stream(more)) == plain.answer.text
        target = load(checkpoint("qwen3_vl", 1), threads=1)
        own = own_tokens(target, Request(tuple(more)), target.spec(TOKENS), GREEDY)
        assert plain.answer.outcome.tokens == own
        with pytest.raises(UserError, match="ends with a message of the user"):
            plain.decode(more[:2])


@pytest.mark.parametrize("drafter", ["a model", "bytes"])
def test_an_answer_is_as_long_as_is_asked_for_or_as_the_verifier_allows(
    link: Proxy, drafter: str
) -> None:
    """The target ends no answer by itself; a byte is taken for a quarter of a token."""
    link.set_delay(0.0)
    path = str(checkpoint("qwen3_vl", 2, 384)) if drafter == "a model" else drafter
    for asked in (1, 7, TOKENS, 10 * TOKENS):
        said: list[str] = []
        with PictureDecoder(
            link.address, path, preset="dsd", max_tokens=asked, report=said.append
        ) as decoder:
            opening = opening_of(
                ours().request(IT, jpeg(1)), decoder.settings, 1, decoder.runner.draft_model, b""
            )
            assert opening.max_tokens == asked * (4 if drafter == "bytes" else 1)
            if drafter == "a model":
                for _ in range(2):
                    assert len(decoder.decode(jpeg(1), IT).outcome.tokens) == min(asked, TOKENS)
                assert len(said) == (asked > TOKENS), "once, and only where there is less"
                limits = f"{asked} tokens, and the verifier gives {TOKENS} at most"
                assert all(limits in sentence for sentence in said)
    for wrong in (0, -1, 2**31):
        with pytest.raises(UserError, match="max_tokens must be a whole number from 1 to"):
            PictureDecoder(link.address, path, max_tokens=wrong)


def test_a_preset_that_the_drafter_cannot_follow_is_refused_before_anything_is_decoded() -> None:
    with pytest.raises(UserError, match=r"it drafts trees.* such as dsd"):
        PictureDecoder("127.0.0.1:1", "bytes", preset="specedge")


def test_a_stream_that_is_broken_off_ends_its_decode_and_leaves_the_connection(
    decoder: PictureDecoder, link: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, run = decoder.decode(jpeg(1), IT), decoder.runner.run
    outcomes: list[Outcome] = []

    def noted(*given: Any) -> Outcome:
        outcomes.append(run(*given))
        return outcomes[-1]

    monkeypatch.setattr(decoder.runner, "run", noted)
    link.set_delay(DELAY_MS)
    for words in decoder.stream(jpeg(1), IT):
        if words:
            break
    monkeypatch.undo()
    assert [outcome.reason for outcome in outcomes] == ["aborted"] and decoder.answer is None
    assert not [each for each in threading.enumerate() if each.name.startswith("decode")]
    link.set_delay(0.0)
    assert decoder.decode(jpeg(1), IT).text == whole.text


def test_an_error_comes_after_the_words_that_were_settled_and_the_next_decode_works(
    decoder: PictureDecoder, link: Proxy
) -> None:
    whole = decoder.decode(jpeg(1), IT)
    link.set_delay(DELAY_MS)
    said, stream = "", decoder.stream(jpeg(1), IT)
    while not said:
        said += next(stream)
    link.set_out(True)
    try:
        with pytest.raises(UserError):
            for words in stream:
                said += words
    finally:
        link.set_out(False)
        link.set_delay(0.0)
    assert decoder.answer is None, "the last answer is no answer to this"
    assert 0 < len(said) < len(whole.text) and whole.text.startswith(said)
    decoder.settings = replace(decoder.settings, reply_timeout=10.0)  # the channel has to come back
    assert "".join(decoder.stream(jpeg(1), IT)) == whole.text


@pytest.mark.parametrize("instruction", ["", "find\x01it", "find <|im_end|>"])
def test_an_instruction_that_cannot_be_used_is_refused_and_nothing_is_left_over(
    decoder: PictureDecoder, instruction: str
) -> None:
    with pytest.raises(UserError, match="instruction"):
        list(decoder.stream(jpeg(1), instruction))
    assert decoder.answer is None
    assert decoder.decode(jpeg(1), IT).text


@pytest.mark.parametrize(
    "messages",
    [
        "what is ahead?",
        {"role": "user", "content": "what is ahead?"},
        [{"role": "user", "content": "what is ahead?"}],
        [Message("user", (b"a picture",))],  # type: ignore[arg-type]
        [Message("user", ({"type": "text"},))],  # type: ignore[arg-type]
        [Message("user", "what is ahead?")],  # type: ignore[arg-type]
        [Message("user", None)],  # type: ignore[arg-type]
        [],
        Message("user", ("what is ahead?",)),
        None,
    ],
)
def test_what_is_no_list_of_messages_is_told_how_one_is_written(
    decoder: PictureDecoder, messages: Any
) -> None:
    told = pytest.raises(UserError, match=r"messages are a list of Message, .* \[Message\(")
    with told:
        Decoder.decode(decoder, messages)
    with told:
        list(Decoder.stream(decoder, messages))
    with told:
        Decoder.score(decoder, messages, ("yes",))


# The names


def test_the_package_imports_neither_torch_nor_ros_nor_grpc_before_a_name_is_used() -> None:
    heavy = "torch", "rclpy", "grpc", "transformers", "numpy"
    script = (
        "import json, sys, edge_cloud_spec\n"
        "names = [dir(edge_cloud_spec), edge_cloud_spec.UserError.__name__]\n"
        f"early = [name for name in {heavy} if name in sys.modules]\n"
        "edge_cloud_spec.PictureDecoder, edge_cloud_spec.Pilot\n"
        "print(json.dumps([early, 'grpc' in sys.modules, 'rclpy' in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert json.loads(done.stdout) == [[], True, False], done.stderr


def test_every_public_name_is_listed_and_is_there_and_another_is_an_error_that_names_it() -> None:
    listed = set(edge_cloud_spec.__all__)
    decoding = {"Answer", "ClientSettings", "Decoder", "DraftModelSettings", "PictureDecoder"}
    asked = {"Message", "Picture"}
    assert listed == {*decoding, *asked, "Pilot", "UserError"} <= set(dir(edge_cloud_spec))
    for name in listed:
        value = getattr(edge_cloud_spec, name)
        assert value.__name__ == name and value.__doc__
    with pytest.raises(AttributeError, match="'edge_cloud_spec' has no attribute 'Request'"):
        edge_cloud_spec.Request  # noqa: B018


# The command


def decode(folder: Path, address: str, *options: str) -> int:
    picture = folder / "picture.jpg"
    picture.write_bytes(jpeg(1))
    given = ["--cloud", address, "--drafter", str(checkpoint("qwen3_vl", 2, 384)), *options]
    return main(["decode", str(picture), IT, *given])


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ((), GREEDY),
        (("--rule", "coupled", "--seed", "3"), SamplingPolicy(0.8, seed=3)),
        (("--rule", "coupled", "--temperature", "0.5"), SamplingPolicy(0.5)),
        (("--order", "reason first"), GREEDY),
    ],
    ids=str,
)
def test_it_says_the_targets_own_words_and_what_they_cost(
    link: Proxy,
    options: tuple[str, ...],
    policy: SamplingPolicy,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, target = tmp_path / "outcome.json", vlm("qwen3_vl", 1)
    assert decode(tmp_path, link.address, *options, "--json", str(path)) == 0
    said = capsys.readouterr().out
    told = json.loads(path.read_text())
    order = options[1] if "--order" in options else "action first"
    spec = target.spec(TOKENS)
    own = own_tokens(target, ours().request(IT, jpeg(1), order), spec, policy)
    assert told["answer"] == TextStream(target.tokenizer).add(own)
    assert said.startswith(told["answer"] + "\n")
    for name, value in told.items():
        assert name in ("answer", "action") or f"{name} {value:g}" in said
    assert 0 < told["rounds"] <= told["tokens"] == len(own) <= TOKENS
    assert 0 <= told["accepted"] <= told["drafted"]
    assert told["tokens"] <= told["accepted"] + told["rounds"]
    assert told["up_bytes"] > len(jpeg(1)) > told["down_bytes"] > 0
    assert told["tokens_per_s"] == pytest.approx(1e3 * len(own) / told["ms"], abs=0.1)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--temperature", "0.8"), "greedy goes with temperature 0"),
        (
            ("--rule", "coupled", "--temperature", "0"),
            "rule coupled goes with a temperature above 0",
        ),
        (
            ("--rule", "coupled", "--temperature", "101"),
            "from 0 to 10, not 101",
        ),
        (("--preset", "warp"), "no preset 'warp'"),
        (("--token-file", "/nowhere"), "/nowhere"),
        (("--authority", "/nowhere"), "/nowhere cannot be read"),
        (("--order", "last first"), "order"),
        (("--dialect", "klingon"), "no dialect 'klingon'; choose one of around, clauses"),
        (("--dialect", "no/where.yaml"), "or give the path of a .yaml file"),
        (
            ("--max-pixels", "-1"),
            "--max-pixels must be a whole number from 0 to 2147483647, not -1",
        ),
        (("--max-pixels", "10"), r"stands for \d+ pixels; give as many or more, or 0"),
        (("--max-image-tokens", "-3"), "--max-image-tokens must be a whole number from 0"),
        (("--json", "/nowhere/outcome.json"), "/nowhere/outcome.json cannot be written"),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_sentence_and_no_success(
    link: Proxy,
    options: tuple[str, ...],
    complaint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert decode(tmp_path, link.address, *options) != 0
    told = capsys.readouterr().err.strip().splitlines()
    assert re.search(complaint, told[-1]), told
    assert not any("Traceback" in line for line in told), told


def test_serve_and_decode_speak_a_dialect_and_its_action_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--target", str(checkpoint("qwen3_vl", 1)), "--dialect", "uni_navid"]
    worker = make_worker(parsed([*given, "--max-tokens", "40"]))
    path = tmp_path / "outcome.json"
    with Cloud(worker) as cloud:
        options = ("--dialect", "uni_navid", "--grammar", "action", "--json", str(path))
        assert decode(tmp_path, cloud.address, *options) == 0
    told = json.loads(path.read_text())
    action = load_dialect("uni_navid").action_of(told["answer"], ended=True)
    assert action is not None and told["action"] == str(action)
    assert f"\naction: {action}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("picture", "instruction", "complaint"),
    [
        ("nowhere.jpg", IT, r"/nowhere.jpg cannot be read"),
        ("picture.jpg", "find the pink piano", "does not understand the instruction.*blue box"),
    ],
)
def test_what_nobody_can_decode_is_named(
    link: Proxy,
    picture: str,
    instruction: str,
    complaint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A picture that is not there, and an instruction that the embedded draft model lacks."""
    (tmp_path / "picture.jpg").write_bytes(jpeg(1))
    asked = ["decode", str(tmp_path / picture), instruction, "--cloud", link.address]
    assert main(asked) == 2
    out, told = capsys.readouterr()
    assert re.match(f"error: .*{complaint}", told) and not out


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    link: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    link.set_delay(0.0)
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.delenv("no_proxy", raising=False)
    with PictureDecoder(link.address, str(checkpoint("qwen3_vl", 2, 384))) as decoder:
        assert decoder.decode(jpeg(1), IT).text


@pytest.mark.parametrize(
    ("address", "passed", "variable"),
    [
        ("127.0.0.1:50151", "", ""),
        ("localhost:50151", "", ""),
        ("cloud.example.org:50151", "", "https_proxy"),
        ("cloud.example.org:50151", "10.0.0.1, .example.org", ""),
        ("cloud.example.org:50151", "ample.org", "https_proxy"),
        ("cloud.example.org:50151", "*", ""),
    ],
)
def test_a_proxy_that_stands_between_is_named(
    address: str, passed: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("grpc_proxy", "http_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", passed)
    assert proxy_variable(address) == variable
