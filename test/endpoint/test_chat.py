"""Chat requests become requests of messages, or errors that name the field; no server is needed."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers.checkpoints import jpeg
from helpers.endpoint import MODEL, asked, said, shown
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image

from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.endpoint.chat import ApiError, ChatRequest, read_chat
from edge_cloud_spec.endpoint.fields import BY_NAME, FIELDS, HONOURED, UNSUPPORTED
from edge_cloud_spec.endpoint.stop_texts import StopTexts
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.image import decode_image
from edge_cloud_spec.request import Message, Picture

PAGE = Path(__file__).parents[2] / "docs/endpoint.md"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
GO = {"type": "function", "function": {"name": "go"}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


def read(body: Any) -> ChatRequest:
    return read_chat(json.dumps(body).encode(), (MODEL, "gpt-4o"))


def refusal(body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(body)
    error = caught.value
    assert 10 < len(str(error)) < 400 and str(error).isprintable()
    told = error.body["error"]
    assert told["message"] == str(error) and {*told} == {"message", "type", "param", "code"}
    return error


# Each field of the table: values that are taken, with what they make of the request, and values
# that are refused.

ENCODED = shown(jpeg(1))["image_url"]["url"].partition(",")[2]
Value = Callable[[ChatRequest], object]
TAKEN: dict[str, list[tuple[Any, Value, object]]] = {
    "model": [(MODEL, lambda c: c.model, MODEL), ("gpt-4o", lambda c: c.model, "gpt-4o")],
    "messages": [
        ([said("a")], lambda c: c.request.messages, (Message("user", ("a",)),)),
        (
            [{"role": "developer", "content": "b"}, {"role": "user", "content": "a"}],
            lambda c: c.request.messages,
            (Message("system", ("b",)), Message("user", ("a",))),
        ),
        (
            [{"role": "assistant", "content": "b", "refusal": None, "tool_calls": []}, said("a")],
            lambda c: c.request.messages[0],
            Message("assistant", ("b",)),
        ),
        (
            [said(shown(jpeg(1), detail="high"), "is left of", shown(jpeg(2), detail="original"))],
            lambda c: c.request.messages[0].parts,
            (Picture.of(jpeg(1)), "is left of", Picture.of(jpeg(2))),
        ),
        *(
            (
                [said({"type": "image_url", "image_url": {"url": begins + ENCODED}})],
                lambda c: c.request.messages[0].parts,
                (Picture.of(jpeg(1)),),
            )
            for begins in (
                "DATA:image/jpeg;base64,",
                "data:;base64,",
                "data:image/jpeg;charset=utf-8;name=a;BASE64,",
            )
        ),
    ],
    "logprobs": [(True, lambda c: c.logprobs, True), (False, lambda c: c.logprobs, False)],
    "stream": [(True, lambda c: c.stream, True), (False, lambda c: c.stream, False)],
    "stream_options": [({"include_usage": True}, lambda c: c.include_usage, True)],
    "max_completion_tokens": [(7, lambda c: c.max_tokens, 7)],
    "max_tokens": [(7, lambda c: c.max_tokens, 7), (10**12, lambda c: c.max_tokens, 65_536)],
    "temperature": [
        (0, lambda c: c.policy, GREEDY),
        (0.5, lambda c: c.policy.temperature, 0.5),
    ],
    "top_p": [
        (0.9, lambda c: (c.policy.top_p, c.policy.temperature), (0.9, 1.0)),
        (1, lambda c: c.policy, GREEDY),
    ],
    "top_k": [
        (5, lambda c: (c.policy.top_k, c.policy.temperature), (5, 1.0)),
        (-1, lambda c: c.policy, GREEDY),
    ],
    "seed": [(3, lambda c: c.policy.seed, 3), (-1, lambda c: c.policy.seed, 2**64 - 1)],
    "stop": [("a", lambda c: c.stops, ("a",)), (["a", "b"], lambda c: c.stops, ("a", "b"))],
    "response_format": [
        ({"type": "text"}, lambda c: c.policy.grammar, ""),
        ({"type": "json_object"}, lambda c: c.policy.grammar[:13], "start: %json "),
        (JSON_SCHEMA, lambda c: json.dumps(SCHEMA)[1:-1] in c.policy.grammar, True),
    ],
    "tools": [
        ([], lambda c: c.tools.offered, ()),
        ([GO], lambda c: c.tools.offered, (GO,)),
    ],
    "tool_choice": [
        ("none", lambda c: c.tools.offered, ()),
        ("auto", lambda c: c.policy.grammar, ""),
    ],
    "parallel_tool_calls": [
        (True, lambda c: c.one_call, False),
        (False, lambda c: c.one_call, False),
    ],
    "prediction": [
        ({"type": "content", "content": "ab" * 200}, lambda c: c.request.candidates, ("ab" * 128,)),
        (
            {"type": "content", "content": [{"type": "text", "text": "a"}]},
            lambda c: c.request.candidates,
            ("a",),
        ),
    ],
}
WRONG: dict[str, list[Any]] = {
    "model": [3, "", "gpt-5", ["x"]],
    "messages": [
        [],
        "hello",
        [3],
        [{"role": "user"}],
        [{"role": "function", "content": "3", "name": "x"}],
        [{"role": "tool", "content": "3", "tool_call_id": 3}],
        [said(shown(jpeg(1)), role="tool")],
        [{"role": ["user"], "content": "x"}],
        [said("x") | {"name": "me"}],
        [said({"type": "input_audio", "input_audio": {}})],
        [said({"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}})],
        [said(shown(jpeg(1), detail="none"))],
        [said(shown(jpeg(1)), role="system")],
        [said({"type": "image_url", "image_url": {"url": "http://10.0.0.1/x.jpg"}})],
        [said({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}})],
        [said({"type": "image_url", "image_url": {"url": "data:image/png;base64,A"}})],
        [said(shown(b"\xff\xd8" + bytes(20), detail="low"))],
        [said(*[shown(jpeg(1, 8, 8))] * 66)],
        [said("half \ud800 of it")],
        [{"role": "assistant", "content": "x", "tool_calls": [{"id": "x"}]}],
        [{"role": "assistant", "tool_calls": "x"}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "go", "arguments": "{"}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "go", "arguments": "3"}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": 3, "arguments": "{}"}}]}],
    ],
    "stream": [1, "true", 0.0],
    "stream_options": [3, {"include_usage": "yes"}, {"other": 1}],
    "max_completion_tokens": [0, -1, 1.5, "7", True],
    "max_tokens": [0, -1, 1.5, "7", True],
    "temperature": [-0.1, 2.1, "1", [1]],
    "top_p": [0, -1, 1.1, "1"],
    "top_k": [-2, 1.5, 10**12],
    "seed": [1.5, 2**64, "3"],
    "stop": ["", [""], ["a"] * 17, [3], {}, "x" * 257, 0],
    "response_format": [
        "json",
        {"type": "xml"},
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_schema", "json_schema": {"schema": SCHEMA, "grammar": "x"}},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "json_schema", "json_schema": {"schema": {"title": "x" * 4096}}},
    ],
    "prediction": ["x", {"type": "content"}, {"content": [3]}, {"content": [{"text": 3}]}],
    "n": [2, 0],
    "tools": [
        3,
        [3],
        [{"type": "custom", "custom": {"name": "go"}}],
        [{"type": "function", "function": {"name": 3}}],
        [{"type": "function", "function": {"name": "go", "parameters": 3}}],
        [{"type": "function", "function": {"name": "go", "description": "x" * 2**17}}],
        [GO] * 129,
    ],
    "tool_choice": ["required", "any", 3, {"type": "function", "function": {"name": "go"}}],
    "parallel_tool_calls": [3],
    "functions": [[{"name": "go"}]],
    "function_call": [{"name": "go"}],
    "logprobs": ["x"],
    "top_logprobs": [2],
    "logit_bias": [{"5": -100}],
    "frequency_penalty": [0.1],
    "presence_penalty": [0.1],
    "repetition_penalty": [1.1],
    "min_p": [0.1],
    "modalities": [["text", "audio"]],
    "audio": [{"voice": "x"}],
    "web_search_options": [{}],
    "chat_template_kwargs": [{"enable_thinking": True}],
}


def test_the_page_has_every_field_and_so_have_these_tests() -> None:
    rows = [f"| `{field.name}` | {field.treatment} | {field.about} |" for field in FIELDS]
    table = "\n".join(["| field | | |", "|---|---|---|", *rows])
    assert table in PAGE.read_text(), "put the table of endpoint/fields.py there"
    assert {*TAKEN} == {name for name, field in BY_NAME.items() if field.treatment == HONOURED}
    refused = {name for name, field in BY_NAME.items() if field.treatment == UNSUPPORTED}
    assert {*WRONG} == {*TAKEN} | refused


@pytest.mark.parametrize("name", BY_NAME)
def test_a_field_is_honoured_or_refused_by_name_or_changes_nothing(name: str) -> None:
    plain = read(asked("x", seed=0))
    if name not in ("model", "messages"):
        assert read(asked("x", seed=0) | {name: None}) == plain
    for value, part, expected in TAKEN.get(name, []):
        assert part(read(asked("x") | {name: value})) == expected
    if name not in TAKEN:
        neutral = BY_NAME[name].neutral if name in WRONG else ("x", {"a": 1}, True)
        for value in neutral:
            assert read(asked("x", seed=0) | {name: value}) == plain
    for value in WRONG.get(name, []):
        error = refusal(asked("x") | {name: value})
        assert error.status == (404 if value in ("", "gpt-5") and name == "model" else 400)
        assert error.param.startswith(name)
        assert name in str(error) or name in ("messages", "response_format")


SENTENCES: list[tuple[str, Any, str]] = [
    ("tool_choice", "banana", "tool_choice must be auto, none, required or an object"),
    ("tool_choice", "required", "asks for a call, but there are no tools"),
    ("tool_choice", {"type": "function", "function": {"name": "go"}}, "there are no tools"),
    ("messages", [{"role": "tool", "content": "x"}], "no message before it has tool_calls"),
    (
        "messages",
        [said("x"), {"role": "assistant", "content": "y"}, {"role": "tool", "content": "x"}],
        "messages[2] is a tool's result",
    ),
    ("messages", [said("x"), {"role": "user", "content": ""}], "messages[1] is empty"),
    (
        "messages",
        [said("x"), said("y", role="assistant")],
        "a request ends with a message of the user",
    ),
    ("messages", [said("x" * 2**18, "x")], "more than 262144 characters"),
]


@pytest.mark.parametrize(("name", "value", "sentence"), SENTENCES)
def test_what_is_refused_says_what_would_be_right(name: str, value: Any, sentence: str) -> None:
    error = refusal(asked("x") | {name: value})
    assert sentence in str(error) and error.param == name and type(error) is ApiError


@pytest.mark.parametrize(
    ("content", "kind"),
    [(None, "null"), ({}, "an object"), (True, "true or false"), (3, "a number")],
)
def test_a_content_that_is_none_is_named_by_its_place_and_kind(content: Any, kind: str) -> None:
    error = refusal(asked("x") | {"messages": [{"role": "user", "content": content}]})
    assert str(error) == f"messages[0].content must be a text or a list of parts, not {kind}"
    assert error.param == "messages[0].content"
    error = refusal(asked("x") | {"messages": [said(*["x"] * 257)]})
    assert str(error) == "messages[0].content has more than 256 parts"


def test_a_field_that_nobody_knows_is_refused_by_name() -> None:
    error = refusal(asked("x", guided_choice=["a"]))
    assert error.param == "guided_choice" and "guided_choice" in str(error)
    assert refusal(asked("x", max_tokens=3, max_completion_tokens=4)).param == "max_tokens"


def test_a_temperature_without_a_seed_has_another_seed_each_time() -> None:
    seeds = {read(asked("x", temperature=1)).policy.seed for _ in range(20)}
    assert len(seeds) == 20
    assert read(asked("x", temperature=1, seed=3)).policy == SamplingPolicy(1.0, seed=3)


@pytest.mark.parametrize(
    ("size", "expected"),
    [((1024, 768), (512, 384)), ((300, 900), (171, 512)), ((512, 8), (0, 0))],
)
def test_low_detail_shrinks_a_picture_and_never_enlarges_one(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    data = jpeg(1, *size)
    (picture,) = read(asked(shown(data, detail="low"))).request.pictures
    assert picture == Picture.of(data, expected)


def turned(kind: str, orientation: int, *, behind: bool = False) -> bytes:
    """A picture of 1024x768 with this orientation in its EXIF; ``behind``: behind its pixels."""
    image, exif, data = Image.new("RGB", (1024, 768)), Image.Exif(), io.BytesIO()
    exif[ExifTags.Base.Orientation] = orientation
    image.save(data, kind, exif=exif)
    if not behind:
        return data.getvalue()
    before, _, rest = data.getvalue().partition(b"eXIf")
    end = int.from_bytes(before[-4:], "big") + 4
    chunk, rest = before[-4:] + b"eXIf" + rest[:end], rest[end:]
    return before[:-4] + rest[:-12] + chunk + rest[-12:]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_low_detail_is_of_the_upright_picture(orientation: int) -> None:
    pictures = (
        turned("JPEG", orientation),
        turned("PNG", orientation),
        turned("PNG", orientation, behind=True),
    )
    for data in pictures:
        width, height = decode_image(data).size
        assert (width < height) == (orientation > 4)
        (picture,) = read(asked(shown(data, detail="low"))).request.pictures
        assert picture.size == (width // 2, height // 2)


def test_pictures_are_measured_by_their_headers_and_no_more_are_read_than_one_too_many() -> None:
    half = jpeg(1, 1024, 768)[:1000]
    with pytest.raises(UserError, match="damaged"):
        decode_image(half)
    (picture,) = read(asked(shown(half, detail="low"))).request.pictures
    assert picture.size == (512, 384)
    unread = {"type": "input_audio", "input_audio": {}}
    messages = [said(*[shown(half, detail="low")] * 33)] * 2
    messages[1] = said(*messages[1]["content"], unread)
    assert "at most 65 pictures" in str(refusal(asked("x") | {"messages": messages}))


def test_json_is_on_one_line_whatever_a_schema_says() -> None:
    schema = SCHEMA | {"x-guidance": {"whitespace_flexible": True}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    plain = read(asked("x", response_format=JSON_SCHEMA)).policy.grammar
    assert read(asked("x", response_format=form)).policy.grammar == plain


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"{",
            b"[]",
            b"3",
            b"null",
            b'{"a": NaN}',
            b'{"temperature": 1e999}',
            b"\xff{}",
            b"[" * 100_000,
        ),
        b'{"model": ' + b"9" * 5000 + b"}",
        b'{"response_format": {"type": "json_schema", "json_schema": {"schema": '
        + b'{"a":' * 900
        + b"1"
        + b"}" * 903,
    ],
    ids=range(11),
)
def test_what_is_no_json_of_a_request_is_refused_in_a_sentence(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        read_chat(body, (MODEL,))
    assert caught.value.status in (400, 404) and len(str(caught.value)) < 300
    assert caught.value.param in ("", "model", "temperature", "response_format")


def test_pictures_beyond_what_the_link_carries_are_refused() -> None:
    big = base64.b64encode(b"\xff\xd8" + bytes(8 * 2**20)).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{big}"}}
    assert read(asked(part)).request.pictures
    assert refusal(asked(part, part)).param == "messages"


# Stop texts


def cut_by_character(text: str, stops: list[str]) -> str:
    """The text before the stop that is complete first, and begins first of such."""
    for end in range(1, len(text) + 1):
        ends = [stop for stop in stops if text[:end].endswith(stop)]
        if ends:
            return text[: end - max(map(len, ends))]
    return text


@given(
    st.text("ab", max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 12), max_size=5),
)
def test_an_answer_ends_before_a_stop_text_however_tokens_cut_it(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    places = [0, *sorted(cuts), len(text)]
    stop_texts, passed = StopTexts(stops), ""
    for begin, end in pairwise(places):
        passed += stop_texts.add(text[begin:end])
        assert cut_by_character(text, stops).startswith(passed), "nothing is taken back"
    passed += stop_texts.add("", ended=True)
    assert passed == cut_by_character(text, stops)
    assert stop_texts.found == any(stop in text for stop in stops)
