"""``bench grammar``: how many answers are actions, with the grammar and without, and what it costs.

Prints for each order, of a checkpoint with random weights, of the embedded pair and of any other
(``--target``): the answers with an action, passes of the target and the draft model an answer,
and the share of tokens that the grammar forces. ``mask_share`` is the processor's time for masks
over that for the target's passes, where every drafted token is accepted: that needs most masks.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...cloud.model_thread.worker import Worker
from ...decoding.grammar import forced_token, masked
from ...decoding.policy import SamplingPolicy
from ...decoding.preset import Preset
from ...edge.runner import DecodeSettings
from ...models import EMBEDDED
from ...models.load import load
from ...models.prompt import ORDERS, PromptSpec, Request
from ...models.token_grammar import GrammarCompiler
from ...models.vlm import Vlm
from ...nav.answer import GRAMMARS, NotAnAction, answer_grammar, read_answer
from ...presets import load_preset
from ...share import rules_text
from ..harness.grpc_robot import GrpcRobot
from ..harness.random_checkpoint import make_checkpoint
from ..harness.server import InProcessServer
from .command import Options, Row
from .options import check_counts
from .requests import sample_requests

MAX_TOKENS = 64
CHAIN = 4  # drafted tokens of a pass of which the masks' share is measured
TIMED = 20  # answers of which it is
LIMIT = 0.1  # that the share is to stay below


OPTIONS: Options = {
    "--prompts": {"type": int, "default": 100, "help": "of each order (%(default)s)"},
    "--preset": {"default": "dsd"},
    "--target": {"default": "", "help": "another checkpoint, drafted for by itself"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """A row a checkpoint, order and grammar."""
    check_counts(args, "prompts")
    preset = load_preset(args.preset)
    requests = sample_requests(args.seed, args.prompts)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        random = [make_checkpoint(Path(folder) / str(i), seed=args.seed + i) for i in range(2)]
        pairs = {args.target: [Path(args.target)] * 2} if args.target else {}  # it may not load
        pairs |= {"random": random, "embedded": [EMBEDDED / "target", EMBEDDED / "drafter"]}
        for name, directories in pairs.items():
            target, drafter = (load(directory, threads=1) for directory in directories)
            rows += _rows(name, target, drafter, requests, preset)
    return rows


def _rows(
    name: str, target: Vlm, drafter: Vlm, requests: Sequence[Request], preset: Preset
) -> list[Row]:
    spec = target.spec(rules_text(), MAX_TOKENS)
    rows: list[Row] = []
    worker = Worker(target, spec)
    with InProcessServer(worker) as server, GrpcRobot(server.address, drafter, spec) as robot:
        for order in ORDERS:
            asked = [replace(request, order=order) for request in requests]
            actions: dict[str, list[str]] = {}
            for grammar in GRAMMARS:
                policy = SamplingPolicy(grammar=answer_grammar(grammar, order))
                settings = DecodeSettings(preset, "greedy", policy, patience=100.0)
                row, actions[grammar] = _decoded(robot, asked, settings)
                about = {"checkpoint": name, "order": order, "grammar": grammar}
                rows.append({**about, "preset": preset.name, **row})
            pairs = zip(actions["none"], actions["action"], strict=True)
            rows[-1]["same_actions"] = sum(bool(then) and then == now for then, now in pairs)
    for row in rows:
        if row["grammar"] != "none":
            row |= _costs(target, spec, [replace(r, order=row["order"]) for r in requests[:TIMED]])
            row["passed"] = row["actions"] == row["answers"] and (
                name != "embedded" or row["mask_share"] <= LIMIT
            )
    return rows


def _decoded(
    robot: GrpcRobot, requests: Sequence[Request], settings: DecodeSettings
) -> tuple[Row, list[str]]:
    """Counts and means of the answers, and the actions in them (empty where there is none)."""
    nodes: list[int] = []  # of the draft model's passes
    robot.runner.on_pass = lambda begin, end, rows, verified, grown: nodes.append(rows)
    outcomes = [robot.decode(request, settings) for request in requests]
    tokenizer = robot.runner.draft_model.tokenizer
    texts = [tokenizer.decode(each.tokens, skip_special_tokens=True) for each in outcomes]
    actions = list(map(_action, texts))
    row = {
        "answers": len(outcomes),
        "completed": sum(outcome.completed for outcome in outcomes),
        "actions": sum(map(bool, actions)),
        "tokens": statistics.fmean(len(outcome.tokens) for outcome in outcomes),
        "passes": statistics.fmean(len(outcome.stats.rounds) for outcome in outcomes),
        "draft_passes": sum(map(bool, nodes)) / len(outcomes),
    }
    return row, actions


def _action(text: str) -> str:
    try:
        return str(read_answer(text).action or "")
    except NotAnAction:
        return ""


def _costs(target: Vlm, spec: PromptSpec, requests: Sequence[Request]) -> Row:
    """What masks cost beside passes, a mask after every token of every draft."""
    forced: list[bool] = []
    masks: list[float] = []
    passes: list[float] = []
    text = answer_grammar("action", requests[0].order)
    fresh = GrammarCompiler(target.tokenizer)  # which keeps no mask of what was answered already
    grammar = fresh.grammar(text, spec.end_ids[0], spec.vocabulary)
    for request in requests:
        answer = _own_answer(target, spec, request)
        session = target.open(target.prompt(request, spec))
        for begin in range(0, len(answer), CHAIN + 1):
            part = answer[begin : begin + CHAIN + 1]
            started = time.thread_time()
            logits = session.forward(part[:-1])
            passes.append(time.thread_time() - started)
            for place in range(len(part)):
                started = time.thread_time()
                allowed = grammar.allowed(answer[: begin + place])
                masked(logits[place], allowed)
                masks.append(time.thread_time() - started)
                forced.append(forced_token(allowed) is not None)
            session.commit(range(len(part) - 1))
            session.extend(part[-1:])
    return {
        "forced": statistics.fmean(forced),
        "mask_us": 1e6 * statistics.fmean(masks),
        "pass_ms": 1e3 * statistics.fmean(passes),
        "mask_share": sum(masks) / sum(passes),
    }


def _own_answer(target: Vlm, spec: PromptSpec, request: Request) -> list[int]:
    """What the target says by itself in the grammar."""
    grammar = target.grammar(answer_grammar("action", request.order), spec)
    session = target.open(target.prompt(request, spec))
    answer: list[int] = []
    while len(answer) < spec.max_tokens and answer[-1:] != [spec.end_ids[0]]:
        answer.append(int(masked(session.forward(())[0], grammar.allowed(answer)).argmax()))
        session.extend(answer[-1:])
    return answer
