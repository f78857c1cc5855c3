"""Verification of one session: a state machine without I/O, ``event -> actions``.

It owns the verified prefix of one decode on the cloud's side. The worker around it runs the model
passes that it asks for and sends what it says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..decoding.accept import accept
from ..decoding.digest import PrefixDigest
from ..decoding.draft import (
    MAX_NODES,
    MAX_PUSHED,
    MAX_PUSHED_BYTES,
    BadDraft,
    Draft,
    check_distinct,
    check_draft,
)
from ..decoding.random_source import RandomSource, SeededRandomSource
from ..decoding.split import largest, sparse_residual
from ..decoding.token_distribution import TokenDistribution
from ..wire.messages import (
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Prediction,
    Residual,
    Resume,
    RowMessage,
    RowRequest,
    Verdict,
)
from .counters import Counters
from .events import (
    Action,
    Commit,
    Event,
    Extend,
    Predicted,
    Propose,
    Proposed,
    Score,
    Scored,
    Send,
)

MAX_OWN = 16  # tokens of a draft by the cloud's own drafter, which holds up all others
EMPTY = Draft(())  # nothing drafted: the target alone


@dataclass(frozen=True)
class _Pass:
    """What the target is looking at; ``own`` where the cloud drafted it (or nothing)."""

    draft: Draft
    own: bool = False
    draft_s: float = 0.0
    open_at: int | None = None


class Verification:
    """One session's verdicts. The first draft for a prefix stands; no verdict is drawn again."""

    def __init__(
        self,
        session: str,
        opening: Open,
        base: PrefixDigest,
        *,
        end_tokens: tuple[int, ...],
        max_tokens: int,
        vocabulary: int,
        draft_tokens: int = MAX_NODES,
        random_source: RandomSource | None = None,
        tally: Counters | None = None,
    ) -> None:
        """draft_tokens: of a draft at most. tally: of the whole verifier, where it keeps one."""
        self.session = session
        self.tokens: list[int] = []
        self.finished = False
        self.tally = tally or Counters()
        self._opening = opening
        self._base = self._digest = base
        self._end_tokens = end_tokens
        self._max_tokens = max_tokens
        self._vocabulary = vocabulary
        self._draft_tokens = draft_tokens
        self._random_source = random_source or SeededRandomSource(opening.policy.seed)
        self._kept: dict[PrefixDigest, Verdict] = {}  # in the order of the answer
        self._last: PrefixDigest | None = None  # the place of the last verdict
        self._rejected: TokenDistribution | None = None  # P where the robot resamples now
        self._pool: dict[PrefixDigest, DraftMessage] = {}  # pushed for places not reached yet
        self._scoring: _Pass | None = None
        self._proposing = False
        self._generating: Generate | None = None

    @property
    def stale(self) -> int:
        """Messages that named a place where the answer is not; they changed nothing."""
        return self.tally.late + self.tally.ignored

    @property
    def pushed(self) -> int:
        """Drafts that wait for the answer to come to their place."""
        return len(self._pool)

    @property
    def generating(self) -> bool:
        """Whether it goes on by itself after each verdict."""
        return self._generating is not None

    @property
    def open_at(self) -> int | None:
        """The leaf after which the draft under way goes on."""
        return self._scoring.open_at if self._scoring else None

    @property
    def digest(self) -> PrefixDigest:
        """Where the verified prefix stands."""
        return self._digest

    def handle(self, event: Event) -> list[Action]:
        """What to do upon this event. A message that cannot be used gets a Fault; nothing else."""
        match event:
            case DraftMessage():
                return self._on_draft(event)
            case Generate():
                return self._on_generate(event)
            case Scored():
                return self._on_scored(event)
            case Predicted(path, token, confidence, layer):
                if self._scoring is None or self._scoring.own:
                    return []
                return [Send(Prediction(self._digest, path, token, confidence, layer))]
            case Proposed(draft, draft_s):
                self._proposing = False
                if self._generating is None:
                    return []
                return self._score(_Pass(draft, own=True, draft_s=draft_s))
            case Resume():
                return self._on_resume(event)
            case RowRequest(base):
                return self._on_row_request(base)
            case Close(resampled):
                if self._rejected is not None and self._may_adopt(resampled):
                    self._adopt(resampled)
                self.finished = True
                self._generating = None
                self._keep_pooled({})
                return []

    def pause(self) -> None:
        """Nobody listens at present: stop generating (a resumed robot asks again)."""
        self._generating = None

    @property
    def _busy(self) -> bool:
        return self._proposing or self._scoring is not None

    def _knows(self, base: PrefixDigest) -> bool:
        return base == self._digest or base in self._kept

    def _was_at(self, place: PrefixDigest) -> bool:
        """Whether this is the answer so far, or a beginning of it."""
        return place == self._base.extend(self.tokens[: place.length])

    def _on_resume(self, message: Resume) -> list[Action]:
        if not self._was_at(message.base):
            text = "the robot stands where this answer never was; start the decode again"
            return [Send(Fault("unknown_prefix", text))]
        self._generating = None
        return [Send(Opened(self.session, b"", self._digest))]

    def _on_row_request(self, base: PrefixDigest) -> list[Action]:
        if base != self._last or self._rejected is None:
            self.tally.ignored += 1
            return []
        return [Send(RowMessage(base, self._rejected))]

    def _on_draft(self, message: DraftMessage) -> list[Action]:
        self.tally.drafts += 1
        if message.base in self._kept:
            self.tally.repeated += 1
            return [Send(self._kept[message.base])]
        here = self._digest
        if self._rejected is not None and message.resampled is not None:
            here = here.extend((message.resampled,))
        if message.base != here or self._busy or self.finished:
            return self._pool_draft(message)
        try:
            self._check(message)
        except BadDraft as error:
            return self._refuse(error)
        return [
            *self._adopt(message.resampled),
            *self._score(_Pass(message.draft, open_at=message.open_at)),
        ]

    def _refuse(self, error: BadDraft) -> list[Action]:
        self.tally.refused += 1
        return [Send(Fault("bad_draft", str(error)))]

    def _pool_draft(self, message: DraftMessage) -> list[Action]:
        """Keep a draft for a place that the answer may come to; the first for a place stands."""
        ahead = message.base.length > self._digest.length and message.resampled is None
        if self.finished or not ahead or self._opening.draft_identity == "":
            self.tally.late += 1
            return []
        try:
            self._check_parts(message)
            self._check_pool(message.draft)
        except BadDraft as error:
            return self._refuse(error)
        if self._pool.setdefault(message.base, message) is not message:
            self.tally.unused += 1
        newest = list(self._pool.items())[-MAX_PUSHED:]
        self._keep_pooled(dict(newest))
        return []

    def _keep_pooled(self, pool: dict[PrefixDigest, DraftMessage]) -> None:
        """Of what was pushed only this is of use any more."""
        self.tally.unused += len(self._pool) - len(pool)
        self._pool = pool

    def _take_pooled(self) -> list[Action]:
        """Go straight on with the draft that was pushed for just this place."""
        here = self._digest
        goes_on = not self.finished and self._rejected is None
        message = self._pool.pop(here, None) if goes_on else None
        self._keep_pooled({b: m for b, m in self._pool.items() if b.length > here.length})
        if message is None:
            return []
        return self._score(_Pass(message.draft, open_at=message.open_at))

    def _check(self, message: DraftMessage) -> None:
        """Refuse what cannot be judged; raises BadDraft."""
        if (self._rejected is None) != (message.resampled is None):
            raise BadDraft(
                "after a split rejection a draft begins with the resampled token, and only then"
            )
        if message.resampled is not None and not self._may_adopt(message.resampled):
            raise BadDraft(f"the resampled token {message.resampled} is outside the vocabulary")
        if message.resampled is not None and (
            message.resampled in self._end_tokens or len(self.tokens) + 1 >= self._max_tokens
        ):
            raise BadDraft("the answer ended with the resampled token; close the decode")
        self._check_parts(message)

    def _check_pool(self, draft: Draft) -> None:
        held = sum(pushed.draft.nbytes for pushed in self._pool.values())
        if held + draft.nbytes > MAX_PUSHED_BYTES:
            raise BadDraft(
                f"pushed drafts would hold more than {MAX_PUSHED_BYTES} bytes; push fewer"
            )

    def _check_parts(self, message: DraftMessage) -> None:
        draft, open_at, payload = message.draft, message.open_at, self._opening.payload
        if len(draft) > self._draft_tokens:
            raise BadDraft(
                f"a draft has at most {self._draft_tokens} tokens here, not {len(draft)}; choose a "
                "smaller shape, or serve with --draft-tokens"
            )
        if (draft.rows is None) == (payload in ("dense", "sparse")):
            raise BadDraft(f"the rows of Q do not go with payload {payload}")
        if (draft.values is None) == (payload == "probabilities"):
            raise BadDraft(f"the probabilities of tokens do not go with payload {payload}")
        if open_at is not None and next(draft.children(open_at), None) is not None:
            raise BadDraft(f"a draft goes on after one of its leaves, not after node {open_at}")
        if draft.values is not None and draft.parents is not None:
            raise BadDraft("multi-candidate rejection needs the rows of Q")
        check_draft(draft, self._vocabulary)
        room = self._max_tokens - message.base.length
        if draft.depth > room:
            raise BadDraft(f"a draft of depth {draft.depth} where the answer has room for {room}")
        if open_at is not None and open_at >= len(draft):
            raise BadDraft(f"node {open_at} is not one of the draft's {len(draft)}")
        if not self._opening.replacement:
            check_distinct(draft)

    def _may_adopt(self, resampled: int | None) -> bool:
        return resampled is not None and 0 <= resampled < self._vocabulary

    def _adopt(self, resampled: int | None) -> list[Action]:
        """Take over the token that the robot drew after the last rejection."""
        if resampled is None:
            return []
        self._rejected = None
        self._digest = self._digest.extend((resampled,))
        self.tokens.append(resampled)
        return [Extend((resampled,))]

    def _on_generate(self, message: Generate) -> list[Action]:
        base = message.base
        if not self._knows(base):
            self.tally.ignored += 1
            return []
        missed = self._kept.items() if self._generating is None else ()
        repeated = [Send(kept) for place, kept in missed if place.length >= base.length]
        self._generating = None if self.finished else message
        if self._has_gone_far_enough():
            self._generating = None
        return [*repeated, *self._continue()]

    def _continue(self) -> list[Action]:
        if self._generating is None or self._busy:
            return []
        if self._generating.speculative:
            self._proposing = True
            useful = self._max_tokens - len(self.tokens) - 1  # the verdict brings one of its own
            length = max(1, min(self._opening.draft_length, useful, MAX_OWN))
            return [Propose(tuple(self.tokens), length)]
        return self._score(_Pass(EMPTY, own=True))

    def _score(self, under_way: _Pass) -> list[Action]:
        self._scoring = under_way
        self.tally.judged += not under_way.own
        return [Score(under_way.draft)]

    def _on_scored(self, scored: Scored) -> list[Action]:
        assert self._scoring is not None
        under_way, self._scoring = self._scoring, None
        draft = under_way.draft
        opening = self._opening
        position = len(self.tokens)
        taken = accept(
            opening.rule,
            draft,
            scored.logits,
            opening.policy,
            position,
            self._random_source,
            replacement=opening.replacement,
            open_at=under_way.open_at,
        )
        path, token, finish = self._until_end(draft, taken.path, taken.token)
        self._rejected = None if finish else taken.rejected
        last = () if token is None else (token,)
        accepted = tuple(draft.tokens[node] for node in path)
        there = self._digest.extend(accepted + last)
        verdict = Verdict(
            self._digest,
            path,
            token,
            finish,
            tokens=accepted if under_way.own else (),
            drafted=len(draft) if under_way.own else 0,
            verify_s=scored.verify_s,
            queue_s=scored.queue_s,
            draft_s=under_way.draft_s,
            residual=self._residual(position + len(path)),
            leads_to=there.short,
        )
        self._keep(replace(verdict, tokens=accepted))
        self._digest = there
        self.tokens += accepted + last
        if finish:
            self.finished = True
        if finish or self._has_gone_far_enough():
            self._generating = None
        return [Send(verdict), Commit(path, last), *self._take_pooled(), *self._continue()]

    def _has_gone_far_enough(self) -> bool:
        until = self._generating.until if self._generating else 0
        return 0 < until <= len(self.tokens)

    def _residual(self, position: int) -> Residual | None:
        """What the robot is told of P at the rejected place, so that it can resample."""
        target, split = self._rejected, self._opening.split
        if target is None:
            return None
        assert split is not None
        if split.residual == "sparse":
            return sparse_residual(target, split, position, self._random_source)
        if split.residual == "top_k":
            ids, probabilities = largest(target, split.top_k)
            return TokenDistribution(probabilities, ids)
        return target

    def _keep(self, verdict: Verdict) -> None:
        """Remember a verdict, so that it can be said again; of the one before, not the residual.

        It is said again with its tokens: the robot may have lost the draft that it judges.
        """
        if self._last is not None and self._kept[self._last].residual is not None:
            self._kept[self._last] = replace(self._kept[self._last], residual=None)
        self._kept[verdict.base] = verdict
        self.tally.verdicts += 1
        self._last = verdict.base

    def _until_end(
        self, draft: Draft, path: tuple[int, ...], token: int | None
    ) -> tuple[tuple[int, ...], int | None, str]:
        """Cut the accepted path and its last token at an end token or at the length limit."""
        room = self._max_tokens - len(self.tokens)
        for depth, node in enumerate(path, start=1):
            if draft.tokens[node] in self._end_tokens:
                return path[:depth], None, "end"
            if depth == room:
                return path[:depth], None, "length"
        if token in self._end_tokens:
            return path, token, "end"
        return path, token, "length" if token is not None and len(path) + 1 == room else ""
