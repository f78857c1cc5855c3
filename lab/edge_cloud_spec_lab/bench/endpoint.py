"""``bench endpoint``: chats through the endpoint on the robot, by the openai package.

Part ``chats``: whether an answer is what transformers' ``generate`` says, while the link is cut, is
gone, is silent, or leads to another verifier in the middle of answers. Part ``speed``: time to the
first word and tokens/s of the preset, beside the cloud generating alone for the same client over
the same link. Part ``overhead``: what the endpoint adds to ``Decoder``, in turn, per request and
per token: in time, and in CPU time of the process, which a busy machine changes little.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from threading import Timer
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from transformers import AutoTokenizer

from edge_cloud_spec import Decoder
from edge_cloud_spec.cloud.command import ANY
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.endpoint.chat import read_chat
from edge_cloud_spec.endpoint.tools import ToolCall, ToolCalls
from edge_cloud_spec.errors import UserError, check_installed
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import PromptSpec
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.request import USER, Message, Part, Picture, Request

from ..harness.emulated_link import LinkProfile
from ..harness.endpoint import MODEL, EndpointProcess, chat_of
from ..harness.grpc_robot import verifier_options
from ..harness.proxy import Proxy
from ..harness.random_checkpoint import (
    TINY,
    TOOLS_TEMPLATE,
    CheckpointShape,
    make_checkpoint,
    make_pair,
    make_shallow,
)
from ..harness.reference import generate, load_reference
from ..harness.server import VerifierProcess
from ..tokens import ANSWER_TOKENS
from .command import Options, Row
from .decodes import in_turn, sample_cases
from .options import BASELINE_PRESET
from .requests import sample_questions

# Of the chats: a round trip of 20 ms, so that faults meet what is in flight.
LINK = LinkProfile(10.0)
OUT_S = 0.3  # that a link is gone, or silent
FAULTS = ("cut", "out", "silent", "moved")
FAULTY = 0.5  # share of the chats with a fault
FIRST_PIECES = 6  # of an answer, of which a fault comes before or behind one
TEMPERATURE = 0.8
SHORT_ANSWER, LONG_ANSWER = 8, 136  # tokens of the answers whose times tell the overhead
SIZES = SHORT_ANSWER, LONG_ANSWER
OVERHEAD_FORMS = ("text", "1 picture")
SCHEMA = {
    "type": "object",
    "properties": {"side": {"enum": ["left", "right"]}, "steps": {"type": "integer"}},
    "required": ["side", "steps"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "go", "parameters": SCHEMA}},
    {
        "type": "function",
        "function": {"name": "look", "description": "around", "parameters": {"type": "object"}},
    },
]
FORMS: dict[str, dict[str, Any]] = {
    "text": {},
    "1 picture": {},
    "3 pictures": {},
    "tools": {"tools": TOOLS},
    "a required call": {"tools": TOOLS, "tool_choice": "required"},
    "schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "move", "schema": SCHEMA},
        }
    },
}
PICTURES = {"1 picture": 1, "3 pictures": 3}
DIFFERENT_VIEWS = 24  # different pictures

OPTIONS: Options = {
    "--chats": {
        "type": int,
        "default": 200,
        "help": "greedy, and as many coupled; 0: none (%(default)s)",
    },
    "--answers": {"type": int, "default": 24, "help": "timed at each round trip (%(default)s)"},
    "--pairs": {
        "type": int,
        "default": 60,
        "help": "of answers by which the overhead is timed (%(default)s)",
    },
    "--rtt": {"type": float, "nargs": "+", "default": [20.0, 80.0, 240.0], "metavar": "MS"},
    "--preset": {"default": "auto", "help": "whose speed is timed (%(default)s)"},
}
COLUMNS = {
    "part": "part",
    "form": "form",
    "rule": "rule",
    "rtt_ms": "rtt ms",
    "preset": "preset",
    "client": "client",
    "chats": "chats",
    "equal": "equal",
    "faults": "faults within",
    "accepted": "accepted tokens",
    "first_ms": "first word ms",
    "tokens_per_s": "tokens/s",
    "quartiles": "quartiles",
    "up_bytes": "bytes up",
    "down_bytes": "bytes down",
    "request_ms": "ms a request",
    "request_quartiles": "quartiles",
    "token_ms": "ms a token",
    "token_quartiles": "quartiles",
    "request_cpu_ms": "CPU ms a request",
    "token_cpu_ms": "CPU ms a token",
    "decoder_ms": "Decoder alone ms",
    "decoder_events": "its pieces",
    "events": "events",
}

Said = tuple[str, tuple[tuple[str, str], ...]]  # an answer's text, and its calls


def run(args: argparse.Namespace) -> list[Row]:
    """Run the suite; returns a row per form and rule, per round trip and preset, per form."""
    if min(args.chats, args.answers, args.pairs) < 0:
        raise UserError("--chats, --answers and --pairs are 0 or more; 0 leaves a part out")
    check_installed("openai", "bench endpoint")
    rows = []
    with tempfile.TemporaryDirectory(prefix="endpoint_") as folder:
        shape, strong = CheckpointShape(layers=4), {"initializer_range": 0.15}
        target = make_checkpoint(Path(folder, "target"), "qwen3_vl", shape, text=strong)
        (target / "chat_template.jinja").write_text(TOOLS_TEMPLATE)
        drafter = make_shallow(target, Path(folder, "drafter"))
        options = [*verifier_options(str(target), ""), "--dialect", ANY]
        if args.chats:
            rows += list(_chats(args, target, drafter, options))
        if args.answers:
            rows += list(_speeds(args))
        if args.pairs:
            rows += list(_overheads(args, *make_pair(Path(folder, "endless"), TINY, TINY)))
    return rows


@dataclass(frozen=True)
class Chat:
    """A chat's messages, and the body that asks for it."""

    request: Request
    body: dict[str, Any]


def _chat(data: int, number: int, form: str, **options: Any) -> Chat:
    views, shown = sample_questions(data, DIFFERENT_VIEWS), PICTURES.get(form, 0)
    parts: list[Part] = [
        Picture.of(views[(number + place) % DIFFERENT_VIEWS].jpeg) for place in range(shown)
    ]
    parts.append(f"chat {data} {number}: which way to the box?")
    request = Request((Message(USER, tuple(parts)),))
    return Chat(request, chat_of(request, **FORMS[form], **options))


# Whether answers are the target's own, over a link that breaks


def _chats(
    args: argparse.Namespace, target: Path, drafter: Path, options: Sequence[str]
) -> Iterator[Row]:
    ours = load(str(target), threads=1)
    spec, reference = ours.spec(ANSWER_TOKENS), load_reference(str(target), ours)
    judge = AutoTokenizer.from_pretrained(target)
    with (
        VerifierProcess(options) as first,
        VerifierProcess(options) as second,
        Proxy(first.address, LINK) as link,
        EndpointProcess(
            "--cloud", link.address, "--drafter", str(drafter), "--preset", "dsd"
        ) as end,
    ):
        ask = partial(_ask, _client(end), link, (first.address, second.address))
        for rule in ("greedy", "coupled"):
            chances = {} if rule == "greedy" else {"temperature": TEMPERATURE}
            done: dict[str, list[tuple[bool, str, int]]] = {form: [] for form in FORMS}
            for number in range(args.chats):
                form, random = [*FORMS][number % len(FORMS)], Random(f"{args.seed} {rule} {number}")
                drawn = chances | ({"seed": random.getrandbits(31)} if chances else {})
                chat = _chat(args.seed, number, form, **drawn)
                own = _own(chat, ours, spec, reference, judge)
                said, fault, accepted = ask(chat, random)
                done[form].append((said == own, fault, accepted))
                if said != own:
                    print(
                        f"  {rule}, chat {number}, {form}, {fault}: {said!r} is not {own!r}",
                        flush=True,
                    )
            for form, results in done.items():
                if results:
                    yield _chats_row(form, rule, results)


def _chats_row(form: str, rule: str, results: Sequence[tuple[bool, str, int]]) -> Row:
    faults = Counter(fault for _, fault, _ in results if fault)
    equal = sum(same for same, _, _ in results)
    return {
        "part": "chats",
        "form": form,
        "rule": rule,
        "chats": len(results),
        "equal": equal,
        "faults": ", ".join(f"{count} {fault}" for fault, count in sorted(faults.items())),
        "accepted": sum(accepted for _, _, accepted in results),
        "passed": equal == len(results),
    }


def _own(chat: Chat, ours: Vlm, spec: PromptSpec, reference: Any, judge: Any) -> Said:
    """What transformers' ``generate`` says; tools are rendered by its tokenizer, ``judge``, and a
    grammar is our mask."""
    prompt, policy = ours.prompt(chat.request, spec), _policy(chat)
    if chat.body.get("tools"):
        ids = judge.apply_chat_template(
            [{"role": message.role, "content": message.text} for message in chat.request.messages],
            tools=TOOLS,
            add_generation_prompt=True,
            return_dict=False,
        )
        prompt = replace(prompt, input_ids=np.array(ids, np.int64))
    grammar = ours.grammar(policy.grammar, spec) if policy.grammar else None
    tokens = generate(reference, prompt, spec, policy, grammar)
    text = str(ours.tokenizer.decode(tokens, skip_special_tokens=True))
    pieces = ToolCalls().add(text, ended=True) if chat.body.get("tools") else [text]
    calls = tuple((each.name, each.arguments) for each in pieces if isinstance(each, ToolCall))
    return _whole("".join(each for each in pieces if isinstance(each, str))), calls


def _whole(text: str) -> str:
    """The text without what ends it in the middle of a character."""
    return text.rstrip("\N{REPLACEMENT CHARACTER}")


def _policy(chat: Chat) -> SamplingPolicy:
    return read_chat(json.dumps(chat.body).encode(), (MODEL,)).policy


def _client(end: EndpointProcess) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=end.url, api_key="none", max_retries=0, timeout=120.0)


def _ask(
    client: Any, link: Proxy, verifiers: Sequence[str], chat: Chat, random: Random
) -> tuple[Said, str, int]:
    """An answer, streamed; the fault before one of its pieces, empty for none; accepted tokens."""
    fault = random.choice(FAULTS) if random.random() < FAULTY else ""
    place, made, within = random.randrange(FIRST_PIECES), "", ""
    moves: dict[str, Callable[[], object]] = {
        "cut": link.cut,
        "out": partial(_passing, link.set_out),
        "silent": partial(_passing, link.set_silent),
        "moved": lambda: link.redirect(next(each for each in verifiers if each != link.leads_to)),
    }
    text, calls, accepted = "", dict[int, tuple[str, str]](), 0
    asked = chat.body | {"stream": True, "stream_options": {"include_usage": True}}
    stream = client.chat.completions.create(**asked)  # returns with the first piece
    for number, event in enumerate(stream):
        if event.usage:
            accepted = event.usage.completion_tokens_details.accepted_prediction_tokens
        for choice in event.choices:
            text += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                calls[call.index] = call.function.name, call.function.arguments
            if choice.delta.content or choice.delta.tool_calls:
                within = made
        if fault and number == place:
            moves[fault]()
            made = fault
    return (_whole(text), tuple(calls.values())), within, accepted


def _passing(put: Callable[[bool], None]) -> None:
    put(True)
    Timer(OUT_S, put, (False,)).start()


# How fast it is


@dataclass(frozen=True)
class Timing:
    """Of one answer: s to the first word and to the end, tokens, bytes of the link."""

    first: float
    whole: float
    tokens: int
    up: int
    down: int


def _speeds(args: argparse.Namespace) -> Iterator[Row]:
    presets = dict.fromkeys((args.preset, BASELINE_PRESET))
    with ExitStack() as stack:
        served = [*verifier_options(), "--dialect", ANY]
        cloud = stack.enter_context(VerifierProcess(served))
        link = stack.enter_context(Proxy(cloud.address))
        decodes = {}
        for preset in presets:
            end = EndpointProcess("--cloud", link.address, "--preset", preset)
            decodes[preset] = partial(_timed, _client(stack.enter_context(end)), link)
        for place, rtt_ms in enumerate(args.rtt):
            link.set_delay(rtt_ms / 2)
            seed = args.seed + 1_000 * place
            done = in_turn(decodes, sample_cases(seed, args.answers + 1))
            for preset, timings in done.items():
                yield _speed_row(rtt_ms, preset, timings)


def _timed(client: Any, link: Proxy, request: Request, _: SamplingPolicy) -> Timing:
    before, begun, first, tokens = link.sent_bytes, time.perf_counter(), 0.0, 0
    asked = chat_of(request, stream=True, stream_options={"include_usage": True})
    for event in client.chat.completions.create(**asked):
        if not first and event.choices and event.choices[0].delta.content:
            first = time.perf_counter() - begun
        tokens = event.usage.completion_tokens if event.usage else tokens
    whole = time.perf_counter() - begun
    up, down = (now - then for now, then in zip(link.sent_bytes, before, strict=True))
    return Timing(first, whole, tokens, up, down)


def _speed_row(rtt_ms: float, preset: str, timings: Sequence[Timing]) -> Row:
    speeds = [each.tokens / each.whole for each in timings]
    low, middle, high = _quartiles(speeds)
    return {
        "part": "speed",
        "rtt_ms": rtt_ms,
        "preset": preset,
        "chats": len(timings),
        "first_ms": 1e3 * statistics.median(each.first for each in timings),
        "tokens_per_s": middle,
        "quartiles": f"{low:.1f} to {high:.1f}",
        "up_bytes": round(statistics.mean(each.up for each in timings)),
        "down_bytes": round(statistics.mean(each.down for each in timings)),
    }


def _quartiles(values: Sequence[float]) -> list[float]:
    return statistics.quantiles(values, n=4) if len(values) > 1 else [*values] * 3


# What it costs

Way = tuple[str, int]  # who asks, and for how many tokens


def _overheads(args: argparse.Namespace, target: Path, drafter: Path) -> Iterator[Row]:
    """Answers of a target that ends none by itself, by the cloud alone: many events, and hardly any
    model."""
    options = [
        *verifier_options(str(target), ""),
        "--dialect",
        ANY,
        "--max-tokens",
        str(LONG_ANSWER),
    ]
    with (
        VerifierProcess(options) as cloud,
        Decoder(cloud.address, str(drafter), preset=BASELINE_PRESET) as decoder,
        EndpointProcess(
            *("--cloud", cloud.address, "--drafter", str(drafter), "--preset", BASELINE_PRESET)
        ) as end,
    ):
        ways = {
            (way, size): partial(decode, size)
            for size in SIZES
            for way, decode in (
                ("decoder", partial(_direct, decoder)),
                ("endpoint", partial(_asked, end)),
                ("sdk", partial(_sdk, _client(end))),
            )
        }
        for form in OVERHEAD_FORMS:
            found: dict[Way, list[float]] = {way: [] for way in ways}
            events: dict[Way, list[int]] = {way: [] for way in ways}
            busy: dict[Way, float] = dict.fromkeys(ways, 0.0)
            for number in range(args.pairs + 1):
                for place, (way, decode) in enumerate(ways.items()):
                    request = _chat(args.seed, number, form).request
                    unread = Message(USER, (*request.messages[0].parts, f" {place}"))
                    # This process's own, where a decode's thread has ended by then.
                    cpu = time.process_time if way[0] == "decoder" else partial(_cpu_s, end.pid)
                    before, begun = cpu(), time.perf_counter()
                    pieces = decode(replace(request, messages=(unread,)))
                    if number:  # the first is a warm-up
                        found[way].append(time.perf_counter() - begun)
                        events[way].append(pieces)
                        busy[way] += (cpu() - before) / args.pairs
            yield from _overhead_rows(form, found, events, busy)


def _cpu_s(pid: int) -> float:
    """CPU time of a process, s, also of its threads that have ended."""
    # The clock that clock_getcpuclockid(3) names, which Python lacks; /proc counts in 10 ms.
    return time.clock_gettime(~pid << 3 | 2)


def _line(short: float, long: float) -> tuple[float, float]:
    """What is added to each answer, and to each of its tokens, by what is added to two."""
    by_token = (long - short) / (LONG_ANSWER - SHORT_ANSWER)
    return short - SHORT_ANSWER * by_token, by_token


def _overhead_rows(
    form: str,
    found: Mapping[Way, Sequence[float]],
    events: Mapping[Way, Sequence[int]],
    busy: Mapping[Way, float],
) -> Iterator[Row]:
    for way in ("endpoint", "sdk"):
        pairs = zip(*(found[who, size] for size in SIZES for who in (way, "decoder")), strict=True)
        by_request, by_token = zip(
            *(
                _line(short - own_short, long - own_long)
                for short, own_short, long, own_long in pairs
            ),
            strict=True,
        )
        request_cpu, token_cpu = _line(*(busy[way, n] - busy["decoder", n] for n in SIZES))
        low, middle, high = _quartiles(by_request)
        token_low, token_middle, token_high = _quartiles(by_token)
        yield {
            "part": "overhead",
            "form": form,
            "client": way,
            "chats": len(by_token),
            "request_ms": 1e3 * middle,
            "request_quartiles": f"{1e3 * low:.2f} to {1e3 * high:.2f}",
            "token_ms": 1e3 * token_middle,
            "token_quartiles": f"{1e3 * token_low:.3f} to {1e3 * token_high:.3f}",
            "request_cpu_ms": 1e3 * request_cpu,
            "token_cpu_ms": 1e3 * token_cpu,
            "decoder_ms": 1e3 * statistics.median(found["decoder", LONG_ANSWER]),
            "decoder_events": statistics.mean(events["decoder", LONG_ANSWER]),
            "events": statistics.mean(events[way, LONG_ANSWER]),
        }


def _direct(decoder: Decoder, size: int, request: Request) -> int:
    decoder.settings = replace(decoder.settings, max_tokens=size)
    pieces = len([*decoder.stream(replace(request, continues=True))])
    assert decoder.answer is not None and len(decoder.answer.outcome.tokens) == size
    return pieces


def _asked(end: EndpointProcess, size: int, request: Request) -> int:
    body = json.dumps(chat_of(request, stream=True, max_tokens=size)).encode()
    where = urlsplit(end.url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=120)
    connection.request(
        "POST", f"{where.path}/chat/completions", body, {"content-type": "application/json"}
    )
    response = connection.getresponse()
    told = response.read()
    connection.close()
    assert response.status == 200, told
    return told.count(b"data: ")


def _sdk(client: Any, size: int, request: Request) -> int:
    asked = chat_of(request, stream=True, max_tokens=size)
    return len([*client.chat.completions.create(**asked)])
