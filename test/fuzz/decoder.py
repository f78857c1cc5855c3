"""Random messages of a verifier to a robot's decode: valid-looking ones, in any order.

Verdicts are on the present prefix, on others, right and wrong; sessions open twice and elsewhere;
rows, residuals and predictions come unasked; the link is lost and moves; the draft model is a real
one, and fails. ``Judge`` keeps its own books of the answer, from messages and drafts alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import numpy as np
from fuzz import Broken, rarely
from fuzz.scenes import SPEC, WHOLE, opening_of

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY, RULES, SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.decoding.random_source import SeededRandomSource
from edge_cloud_spec.decoding.split import SparseResidual, largest, sparse_residual
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.events import (
    Abort,
    Cut,
    DrafterFailed,
    Effect,
    Emit,
    Event,
    Finish,
    LinkLost,
    LinkUp,
    Prefilled,
    Prepare,
    PromptReady,
    TimePassed,
    Work,
)
from edge_cloud_spec.edge.measures import Measures
from edge_cloud_spec.edge.rounds import server_generation
from edge_cloud_spec.models.draft_model import DraftModel
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.codec import decode_server, encode_server
from edge_cloud_spec.wire.messages import (
    PROTOCOL,
    DraftMessage,
    Fault,
    Opened,
    Prediction,
    RowMessage,
    ServerMessage,
    Verdict,
    base_digest,
    spec_digest,
)
from edge_cloud_spec_lab.harness.toy import TOY_END, TOY_VOCABULARY, ToyDrafter

PRESETS = tuple(sorted(each.stem for each in Path("config/presets").glob("*.yaml")))
OTHER_SPEC = b"another one"
REPLY_TIMEOUT_S = 10.0
LIMIT = 24  # tokens of an answer, where the prompt says it
CODES = (
    "overloaded",
    "unknown_session",
    "bad_request",
    "internal",
    "in_use",
    "moved",
    "",
    "end",
    "x" * 1000,
)
WEIGHTS = {
    "verdict": 40,
    "draft": 60,
    "prompt": 30,
    "opened": 6,
    "prediction": 4,
    "row": 6,
    "link": 4,
    "time": 4,
    "fault": 2,
    "failed": 1,
    "stop": 0.3,
}


@dataclass
class Judge:
    """What a robot may say: kept from the messages and drafts alone.

    limit: of tokens. ``bases``: of the empty answer, as each prompt makes it; ``drafts``: those
    sent. ``heard``: verdicts.
    """

    limit: int
    counts: Counter[str]
    tokens: list[int] = field(default_factory=list)
    bases: set[PrefixDigest] = field(default_factory=set)
    drafts: list[DraftMessage] = field(default_factory=list)
    heard: list[Verdict] = field(default_factory=list)
    rows: list[RowMessage] = field(default_factory=list)
    over: bool = False

    def drafted(self, base: PrefixDigest) -> list[Draft]:
        """The drafts after this prefix."""
        return [message.draft for message in self.drafts if message.base == base]

    def settles(self, verdict: Verdict) -> list[tuple[int, ...]]:
        """What this verdict may settle."""
        last = () if verdict.token is None else (verdict.token,)
        paths = [verdict.tokens] if len(verdict.tokens) == len(verdict.path) else []
        known = (draft.path_tokens(verdict.path) for draft in self.drafted(verdict.base))
        paths += [path for path in known if path is not None]
        return [path + last for path in paths]

    def check(self, effects: Sequence[Effect]) -> None:
        """Raise Broken for what no message allows."""
        if self.over and effects:
            raise Broken(f"after its end: {effects}")
        for effect in effects:
            match effect:
                case Emit():
                    self._check_emit(effect)
                case DraftMessage():
                    self.drafts.append(effect)
                case Finish(reason):
                    self.over = True
                    self.counts[f"finish {reason}"] += 1

    def _check_emit(self, emit: Emit) -> None:
        self.counts["emits"] += 1
        if not emit.verified or emit.position != len(self.tokens):
            raise Broken(f"{emit} after {self.tokens}")
        if not any(self._allows(base.extend(self.tokens), emit.tokens) for base in self.bases):
            raise Broken(f"{emit} after {self.tokens}: no verdict on this prefix settles it")
        self.tokens += emit.tokens
        if len(self.tokens) > self.limit:
            raise Broken(f"{len(self.tokens)} tokens, {self.limit} were asked for")

    def _allows(self, place: PrefixDigest, tokens: tuple[int, ...]) -> bool:
        there = place.extend(tokens).short
        here = [each for each in self.heard if each.base == place and each.leads_to == there]
        settled = any(tokens in self.settles(verdict) for verdict in here)
        return settled or (len(tokens) == 1 and self._may_resample(place, tokens[0]))

    def _may_resample(self, place: PrefixDigest, token: int) -> bool:
        """Whether a verdict that ends here left the token to the robot, and P has it."""
        told = [
            verdict.residual
            for verdict in self.heard
            if verdict.residual is not None
            and place in [verdict.base.extend(settled) for settled in self.settles(verdict)]
        ]
        rows = [message.row for message in self.rows] if told else []
        may = any(token in _support(each) for each in (*told, *rows))
        self.counts["resampled"] += may
        return may


def _support(told: TokenDistribution | SparseResidual) -> set[int]:
    if isinstance(told, SparseResidual):
        return {*told.top.tolist(), *told.tail_tokens}
    ids = range(len(told.probabilities)) if told.ids is None else told.ids.tolist()
    return {token for token, share in zip(ids, told.probabilities, strict=True) if share > 0}


class DecodeFuzz:
    """One decode, and the events that are drawn for it."""

    def __init__(self, preset: Preset, rule: str, random: Random, counts: Counter[str]) -> None:
        self._preset, self._random, self._counts = preset, random, counts
        policy = GREEDY if rule == "greedy" else SamplingPolicy(0.8, seed=random.getrandbits(32))
        asks = preset.drafter == "lookup" or preset.pacing == "auto"
        limit, drafts = random.choice((0, 0, 3, 12)), preset.drafts_on_robot
        self._opening = replace(
            opening_of(preset, rule, policy),
            nonce=random.getrandbits(32),
            draft_identity="toy" if drafts else "",
            max_tokens=limit,
            generation=server_generation(preset) if asks else None,
        )
        longest = min(limit or LIMIT, LIMIT) if drafts else (limit or 2**32)
        self.judge = Judge(longest, counts)
        self.now = 0.0
        self.decoder = EdgeDecoder(self._opening, preset, REPLY_TIMEOUT_S, measures=Measures())
        self._prompts: list[bytes] = []  # specifications whose prompt is due
        self._unread = self._failed = False
        self._work: Work | None = None
        self._done = set[object]()  # its branches that are finished
        self._model: DraftModel | None = None
        self._proposal = preset.proposal(rule, policy)
        if not drafts:
            self.judge.bases.add(self._base(SPEC))

    def run(self, events: int) -> None:
        """Draw so many events, and let time pass until it ends. Raises Broken."""
        known = self._random.choice((SPEC, SPEC, OTHER_SPEC, b""))
        self._take(self.decoder.start(self.now, known))
        opened = Opened("s", b"" if known == SPEC else SPEC, self._base(SPEC))
        if self._random.random() < 0.3:
            self._draw_all("prompt")
        if self._random.random() < 0.8:
            self._handle(opened)
        names, weights = list(WEIGHTS), list(WEIGHTS.values())
        for _ in range(events):
            if self.decoder.finished:
                break
            self.now += self._random.random() * 0.05
            self._draw_all(self._random.choices(names, weights)[0])
        for _ in range(200):  # silence: it ends by itself
            if self.decoder.finished:
                return
            if ((self._prompts or self._unread) and self._draw_all("prompt")) or (
                self._draw_all("draft") or self.decoder.finished
            ):
                continue
            if self.decoder.deadline is None:
                raise Broken(f"it waits for nothing, in {self.decoder.mode}")
            self.now = max(self.now, self.decoder.deadline)
            self._handle(TimePassed())
        raise Broken("it does not end")

    def _draw_all(self, kind: str) -> bool:
        events = self._draw(kind)
        for event in events:
            self._handle(event)
        return bool(events)

    def _handle(self, event: Event) -> None:
        if isinstance(event, ServerMessage):
            event = decode_server(encode_server(event))
            self._note(event)
        before = self.decoder.mode
        effects = self.decoder.handle(event, self.now)
        self._counts[f"{before.name} > {self.decoder.mode.name}"] += 1
        ends = {effect.reason for effect in effects if isinstance(effect, Finish)}
        if isinstance(event, Fault) and ends & {*WHOLE}:
            raise Broken(f"{event} taken for the end of an answer")
        self._take(effects)

    def _note(self, message: ServerMessage) -> None:
        match message:
            case Verdict():
                self.judge.heard.append(message)
            case RowMessage():
                self.judge.rows.append(message)
            case Opened(base=base) if not self._preset.drafts_on_robot:
                self.judge.bases.add(base)

    def _take(self, effects: Sequence[Effect]) -> None:
        self.judge.check(effects)
        for effect in effects:
            match effect:
                case Prepare(spec):
                    self._prompts, self._unread, self._work = [spec], False, None
                case Work():
                    self._work, self._done = effect, set()

    def _base(self, spec: bytes) -> PrefixDigest:
        return base_digest(self._opening, b"prompt", spec_digest(spec))

    def _draw(self, kind: str) -> list[Event]:
        random = self._random
        match kind:
            case "verdict":
                return [self._verdict()]
            case "draft":
                return self._drafted()
            case "prompt":
                return self._prompt()
            case "opened":
                return [self._opened()]
            case "prediction":
                path = tuple(range(random.randrange(3)))
                return [Prediction(self._place(), path, random.randrange(7), 0.7)]
            case "row":
                return [RowMessage(self._place(), self._distribution())]
            case "fault":
                retry = random.choice((0.0, 0.5, 3.0))
                return [Fault(random.choice(CODES), "it is so", retry)]
            case "link":
                return [random.choice((LinkLost("cut"), LinkUp(), LinkUp(moved=True)))]
            case "failed":
                self._failed, self._work = True, None
                return [DrafterFailed("it is gone")]
            case "stop":
                return [random.choice((Abort("stopped"), Cut()))]
        if self.decoder.deadline is not None and random.random() < 0.3:
            self.now = max(self.now, self.decoder.deadline)
        return [TimePassed()]

    def _prompt(self) -> list[Event]:
        if self._prompts:
            spec = self._prompts.pop()
            self._unread = self._random.random() < 0.5
            self.judge.bases = {self._base(spec)}
            session = ToyDrafter(3, 0.5, TOY_VOCABULARY, 0.0, lambda _: None).session(None)
            self._model, self._failed = DraftModel(session, self._proposal, (TOY_END,)), False
            digest = spec_digest(spec)
            ready = PromptReady(b"prompt", digest, (TOY_END,), LIMIT, TOY_VOCABULARY)
            return [ready] if self._unread else [ready, Prefilled()]
        if self._unread or self._random.random() < 0.03:
            self._unread = False
            return [Prefilled()]
        return []

    def _drafted(self) -> list[Event]:
        """A pass of the draft model, as it does what it was told last."""
        work, unable = self._work, self._unread or self._failed or not self.decoder.width
        if unable or work is None or self._model is None or not work.branches:
            return []
        self._model.follow(work.verified)
        wanted = [one for one in work.branches if one not in self._done]
        self._model.want(wanted)
        if self._model.idle:
            return []
        grown = self._model.step(self.decoder.width)
        self._done.update(one.branch for one in grown if one.done)
        return [replace(one, seconds=0.01) for one in grown]

    def _place(self) -> PrefixDigest:
        """A prefix: mostly where the robot is, else one that was, that may come, or none."""
        random, judge = self._random, self.judge
        base = random.choice(sorted(judge.bases, key=repr)) if judge.bases else self._base(SPEC)
        before = judge.tokens[: random.randrange(len(judge.tokens) + 1)]
        odd = [base.extend(before), self._base(OTHER_SPEC), PrefixDigest(1, 99)]
        odd += [message.base for message in judge.drafts[-3:]]
        return rarely(random, 0.2, odd, base.extend(judge.tokens))

    def _verdict(self) -> Verdict:
        random, base, split = self._random, self._place(), self._opening.split
        drafts = self.judge.drafted(base)
        draft, node, path = random.choice(drafts or [Draft(())]), -1, list[int]()
        while (below := list(draft.children(node))) and random.random() < 0.7:
            node = random.choice(below)
            path.append(node)
        tokens = [draft.tokens[node] for node in path]
        if random.random() < 0.02:
            path.append(random.randrange(4))
            tokens.append(random.randrange(7))
        if not drafts:
            tokens = [random.randrange(1, 7) for _ in range(random.choice((0, 1, 1, 2, 2, 9)))]
            path = list(range(len(tokens)))
        token = random.choice((None, *range(1, 7), rarely(random, 0.2, [TOY_END], 3)))
        token, residual = rarely(random, 0.005, [2**31], token), None
        if random.random() < (0.5 if split and len(path) < len(draft) else 0.005):
            token, residual = rarely(random, 0.9, [None], token), self._residual()
        settled = (*tokens, *(() if token is None else (token,)))
        return Verdict(
            base,
            tuple(path),
            token,
            rarely(random, 0.05, ("end", "length"), ""),
            tokens=() if drafts and random.random() < 0.7 else tuple(tokens),
            drafted=random.choice((0, len(draft))),
            verify_s=random.random() / 10,
            residual=residual,
            leads_to=rarely(random, 0.07, [77], base.extend(settled).short),
            generated=random.random() < 0.25,
        )

    def _residual(self) -> TokenDistribution | SparseResidual:
        random, split, row = self._random, self._opening.split, self._distribution()
        match rarely(random, 0.05, [""], split and split.residual):
            case "sparse":
                few = replace(split, top_k=random.randrange(1, 5), tail=random.choice((0, 2)))
                source = SeededRandomSource(random.getrandbits(32))
                return sparse_residual(row, few, len(self.judge.tokens), source)
            case "top_k":
                ids, shares = largest(row, split.top_k)
                return TokenDistribution(shares, ids)
        return row

    def _distribution(self) -> TokenDistribution:
        random = np.random.default_rng(self._random.getrandbits(32))
        weights = random.random(self._random.choice((TOY_VOCABULARY, TOY_VOCABULARY, 3)))
        return TokenDistribution((weights / weights.sum()).astype(np.float32))

    def _opened(self) -> Opened:
        random = self._random
        return Opened(
            rarely(random, 0.1, ("t", "t", "t", "t", ""), "s"),
            rarely(random, 0.2, (SPEC, OTHER_SPEC), b""),
            rarely(random, 0.1, [self._place()], self._base(SPEC)),
            rarely(random, 0.06, (0, 0, 2), PROTOCOL),
            random.choice((0, len(self.judge.tokens), 2)),
        )


def run(sequences: int, seed: int) -> Counter[str]:
    """So many decodes; raises Broken or whatever else one of them raises, with its number."""
    counts: Counter[str] = Counter()
    presets = [preset for preset in map(load_preset, PRESETS) if preset.verified]
    kinds = [(preset, rule) for preset in presets for rule in RULES]
    for number in range(sequences):
        random = Random(f"{seed} {number}")
        preset, rule = kinds[number % len(kinds)]
        decode = DecodeFuzz(preset, rule, random, counts)
        try:
            decode.run(random.randrange(10, 60))
        except Exception as error:
            what = f"{preset.name} {rule}, seed {seed} number {number}: {error!r}"
            raise Broken(what) from error
    return counts
