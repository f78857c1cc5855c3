"""The public surface: pictures are decoded from Python, and words are streamed as they settle."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from helpers.checkpoints import checkpoint, jpeg
from helpers.cloud.grpc_cloud import Cloud, Proxy

import edge_cloud_spec
from edge_cloud_spec import Answer, PictureDecoder, UserError
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.models.load import load

IT = "find the silver bottle"
DELAY_MS = 20.0  # each way: an answer of so many rounds takes seconds
TOKENS = 60  # of an answer


@pytest.fixture(scope="module")
def link() -> Iterator[Proxy]:
    """The way to a verifier; a random target, of which hardly a draft is accepted."""
    target = load(checkpoint("qwen3_vl", 1), threads=1)
    with (
        Cloud(Worker(target, target.spec("You guide a robot.", TOKENS))) as cloud,
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
    decoding = {"Answer", "ClientSettings", "DraftModelSettings", "PictureDecoder"}
    assert listed == {*decoding, "Pilot", "UserError"} <= set(dir(edge_cloud_spec))
    for name in listed:
        value = getattr(edge_cloud_spec, name)
        assert value.__name__ == name and value.__doc__
    with pytest.raises(AttributeError, match="'edge_cloud_spec' has no attribute 'Decoder'"):
        edge_cloud_spec.Decoder  # noqa: B018
