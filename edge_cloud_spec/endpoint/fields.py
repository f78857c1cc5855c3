"""What the endpoint makes of each field of a chat request; docs/endpoint.md shows this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

HONOURED, WITHOUT_EFFECT, UNSUPPORTED = "honoured", "without effect", "refused"


@dataclass(frozen=True)
class Field:
    """A field of a request: what becomes of it, and how, in a phrase.

    neutral: values of a refused field that ask for nothing, and are accepted.
    """

    name: str
    treatment: str
    about: str
    neutral: tuple[Any, ...] = ()


FIELDS = (
    Field("model", HONOURED, "a served name; the answer is the target's"),
    Field(
        "messages",
        HONOURED,
        "up to 256 of system (or developer), user, assistant and tool; texts of 262,144 characters "
        "in all, and JPEG or PNG pictures as data URLs, in their order, of at most 2,097,152 "
        "pixels, or what the model can use; with `detail: low` always so many at most, and shown "
        "to the model at 512 a side",
    ),
    Field("stream", HONOURED, "words as they are verified"),
    Field("stream_options", HONOURED, "`include_usage`"),
    Field("max_completion_tokens", HONOURED, "at most; absent: the verifier's limit"),
    Field("max_tokens", HONOURED, "an older name of the same"),
    Field(
        "temperature",
        HONOURED,
        "0 to 2; absent: 0, or 1 where `top_p` or `top_k` is given. Above 0 the rule is coupled",
    ),
    Field("top_p", HONOURED, "above 0, up to 1"),
    Field("top_k", HONOURED, "0 or -1: all tokens"),
    Field("seed", HONOURED, "of the sampling; absent: another one each time"),
    Field("stop", HONOURED, "up to 16 texts; the answer ends before the first of them"),
    Field(
        "response_format",
        HONOURED,
        "`text`, `json_object`, `json_schema`: a grammar for the target, on one line; a schema "
        "of at most 4,000 characters",
    ),
    Field(
        "prediction",
        HONOURED,
        "a draft: its first 256 characters are verified in one pass with the prompt",
    ),
    Field("tools", HONOURED, "functions, rendered by the chat template"),
    Field(
        "tool_choice",
        HONOURED,
        "`auto`; `none` leaves the tools out; `required` or one function: by a grammar of at most "
        "4,096 characters",
    ),
    Field("parallel_tool_calls", HONOURED, "`false` ends the answer with its first call"),
    Field(
        "logprobs",
        HONOURED,
        "of the answer's tokens; by the target's raw logits, of temperature 1, before penalties, "
        "grammar and `top_p`. Not with tools",
    ),
    Field("user", WITHOUT_EFFECT, "nothing is kept of who asks"),
    Field("metadata", WITHOUT_EFFECT, "nothing is stored"),
    Field("store", WITHOUT_EFFECT, "nothing is stored"),
    Field("service_tier", WITHOUT_EFFECT, "there is one"),
    Field("safety_identifier", WITHOUT_EFFECT, "nothing is kept of who asks"),
    Field("prompt_cache_key", WITHOUT_EFFECT, "prompts are kept by their content"),
    Field("prompt_cache_retention", WITHOUT_EFFECT, "prompts are kept while there is room"),
    Field("reasoning_effort", WITHOUT_EFFECT, "the target answers at once, without reasoning"),
    Field("verbosity", WITHOUT_EFFECT, "a hint to models that were trained on it"),
    Field("n", UNSUPPORTED, "one answer a request", (1,)),
    Field("functions", UNSUPPORTED, "an older form of `tools`", ([],)),
    Field("function_call", UNSUPPORTED, "an older form of `tool_choice`", ("none", "auto")),
    Field(
        "top_logprobs",
        UNSUPPORTED,
        "`logprobs` tells of the answer's own tokens, and of no others",
        (0,),
    ),
    Field("logit_bias", UNSUPPORTED, "would be another target", ({},)),
    Field("frequency_penalty", UNSUPPORTED, "would be another target", (0,)),
    Field("presence_penalty", UNSUPPORTED, "would be another target", (0,)),
    Field("repetition_penalty", UNSUPPORTED, "is the checkpoint's own", (1,)),
    Field("min_p", UNSUPPORTED, "would be another target", (0,)),
    Field("modalities", UNSUPPORTED, "text is all it answers with", (["text"],)),
    Field("audio", UNSUPPORTED, "text is all it answers with"),
    Field("web_search_options", UNSUPPORTED, "nothing is searched for"),
    Field(
        "chat_template_kwargs",
        UNSUPPORTED,
        "the template is the target's",
        ({}, {"enable_thinking": False}),
    ),
)
BY_NAME = {field.name: field for field in FIELDS}
