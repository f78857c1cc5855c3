"""Tools in a chat: what a chat template makes of them as plain messages, and the calls in answers.

The verifier renders plain messages. So the template is rendered here with the tools, and the texts
that it makes of tools, calls and results are taken out of what it rendered: plain messages with
these texts give the same prompt, or the request is not decoded.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import UserError, library_errors
from ..request import ASSISTANT, SYSTEM, USER, Message, Messages, Picture
from .api_error import Unserved
from .body import no_number
from .stop_texts import StopTexts, beginning

TOOL = "tool"  # the role of a call's result
# How Qwen's and Hermes' templates have a model call a tool: JSON between these.
CALL_BEGINS, CALL_ENDS = "<tool_call>", "</tool_call>"
# A call's JSON up to the end that stands in none of its strings.
_INSIDE = r'(?:[^"<]|"(?:[^"\\]|\\.)*"|<(?!/tool_call>))*</tool_call>'
_TO_ITS_END = re.compile(_INSIDE, re.DOTALL)
# JSON on one line: a model could say blanks without end.
ONE_LINE = {"x-guidance": {"whitespace_pattern": " ?"}}

Turns = Sequence[Mapping[str, Any]]
Render = Callable[[Turns, Sequence[Any]], str]
"""Renders a chat template with messages and tools."""


@dataclass(frozen=True)
class Tools:
    """The tools of a chat.

    offered: to the model, in the API's form. more: fields of messages beside role and content, by
    their places (``tool_calls``, of which the arguments are objects; ``tool_call_id``).
    """

    offered: tuple[Mapping[str, Any], ...] = ()
    more: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether the chat has any."""
        return bool(self.offered or self.more)


def renderer(tokenizer: Any, template: str) -> Render:
    """Renders this template as both sides render prompts; raises Unserved."""

    def render(turns: Turns, tools: Sequence[Any]) -> str:
        try:
            with library_errors("the chat template cannot be rendered", "leave the tools out"):
                return str(
                    tokenizer.apply_chat_template(
                        turns,
                        chat_template=template,
                        tokenize=False,
                        add_generation_prompt=True,
                        enable_thinking=False,
                        tools=list(tools) or None,
                    )
                )
        except UserError as error:
            raise Unserved(str(error), "tools") from None

    return render


def plain_messages(messages: Messages, tools: Tools, render: Render) -> Messages:
    """Messages without tools of which the template makes the same prompt; raises Unserved."""
    turns = [{**_turn(message), **tools.more.get(at, {})} for at, message in enumerate(messages)]
    prompt, plain = render(turns, tools.offered), list(messages)

    def say(begin: int, end: int, role: str) -> None:
        """Replace these messages by one that says what stands for them in the prompt."""
        mark = f"mark {secrets.token_hex(16)}"
        turns[begin:end] = [{"role": role, "content": mark}]
        before, _, after = render(turns, ()).partition(mark)
        text = prompt[len(before) : len(prompt) - len(after)]
        if prompt != before + text + after:
            raise _no_tools(f"does not say them as messages of role {role}")
        turns[begin] = {"role": role, "content": text}
        plain[begin:end] = [Message(role, (text,))]

    if tools.offered:
        if render(turns, ()) == prompt:
            raise _no_tools("leaves them out")
        say(0, int(messages[0].role == SYSTEM), SYSTEM)
    at = len(turns)
    while at:  # from the last, so that the places of the others stay
        at, end = at - 1, at
        if turns[at].get("tool_calls"):
            say(at, end, ASSISTANT)
        elif turns[at]["role"] == TOOL:  # templates say neighbours as one
            while at and turns[at - 1]["role"] == TOOL:
                at -= 1
            say(at, end, USER)
    if render(turns, ()) != prompt:
        raise _no_tools("says them in another way than plain messages")
    return tuple(plain)


def _no_tools(what: str) -> Unserved:
    return Unserved(f"tools are not supported by this model: its chat template {what}", "tools")


def _turn(message: Message) -> dict[str, Any]:
    """The message as templates read it."""
    if not message.pictures:
        return {"role": message.role, "content": message.text}
    parts = [
        {"type": "image"} if isinstance(part, Picture) else {"type": "text", "text": part}
        for part in message.contents
    ]
    return {"role": message.role, "content": parts}


def call_grammar(tools: Sequence[Mapping[str, Any]]) -> str:
    """The grammar of an answer that is one call of one of these tools, in llguidance's dialect."""
    called = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                "arguments": tool["function"].get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    schema = json.dumps({"anyOf": called} | ONE_LINE)
    return f'start: "{CALL_BEGINS}\\n" %json {schema} "\\n{CALL_ENDS}"'


@dataclass(frozen=True)
class ToolCall:
    """A call in an answer. arguments: a JSON object as text."""

    name: str
    arguments: str


class ToolCalls:
    """Takes the calls out of a growing answer, and blanks behind them; what only looks like a call
    stays text."""

    def __init__(self) -> None:
        self._held, self._behind_call = "", False

    def add(self, more: str, *, ended: bool = False) -> list[str | ToolCall]:
        """What is known by now, in its order; ``ended``: the answer is over."""
        self._held, found = self._held + more, list[str | ToolCall]()
        while True:
            if self._behind_call:
                self._held = self._held.lstrip()
            text, begins, rest = self._held.partition(CALL_BEGINS)
            if not begins and not ended:
                self._held = beginning(CALL_BEGINS, text)
                text = text[: len(text) - len(self._held)]
            if text:
                found.append(text)
                self._behind_call = False
            if not begins:
                return found
            whole = _TO_ITS_END.match(rest)
            if not (whole or ended):
                self._held = begins + rest
                return found
            end = whole.end() if whole else len(rest)
            call = _call(rest[:end].removesuffix(CALL_ENDS))
            if not (whole or call):  # a string that does not end
                end = len(rest.partition(CALL_ENDS)[0] + CALL_ENDS)
            found.append(call or begins + rest[:end])
            self._behind_call, self._held = call is not None, rest[end:]


class FirstCall(StopTexts):
    """Passes on a growing answer up to its first call, or to the first of some texts."""

    _said = ""

    def add(self, more: str, *, ended: bool = False) -> str:
        """As ``StopTexts.add``."""
        words, before = super().add(more, ended=ended), len(self._said)
        self._said += words
        at = self._said.find(CALL_BEGINS)
        call = _TO_ITS_END.match(self._said, at + len(CALL_BEGINS)) if at >= 0 else None
        if call is None:
            return words
        self.found = True
        return self._said[before : call.end()]


def _call(text: str) -> ToolCall | None:
    try:
        said = json.loads(text, parse_constant=no_number)
        name, arguments = said["name"], said.get("arguments", {})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))
