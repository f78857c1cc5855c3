"""A drafter behind an OpenAI-compatible server: its words are drafts, and never more than that."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.checkpoints import checkpoint, jpeg, own_tokens, vlm
from helpers.cloud.api_peer import DONE, HOSTILE, SECRET, ApiPeer, answer, chunk, event
from helpers.cloud.grpc_cloud import Cloud, free_port, until
from helpers.driven_session import DrivenSession
from helpers.transformers_serve import running
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.cli import main
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.dialects import ours
from edge_cloud_spec.edge.client import VerifierClient
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.edge.events import Abort, Inbox
from edge_cloud_spec.edge.link.route import ClientSettings
from edge_cloud_spec.edge.runner import DecodeRunner, Outcome
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.load_drafter import DraftModelSettings, load_drafter
from edge_cloud_spec.models.openai_drafter import (
    MAX_CONTINUATION_CHARS,
    QUESTION,
    TOKENS_PER_REQUEST,
    Continuation,
    ContinuedSession,
)
from edge_cloud_spec.models.openai_server import KEY_VARIABLE
from edge_cloud_spec.models.prompt import PromptSpec
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec_lab.bench.requests import sample_requests

DRAFTER = str(EMBEDDED / "drafter")
COUNT = "one, two, three, four, five, six"
REQUEST = ours().request("find the silver bottle", jpeg(1))
NONCES = itertools.count(1)


def said_so_far(body: dict[str, Any]) -> str:
    """The assistant's unfinished text in a request."""
    last = body["messages"][-1]
    return last["content"] if last["role"] == "assistant" else ""


def is_probe(body: dict[str, Any]) -> bool:
    return QUESTION in str([each for each in body["messages"] if each["role"] == "user"])


class Continuing(ApiPeer):
    """A server that continues texts, and says in decodes what the test says."""

    def __init__(
        self, says: Callable[[str], Iterable[bytes]], counts: str = COUNT, port: int = 0
    ) -> None:
        super().__init__(self._answers, port)
        self.says, self.counts = says, counts
        self.drafted = 0  # requests of decodes

    def _answers(self, body: dict[str, Any]) -> Iterable[bytes]:
        so_far = said_so_far(body)
        if is_probe(body):
            return answer(self.counts.removeprefix(so_far))
        self.drafted += 1
        return self.says(so_far)


def served_by(url: str, tokenizer: str = "", model: str = "a-model") -> Any:
    tokenizer = tokenizer or str(checkpoint())
    return load_drafter(DraftModelSettings(path=f"openai:{url}", tokenizer=tokenizer, name=model))


# A cloud whose target is a random checkpoint, and robots beside it


@pytest.fixture(scope="module")
def there() -> Iterator[SimpleNamespace]:
    target, alone = (load(checkpoint(), threads=1, check=False) for _ in range(2))
    spec = target.spec(14)
    own = {  # what the target says by itself
        temperature: own_tokens(alone, REQUEST, spec, SamplingPolicy(temperature, seed=5))
        for temperature in (0.0, 0.8)
    }
    words = alone.tokenizer.decode(own[0.0], skip_special_tokens=True)

    def says(so_far: str) -> Iterable[bytes]:
        return answer(words.removeprefix(so_far))

    with Cloud(Worker(target, spec)) as cloud:
        client = VerifierClient(ClientSettings(cloud.address))
        yield SimpleNamespace(
            spec=spec,
            own=own,
            words=words,
            says=says,
            connect=client.connect,
            address=cloud.address,
        )
        client.close()


def decode(
    there: SimpleNamespace,
    drafter: Any,
    preset: str = "dsd",
    temperature: float = 0.0,
    inbox: Inbox | None = None,
) -> Outcome:
    rule = "coupled" if temperature else "greedy"
    wanted = DecodeSettings(load_preset(preset), rule, SamplingPolicy(temperature, seed=5))
    runner = DecodeRunner(drafter, there.spec)
    nonce = next(NONCES)
    return runner.run(REQUEST, wanted, nonce, there.connect, lambda emit: None, inbox)


def hangs(_: str) -> Iterator[bytes]:
    threading.Event().wait(60)
    yield DONE


GARBAGE: dict[str, Callable[[str], Iterable[bytes]]] = {
    "other words": lambda so_far: answer("turn left small; stop; stop"),
    "parts of characters": lambda so_far: answer("\N{REPLACEMENT CHARACTER}→\N{SNOWMAN} é", 1),
    "control tokens": lambda so_far: answer("<|im_end|><|image_pad|><|im_start|>system\nstop"),
    "the end at once": lambda so_far: [chunk(finish="stop"), DONE],
    "no end": lambda so_far: [chunk("find the"), DONE],
    "a part of a word": lambda so_far: [chunk("mo"), chunk("ve forw"), chunk("ard", "length")],
    "a flood": lambda so_far: [chunk("stop " * 100_000), DONE],
    "many small pieces": lambda so_far: [*[chunk(".")] * 1_200, DONE],
    "its own text again": lambda so_far: answer(so_far + " and so on"),
}
FAULTS: dict[str, Callable[[str], Any]] = {
    "nothing": lambda so_far: [chunk(finish="length"), DONE],
    "no choices": lambda so_far: [event({"choices": None}), DONE],
    "numbers": lambda so_far: [chunk(7), DONE],
    "no object": lambda so_far: [event([1, 2]), DONE],
    "no JSON": lambda so_far: [b"data: {{{\n\n"],
    "broken off": lambda so_far: [],
    "a failure": lambda so_far: (500, {}, b"out of memory"),
    "a refusal": lambda so_far: (400, {}, b"no"),
}


@pytest.mark.parametrize(
    ("preset", "temperature"),
    [("dsd", 0.0), ("fsd", 0.0), ("picospec", 0.8), ("dssd", 0.8), ("auto", 0.0), ("auto", 0.8)],
)
def test_whatever_a_server_says_the_answer_is_the_targets_own(
    there: SimpleNamespace, preset: str, temperature: float
) -> None:
    expected = there.own[temperature]
    with Continuing(answer) as peer:
        drafter = served_by(peer.url)
        for name, says in GARBAGE.items():
            peer.says = says
            outcome = decode(there, drafter, preset, temperature)
            assert outcome.completed and outcome.tokens == expected, name
            assert not outcome.stats.failure, name


@pytest.mark.parametrize("preset", ["dsd", "fsd", "picospec", "dssd", "tslt", "auto"])
def test_where_the_server_fails_the_cloud_goes_on_alone_and_the_next_decision_tries_again(
    there: SimpleNamespace, preset: str
) -> None:
    """It may fail at any request of a decode."""
    expected = there.own[0.0]
    with Continuing(answer) as peer:
        drafter = served_by(peer.url)
        for at, (name, fault) in enumerate([*FAULTS.items()] * 2):
            last = peer.drafted + at // len(FAULTS)  # that works: none, or one

            def says(so_far: str, fails: Any = fault, last: int = last) -> Any:
                if peer.drafted > last:
                    return fails(so_far)
                return [chunk(there.words.removeprefix(so_far)[:3]), chunk(finish="length"), DONE]

            peer.says = says
            outcome = decode(there, drafter, preset)
            assert outcome.completed and outcome.tokens == expected, name
            if preset != "auto":  # which may not need it
                assert peer.drafted > last and outcome.stats.failure, name
                assert len(outcome.stats.failure.splitlines()) == 1
        peer.says = there.says
        outcome = decode(there, drafter, preset)
        assert outcome.tokens == expected and not outcome.stats.failure
    assert decode(there, drafter, preset).tokens == expected  # it is gone


@pytest.mark.parametrize("name", HOSTILE)
def test_after_a_hostile_reply_the_cloud_goes_on_alone_and_the_key_is_not_said(
    there: SimpleNamespace, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, SECRET.decode())
    reply, complaint = HOSTILE[name]
    with Continuing(lambda so_far: reply) as peer:
        drafter = served_by(peer.url)
        outcome = decode(there, drafter)
        assert outcome.completed and outcome.tokens == there.own[0.0]
        failure = outcome.stats.failure
        assert complaint in failure and failure.isprintable() and SECRET.decode() not in failure
        peer.says = answer  # type: ignore[assignment]
        assert not decode(there, drafter).stats.failure
        peer.answers = lambda body: reply
        try:
            served_by(peer.url)  # or what passes by is tried at the next decode
        except UserError as error:
            assert str(error).isprintable() and SECRET.decode() not in str(error)


def test_what_the_target_would_say_is_accepted_and_asked_for_once(there: SimpleNamespace) -> None:
    expected = there.own[0.0]
    with Continuing(there.says) as peer:
        outcome = decode(there, served_by(peer.url))
        assert outcome.tokens == expected
        assert outcome.stats.accepted > len(expected) // 2
        assert peer.drafted <= 1 + outcome.stats.drafted - outcome.stats.accepted
    asked = [body for body in peer.asked if not is_probe(body)]
    assert all(
        body["max_tokens"] == TOKENS_PER_REQUEST and body["temperature"] == 0 for body in asked
    )
    assert asked[0]["messages"][0]["content"] == REQUEST.messages[0].text
    picture = asked[0]["messages"][1]["content"][0]["image_url"]["url"]
    assert picture.startswith("data:image/jpeg;base64,")


@pytest.mark.parametrize("was_away", [False, True])
def test_messages_are_handled_while_the_server_is_waited_for(
    there: SimpleNamespace, was_away: bool
) -> None:
    """Also while one is tried that was away when the drafter was loaded."""
    port, inbox = free_port(), Inbox()
    url = f"http://127.0.0.1:{port}/v1"
    drafter = served_by(url) if was_away else None
    with Continuing(hangs, port=port) as peer:
        drafter = drafter or served_by(url)
        peer.answers = lambda body: hangs("")
        timer = threading.Timer(0.2, inbox.put, [Abort("e_stop")])
        timer.start()
        outcome = decode(there, drafter, inbox=inbox)
    assert (outcome.reason, outcome.text, outcome.stats.failure) == ("aborted", "e_stop", "")


def test_a_preset_of_trees_is_refused_with_those_that_fit(there: SimpleNamespace) -> None:
    with Continuing(answer) as peer:
        with pytest.raises(UserError, match=r"preset specedge: it drafts trees.* such as dsd"):
            decode(there, served_by(peer.url), "specedge")
        assert peer.drafted == 0


def test_decode_tells_what_the_server_did(
    there: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, words = tmp_path / "picture.jpg", there.words
    picture.write_bytes(jpeg(1))
    given = ["decode", str(picture), "find the silver bottle", "--cloud", there.address]
    given += ["--preset", "dsd", "--tokenizer", str(checkpoint()), "--model", "a-model"]
    with Continuing(there.says) as peer:
        given += ["--drafter", f"openai:{peer.url}"]
        assert main(given) == 0
        assert words in (said := capsys.readouterr()).out and "alone" not in said.err
        peer.says = lambda so_far: (500, {}, b"out of memory")  # type: ignore[assignment, return-value]
        assert main(given) == 0
        assert words in (said := capsys.readouterr()).out
        assert said.err.count("the cloud went on alone") == 1
    assert main(given) == 0  # it is gone
    assert words in (said := capsys.readouterr()).out
    assert "the cloud went on alone" in said.err and "cannot be reached" in said.err


@pytest.mark.parametrize("words", [COUNT, "stop", "stop stop"])
def test_a_server_is_taken_where_it_continues_its_own_answer(words: str) -> None:
    with Continuing(answer, words) as peer:
        served_by(peer.url)
        first, *others = peer.asked
        assert said_so_far(first) == "" and "continue_final_message" not in first
        assert words.startswith(said_so_far(others[0])) and said_so_far(others[0])
        assert others[0]["continue_final_message"] and not others[0]["add_generation_prompt"]

        def strict(body: dict[str, Any]) -> Any:  # as `transformers serve`
            if "continue_final_message" in body:
                return 422, {}, b"Unexpected fields in the request"
            return answer(words.removeprefix(said_so_far(body)))

        peer.answers, peer.asked = strict, []
        served_by(peer.url)
        assert "continue_final_message" not in peer.asked[-1] and len(peer.asked) == 3


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (lambda body: answer(COUNT), "says something else"),  # it begins anew
        (lambda body: answer("" if said_so_far(body) else COUNT), "says something else"),
        (lambda body: [chunk(finish="length"), DONE], "says nothing"),
        (lambda body: (401, {}, b""), "key"),
        (lambda body: (404, {}, b"no such model"), "no model a-model"),
    ],
)
def test_a_server_that_does_not_continue_is_refused_with_the_reason(answers: Any, why: str) -> None:
    with ApiPeer(answers) as peer, pytest.raises(UserError, match=why) as error:
        served_by(peer.url)
    assert len(str(error.value).splitlines()) == 1


def test_nothing_is_left_of_a_drafter_that_nobody_has(there: SimpleNamespace) -> None:
    """Its node may be cleaned up and configured again for months."""

    def held() -> tuple[int, int]:
        names = [thread.name for thread in threading.enumerate()]
        return names.count("openai"), len(os.listdir("/proc/self/fd"))

    with Continuing(answer) as peer:
        before = held()
        for _ in range(3):
            assert decode(there, served_by(peer.url)).completed
        gc.collect()
        until(lambda: held() <= before)


def test_a_server_that_is_away_when_the_drafter_is_loaded_is_tried_at_each_decode(
    there: SimpleNamespace,
) -> None:
    """A robot's nodes may start before it."""
    expected, port = there.own[0.0], free_port()
    drafter = served_by(f"http://127.0.0.1:{port}/v1")
    outcome = decode(there, drafter)
    assert outcome.tokens == expected and "cannot be reached" in outcome.stats.failure
    with Continuing(there.says, port=port) as peer:
        outcome = decode(there, drafter)
        assert outcome.tokens == expected and outcome.stats.accepted and not outcome.stats.failure
    drafter = served_by(f"http://127.0.0.1:{port}/v1")
    with Continuing(answer, port=port) as peer:
        peer.answers = lambda body: answer(COUNT)  # it does not continue
        outcome = decode(there, drafter)
        assert outcome.tokens == expected and "does not continue" in outcome.stats.failure


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"name": "x"}, r"model\.tokenizer, or --tokenizer"),
        ({"tokenizer": DRAFTER}, "name one"),
        ({"tokenizer": DRAFTER, "max_pixels": 9}, "the server's to set"),
    ],
)
def test_what_is_missing_is_said(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        load_drafter(DraftModelSettings(path="openai:http://127.0.0.1:1/v1", **options))


class Reply:
    """What arrives, a list at a time."""

    def __init__(self, *parts: str, finish: str | None = None) -> None:
        self._parts, self._finish = list(parts), finish
        self.cancelled = False

    def take(self) -> list[Any]:
        assert not self.cancelled
        if not self._parts:
            return []
        delta = {"content": self._parts.pop(0)}
        return [
            {"choices": [{"delta": delta, "finish_reason": self._finish if self.done else None}]}
        ]

    @property
    def done(self) -> bool:
        return not self._parts

    def cancel(self) -> None:
        self.cancelled = True


@settings(max_examples=100, deadline=None)
@given(
    start=st.lists(st.deferred(lambda: st.integers(0, len(vlm().tokenizer) - 1)), max_size=6),
    text=st.text(max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
)
def test_the_verified_tokens_stay_whatever_text_follows_in_whatever_pieces(
    start: list[int], text: str, cuts: list[int]
) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    tokenizer = vlm().tokenizer
    said: Any = Continuation(tokenizer, tuple(start), Reply(*pieces), threading.Event())  # type: ignore[arg-type]
    for _ in pieces:
        said.read()
        assert said.path[: len(start)] == tuple(start)
    words = tokenizer.decode(start) + text
    whole = tokenizer(words)["input_ids"]
    if whole[: len(start)] == start:
        assert list(said.path) == whole or words.endswith("\N{REPLACEMENT CHARACTER}")
    elif "<|" not in text:
        assert tokenizer.decode(said.path[len(start) :]) == text.rstrip("\N{REPLACEMENT CHARACTER}")


class Letters:
    """A tokenizer whose tokens are letters."""

    def decode(self, path: Iterable[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(97 + token) for token in path)

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) - 97 for letter in text]}


LETTERS = Letters()


def next_letter(text: str) -> str:
    """What the server says after a text, one of two; its answers end after "aa"."""
    return chr(97 + zlib.crc32(text.encode()) % 2) if not text.endswith("aa") else ""


def saying(text: str, count: int) -> Reply:
    """The next letters, so many at most, by twos; an empty text at first."""
    letters = ""
    while len(letters) < count and (letter := next_letter(text + letters)):
        letters += letter
    parts = [letters[at : at + 2] for at in range(0, len(letters), 2)]
    finish = "length" if next_letter(text + letters) else "stop"
    return Reply("", *parts, finish=finish)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 6))
def test_a_row_names_what_the_server_says_after_that_very_path(seed: int, count: int) -> None:
    def ask(path: tuple[int, ...], on_layer: Any) -> Continuation:
        reply: Any = saying(LETTERS.decode(path), count)
        return Continuation(LETTERS, path, reply, threading.Event())

    def check(tokens: Sequence[int], row: Any) -> None:
        letter = next_letter(LETTERS.decode(tokens))
        assert np.isfinite(row).sum() == 1
        assert row.argmax() == (ord(letter) - 97 if letter else 9)

    session, dice = ContinuedSession(ask, 9, 10), np.random.default_rng(seed)
    driven = DrivenSession(session, check, dice, vocabulary=2)
    for _ in range(25):
        driven.turn()


def test_one_request_serves_what_follows_and_ends_where_it_was_wrong() -> None:
    asked: dict[tuple[int, ...], Any] = {}

    def ask(path: tuple[int, ...], on_layer: Any) -> Continuation:
        asked[path] = saying(LETTERS.decode(path), TOKENS_PER_REQUEST)
        return Continuation(LETTERS, path, asked[path], threading.Event())

    session = ContinuedSession(ask, 9, 10)
    while len(session.tokens) < 6 and session.logits_after(-1).argmax() != 9:
        session.extend([int(session.logits_after(-1).argmax())])
    assert list(asked) == [()] and not asked[()].cancelled
    session.extend([(int(session.logits_after(-1).argmax()) + 1) % 2])
    assert asked[()].cancelled
    session.logits_after(-1)
    assert list(asked) == [(), session.tokens]
    session.close()
    assert asked[session.tokens].cancelled


def test_no_more_of_a_flood_is_read_than_was_asked_for() -> None:
    said: Any = Continuation(LETTERS, (1, 2), Reply(*["ab" * 300] * 9), threading.Event())  # type: ignore[arg-type]
    while not said.over:
        said.read()
    assert said.over == "length" and len(said.path) == 2 + MAX_CONTINUATION_CHARS


# A real server


@pytest.fixture(scope="module")
def transformers_serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``transformers serve`` with the embedded drafter and a template that continues."""
    with running(DRAFTER, tmp_path_factory.mktemp("serve") / "hold", continues=True) as server:
        yield server.url


def greedy(model: Vlm, session: Any, spec: PromptSpec) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < 24 and not (tokens and tokens[-1] in spec.end_ids):
        row = session.logits_after(-1)
        tokens.append(int(row.argmax()))
        session.extend(tokens[-1:])
    return tokens


def test_a_real_servers_tokens_are_those_of_the_same_model_in_torch(
    transformers_serve: str,
) -> None:
    served, ours = served_by(transformers_serve, DRAFTER, DRAFTER), load(DRAFTER, threads=1)
    spec = ours.spec(32)
    for request in sample_requests(5, 4):
        prefill = served.prefill(served.prompt(request, spec))
        with pytest.raises(ValueError):
            _ = prefill.session
        assert prefill.step(1)
        theirs = greedy(served, prefill.session, spec)
        assert theirs == greedy(ours, ours.open(ours.prompt(request, spec)), spec)
        row = prefill.session.logits_after(-1)
        assert np.isfinite(row).sum() == 1 and len(row) == served.vocabulary
