"""A target on a vLLM server: drafts are verified there, and answers are those of our own engine."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.checkpoints import jpeg
from helpers.cloud import vllm_peer
from helpers.cloud.grpc_cloud import Cloud, until
from helpers.cloud.served_answers import (
    POLICY,
    TARGET,
    answers,
    embedded_drafter,
    opening_of,
    refused,
    worker_of,
)
from helpers.cloud.vllm_peer import VllmPeer
from helpers.requests import ANY_FORM
from helpers.suites import rows

from edge_cloud_spec.cloud.model_thread.model_runner import Unsupported
from edge_cloud_spec.cloud.model_thread.target_session import NotArrived
from edge_cloud_spec.cloud.session.events import DuePass
from edge_cloud_spec.cloud.vllm_target import Node
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.processor import TOO_LONG
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.request import Picture, Request, with_pictures
from edge_cloud_spec_lab.bench import equality
from edge_cloud_spec_lab.bench.fleet import embedded
from edge_cloud_spec_lab.bench.requests import sample_requests
from edge_cloud_spec_lab.harness.grpc_robot import GrpcRobot


@pytest.fixture(scope="module")
def peer() -> Iterator[VllmPeer]:
    with VllmPeer(TARGET) as peer:
        yield peer


def on_vllm(peer: VllmPeer, *options: str) -> Any:
    return worker_of("--target", f"vllm:{peer.url}", "--checkpoint", str(TARGET), *options)


EXACT = ["dsd", "auto", "picospec", "specedge", "cloud_ar", "fsd"]
PRESETS = {"greedy": EXACT, "coupled": EXACT, "rejection": [*EXACT, "dssd", "tslt"]}  # by rule


@pytest.fixture(scope="module")
def said_by(peer: VllmPeer) -> Callable[[str], list[Any]]:
    """What each preset says of the target on the server, by the rule."""
    return cache(lambda rule: answers(on_vllm(peer), PRESETS[rule], rule, 1))


@pytest.mark.parametrize("rule", PRESETS)
def test_every_preset_says_what_it_says_with_our_own_engine(said_by: Any, rule: str) -> None:
    here = worker_of("--target", str(TARGET), "--device", "cpu", "--dtype", "float32")
    assert said_by(rule) == answers(here, PRESETS[rule], rule, 1)


def test_benches_take_a_server_beside_our_own_engine(
    peer: VllmPeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verifiers are in this process; others start them as a user does."""
    for suite in (embedded, equality):
        monkeypatch.setattr(suite, "VerifierProcess", lambda options: Cloud(worker_of(*options)))
    monkeypatch.setattr(embedded, "ServerProcess", lambda make: Cloud(make()))
    engine = ("--engine", f"vllm:{peer.url}")
    few = ("--harness", "embedded", "--server", "batched", "--robots", "1", "--seconds", "1")
    ours, theirs = rows("fleet", tmp_path, *engine, *few, "--seeds", "1")
    assert (ours["server"], theirs["server"]) == ("batched", "vllm")
    assert ours["equal"] and theirs["equal"] and theirs["requests_per_round"] >= 1.0
    monkeypatch.setattr(equality, "preset_names", lambda: ["cloud_sd", "dsd"])
    equal = rows("equality", tmp_path, *engine, "--prompts", "1", "--samples", "0")
    assert [(row["preset"], row["equal"]) for row in equal] == [("dsd", 1)] * 2


def test_requests_of_any_form_have_our_own_engines_answers(peer: VllmPeer) -> None:
    """Each is asked by one of two rules."""
    rules, said = [("greedy", GREEDY), ("coupled", POLICY)], []
    # Of a size that the target's own stays, as a server resizes what it is sent.
    forms = [
        with_pictures(each, lambda picture: Picture.of(jpeg(len(picture.data), 224, 224)))
        for each in ANY_FORM.values()
    ]
    short = ("--dialect", "any", "--max-tokens", "12")
    here = worker_of("--target", str(TARGET), "--device", "cpu", "--dtype", "float32", *short)
    for worker in (here, on_vllm(peer, *short)):
        spec = worker._models.spec
        with Cloud(worker) as cloud, GrpcRobot(cloud.address, embedded_drafter(), spec) as robot:
            done = [
                robot.decode(Request(messages), DecodeSettings(load_preset("dsd"), *how))
                for messages, how in zip(forms, itertools.cycle(rules), strict=False)
            ]
        assert all(outcome.completed for outcome in done)
        said.append([outcome.tokens for outcome in done])
    assert said[0] == said[1]


def penalized(directory: Path) -> Path:
    """A copy of the target whose generation_config.json changes its answers."""
    copy = Path(shutil.copytree(TARGET, directory / "target"))
    config = json.loads((copy / "generation_config.json").read_text())
    config |= {"repetition_penalty": 3.0, "no_repeat_ngram_size": 2, "suppress_tokens": [409]}
    (copy / "generation_config.json").write_text(json.dumps(config))
    return copy


@pytest.mark.parametrize("rule", PRESETS)
def test_what_the_checkpoint_does_to_logits_is_asked_of_the_server(
    peer: VllmPeer, said_by: Any, tmp_path: Path, rule: str
) -> None:
    names, copy = (
        ["specedge", "cloud_ar", "dssd"][: 2 if rule != "rejection" else 3],
        penalized(tmp_path),
    )
    there = worker_of("--target", f"vllm:{peer.url}", "--checkpoint", str(copy))
    here = worker_of("--target", str(copy), "--device", "cpu", "--dtype", "float32", "--no-check")
    said, unchanged = (
        answers(there, names, rule, 1),
        [each for each in said_by(rule) if each[0] in names],
    )
    assert said == answers(here, names, rule, 1) != unchanged
    left_out = ("--checkpoint", str(copy), "--generation-config", "none")
    plain = worker_of("--target", f"vllm:{peer.url}", *left_out)
    assert answers(plain, names[:1], rule, 1) == unchanged[:1]


def test_a_logits_processor_that_knows_no_penalties_is_found_out(
    peer: VllmPeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an older version: ``coupled`` is refused, or asks for whole rows."""
    monkeypatch.setattr(peer, "penalizes", False)
    options = ("--target", f"vllm:{peer.url}", "--checkpoint", str(penalized(tmp_path)))
    assert not worker_of(*options)._models._samples
    assert on_vllm(peer)._models._samples


LIMIT, FEW = ("--max-tokens", "40"), ["dsd", "auto", "cloud_ar"]


@pytest.fixture(scope="module")
def limited(peer: VllmPeer) -> list[Any]:
    """What a verifier of the whole checkpoint says."""
    return answers(on_vllm(peer, *LIMIT), FEW, "greedy", 1)


@pytest.mark.parametrize("family", ["qwen3_5_moe", "of_next_year_vl"])
def test_of_a_family_that_our_engine_lacks_the_small_files_are_enough(
    peer: VllmPeer, limited: list[Any], tmp_path: Path, family: str
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TARGET / name, tmp_path)
    shutil.copy(TARGET / "preprocessor_config.json", tmp_path)
    config = json.loads((TARGET / "config.json").read_text())
    rows = {"vocab_size": config["text_config"]["vocab_size"]}
    named = {name: config[name] for name in ("image_token_id", "eos_token_id")}
    config = {"model_type": family, "text_config": rows, **named}
    (tmp_path / "config.json").write_text(json.dumps(config))
    there = worker_of("--target", f"vllm:{peer.url}", "--checkpoint", str(tmp_path), *LIMIT)
    assert answers(there, FEW, "greedy", 1) == limited


def content(**changes: Any) -> tuple[int, Any]:
    """A reply of which the one choice has this, too."""
    told = {"token_ids": [5], "logprobs": {"content": [{"token_id": 5, "logprob": -0.1}]}}
    return 200, {"choices": [told | changes]}


NO_TOKENS = "does not say tokens"
FAULTS: dict[str, tuple[Any, str, str]] = {
    "no memory": ((500, {"error": {"message": "out of memory"}}), "out of memory", "overloaded"),
    "full": ((503, {"error": {"message": "no room"}}), "no room", "overloaded"),
    "refuses": ((400, {"error": {"message": "no such id"}}), "no such id", "bad_request"),
    "forgets at once": ((400, {"error": {"message": "Cache miss"}}), "Cache miss", "bad_request"),
    "another server": ((404, {"error": "?"}), "--enable-scale-out", "bad_request"),
    "no answer": ((200, "<html>"), "", "bad_request"),
    "a list": ((200, []), "one choice", "bad_request"),
    "no choice": ((200, {"choices": []}), "one choice", "bad_request"),
    "two choices": ((200, {"choices": [{}, {}]}), "one choice", "bad_request"),
    "no token": (content(token_ids=[]), NO_TOKENS, "bad_request"),
    "two tokens": (content(token_ids=[1, 2]), NO_TOKENS, "bad_request"),
    "a word": (content(token_ids=["stop"]), NO_TOKENS, "bad_request"),
    "below zero": (content(token_ids=[-1]), NO_TOKENS, "bad_request"),
    "beyond the vocabulary": (content(token_ids=[2**40]), "that it may not", "bad_request"),
    "no number": (
        content(logprobs={"content": [{"token_id": 5, "logprob": float("nan")}]}),
        NO_TOKENS,
        "bad_request",
    ),
    "no likelihood": (content(logprobs=None), NO_TOKENS, "bad_request"),
}


class Served:
    """A verifier before the fake server, a robot of it, and what it decodes without a fault."""

    def __init__(self, peer: VllmPeer, cloud: Cloud, robot: GrpcRobot) -> None:
        self.peer, self.worker, self._robot = peer, cloud.worker, robot
        self._request = sample_requests(0, 1)[0]
        self.models: Any = cloud.worker._models
        self.whole = self.decode()

    def decode(
        self,
        rule: str = "greedy",
        fault: Any = lambda body: None,
        preset: str = "dsd",
        request: Request | None = None,
    ) -> Any:
        """A decode beside a fault."""
        policy = GREEDY if rule == "greedy" else POLICY
        self.peer.fault = fault
        try:
            return self._robot.decode(
                request or self._request, DecodeSettings(load_preset(preset), rule, policy)
            )
        finally:
            self.peer.fault = lambda body: None


@pytest.fixture(scope="module")
def served(peer: VllmPeer) -> Iterator[Served]:
    worker = on_vllm(peer)
    with (
        Cloud(worker) as cloud,
        GrpcRobot(cloud.address, embedded_drafter(), worker._models.spec) as robot,
    ):
        yield Served(peer, cloud, robot)


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_at_any_request_is_one_sentence_and_the_verifier_lives(
    served: Served, name: str, after: int
) -> None:
    fault, complaint, reason = FAULTS[name]
    asked = len(served.peer.asked)
    outcome = served.decode(
        fault=lambda body: fault if len(served.peer.asked) > asked + after else None
    )
    refused(outcome, complaint, reason)
    assert outcome.tokens == served.whole.tokens[: len(outcome.tokens)], "nothing but the target's"
    until(lambda: not served.worker.held)
    assert served.decode().tokens == served.whole.tokens


def test_a_picture_that_the_server_would_resize_again_is_refused(served: Served) -> None:
    """Its answer would be about another picture: here of 70 tokens, not 54."""
    asked, (usual,) = len(served.peer.asked), sample_requests(0, 1)
    messages = with_pictures(usual.messages, lambda _: Picture.of(jpeg(1, 640, 480)))
    request = replace(usual, messages=messages)
    refused(served.decode(request=request), "resize this picture again", "bad_request")
    assert len(served.peer.asked) == asked
    assert served.decode().completed


def test_the_length_of_the_server_is_a_prompts_limit_and_not_the_checkpoints(
    served: Served,
) -> None:
    """4,096 tokens there, as it was started; 1,024 positions in config.json."""
    (usual,) = sample_requests(0, 1)
    for characters in (1_500, 5_000):
        (*before, last) = usual.messages
        long = replace(last, parts=(*last.parts, "7" * characters))
        outcome = served.decode(request=replace(usual, messages=(*before, long)))
        if characters < 4_000:
            assert outcome.completed
        else:
            refused(outcome, f"{TOO_LONG} ", "bad_request")
            assert "--max-model-len" in outcome.text


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
def test_a_picture_that_the_server_forgets_is_sent_again(served: Served, rule: str) -> None:
    def forgets(body: Any) -> None:
        if len(served.peer.asked) % 3 == 0:
            served.peer.forget()

    whole, asked = served.decode(rule).tokens, len(served.peer.asked)
    assert served.decode(rule, forgets).tokens == whole
    sent = [body for body in served.peer.asked[asked:] if body["content_parts"][0]["url"]]
    assert 1 < len(sent) < len(served.peer.asked) - asked


LIES: dict[str, Callable[[Any], Any]] = {
    "of another length": lambda rows: rows[1:],
    "none": lambda rows: None,
    "without ranks": lambda rows: [
        row and {token: {"logprob": 0.0} for token in row} for row in rows
    ],
    "no likeliest": lambda rows: [
        row and {token: {**told, "rank": 2} for token, told in row.items()} for row in rows
    ],
    "two likeliest": lambda rows: [
        row and {token: {**told, "rank": 1} for token, told in {**row, 5: row}.items()}
        for row in rows
    ],
    "no number": lambda rows: [
        row and {token: {**told, "logprob": float("nan")} for token, told in row.items()}
        for row in rows
    ],
    "of other tokens": lambda rows: [row and {9: {"logprob": 0.0, "rank": 1}} for row in rows],
    "words": lambda rows: ["words" for row in rows],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_chain_whose_scores_cannot_be_is_asked_again_node_by_node(
    served: Served, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, asked = served.peer._scores, []
    for told in (lambda rows: rows, LIES[lie]):
        served.peer.forget()
        monkeypatch.setattr(served.peer, "_scores", lambda *of, told=told: told(scores(*of)))
        before = len(served.peer.asked)
        assert served.decode().tokens == served.whole.tokens
        asked.append(len(served.peer.asked) - before)
    assert asked[0] < asked[1]


def test_chains_are_scored_whatever_the_servers_cache_says_of_the_first(peer: VllmPeer) -> None:
    for scored in range(7):  # each seventh reply of the server is no JSON
        peer._scored = scored
        assert on_vllm(peer)._models._chains


def test_a_server_that_tells_nothing_of_its_cache_is_asked_for_each_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with VllmPeer(TARGET, details=False) as peer:
        worker = on_vllm(peer)
    assert not worker._models._chains and "--enable-prompt-tokens-details" in caplog.text


def test_what_one_robot_sends_is_found_by_no_other(peer: VllmPeer) -> None:
    """vLLM's caches are searched by salt and name, and each credential has its own of both."""
    worker = on_vllm(peer)
    [request] = sample_requests(2, 1)
    opening, spec = opening_of(request), worker._models.spec
    named = set()
    for credential in ("", "robot 1", "robot 2"):
        asked = replace(opening, request=replace(request, owner=credential))
        session = worker._models.open(asked, worker._models.speaker.prompt(asked.request, spec))
        session.first.result()
        named.add((session.salt, *session.pictures))
    assert len({salt for salt, _ in named}) == len({picture for _, picture in named}) == 3
    assert not any("robot" in text for pair in named for text in pair)
    assert {body["cache_salt"] for body in peer.asked[-3:]} == {salt for salt, _ in named}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"/version": {"detail": "?"}}, "no vLLM server with one model"),
        ({"/v1/models": {"data": []}}, "no vLLM server with one model"),
        ({"/v1/models": {"data": [{"id": "x", "max_model_len": 90}]}}, "--max-model-len"),
        ({"/tokenize": {"tokens": [1, 2, 3]}}, "another tokenizer"),
        ({"prompt_token_ids": [1, 2, 3]}, "another processor: a prompt is 3 tokens there"),
    ],
)
def test_a_server_that_cannot_serve_is_refused_at_start(
    peer: VllmPeer, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], why: str
) -> None:
    monkeypatch.setattr(peer, "said", peer.said | wrong)
    with pytest.raises(UserError, match=why):
        on_vllm(peer)


ANOTHER = {"data": [{"id": "y", "max_model_len": 4096}]}


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ({}, ""),
        ({"/version": {"version": "0.1"}}, "by version 0.1: start this verifier again"),
        ({"/v1/models": ANOTHER}, "serves y now"),
        ({"/tokenize": {"tokens": [1, 2, 3]}}, "another tokenizer"),
        ({"prompt_token_ids": [1, 2, 3]}, "another processor"),
    ],
)
def test_a_server_that_was_started_again_is_looked_at_again(
    served: Served, monkeypatch: pytest.MonkeyPatch, now: dict[str, Any], why: str
) -> None:
    """Nothing is decided by another model, at a second try neither; the right one goes on."""
    peer, models = served.peer, served.models
    monkeypatch.setattr(models, "_looked_s", 0.0)
    monkeypatch.setattr(models, "_served", replace(models._served))
    monkeypatch.setattr(peer, "said", peer.said | now)
    monkeypatch.setattr(peer, "started", peer.started + 1.0)
    for _ in range(2):
        outcome = served.decode()
        if why:
            refused(outcome, why, "bad_request")
            assert not outcome.tokens
        else:
            assert outcome.tokens == served.whole.tokens and models._served.started == peer.started


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_server_that_becomes_another_within_an_answer_completes_none(
    served: Served, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """Without a second of silence or a lost connection, and at the answer's last token as well."""
    peer, lengths = served.peer, list[int]()
    monkeypatch.setattr(peer, "said", dict(peer.said))
    served.decode(fault=lambda body: lengths.append(len(body["token_ids"])))
    turns_at = min(lengths) + share * (len(served.whole.tokens) - 1)

    def another(body: Any) -> None:
        if len(body["token_ids"]) >= turns_at:
            peer.said["/v1/models"] = ANOTHER

    outcome = served.decode(fault=another)
    assert not outcome.completed
    refused(outcome, "serves y now", "bad_request")


def test_after_an_error_the_server_is_asked_who_it_is_before_it_is_believed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened, look = list[str](), served.models.server.served

    def looked() -> Any:
        happened.append("look")
        return look()

    def fails(body: Any) -> Any:
        happened.append("error")
        return 503, {"error": "?"}

    monkeypatch.setattr(served.models.server, "served", looked)
    served.decode()
    refused(served.decode(fault=fails), "", "overloaded")
    served.decode(fault=lambda body: happened.append("reply"))
    assert "look" in happened[happened.index("error") : happened.index("reply")]


@pytest.mark.parametrize("rule", ["greedy", "rejection"])
@pytest.mark.parametrize("token", [511, 512, 513, 514])
def test_a_token_that_stands_for_a_picture_does_not_reach_the_server(
    served: Served, monkeypatch: pytest.MonkeyPatch, token: int, rule: str
) -> None:
    """vLLM looks for the picture of each, and its engine ends: verified, drafted or drawn."""
    monkeypatch.setattr(served.models, "on_news", lambda _: None)
    models, policy = served.models, POLICY if rule == "rejection" else GREEDY
    opening = opening_of(sample_requests(0, 1)[0], rule=rule, policy=policy)
    prompt = models.speaker.prompt(opening.request, models.spec)
    why = f"token {token} stands for a picture"
    asked = len(served.peer.asked)
    with pytest.raises(UserError, match=why):
        models.open(replace(opening, verified=(5, token)), prompt)
    assert len(served.peer.asked) == asked
    session = models.open(opening, prompt)
    session.first.result()
    tree = Draft((5, token, token, 7, served.whole.tokens[0]), (-1, 0, -1, 2, -1))
    held = SimpleNamespace(
        target=session,
        opening=opening,
        due=DuePass(tree),
        processors=None,
        tokens=(),
        generating=False,
    )

    def scored() -> Any:
        results: list[Any] = [NotArrived()]

        def arrived() -> bool:
            results.extend(models.forward([held], lambda *_: None))
            return not isinstance(results[-1], NotArrived)

        until(arrived)
        return results[-1]

    rows = scored()
    for body in served.peer.asked[asked:]:
        pads = [each for each in body["token_ids"][len(session.prompt_ids) :] if each == token]
        assert not pads
    if rule == "rejection":
        assert rows.row(-1, policy).at(token) == rows.row(0, policy).at(token) == 0
    session.extend((token,))
    asked = len(served.peer.asked)
    assert why in str(scored()) and len(served.peer.asked) == asked


def test_an_answer_with_a_pictures_token_ends_with_a_sentence(served: Served) -> None:
    outcome = served.decode(fault=lambda body: content(token_ids=[513]))
    refused(outcome, "stands for a picture", "bad_request")


@pytest.mark.parametrize("speculates", [False, True])
def test_a_server_without_our_logits_processor_is_found_out(speculates: bool) -> None:
    """With a small vocabulary its rows do as well; with a large one coupled is refused."""
    with VllmPeer(TARGET, samples=False) as peer:
        peer.speculates = speculates
        models = on_vllm(peer)._models
        assert not models._samples
        opening = opening_of(sample_requests(0, 1)[0], rule="coupled", policy=POLICY)
        models.check(opening)
        models.rows = False
        remedy = "as it speculates by itself" if speculates else "vllm_plugin:Coupled"
        with pytest.raises(UserError, match=remedy):
            models.check(opening)
        with pytest.raises(Unsupported, match="on vLLM, which tells no log probabilities"):
            models.check(replace(opening, log_probs="answer"))
        with pytest.raises(UserError, match="take rule greedy or coupled"):
            models.check(opening_of(sample_requests(0, 1)[0], rule="rejection", policy=POLICY))


class Generating:
    """A session whose robot lets the target generate, and then drafts."""

    def __init__(self, served: Served) -> None:
        self._models = served.models
        opening = opening_of(sample_requests(0, 1)[0], rule="greedy", policy=GREEDY)
        prompt = served.models.speaker.prompt(opening.request, served.models.spec)
        self._session = served.models.open(opening, prompt)
        self._session.extend(served.whole.tokens[:1])
        self._held = SimpleNamespace(
            target=self._session, opening=opening, processors=None, generating=True
        )

    def after(self, tokens: Sequence[int]) -> list[int]:
        """The target's next token by a request of its own."""
        self._session.extend(tokens)
        asked = self._models.ask(self._session, Node())
        return [self._models.server.submit(asked).result()]

    def scored(self, *draft: int) -> list[int]:
        """The target's tokens after these, whose verdict is given."""
        held, results = self._held, [NotArrived()]
        held.due, held.tokens, held.generating = DuePass(Draft(draft)), (), not draft

        def arrived() -> bool:
            results.extend(self._models.forward([held], lambda *_: None))
            return not isinstance(results[-1], NotArrived)

        until(arrived)
        rows, length = results[-1], len(held.due.draft)
        said = [rows.token(node, GREEDY, 0) for node in range(-1, length)]
        self._session.commit(range(length))
        self._session.extend(said[-1:])
        return said


@pytest.fixture
def generating(served: Served, monkeypatch: pytest.MonkeyPatch) -> Generating:
    monkeypatch.setattr(served.models, "on_news", lambda _: None)
    served.peer.cut.clear()
    return Generating(served)


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
def test_what_the_target_generates_is_one_streamed_request(served: Served, rule: str) -> None:
    """So that a server which speculates by itself does so: it may say several tokens a step."""
    whole, asked = served.decode(rule), len(served.peer.asked)
    outcome = served.decode(rule, preset="cloud_ar")
    assert (outcome.completed, outcome.tokens) == (True, whole.tokens)
    first, *streams = served.peer.asked[asked:]
    assert [bool(body.get("stream")) for body in (first, *streams)] == [False, True]


def test_a_draft_cuts_what_the_target_generates_beside_it(
    served: Served, generating: Generating, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, drafted, whole = served.peer.steps, threading.Event(), list(served.whole.tokens)

    def until_drafted(reply: Any) -> Iterator[Any]:
        first, *others = steps(reply)
        yield first
        drafted.wait(30.0)
        while True:  # until it is closed
            yield from others

    monkeypatch.setattr(served.peer, "steps", until_drafted)
    assert generating.scored() == whole[1:4]
    assert generating.scored(whole[4]) == whole[4:6]
    drafted.set()
    until(lambda: served.peer.cut)
    assert generating.scored()[:3] == whole[6:9], "it goes on after the draft"


@pytest.mark.parametrize("step", [1, 3])
def test_a_stream_is_left_after_a_token_that_is_not_in_the_common_vocabulary(
    served: Served, generating: Generating, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Token by token, and in a stream, the next one is that after the token in its place."""
    monkeypatch.setattr(vllm_peer, "STEP", step)
    steps, models = served.peer.steps, served.models

    def slowly(reply: Any) -> Iterator[Any]:
        for each in steps(reply):
            yield each
            time.sleep(0.03)  # so that each is taken by itself

    monkeypatch.setattr(served.peer, "steps", slowly)
    largest = max(served.whole.tokens[1:9])
    monkeypatch.setattr(models, "spec", replace(models.spec, vocabulary=largest))
    streamed, alone = list[int](), list[int]()
    while len(streamed) < 12:
        streamed += generating.scored()
    while len(alone) < 12:
        alone += Generating(served).after(alone)
    assert largest not in alone and streamed[:12] == alone[:12]


def test_a_server_is_not_far_ahead_of_a_robot_that_has_gone(
    served: Served, generating: Generating, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []

    def endless(reply: Any) -> Iterator[Any]:
        [choice] = reply["choices"]
        own = {"token_ids": [7], "logprobs": {"content": choice["logprobs"]["content"][:1]}}
        for _ in range(100_000):
            said.append(own)
            yield {"choices": [own]}

    monkeypatch.setattr(served.peer, "steps", endless)
    assert set(generating.scored()) == {7}
    until(lambda: served.peer.cut)
    assert len(said) < 100_000


LIVES = {"choices": [{"token_ids": [], "logprobs": {"content": []}}]}
BREAKS: dict[str, tuple[Any, str, str]] = {
    "an error": (
        {"error": {"message": "EngineDeadError", "code": 500}},
        "EngineDead",
        "overloaded",
    ),
    "no object": ([], "does not say one choice", "bad_request"),
    "no tokens": ({"choices": [{"token_ids": "7"}]}, "does not say tokens", "bad_request"),
    "no score": ({"choices": [{"token_ids": [7]}]}, "does not say tokens", "bad_request"),
    "nothing but life": (LIVES, "", ""),
    "its end": (None, "", ""),
}


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("name", BREAKS)
def test_a_stream_that_breaks_is_one_sentence_or_goes_on(
    served: Served, monkeypatch: pytest.MonkeyPatch, name: str, after: int
) -> None:
    steps, (part, complaint, reason), whole = served.peer.steps, BREAKS[name], served.whole.tokens

    def broken(reply: Any) -> Iterator[Any]:
        yield from itertools.islice(steps(reply), after)
        if part is not None:
            yield part
        if part is LIVES:
            yield from itertools.islice(steps(reply), after, None)

    monkeypatch.setattr(served.peer, "steps", broken)
    outcome = served.decode(preset="cloud_ar")
    if complaint:
        refused(outcome, complaint, reason)
        assert outcome.tokens == whole[: len(outcome.tokens)] and len(outcome.tokens) > 0
    else:
        assert outcome.tokens == whole
    monkeypatch.undo()
    assert served.decode(preset="cloud_ar").tokens == whole
