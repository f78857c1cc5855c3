"""Reads a chat request of the API: what it asks is a decode, or an error in the API's form."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..decoding.policy import MAX_GRAMMAR, SamplingPolicy
from ..edge.decode_options import MAX_ANSWER_TOKENS
from ..request import (
    ASSISTANT,
    LONGEST_CANDIDATE,
    MOST_MESSAGES,
    MOST_PARTS,
    MOST_TEXT,
    ROLES,
    SYSTEM,
    USER,
    Message,
    Part,
    Picture,
    Request,
)
from .api_error import ApiError, Unserved
from .body import (
    check_fields,
    check_keys,
    check_model,
    check_pictures,
    json_of,
    json_text,
    list_of,
    object_of,
    picture_of,
    text_of,
)
from .fields import BY_NAME, UNSUPPORTED
from .tools import ONE_LINE, TOOL, Tools, call_grammar

CHAT_ROLES = {role: role for role in (*ROLES, TOOL)} | {"developer": SYSTEM}
MOST_TOOLS, LONGEST_TOOLS = 128, 2**17  # characters of all, as JSON
MOST_STOPS, LONGEST_STOP = 16, 256
LONGEST_SCHEMA = MAX_GRAMMAR - 96  # characters, beside what stands around it


@dataclass(frozen=True)
class ChatRequest:
    """What a chat request asks for.

    request: its messages may be of role ``tool`` where there are ``tools``. max_tokens: 0 means the
    verifier's limit. stops: texts before which the answer ends. one_call: the first one ends it.
    """

    model: str
    request: Request
    policy: SamplingPolicy
    max_tokens: int
    stops: tuple[str, ...]
    one_call: bool
    stream: bool
    include_usage: bool
    logprobs: bool
    tools: Tools


def read_chat(data: bytes, models: Sequence[str]) -> ChatRequest:
    """The chat request in the body of an HTTP request, for one of these models; raises ApiError."""
    body = json_of(data)
    check_fields(body, BY_NAME)
    for name, value in body.items():
        field = BY_NAME[name]
        if field.treatment == UNSUPPORTED and value not in field.neutral:
            raise Unserved(f"{name} is not supported ({field.about}): leave it out", name)
    model = check_model(body, models)
    options = object_of(body.get("stream_options", {}), "stream_options")
    check_keys(options, "stream_options", ("include_usage", "include_obfuscation"))
    messages, more = _messages(body)
    offered, grammar = _tools(body)
    several_calls = _switch(body.get("parallel_tool_calls", True), "parallel_tool_calls")
    logprobs = _switch(body.get("logprobs"), "logprobs")
    if logprobs and offered:
        raise Unserved("logprobs are not told of an answer with tools: leave them out", "logprobs")
    form = _grammar(body.get("response_format"))
    if grammar and form:
        raise Unserved("response_format and a call that is required differ", "tool_choice")
    return ChatRequest(
        model,
        Request(messages, _predicted(body.get("prediction")), continues=True),
        _policy(body, grammar or form),
        _max_tokens(body),
        _stops(body.get("stop")),
        bool(offered) and not several_calls,
        _switch(body.get("stream"), "stream"),
        _switch(options.get("include_usage"), "stream_options.include_usage"),
        logprobs,
        Tools(offered, more),
    )


def _messages(body: Mapping[str, Any]) -> tuple[tuple[Message, ...], dict[int, dict[str, Any]]]:
    """The messages, and what those of tools have beside role and content, by their places."""
    given = list_of(body.get("messages"), "messages", 1, MOST_MESSAGES)
    pictures: list[Picture] = []
    messages = [_message(each, f"messages[{at}]", pictures) for at, each in enumerate(given)]
    more = {at: _more(each, f"messages[{at}]") for at, each in enumerate(given)}
    for at, message in enumerate(messages):
        if message.role == TOOL and not any("tool_calls" in more[before] for before in range(at)):
            text = f"messages[{at}] is a tool's result, and no message before it has tool_calls"
            raise ApiError(text, "messages")
        if message.role not in (ASSISTANT, TOOL) and not message.contents:
            raise ApiError(f"messages[{at}] is empty: leave it out", "messages")
    if messages[-1].role not in (USER, TOOL):
        text = "a request ends with a message of the user, or with a tool's result: add one"
        raise ApiError(text, "messages")
    if sum(len(message.text) for message in messages) > MOST_TEXT:
        raise ApiError(f"messages have more than {MOST_TEXT} characters", "messages")
    of_tools = {at for at in more if more[at] or messages[at].role == TOOL}
    return tuple(messages), {at: more[at] for at in of_tools}


def _more(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a message of tools has beside role and content, as templates read it."""
    if message["role"] == TOOL:
        names = [name for name in ("tool_call_id", "name") if message.get(name) is not None]
        return {name: text_of(message[name], f"{where}.{name}") for name in names}
    where = f"{where}.tool_calls"
    calls = list_of(message.get("tool_calls") or [], where, 0, MOST_TOOLS)
    return {"tool_calls": [_call(each, where) for each in calls]} if calls else {}


def _call(given: Any, where: str) -> dict[str, Any]:
    """An earlier call, with its arguments as an object."""
    call = object_of(given, where)
    check_keys(call, where, ("id", "type", "function", "index"))
    function = object_of(call.get("function"), f"{where}.function")
    check_keys(function, f"{where}.function", ("name", "arguments"))
    said = text_of(function.get("arguments"), f"{where}.function.arguments")
    try:
        arguments = json.loads(said if said.strip() else "{}")
    except (ValueError, RecursionError):
        raise ApiError(f"{where}.function.arguments must be JSON", "messages") from None
    named = {
        "name": text_of(function.get("name"), f"{where}.function.name"),
        "arguments": object_of(arguments, f"{where}.function.arguments"),
    }
    return {"id": str(call.get("id", ""))[:256], "type": "function", "function": named}


def _tools(body: Mapping[str, Any]) -> tuple[tuple[dict[str, Any], ...], str]:
    """The tools that are offered, and the grammar of the call that is required, empty for none."""
    given = list_of(body.get("tools", []), "tools", 0, MOST_TOOLS)
    choice = body.get("tool_choice", "auto")
    if choice not in ("auto", "none", "required") and not isinstance(choice, dict):
        text = "tool_choice must be auto, none, required or an object that names a function"
        raise ApiError(text, "tool_choice")
    for at, each in enumerate(given):
        tool = object_of(each, f"tools[{at}]")
        if tool.get("type") != "function":
            raise Unserved(f"tools[{at}] is no function: only functions are called", "tools")
        function = object_of(tool.get("function"), f"tools[{at}].function")
        text_of(function.get("name"), f"tools[{at}].function.name")
        object_of(function.get("parameters") or {}, f"tools[{at}].function.parameters")
    if len(_written(given, "tools")) > LONGEST_TOOLS:
        raise Unserved(f"tools have more than {LONGEST_TOOLS} characters", "tools")
    if choice in ("none", "auto"):
        return tuple(given) if choice == "auto" else (), ""
    called = given
    if choice != "required":
        if choice.get("type") != "function":
            text = f"tool_choice has the type {choice.get('type')!r:.80}: only a function is named"
            raise Unserved(text, "tool_choice")
        function = object_of(choice.get("function"), "tool_choice.function")
        called = [each for each in given if each["function"]["name"] == function.get("name")]
    if not called:
        what = "names none of the tools" if given else "asks for a call, but there are no tools"
        raise ApiError(
            f"tool_choice {what}: give it in tools, or leave the choice out", "tool_choice"
        )
    grammar = call_grammar(called)
    if len(grammar) > MAX_GRAMMAR:
        text = f"tool_choice has a grammar of more than {MAX_GRAMMAR} characters: let it be auto"
        raise Unserved(text, "tool_choice")
    return tuple(given), grammar


def _message(given: Any, where: str, pictures: list[Picture]) -> Message:
    """A message; its pictures are added to those of the messages before it."""
    message = object_of(given, where)
    role, content = message.get("role"), message.get("content")
    more = {"assistant": ("tool_calls",), TOOL: ("tool_call_id", "name")}
    check_keys(message, where, ("role", "content", *more.get(str(role), ())))
    if role not in (*CHAT_ROLES,):
        raise Unserved(
            f"{where}.role must be one of {', '.join(CHAT_ROLES)}, not {role!r:.80}", where
        )
    if isinstance(content, list):
        if len(content) > MOST_PARTS:
            raise ApiError(f"{where}.content has more than {MOST_PARTS} parts", where)
        parts: list[Part] = []
        for at, each in enumerate(content):
            parts.append(part := _part(each, f"{where}.content[{at}]"))
            if isinstance(part, Picture):
                pictures.append(part)
                check_pictures(pictures)
    elif content is None and role == "assistant":
        parts = []
    else:
        parts = [text_of(content, f"{where}.content", "a text or a list of parts")]
    if role != "user" and not all(isinstance(part, str) for part in parts):
        raise ApiError(f"{where}: pictures are the user's, not of role {role}", where)
    return Message(CHAT_ROLES[role], tuple(parts))


def _part(given: Any, where: str) -> Part:
    part = object_of(given, where)
    kind = part.get("type")
    if kind == "text":
        check_keys(part, where, ("type", "text"))
        return text_of(part.get("text"), f"{where}.text")
    if kind != "image_url":
        raise Unserved(f"{where} is of type {kind!r:.80}: only text and image_url are read", where)
    check_keys(part, where, ("type", "image_url"))
    shown = object_of(part.get("image_url"), f"{where}.image_url")
    check_keys(shown, f"{where}.image_url", ("url", "detail"))
    if shown.get("detail") not in (None, "auto", "high", "original", "low"):
        raise ApiError(f"{where}.image_url.detail must be auto, high, original or low", where)
    return picture_of(shown.get("url"), shown.get("detail") == "low", f"{where}.image_url.url")


def _policy(body: Mapping[str, Any], grammar: str) -> SamplingPolicy:
    top_p = _number(body, "top_p", 1.0, 0.0, 1.0)
    top_k = max(0, int(_number(body, "top_k", 0, -1, 2**31 - 1)))
    # An absent temperature is greedy, but for who asks to sample otherwise.
    usual = 1.0 if top_k or top_p < 1 else 0.0
    temperature = _number(body, "temperature", usual, 0.0, 2.0) or 0.0  # not -0.0
    drawn = secrets.randbits(63) if temperature else 0
    seed = int(_number(body, "seed", drawn, -(2**63), 2**64 - 1)) % 2**64
    if not top_p:
        raise ApiError("top_p must be above 0", "top_p")
    return SamplingPolicy(temperature, top_k, top_p, seed, grammar)


def _max_tokens(body: Mapping[str, Any]) -> int:
    names = [name for name in ("max_completion_tokens", "max_tokens") if name in body]
    asked = {int(_number(body, name, 1, 1, 2**63)) for name in names}
    if len(asked) > 1:
        raise ApiError("max_tokens and max_completion_tokens differ: give one", "max_tokens")
    return min(*asked, MAX_ANSWER_TOKENS) if asked else 0


def _stops(given: Any) -> tuple[str, ...]:
    stops = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(stops, list) or len(stops) > MOST_STOPS:
        raise ApiError(f"stop must be a text, or a list of at most {MOST_STOPS}", "stop")
    texts = tuple(text_of(each, "stop") for each in stops)
    if not all(0 < len(text) <= LONGEST_STOP for text in texts):
        raise ApiError(f"a text of stop has 1 to {LONGEST_STOP} characters", "stop")
    return texts


def _grammar(given: Any) -> str:
    """The grammar of a ``response_format``, in llguidance's Lark dialect."""
    if given is None:
        return ""
    form, where = object_of(given, "response_format"), "response_format"
    check_keys(form, where, ("type", "json_schema"))
    schema: Any = {"type": "object"}
    if form.get("type") == "json_schema":
        named = object_of(form.get("json_schema"), f"{where}.json_schema")
        check_keys(named, f"{where}.json_schema", ("name", "description", "schema", "strict"))
        schema = named.get("schema")
        object_of(schema, f"{where}.json_schema.schema")
    elif form.get("type") not in ("text", "json_object"):
        raise ApiError(f"{where}.type must be text, json_object or json_schema", where)
    if form["type"] == "text":
        return ""
    if len(_written(schema, where)) > LONGEST_SCHEMA:
        raise Unserved(f"the schema has more than {LONGEST_SCHEMA} characters", where)
    return f"start: %json {json.dumps(schema | ONE_LINE)}"


def _written(given: Any, where: str) -> str:
    json_text(given, where)
    return json.dumps(given)


def _predicted(given: Any) -> tuple[str, ...]:
    """What is drafted with the prompt: the beginning of the predicted text."""
    if given is None:
        return ()
    content = object_of(given, "prediction").get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [text_of(object_of(part, "prediction").get("text"), "prediction") for part in parts]
    text = "".join(texts)[:LONGEST_CANDIDATE]
    return (text,) if text else ()


def _switch(given: Any, where: str) -> bool:
    if given is not None and not isinstance(given, bool):
        raise ApiError(f"{where} must be true or false", where)
    return bool(given)


def _number(body: Mapping[str, Any], name: str, usual: float, low: float, high: float) -> float:
    """A number from low to high; a whole one where ``usual`` is one."""
    value = body.get(name, usual)
    kinds = (int, float) if isinstance(usual, float) else int
    if not isinstance(value, kinds) or isinstance(value, bool) or not low <= value <= high:
        kind = "a number" if isinstance(usual, float) else "a whole number"
        raise ApiError(f"{name} must be {kind} from {low:g} to {high:g}, not {value!r:.40}", name)
    return value
