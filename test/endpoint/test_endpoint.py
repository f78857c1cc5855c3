"""An OpenAI-compatible API on the robot: its answers are the target's own, through breaks of the
link, for clients as they are, and nobody's request harms another's."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import os
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from fuzz import Broken, clients
from fuzz.endpoint import Echo, ask, read_alone
from helpers.checkpoints import checkpoint, jpeg, own_tokens
from helpers.cloud.certificates import Authority
from helpers.cloud.grpc_cloud import Cloud, Proxy, free_port, until
from helpers.cloud.served_answers import TARGET, worker_of
from helpers.endpoint import HEADERS, MODEL, RunningEndpoint, asked, said, shown

from edge_cloud_spec import Decoder
from edge_cloud_spec.cli import main
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.endpoint import decodes, listener, server
from edge_cloud_spec.endpoint.chat import read_chat
from edge_cloud_spec.endpoint.decisions import Chances, read_decisions
from edge_cloud_spec.endpoint.decodes import Decodes, Finished, Piece
from edge_cloud_spec.endpoint.server import CHAT, DECISIONS, MODELS, MOST_BODY_BYTES, SYSTEMONE
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.load_check import generation_inputs
from edge_cloud_spec.request import Message, Picture, Request
from edge_cloud_spec.wire.messages import Code
from edge_cloud_spec_lab.harness.reference import generate, load_reference

COUPLED = {"temperature": 0.8, "seed": 5}
POLICIES = {"greedy": ({}, GREEDY), "coupled": (COUPLED, SamplingPolicy(0.8, seed=5))}
ANY = ("--dialect", "any", "--device", "cpu", "--dtype", "float32", "--no-check")
RECORDED = Path(__file__).with_name("requests.jsonl").read_text().splitlines()
DELAY_MS, TOKENS = 20.0, 40


def text_of(answer: tuple[int, dict, Any]) -> str:
    status, _, body = answer
    assert status == 200, body
    return body["choices"][0]["message"]["content"]


def events_of(data: bytes) -> list[Any]:
    """The events of a stream, ``[DONE]`` as it is."""
    lines = [line.removeprefix("data: ") for line in data.decode().split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def streamed(events: list[Any]) -> str:
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices)


# The embedded pair


@dataclass(frozen=True)
class Served:
    endpoint: RunningEndpoint
    target: Any
    spec: Any
    reference: Any

    def own(self, policy: SamplingPolicy, *messages: Message) -> str:
        """The text of the target's answer by transformers; under a grammar by our engine."""
        request = Request(messages)
        if policy.grammar:
            tokens = own_tokens(self.target, request, self.spec, policy)
        else:
            prompt = self.target.prompt(request, self.spec)
            tokens = generate(self.reference, prompt, self.spec, policy)
        return self.target.tokenizer.decode(tokens, skip_special_tokens=True)


POSITIONS = 8192  # more than the pair's 1,024, which some of the requests below go beyond


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("target")
    for path in TARGET.iterdir():
        if path.name != "config.json":
            (directory / path.name).symlink_to(path)
    config = json.loads((TARGET / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = POSITIONS
    (directory / "config.json").write_text(json.dumps(config))
    worker = worker_of("--target", str(directory), *ANY, "--max-tokens", "48")
    target, spec = worker._models, worker._models.spec
    with (
        Cloud(worker) as cloud,
        Decoder(cloud.address) as decoder,
        RunningEndpoint(decoder) as endpoint,
    ):
        loaded = load(str(directory), check=False)
        yield Served(endpoint, loaded, spec, load_reference(str(directory), loaded))
        del target


FORMS = {
    "text": ("find the green box",),
    "one picture": (jpeg(1), "find the blue box"),
    "three pictures": (jpeg(1), "then", jpeg(2), jpeg(3), "find the red ball"),
}


@pytest.mark.parametrize("rule", POLICIES)
@pytest.mark.parametrize("form", FORMS)
def test_an_answer_is_what_generate_says_whole_and_streamed(
    served: Served, form: str, rule: str
) -> None:
    options, policy = POLICIES[rule]
    parts = FORMS[form]
    body = asked(*(shown(part) if isinstance(part, bytes) else part for part in parts), **options)
    message = tuple(Picture.of(part) if isinstance(part, bytes) else part for part in parts)
    own = served.own(policy, Message("user", message))
    status, _, whole = served.endpoint.post(body)
    assert text_of((status, {}, whole)) == own
    usage = whole["usage"]
    prompt = served.target.prompt(Request((Message("user", message),)), served.spec)
    assert usage["prompt_tokens"] == len(prompt.input_ids)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    status, headers, data = served.endpoint.post(body | {"stream": True})
    events = events_of(data)
    assert headers["content-type"].startswith("text/event-stream") and events[-1] == "[DONE]"
    assert streamed(events) == own and not any("usage" in event for event in events[:-1])
    assert events[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]


@pytest.mark.parametrize("rule", POLICIES)
def test_logprobs_are_of_the_answers_tokens_whole_and_streamed(served: Served, rule: str) -> None:
    options, policy = POLICIES[rule]
    body = asked(shown(jpeg(1)), "find the blue box", logprobs=True, **options)
    status, _, whole = served.endpoint.post(body)
    told = whole["choices"][0]["logprobs"]["content"]
    message = Message("user", (Picture.of(jpeg(1)), "find the blue box"))
    own = served.own(policy, message)
    assert "".join(each["token"] for each in told) == text_of((status, {}, whole)) == own
    assert b"".join(bytes(each["bytes"]) for each in told).decode() == own
    prompt = served.target.prompt(Request((message,)), served.spec)
    tokens = served.target.tokenizer(own)["input_ids"]
    grown = replace(prompt, input_ids=np.array([*prompt.input_ids, *tokens]))
    inputs = generation_inputs(served.reference, grown)
    with torch.inference_mode():
        rows = served.reference(**inputs).logits[0, -1 - len(tokens) :].double().log_softmax(-1)
    judged = [float(rows[at, token]) for at, token in enumerate(tokens)]
    assert [each["logprob"] for each in told] == pytest.approx(judged, abs=1e-4)
    events = events_of(served.endpoint.post(body | {"stream": True})[2])
    chunks = [choice["logprobs"] for event in events[:-1] for choice in event["choices"]]
    parts = [each for chunk in chunks if chunk for each in chunk["content"]]
    assert [each["token"] for each in parts] == [each["token"] for each in told]
    assert [each["logprob"] for each in parts] == pytest.approx(judged, abs=1e-4)
    assert streamed(events) == own


def test_no_logprob_is_of_a_token_behind_a_stop_text(served: Served) -> None:
    body = asked(shown(jpeg(1)), "find the blue box", logprobs=True)
    (whole,) = served.endpoint.post(body)[2]["choices"]
    text, told = whole["message"]["content"], whole["logprobs"]["content"]
    for begin in range(0, len(text) - 3, 5):
        stop = text[begin : begin + 3]
        (choice,) = served.endpoint.post(body | {"stop": stop})[2]["choices"]
        words = choice["message"]["content"]
        assert words == text.partition(stop)[0]
        logprobs = choice["logprobs"]["content"] if words else []
        said_by_them = "".join(each["token"] for each in logprobs)
        assert [each["token"] for each in logprobs] == [each["token"] for each in told][
            : len(logprobs)
        ]
        assert said_by_them.startswith(words)
        before_the_last = "".join(each["token"] for each in logprobs[:-1])
        assert not logprobs or len(before_the_last) < len(words)


def test_a_schema_is_kept_to_by_the_targets_own_answer(served: Served) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["left", "right"]}}}
    schema |= {"required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for options, policy in POLICIES.values():
        body = asked(shown(jpeg(1)), "find the blue box", response_format=form, **options)
        grammar = read_chat(json.dumps(body).encode(), (MODEL,)).policy.grammar
        own = served.own(
            replace(policy, grammar=grammar),
            Message("user", (Picture.of(jpeg(1)), "find the blue box")),
        )
        assert text_of(served.endpoint.post(body)) == own
        assert json.loads(own)["a"] in ("left", "right")


def test_a_refusal_by_the_verifier_names_the_field(served: Served) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "banana"}}}
    status, _, answer = served.endpoint.post(asked("x", response_format=form))
    assert status == 400 and answer["error"]["param"] == "response_format", answer
    long = {"type": "choice", "instructions": "x"}
    long["choices"] = [{"value": f"{number} and so on" * 9} for number in range(60)]
    body = {"model": MODEL, "input": "x", "questions": [long]}
    status, _, answer = served.endpoint.post(body, DECISIONS)
    assert status == 400 and answer["error"]["param"] == "questions", answer
    assert "the candidates" in answer["error"]["message"]


def test_the_pages_first_example_is_answered_as_it_says(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "endpoint.md").read_text()
    found = re.search(r"```python\n(.*?)```\n\n    (.*?)\n", page, re.DOTALL)
    assert found is not None
    program = found[1].replace("http://127.0.0.1:8000/v1", served.endpoint.url)
    assert program != found[1]
    monkeypatch.chdir(root)
    pytest.importorskip("openai")
    exec(program, {})
    assert capsys.readouterr().out.strip() == found[2]


def test_a_chat_beyond_the_targets_positions_is_refused_as_clients_know_it(served: Served) -> None:
    long = "find the blue box " * (POSITIONS // 4)
    chat = asked(long, stream=True)
    question = {"type": "predicate", "instructions": "It is red."}
    decision = {"model": MODEL, "input": long, "questions": [question]}
    for path, body, param in ((CHAT, chat, "messages"), (DECISIONS, decision, "questions")):
        status, _, answer = served.endpoint.post(body, path)
        error = answer["error"]
        assert (status, error["code"]) == (400, "context_length_exceeded")
        assert error["param"] == param and f"was made for {POSITIONS}" in error["message"]
    kept = asked(shown(jpeg(1)), "find the blue box")
    own = Message("user", (Picture.of(jpeg(1)), "find the blue box"))
    assert text_of(served.endpoint.post(kept)) == served.own(GREEDY, own)


def test_a_prediction_is_a_draft_and_a_wrong_one_changes_nothing(served: Served) -> None:
    body = asked(shown(jpeg(4)), "find the yellow chair")
    own = text_of(served.endpoint.post(body))

    def predicted(text: str) -> tuple[str, int]:
        again = body | {"prediction": {"type": "content", "content": text}}
        status, headers, answer = served.endpoint.post(again)
        details = answer["usage"]["completion_tokens_details"]
        return text_of((status, headers, answer)), details["accepted_prediction_tokens"]

    right, wrong = predicted(own), predicted("nothing of the kind")
    assert right[0] == wrong[0] == own
    assert right[1] >= 8, "most of the answer in one pass"


@pytest.mark.parametrize("line", RECORDED, ids=lambda line: json.loads(line)["client"])
def test_what_clients_send_is_answered_or_refused_by_name(served: Served, line: str) -> None:
    url = shown(jpeg(1))["image_url"]["url"]
    written = line.replace("PNG PICTURE", url.replace("jpeg", "png", 1)).replace("PICTURE", url)
    recorded = json.loads(written)
    body, path = recorded.get("body"), recorded.get("path", CHAT)
    status, _, answer = served.endpoint.post(
        b"" if body is None else body, path, method=recorded.get("method", "POST")
    )
    assert status == recorded["status"], answer
    if status != 200:
        assert answer["error"]["param"] == recorded.get("param") and answer["error"]["message"]
    elif isinstance(answer, bytes):
        events = events_of(answer)
        asks_usage = "stream_options" in body
        assert events[-1] == "[DONE]" and ("usage" in events[-2]) == asks_usage
    elif path == CHAT:
        choice = answer["choices"][0]
        assert choice["finish_reason"] in ("stop", "length") and choice["message"]["content"]


def test_the_openai_package_is_a_client_as_it_is(served: Served) -> None:
    openai = pytest.importorskip("openai")
    pydantic = pytest.importorskip("pydantic")
    client = openai.OpenAI(base_url=served.endpoint.url, api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == [MODEL]
    asks = {"model": MODEL, "messages": [said(shown(jpeg(1)), "find the blue box")]}
    whole = client.chat.completions.create(**asks)
    own = served.own(GREEDY, Message("user", (Picture.of(jpeg(1)), "find the blue box")))
    assert whole.choices[0].message.content == own
    with client.chat.completions.stream(**asks) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == own
    side = pydantic.create_model("Side", side=(bool, ...))
    parsed = client.chat.completions.parse(**asks, response_format=side).choices[0].message.parsed
    assert parsed.side in (True, False)
    told = client.chat.completions.create(**asks, logprobs=True).choices[0].logprobs
    assert "".join(each.token for each in told.content) == own
    with pytest.raises(openai.BadRequestError, match="top_logprobs is not supported"):
        client.chat.completions.create(**asks, logprobs=True, top_logprobs=2)
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-5' here"):
        client.chat.completions.create(**(asks | {"model": "gpt-5"}))


# A random pair, of which the target ends no answer by itself, over a link that can break


@pytest.fixture(scope="module")
def link() -> Iterator[Proxy]:
    target = load(checkpoint("qwen3_vl", 1), threads=1)
    with (
        Cloud(Worker(target, target.spec(TOKENS))) as cloud,
        Proxy(cloud.address) as proxy,
    ):
        yield proxy


@dataclass(frozen=True)
class Slow:
    """An endpoint whose link is slow where a test wants it; ``begun``, ``ends``: of its decodes."""

    endpoint: RunningEndpoint
    link: Proxy
    decoder: Decoder
    begun: list[None]
    ends: list[str]

    @contextmanager
    def delayed(self) -> Iterator[None]:
        self.link.set_delay(DELAY_MS)
        yield
        self.link.set_delay(0.0)


@pytest.fixture
def slow(link: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    link.set_delay(0.0)
    begun, ends = list[None](), list[str]()
    with ExitStack() as stack:
        drafter = str(checkpoint("qwen3_vl", 2, 384))
        decoder = stack.enter_context(Decoder(link.address, drafter, preset="dsd"))
        run = decoder.runner.run

        def noted(*given: Any) -> Outcome:
            begun.append(None)
            outcome = run(*given)
            ends.append(outcome.reason)
            return outcome

        monkeypatch.setattr(decoder.runner, "run", noted)
        endpoint = stack.enter_context(RunningEndpoint(decoder, queue=2))
        yield Slow(endpoint, link, decoder, begun, ends)


HELLO = asked("hello")


def begin(slow: Slow, body: Any) -> tuple[http.client.HTTPConnection, Any]:
    """A stream whose first words have arrived."""
    connection = http.client.HTTPConnection("127.0.0.1", slow.endpoint.port, timeout=60)
    connection.request("POST", CHAT, json.dumps(body | {"stream": True}), HEADERS)
    response = connection.getresponse()
    assert response.status == 200
    return connection, response


def test_a_stop_text_ends_the_answer_and_its_decode(slow: Slow) -> None:
    whole = text_of(slow.endpoint.post(HELLO))
    for begin_at in (3, len(whole) // 2):
        stop = whole[begin_at : begin_at + 4]
        expected = whole[: whole.index(stop)]
        status, _, answer = slow.endpoint.post(HELLO | {"stop": ["not said at all", stop]})
        assert text_of((status, {}, answer)) == expected
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] < TOKENS
        _, _, data = slow.endpoint.post(HELLO | {"stop": stop, "stream": True})
        assert streamed(events_of(data)) == expected
    assert slow.ends == ["length"] + 4 * ["cut"]


def test_a_stop_text_that_is_the_answers_last_stops_it(slow: Slow) -> None:
    for limit in (1, 2, 3):  # of one verdict, or of two
        asks = HELLO | {"max_tokens": limit}
        whole = text_of(slow.endpoint.post(asks))
        status, _, answer = slow.endpoint.post(asks | {"stop": whole})
        assert whole and not text_of((status, {}, answer))
        assert answer["choices"][0]["finish_reason"] == "stop"


def test_an_answer_is_as_long_as_is_asked_for_or_as_the_verifier_allows(slow: Slow) -> None:
    for asked_for in (1, 7, 10_000):
        _, _, answer = slow.endpoint.post(HELLO | {"max_tokens": asked_for})
        assert answer["usage"]["completion_tokens"] == min(asked_for, TOKENS)
        assert answer["choices"][0]["finish_reason"] == "length"


def test_a_seed_is_an_answer_and_without_one_answers_differ(slow: Slow) -> None:
    def says(**options: Any) -> str:
        return text_of(slow.endpoint.post(HELLO | options))

    first = says(temperature=1, seed=3)
    assert says(temperature=1, seed=3) == first != says(temperature=1, seed=4)
    assert says(temperature=1) != says(temperature=1)
    assert says() == says(temperature=0, seed=9, top_p=0.5)


def test_an_answer_goes_on_after_a_cut_and_a_lost_link_is_a_sentence(slow: Slow) -> None:
    slow.decoder.settings = replace(slow.decoder.settings, reply_timeout=1.0)
    whole = text_of(slow.endpoint.post(HELLO))
    with slow.delayed():
        _, response = begin(slow, HELLO)
        slow.link.cut()
        assert streamed(events_of(response.read())) == whole
        _, response = begin(slow, HELLO)
        slow.link.set_out(True)
        *words, end = events_of(response.read())
        status, _, refused = slow.endpoint.post(HELLO)
        slow.link.set_out(False)
    told = streamed([*words, end])
    assert whole.startswith(told) and told != whole
    assert end["error"]["type"] == "server_error" and "[DONE]" not in words
    assert status == 503 and len(refused["error"]["message"]) > 20
    assert slow.ends == ["length", "length", "timeout", "timeout"]
    slow.decoder.settings = replace(slow.decoder.settings, reply_timeout=10.0)
    assert text_of(slow.endpoint.post(HELLO)) == whole


def test_out_of_reach_the_robots_model_answers_where_that_is_chosen_and_says_so(
    slow: Slow,
) -> None:
    slow.decoder.settings = replace(slow.decoder.settings, reply_timeout=0.3)
    hello = HELLO | {"max_tokens": 5}
    with RunningEndpoint(slow.decoder, when_lost="local") as endpoint:
        _, headers, answer = endpoint.post(hello)
        assert "x-unverified" not in headers
        assert not answer["system_fingerprint"].startswith("unverified")
        slow.link.set_out(True)
        _, headers, answer = endpoint.post(hello)
        _, streamed_headers, data = endpoint.post(hello | {"stream": True})
        first = answer["choices"][0]["message"]["content"][0]
        _, empty_headers, empty = endpoint.post(hello | {"stop": first})
        refused = slow.endpoint.post(hello)[0]
        slow.link.set_out(False)
    assert empty["choices"][0]["message"]["content"] == ""
    assert empty_headers["x-unverified"] == "true"
    assert empty["system_fingerprint"] == answer["system_fingerprint"]
    drafter = slow.decoder.runner.draft_model
    assert headers["x-unverified"] == streamed_headers["x-unverified"] == "true"
    assert answer["system_fingerprint"] == f"unverified {drafter.identity}"
    own = own_tokens(drafter, Request((Message("user", ("hello",)),)), drafter.spec(5), GREEDY)
    text = drafter.tokenizer.decode(own, skip_special_tokens=True)
    assert answer["choices"][0]["message"]["content"] == streamed(events_of(data)) == text
    assert refused == 503, "off by default"


def test_a_client_that_goes_away_ends_its_decode_and_leaves_the_queue(slow: Slow) -> None:
    whole = text_of(slow.endpoint.post(HELLO))
    with slow.delayed():
        connections = [begin(slow, HELLO)[0]]
        for number in (1, 2):
            waiting = http.client.HTTPConnection("127.0.0.1", slow.endpoint.port)
            waiting.request("POST", CHAT, json.dumps(HELLO), HEADERS)
            until(lambda number=number: slow.endpoint.decodes._waiting == number)
            connections.append(waiting)
        for connection in reversed(connections):
            connection.sock.shutdown(socket.SHUT_RDWR)
        until(lambda: slow.ends == ["length", "aborted"] and not slow.endpoint.decodes._waiting)
    assert text_of(slow.endpoint.post(HELLO)) == whole
    assert slow.ends == ["length", "aborted", "length"], "nobody decoded for who was gone"


QUESTIONS = {
    "model": MODEL,
    "input": "hello",
    "questions": [
        {"type": "predicate", "instructions": f"{number} boxes are red"} for number in range(3)
    ],
}


def test_a_decision_is_the_same_after_a_cut_and_a_lost_link_is_a_sentence(slow: Slow) -> None:
    slow.decoder.settings = replace(slow.decoder.settings, reply_timeout=1.0)
    status, _, whole = slow.endpoint.post(QUESTIONS, DECISIONS)
    assert status == 200 and slow.ends == ["length"] * 3
    with slow.delayed(), ThreadPoolExecutor(1) as pool:
        asked_again = pool.submit(slow.endpoint.post, QUESTIONS, DECISIONS)
        until(lambda: len(slow.ends) == 4)  # the second question is under way
        slow.link.cut()
        answer = asked_again.result()[2]
        assert answer == whole
        slow.link.set_out(True)
        status, _, refused = slow.endpoint.post(QUESTIONS, DECISIONS)
        slow.link.set_out(False)
    assert status == 503 and len(refused["error"]["message"]) > 20
    assert slow.ends[3:] == ["length"] * 3 + ["timeout"], "no further question is asked"


def test_questions_that_find_no_room_beside_others_are_asked_one_at_a_time(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = slow.endpoint.post(QUESTIONS, DECISIONS)[2]
    refused, score, full = [], decodes.score, Code.OVERLOADED

    def crowded(*given: Any) -> Any:
        outcome, told = score(*given)
        if not threading.current_thread().name.startswith("score"):
            return outcome, told
        refused.append(outcome)
        return replace(outcome, reason=full, text="as many sessions as it may"), ()

    monkeypatch.setattr(decodes, "score", crowded)
    assert slow.endpoint.post(QUESTIONS, DECISIONS)[2] == whole and len(refused) == 2
    full = Code.INTERNAL
    assert slow.endpoint.post(QUESTIONS, DECISIONS)[0] == 503


def test_out_of_reach_the_robots_model_decides_where_that_is_chosen_and_says_so(
    slow: Slow,
) -> None:
    slow.decoder.settings = replace(slow.decoder.settings, reply_timeout=0.3)
    with RunningEndpoint(slow.decoder, when_lost="local") as endpoint:
        _, headers, verified = endpoint.post(QUESTIONS, DECISIONS)
        assert "x-unverified" not in headers
        slow.link.set_out(True)
        _, headers, alone = endpoint.post(QUESTIONS, DECISIONS)
        slow.link.set_out(False)
    assert headers["x-unverified"] == "true" and slow.ends == 3 * ["length"] + ["timeout"]
    path = checkpoint("qwen3_vl", 2, 384)  # the drafter's, served as a target
    target = load(path, threads=1)
    asked_of = [
        each.request for each in read_decisions(json.dumps(QUESTIONS).encode(), (MODEL,)).questions
    ]
    with (
        Cloud(Worker(target, target.spec(TOKENS))) as cloud,
        Decoder(cloud.address, str(path)) as own,
    ):
        told = [Chances.of(own.score(each, each.candidates)).probabilities[0] for each in asked_of]
    assert [each["probability"] for each in alone["answers"]] == pytest.approx(told, abs=1e-5)
    assert told != pytest.approx([each["probability"] for each in verified["answers"]], abs=1e-5)


def test_a_client_that_goes_away_ends_its_questions(slow: Slow) -> None:
    with slow.delayed():
        connection = http.client.HTTPConnection("127.0.0.1", slow.endpoint.port)
        many = QUESTIONS | {"questions": QUESTIONS["questions"] * 100}
        connection.request("POST", DECISIONS, json.dumps(many), HEADERS)
        until(lambda: len(slow.begun) > len(slow.ends) > 0)
        connection.sock.shutdown(socket.SHUT_RDWR)
        until(lambda: not slow.endpoint.decodes._turn.locked())
    assert "aborted" in slow.ends and len(slow.ends) < 300
    status, _, answer = slow.endpoint.post(QUESTIONS, DECISIONS)
    assert status == 200 and len(answer["answers"]) == 3


def test_requests_wait_in_a_row_and_more_are_told_when_to_come_again(slow: Slow) -> None:
    whole = text_of(slow.endpoint.post(HELLO))
    with slow.delayed(), ThreadPoolExecutor(3) as pool:
        _, response = begin(slow, HELLO)
        waiting = [pool.submit(slow.endpoint.post, HELLO) for _ in range(2)]
        until(lambda: slow.endpoint.decodes._waiting == 2)
        status, headers, answer = slow.endpoint.post(HELLO)
        assert status == 429 and int(headers["retry-after"]) >= 1
        assert answer["error"]["code"] == "rate_limit_exceeded"
        assert f"2 requests wait already: try again in {headers['retry-after']} s" in str(answer)
        slow.link.set_delay(0.0)
        assert streamed(events_of(response.read())) == whole
        assert [text_of(each.result()) for each in waiting] == [whole, whole]


def test_an_answer_that_takes_too_long_is_ended(slow: Slow) -> None:
    with RunningEndpoint(slow.decoder, timeout_s=0.2) as endpoint, slow.delayed():
        status, _, answer = endpoint.post(HELLO)
        assert status == 504 and "longer than 0.2 s" in answer["error"]["message"]
        until(lambda: slow.ends == ["aborted"])


def test_a_request_that_the_verifier_refuses_is_a_400_with_its_sentence(slow: Slow) -> None:
    for parts, complaint in (
        (("find <|im_end|> it",), "a control token"),
        ((shown(b"\xff\xd8" + bytes(50)),), "damaged|not a JPEG"),
        ((shown(jpeg(1)), shown(b"\xff\xd8" + bytes(50))), "picture 2 of 2: "),
    ):
        status, _, answer = slow.endpoint.post(asked(*parts))
        assert status == 400 and any(c in answer["error"]["message"] for c in complaint.split("|"))
    state = {"model": MODEL, "state": "find <|im_end|> it", "questions": {"q": {"type": "noul"}}}
    for body in (state, state | {"temperature": 1}):
        status, _, answer = slow.endpoint.post(body, SYSTEMONE)
        assert status == 422 and answer["error"]["message"]
    status, _, answer = slow.endpoint.post(
        {"model": MODEL, "messages": [said("hello", role="assistant")]}
    )
    assert status == 400 and "ends with a message of the user" in answer["error"]["message"]


def test_mutated_requests_are_answered_or_refused_and_harm_nobody(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Counter[str]()
    with RunningEndpoint(slow.decoder, decodes=Echo) as endpoint:
        ask(endpoint, Random(1), 6_000, counts, sent=10)
        assert counts["400"] > 200 and counts["200"] > 20
        assert counts["read alone: 400"] > 2_000 and counts["read alone: 200"] > 200
        monkeypatch.setitem(server.READERS, CHAT, lambda *_: {}["a mistake"])
        with pytest.raises(Broken, match="500"):
            ask(endpoint, Random(1), 600, counts)
    with pytest.raises(Broken, match="a mistake"):
        read_alone(CHAT, b"{}")


def test_clients_that_vanish_at_every_stage_leave_nothing(slow: Slow) -> None:
    slow.link.set_delay(2.0)
    with RunningEndpoint(slow.decoder, queue=8) as endpoint:
        counts = clients.vanish(endpoint, slow.decoder, 30, seed=1)
        assert all(counts[f"gone {stage}"] for stage in clients.STAGES)
        assert counts["decode aborted"] and counts["decode length"] >= 3


@pytest.mark.parametrize("grows", [False, True])
def test_memory_that_grows_over_many_requests_is_seen(
    slow: Slow, monkeypatch: pytest.MonkeyPatch, grows: bool
) -> None:
    sizes = (size * grows * clients.SPARE_KIB // 4 for size in itertools.count())
    monkeypatch.setattr(clients, "_resident", lambda _: next(sizes))
    told: list[str] = []
    with pytest.raises(Broken, match="memory has grown") if grows else nullcontext():
        clients.watch(slow.endpoint.url, os.getpid(), 24, Random(1), told.append)
    assert len(told) == clients.SAMPLES


# Who may ask, and how much


@pytest.fixture(scope="module")
def idle() -> Iterator[Decoder]:
    """A decoder of which nothing is decoded."""
    with Decoder("127.0.0.1:1", "bytes", preset="cloud_ar") as decoder:
        yield decoder


@pytest.fixture(scope="module")
def keyed(idle: Decoder) -> Iterator[RunningEndpoint]:
    with RunningEndpoint(idle, keys=("secret", "older")) as endpoint:
        yield endpoint


def test_a_key_is_asked_for_where_there_are_keys(keyed: RunningEndpoint) -> None:
    for shown_key in ("", "Bearer", "Bearer wrong", "secret"):
        status, _, answer = keyed.post(b"", MODELS, method="GET", authorization=shown_key)
        assert status == 401 and answer["error"]["code"] == "invalid_api_key"
        assert "secret" not in json.dumps(answer)
    for key in ("secret", "older"):
        assert keyed.post(b"", MODELS, method="GET", authorization=f"Bearer {key}")[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("127.0.0.1:8000", 200), ("localhost", 200), ("[::1]:8000", 200)),
        *(("evil.example", 403), ("127.0.0.1.evil.example:80", 403), ("unix:80", 403), ("", 403)),
    ],
)
def test_a_web_page_in_a_browser_of_this_machine_may_not_ask(
    slow: Slow, host: str, status: int
) -> None:
    """By a name of its own (DNS rebinding), or with a form's content type."""
    assert slow.endpoint.post(b"", MODELS, method="GET", host=host)[0] == status
    for kind in ("text/plain", "", "application/x-www-form-urlencoded"):
        assert slow.endpoint.post(HELLO, **{"content-type": kind})[0] == 415
    assert slow.endpoint.post(b"", method="OPTIONS")[0] == 405
    assert not slow.ends


def test_a_body_that_is_too_large_is_refused_while_it_arrives(keyed: RunningEndpoint) -> None:
    key = {"authorization": "Bearer secret"}
    status, _, answer = keyed.post(b" " * (MOST_BODY_BYTES + 1), **key)
    assert status == 413 and str(MOST_BODY_BYTES) in answer["error"]["message"]
    assert keyed.post(b"{}", **key)[0] == 400


def test_over_tls_a_key_goes_and_certificates_are_read_again(idle: Decoder, tmp_path: Path) -> None:
    authorities = [Authority(tmp_path, name) for name in ("first", "second")]
    pairs = [each.certificate(f"{at}") for at, each in enumerate(authorities)]
    files = tmp_path / "in_use.pem", tmp_path / "in_use.key"

    def use(pair: dict[str, str]) -> None:
        for file, path in zip(files, pair.values(), strict=True):
            file.write_bytes(Path(path).read_bytes())

    def status(authority: Authority) -> int:
        context = ssl.create_default_context(cafile=authority.path)
        connection = http.client.HTTPSConnection("127.0.0.1", endpoint.port, context=context)
        connection.request("GET", MODELS, headers={"authorization": "Bearer secret"})
        return connection.getresponse().status

    use(pairs[0])
    tls = (str(files[0]), str(files[1]))
    with RunningEndpoint(idle, keys=("secret",), tls=tls) as endpoint:
        assert status(authorities[0]) == 200
        use(pairs[1])
        for _ in range(2):  # the first handshake after it finds the new files
            try:
                found = status(authorities[1])
            except ssl.SSLError:
                continue
        assert found == 200


class Long(Decodes):
    """Its answers fill every buffer between here and a client."""

    begun = False

    async def stream(self, chat: Any) -> AsyncGenerator[Piece, None]:
        self.begun = True
        for _ in range(64):
            yield Piece("x" * 2**18)
        yield Finished(finish_reason="stop", usage={})


def post_of(body: bytes, length: int) -> bytes:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {length}\r\n\r\n".encode() + body


READ_NOT = {stream: json.dumps(asked("x", stream=stream)).encode() for stream in (False, True)}
STAYS = {
    "sends nothing": b"",
    "sends half a head": b"POST /v1/chat",
    "sends one request": f"GET {MODELS} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode(),
    "sends half a body": post_of(b"{", 9),
    "reads no answer": post_of(READ_NOT[False], len(READ_NOT[False])),
    "reads no stream": post_of(READ_NOT[True], len(READ_NOT[True])),
}


@pytest.mark.parametrize("how", STAYS)
def test_a_client_that_stays_and_does_nothing_is_hung_up_on(
    idle: Decoder, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((listener, "REQUEST_S"), (listener, "READ_S"), (server, "BODY_S")):
        monkeypatch.setattr(module, name, 0.2)
    hung_up = select.poll()
    with (
        RunningEndpoint(idle, decodes=Long) as endpoint,
        socket.create_connection(("127.0.0.1", endpoint.port)) as client,
    ):
        hung_up.register(client, select.POLLRDHUP)
        client.sendall(STAYS[how])
        open_here, decodes = endpoint.server.server_state.connections, endpoint.decodes
        # What fills its buffers keeps the end of the connection from a client that reads nothing.
        until(lambda: hung_up.poll(0) or (getattr(decodes, "begun", False) and not open_here))
        assert endpoint.post(b"", MODELS, method="GET")[0] == 200


class Late(Decodes):
    """Its answers take their time."""

    begun = False

    async def stream(self, chat: Any) -> AsyncGenerator[Piece, None]:
        self.begun = True
        await asyncio.sleep(float(chat.request.text))
        yield Piece("x")
        yield Finished(finish_reason="stop", usage={})


def test_a_request_behind_another_is_no_silence(
    idle: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "REQUEST_S", 0.2)
    bodies = [json.dumps(asked(seconds)).encode() for seconds in ("0", "0.6")]
    with (
        RunningEndpoint(idle, decodes=Late) as endpoint,
        socket.create_connection(("127.0.0.1", endpoint.port), timeout=60) as client,
    ):
        client.sendall(b"".join(post_of(body, len(body)) for body in bodies))
        answers = b""
        while more := client.recv(2**16):
            answers += more
    assert answers.count(b"HTTP/1.1 200") == 2


def test_a_request_under_way_when_the_endpoint_ends_is_told_so(
    idle: Decoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "LAST_ANSWERS_S", 0)
    with ThreadPoolExecutor(1) as pool:
        with RunningEndpoint(idle, decodes=Late) as endpoint:
            waiting = pool.submit(endpoint.post, asked("60"))
            until(lambda: getattr(endpoint.decodes, "begun", False))
        status, _, answer = waiting.result()
    assert status == 503 and answer["error"]["message"] == "the endpoint ends"
    assert not any(record.exc_info for record in caplog.records)


# The command


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--address", "0.0.0.0:8000"), "give --ssl-certfile, --ssl-keyfile and --api-key-file"),
        (("--address", "here"), "must be HOST:PORT"),
        (("--address", "unix:8000"), "must be HOST:PORT"),
        (("--address", "127.0.0.1:99999"), "cannot listen on 127.0.0.1:99999"),
        (("--ssl-certfile", "x.pem"), "needs both"),
        (("--api-key-file", "/nowhere"), "/nowhere"),
        (("--served-model-name", " ,"), "give the model a name"),
        (("--queue", "-1"), "--queue must be a whole number from 0"),
        (("--cloud", "http://127.0.0.1:50151"), "must be HOST:PORT, not 'http://"),
        (("--preset", "warp"), "no preset 'warp'"),
        (("--token-file", "/nowhere"), "/nowhere"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_one_sentence_before_a_model_is_loaded(
    options: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["endpoint", *options]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("error: ") and complaint in told


def test_the_command_serves_until_it_is_told_to_end(link: Proxy) -> None:
    link.set_delay(0.0)
    drafter, port = str(checkpoint("qwen3_vl", 2, 384)), free_port()
    given = ["--address", f"127.0.0.1:{port}", "--cloud", link.address, "--drafter", drafter]
    command = [sys.executable, "-m", "edge_cloud_spec.cli", "endpoint", *given]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None and run.stderr is not None
        assert run.stdout.readline() == f"serving on http://127.0.0.1:{port}/v1\n"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", CHAT, json.dumps(HELLO), HEADERS)
        assert connection.getresponse().status == 200
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 0 and run.stderr.read() == ""
