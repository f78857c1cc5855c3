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
from fuzz import Broken

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
    Received,
    Send,
    TimePassed,
    Work,
)
from edge_cloud_spec.edge.measures import Measures
from edge_cloud_spec.edge.rounds import server_generation
from edge_cloud_spec.lab.harness.toy import END, VOCABULARY, ToyDrafter
from edge_cloud_spec.models.draft_model import DraftModel
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.codec import decode_server, encode_server
from edge_cloud_spec.wire.messages import (
    PROTOCOL,
    DraftMessage,
    Fault,
    Open,
    Opened,
    Prediction,
    RowMessage,
    ServerMessage,
    Verdict,
    WireError,
    base_digest,
    spec_digest,
)

PRESETS = tuple(sorted(each.stem for each in Path("config/presets").glob("*.yaml")))
SPEC, OTHER_SPEC = b"the cloud's specification", b"another one"
REPLY_TIMEOUT_S = 10.0
LIMIT = 24  # tokens of an answer, where the prompt says it
CODES = ("overloaded", "unknown_session", "bad_request", "internal", "in_use", "moved", "", "end")
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

    limit: of tokens. ``bases``: of the empty answer, as each prompt makes it; ``here`` the digest
    after ``tokens`` for each. ``drafts``: those sent, by their prefix. ``heard``: verdicts.
    """

    limit: int
    counts: Counter[str]
    tokens: list[int] = field(default_factory=list)
    bases: set[PrefixDigest] = field(default_factory=set)
    drafts: dict[PrefixDigest, list[Draft]] = field(default_factory=dict)
    heard: dict[PrefixDigest, list[Verdict]] = field(default_factory=dict)
    rows: list[RowMessage] = field(default_factory=list)
    over: bool = False

    def places(self) -> list[PrefixDigest]:
        """The digests that the answer may have now."""
        return [base.extend(self.tokens) for base in self.bases]

    def settles(self, verdict: Verdict) -> list[tuple[int, ...]]:
        """What this verdict may settle."""
        last = () if verdict.token is None else (verdict.token,)
        paths = [verdict.tokens] if len(verdict.tokens) == len(verdict.path) else []
        known = (draft.path_tokens(verdict.path) for draft in self.drafts.get(verdict.base, ()))
        paths += [path for path in known if path is not None]
        return [path + last for path in paths]

    def check(self, effects: Sequence[Effect]) -> None:
        """Raise Broken for what no message allows."""
        if self.over and effects:
            raise Broken(f"after its end: {effects}")
        for effect in effects:
            if isinstance(effect, Emit):
                self._check_emit(effect)
            elif isinstance(effect, Send) and isinstance(effect.message, DraftMessage):
                message = effect.message
                self.drafts.setdefault(message.base, []).append(message.draft)
            elif isinstance(effect, Finish):
                self.over = True
                self.counts[f"finish {effect.reason}"] += 1

    def _check_emit(self, emit: Emit) -> None:
        self.counts["emits"] += 1
        if not emit.verified or emit.position != len(self.tokens):
            raise Broken(f"{emit} after {self.tokens}")
        if not any(self._allows(place, emit.tokens) for place in self.places()):
            raise Broken(f"{emit} after {self.tokens}: no verdict on this prefix settles it")
        self.tokens += emit.tokens
        if len(self.tokens) > self.limit:
            raise Broken(f"{len(self.tokens)} tokens, {self.limit} were asked for")

    def _allows(self, place: PrefixDigest, tokens: tuple[int, ...]) -> bool:
        there = place.extend(tokens)
        for verdict in self.heard.get(place, ()):
            if tokens in self.settles(verdict) and verdict.leads_to == there.short:
                return True
        return len(tokens) == 1 and self._may_resample(place, tokens[0])

    def _may_resample(self, place: PrefixDigest, token: int) -> bool:
        """Whether a verdict that ends here left the token to the robot, and P has it."""
        for base, verdicts in self.heard.items():
            for verdict in verdicts:
                ends = (base.extend(settled) for settled in self.settles(verdict))
                if verdict.residual is None or place not in ends:
                    continue
                told = [verdict.residual, *(row.row for row in self.rows)]
                if any(token in _support(each) for each in told):
                    self.counts["resampled"] += 1
                    return True
        return False


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
        limit = random.choice((0, 0, 3, 12))
        drafts = preset.drafts_on_robot
        self._opening = Open(
            random.getrandbits(32),
            "find",
            b"",
            "action first",
            policy,
            rule,
            payload=preset.payload_of(rule),
            draft_identity="toy" if drafts else "",
            spec_digest=spec_digest(SPEC),
            max_tokens=limit,
            split=preset.split_of(rule),
            replacement=preset.replacement,
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
        opened = Received(Opened("s", b"" if known == SPEC else SPEC, self._base(SPEC)))
        if self._random.random() < 0.6:
            self._handle(opened)
        elif self._random.random() < 0.6:
            self._draw_all("prompt")
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
        if isinstance(event, Received):
            try:  # what the wire would not let through is nobody's
                event = Received(decode_server(encode_server(event.message)))
            except (WireError, ValueError, OverflowError):
                self._counts["no message"] += 1
                return
            self._note(event.message)
        before = self.decoder.mode
        effects = self.decoder.handle(event, self.now)
        self._counts[f"{before.name} > {self.decoder.mode.name}"] += 1
        self._take(effects)

    def _note(self, message: ServerMessage) -> None:
        if isinstance(message, Verdict):
            self.judge.heard.setdefault(message.base, []).append(message)
        elif isinstance(message, RowMessage):
            self.judge.rows.append(message)
        elif isinstance(message, Opened) and not self._preset.drafts_on_robot:
            self.judge.bases.add(message.base)

    def _take(self, effects: Sequence[Effect]) -> None:
        self.judge.check(effects)
        for effect in effects:
            if isinstance(effect, Prepare):
                self._prompts, self._unread, self._work = [effect.spec], False, None
            elif isinstance(effect, Work):
                self._work, self._done = effect, set()

    def _base(self, spec: bytes) -> PrefixDigest:
        return base_digest(self._opening, b"prompt", spec_digest(spec))

    def _draw(self, kind: str) -> list[Event]:
        random = self._random
        match kind:
            case "verdict":
                return [Received(self._verdict())]
            case "draft":
                return self._drafted()
            case "prompt":
                return self._prompt()
            case "opened":
                return [Received(self._opened())]
            case "prediction":
                path = tuple(range(random.randrange(3)))
                return [Received(Prediction(self._place(), path, random.randrange(7), 0.7))]
            case "row":
                return [Received(RowMessage(self._place(), self._distribution()))]
            case "fault":
                retry = random.choice((0.0, 0.5, 3.0))
                return [Received(Fault(random.choice(CODES), "it is so", retry))]
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
            session = ToyDrafter(3, 0.5, VOCABULARY, 0.0, lambda _: None).session(None)
            self._model, self._failed = DraftModel(session, self._proposal, (END,)), False
            digest = spec_digest(spec)
            return [PromptReady(b"prompt", digest, (END,), LIMIT, VOCABULARY, not self._unread)]
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
        draw = random.random()
        if draw < 0.8:
            return base.extend(judge.tokens)
        if draw < 0.9 and judge.drafts:
            return random.choice(list(judge.drafts))
        if draw < 0.95:
            return base.extend(judge.tokens[: random.randrange(len(judge.tokens) + 1)])
        return random.choice((self._base(OTHER_SPEC), PrefixDigest(1, 99)))

    def _verdict(self) -> Verdict:
        random, base = self._random, self._place()
        drafts = self.judge.drafts.get(base, [])
        path: list[int] = []
        tokens: list[int] = []
        draft = random.choice(drafts) if drafts else Draft(())
        node = -1
        while (below := list(draft.children(node))) and random.random() < 0.7:
            node = random.choice(below)
            path.append(node)
            tokens.append(draft.tokens[node])
        if random.random() < 0.02:
            path.append(random.randrange(4))
            tokens.append(random.randrange(7))
        complete = not drafts or random.random() < 0.3
        if complete and not drafts:
            tokens = [random.randrange(1, 7) for _ in range(random.choice((0, 1, 1, 2, 2, 9)))]
            path = list(range(len(tokens)))
        token = (
            random.choice((None, *range(1, 7), END if random.random() < 0.2 else 3))
            if random.random() < 0.995
            else 2**31
        )
        residual = None
        split = self._opening.split
        if random.random() < (0.5 if split and node >= -1 and len(path) < len(draft) else 0.005):
            token = None if random.random() < 0.9 else token
            residual = self._residual()
        settled = (*tokens, *(() if token is None else (token,)))
        leads_to = base.extend(settled).short if random.random() < 0.93 else 77
        finish = random.choice(("end", "length")) if random.random() < 0.05 else ""
        return Verdict(
            base,
            tuple(path),
            token,
            finish,
            tokens=tuple(tokens) if complete else (),
            drafted=random.choice((0, len(draft))),
            verify_s=random.random() / 10,
            residual=residual,
            leads_to=leads_to,
            generated=random.random() < 0.25,
        )

    def _residual(self) -> TokenDistribution | SparseResidual:
        split, source = self._opening.split, SeededRandomSource(self._random.getrandbits(32))
        row = self._distribution()
        if split is not None and self._random.random() < 0.95:
            if split.residual == "sparse":
                few = replace(
                    split, top_k=self._random.randrange(1, 5), tail=self._random.choice((0, 2))
                )
                return sparse_residual(row, few, len(self.judge.tokens), source)
            if split.residual == "top_k":
                ids, shares = largest(row, split.top_k)
                return TokenDistribution(shares, ids)
        return row

    def _distribution(self) -> TokenDistribution:
        random = np.random.default_rng(self._random.getrandbits(32))
        weights = random.random(self._random.choice((VOCABULARY, VOCABULARY, 3)))
        return TokenDistribution((weights / weights.sum()).astype(np.float32))

    def _opened(self) -> Opened:
        random = self._random
        (spec,) = random.choices((b"", SPEC, OTHER_SPEC), (80, 10, 10))
        base = self._base(SPEC) if random.random() < 0.9 else self._place()
        return Opened(
            *random.choices(("s", "t", ""), (90, 8, 2)),
            spec,
            base,
            *random.choices((PROTOCOL, 0, 2), (94, 4, 2)),
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
