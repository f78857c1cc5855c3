"""The verdict on a draft, from the target's rows: the rule's, up to where the answer ends."""

from __future__ import annotations

from ...decoding.accept import accept
from ...decoding.random_source import RandomSource
from ...decoding.token_distribution import TokenDistribution
from ...wire.messages import Open, Verdict
from .events import Scored
from .residual import residual_of
from .scored_draft import ScoredDraft
from .verified_answer import VerifiedAnswer


def judge(
    under_way: ScoredDraft,
    scored: Scored,
    opening: Open,
    answer: VerifiedAnswer,
    random_source: RandomSource,
) -> tuple[Verdict, TokenDistribution | None]:
    """The verdict, complete with its tokens; and P where the robot resamples, else None."""
    draft, here = under_way.draft, answer.digest
    taken = accept(
        opening.rule,
        draft,
        scored.rows,
        opening.policy,
        here.length,
        random_source,
        replacement=opening.replacement,
        open_at=under_way.open_at,
    )
    path, token, finish = answer.until_end(draft, taken.path, taken.token)
    rejected = None if finish else taken.rejected
    accepted = tuple(draft.tokens[node] for node in path)
    last = () if token is None else (token,)
    verdict = Verdict(
        here,
        path,
        token,
        finish,
        tokens=accepted,
        drafted=len(draft) if under_way.complete else 0,
        verify_s=scored.verify_s,
        queue_s=scored.queue_s,
        draft_s=under_way.draft_s,
        residual=residual_of(rejected, opening.split, here.length + len(path), random_source),
        leads_to=here.extend(accepted + last).short,
        alone=not under_way.awaited,
    )
    return verdict, rejected
