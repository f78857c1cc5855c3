"""``bench payload``: serialized bytes a round, up and down, of every preset that drafts on a robot.

Prints their means and maxima. Robot and cloud are a loopback pair: all messages of a round count as
they are encoded, the resampled token and the request for a dense row included; the framing of gRPC,
TLS and TCP does not. Over models of stated tails (``--tails``), and the embedded pair. Presets that
draft on predictions send more: ``bench pipelines`` has their bytes.

Under greedy and coupled, presets of one shape send the same: they are measured once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ...decoding.policy import RULES, SamplingPolicy
from ...decoding.preset import Preset
from ...decoding.token_distribution import distribution_of
from ...errors import UserError
from ...presets import load_preset, preset_names
from ..harness.loopback import NO_LIMIT, LoopbackPair
from ..harness.power_law import NOISE, TAILS, power_law_pair
from ..harness.scripted.model import mix
from .command import Options, Row
from .formulas import acceptance_rate

GAMMAS = (4, 8)
TEMPERATURES = (0.3, 0.7, 1.0)
SHARES = (0.1, 0.01, 0.001)  # of the vocabulary: TSLT's K


@dataclass(frozen=True)
class Case:
    """A preset, without what the rule does not use, over one pair of models."""

    tail: str
    vocab: int
    preset: Preset
    rule: str
    temperature: float

    @property
    def nameless(self) -> Case:
        """The case without names: equal ones are measured once."""
        return replace(self, preset=replace(self.preset, name="", summary=""))

    @property
    def distributions(self) -> Case | None:
        """The case reduced to what P and Q depend on; None where nothing is drawn from Q."""
        preset = self.preset
        if not preset.proposal(self.rule, self.policy(0)).draws:
            return None
        cut = Preset(
            "",
            "",
            preset.drafter,
            draft_length=1,
            payload=preset.payload if preset.payload == "sparse" else "dense",
            draft_top_k=preset.draft_top_k,
            draft_top_p=preset.draft_top_p,
        )
        return replace(self, preset=cut)

    def policy(self, seed: int) -> SamplingPolicy:
        """The sampling policy of its requests."""
        return SamplingPolicy(self.temperature, seed=seed)

    def row(self, measured: Row) -> Row:
        """The row: the case and what was measured of it."""
        return {
            "tail": self.tail,
            "preset": self.preset.name,
            "rule": self.rule,
            "gamma": self.preset.shape.depth,
            "vocab": self.vocab,
            "k": _k(self.preset, self.rule),
            "temperature": self.temperature,
            **measured,
            "exact": self.preset.exact,
        }


def _k(preset: Preset, rule: str) -> int:
    """To how many tokens Q is cut (tslt), or P on its way down (dssd); 0: not at all."""
    split = preset.split_of(rule)
    if split is not None:
        return 0 if split.residual == "dense" else split.top_k
    return preset.draft_top_k if preset.payload_of(rule) == "sparse" else 0


def cases(tail: str, vocab: int, temperatures: Sequence[float] = TEMPERATURES) -> list[Case]:
    """All cases over one pair of models."""
    found = [
        Case(tail, vocab, _effective(preset, rule), rule, temperature)
        for preset in _presets(vocab)
        for rule in RULES
        for temperature in ((0.0,) if rule == "greedy" else temperatures)
    ]
    return list(dict.fromkeys(found))


def _presets(vocab: int) -> Iterator[Preset]:
    """Presets that draft on the robot: chains of each length, Q cut to each share of V."""
    tree_depth = load_preset("mc_dsd").shape.depth
    for name in preset_names():
        preset = load_preset(name)
        if not (preset.drafts_on_robot and preset.verified) or preset.speculation.predicts:
            continue
        if not preset.draft_length:
            yield preset
            continue
        for gamma in (tree_depth, *GAMMAS) if name == "dsd" else GAMMAS:
            chain = replace(preset, draft_length=gamma)
            yield chain
            for share in SHARES if preset.payload == "sparse" else ():
                yield replace(chain, draft_top_k=max(1, round(share * vocab)))


def _effective(preset: Preset, rule: str) -> Preset:
    """The preset as the rule uses it: greedy and coupled use its shape only."""
    if rule == "rejection":
        return preset
    return Preset(
        preset.name,
        preset.summary,
        preset.drafter,
        preset.draft_length,
        preset.expansion,
        preset.best_first,
        payload="ids",
    )


@dataclass
class RoundBytes:
    """Serialized bytes of each round, and how many of its drafted tokens were accepted.

    A *judged* position is one where the draft had a token and the verdict accepted or rejected it.
    ``down`` is without the dense rows that a robot requests when a sparse residual ran out; their
    bytes are in ``fallbacks``, the requests in ``up``.
    """

    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)
    fallbacks: list[int] = field(default_factory=list)
    tokens: int = 0
    accepted: int = 0
    rejections: int = 0

    @property
    def judged(self) -> int:
        """Positions that were accepted or rejected."""
        return self.accepted + self.rejections

    def add_round(self, pair: LoopbackPair) -> None:
        """Run one round of the pair and count it."""
        up, down, dense = pair.up_bytes, pair.down_bytes, pair.row_bytes
        tokens = len(pair.emitted)
        pair.round()
        fallback = pair.row_bytes - dense
        self.up.append(pair.up_bytes - up)
        self.down.append(pair.down_bytes - down - fallback)
        if fallback:
            self.fallbacks.append(fallback)
        self.tokens += len(pair.emitted) - tokens
        assert pair.verdict is not None
        self.accepted += len(pair.verdict.path)
        self.rejections += _rejected(pair)

    def row(self) -> Row:
        """Means, maxima and counts."""
        return {
            "rounds": len(self.up),
            "up_bytes_mean": statistics.fmean(self.up),
            "up_bytes_max": max(self.up),
            "down_bytes_mean": statistics.fmean(self.down),
            "down_bytes_max": max(self.down),
            "tokens_per_round": self.tokens / len(self.up),
            "acceptance": self.accepted / self.judged,
            "rejections": self.rejections,
            "fallbacks": len(self.fallbacks),
            "row_bytes_mean": statistics.fmean(self.fallbacks) if self.fallbacks else 0.0,
        }


def _rejected(pair: LoopbackPair) -> bool:
    """Whether the last round's verdict rejected all that the draft had at some position."""
    draft, verdict = pair.draft, pair.verdict
    assert draft is not None and verdict is not None
    judged = verdict.token is not None or verdict.residual is not None
    offered = list(draft.children(verdict.path[-1] if verdict.path else -1))
    return judged and bool(offered)


PREFIXES = 64  # over which the overlap of P and Q is averaged
EMBEDDED_TAIL = "embedded"  # of the rows of the embedded pair
MAX_TOKENS = 48  # of an answer of the embedded pair
VERIFY_S, QUEUE_S = 0.1, 0.01  # times that verdicts carry, in bytes that count

OPTIONS: Options = {
    "--vocab": {"type": int, "default": 151_936, "help": "(default %(default)s)"},
    "--beside": {
        "type": int,
        "default": 32_000,
        "help": "a second one; 0: none (default %(default)s)",
    },
    "--tails": {"default": ",".join(TAILS), "help": "(default %(default)s)"},
    "--rounds": {
        "type": int,
        "default": 24,
        "help": "a cell; more at a smaller vocabulary (%(default)s)",
    },
    "--noise": {
        "type": float,
        "default": NOISE,
        "help": "of the draft's logits (default %(default)s)",
    },
    "--requests": {
        "type": int,
        "default": 8,
        "help": "to the embedded pair; 0: without it (%(default)s)",
    },
    "--processes": {"type": int, "default": 2, "help": "side by side (%(default)s)"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """A row a case."""
    tails = args.tails.split(",")
    if unknown := set(tails) - set(TAILS):
        raise UserError(f"no tail {', '.join(sorted(unknown))}; there are {', '.join(TAILS)}")
    vocabularies = sorted({args.vocab, args.beside or args.vocab}, reverse=True)
    if vocabularies[-1] < 100 or min(args.rounds, args.processes) < 1 or args.requests < 0:
        raise UserError("vocabularies must be 100 or more, --rounds and --processes 1 or more")
    wanted = [case for vocab in vocabularies for tail in tails for case in cases(tail, vocab)]
    distinct = list(dict.fromkeys(case.nameless for case in wanted))
    rounds = [_rounds(case, args) for case in distinct]
    sources = list(dict.fromkeys(filter(None, (case.distributions for case in distinct))))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.processes, mp_context=context) as pool:
        embedded = pool.submit(embedded_rows, args.requests, args.seed)
        one = partial(measure, seed=args.seed, noise=args.noise)
        measured = dict(zip(distinct, pool.map(one, distinct, rounds), strict=True))
        shared = partial(overlap, seed=args.seed, noise=args.noise)
        overlaps = dict(zip(sources, pool.map(shared, sources), strict=True))
        return [_row(case, measured, overlaps) for case in wanted] + embedded.result()


def _row(case: Case, measured: Mapping[Case, Row], overlaps: Mapping[Case, float]) -> Row:
    row, source = case.row(measured[case.nameless]), case.distributions
    return row if source is None else {**row, "overlap": overlaps[source]}


def _rounds(case: Case, args: argparse.Namespace) -> int:
    """The number of rounds, so that each vocabulary takes about the same time.

    More where fallbacks, which are rare, are counted; fewer for trees with 40 rows a draft.
    """
    split = case.preset.split_of(case.rule)
    weight = 0.5 if case.preset.best_first is not None else 1.0
    if split is not None and split.residual == "sparse":
        weight = 4.0
    rounds: int = round(args.rounds * weight * max(args.vocab, args.beside) / case.vocab)
    return max(1, rounds)


def measure(case: Case, rounds: int, seed: int, noise: float = NOISE) -> Row:
    """So many rounds over the models of the case's tail."""
    models = power_law_pair(case.tail, case.vocab, seed, noise)
    sessions = tuple(model.open(seed) for model in models)
    pair = _pair(case, sessions, seed)
    totals = RoundBytes()
    for _ in range(rounds):
        totals.add_round(pair)
    return totals.row()


def overlap(case: Case, seed: int, noise: float = NOISE) -> float:
    """sum min(P, Q) averaged over the same prefixes in every case.

    The acceptance of a drawn chain tends to it over many rounds; of a tree, of its first candidate.
    """
    models = power_law_pair(case.tail, case.vocab, seed, noise)
    policy = case.policy(seed)
    proposal = case.preset.proposal(case.rule, policy)
    rates = []
    for number in range(PREFIXES):
        draft_logits, target_logits = (model.row(mix(seed, number)) for model in models)
        q = distribution_of(draft_logits, policy, proposal.top_k, proposal.top_p)
        rates.append(acceptance_rate(distribution_of(target_logits, policy).over(q.ids), q.shares))
    return statistics.fmean(rates)


def _pair(case: Case, sessions: Any, seed: int, ends: tuple[int, ...] = ()) -> LoopbackPair:
    return LoopbackPair(
        case.preset,
        case.rule,
        case.policy(seed),
        sessions,
        case.vocab,
        end_tokens=ends,
        max_tokens=MAX_TOKENS if ends else NO_LIMIT,
        verify_s=VERIFY_S,
        queue_s=QUEUE_S,
    )


def embedded_rows(
    requests: int, seed: int, temperatures: Sequence[float] = TEMPERATURES
) -> list[Row]:
    """A row a case of the embedded pair: whole answers to requests with pictures."""
    if not requests:
        return []
    from ...models import EMBEDDED
    from ...models.load import load
    from ...share import rules_text
    from .requests import sample_requests

    drafter, target = (load(EMBEDDED / name, threads=1) for name in ("drafter", "target"))
    spec = target.spec(rules_text(), MAX_TOKENS)
    drafter.crop(spec.vocabulary)
    opened = [
        tuple(model.open(model.prompt(request, spec)) for model in (drafter, target))
        for request in sample_requests(seed, requests)
    ]
    wanted = cases(EMBEDDED_TAIL, spec.vocabulary, temperatures)
    measured: dict[Case, Row] = {}
    for case in wanted:
        if case.nameless in measured:
            continue
        totals = RoundBytes()
        for number, sessions in enumerate(opened):
            for session in sessions:
                session.truncate(0)
            pair = _pair(case, sessions, seed + number, spec.end_ids)
            while not pair.finished:
                totals.add_round(pair)
        measured[case.nameless] = totals.row()
    return [case.row(measured[case.nameless]) for case in wanted]
