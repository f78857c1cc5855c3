"""What the next pass of a session is over: a robot's draft, the cloud's own, or nothing."""

from __future__ import annotations

from ...decoding.draft import Draft
from ...lookup import AnswerLookup
from ...wire.messages import Alone, DraftMessage, Open
from .counters import Counters
from .events import Propose, Proposed
from .own_drafting import OwnDrafting
from .pushed_drafts import PushedDrafts
from .scored_draft import EMPTY, MAX_OWN_TOKENS, OWN_TOKENS, ScoredDraft
from .validation import DraftRules
from .verified_answer import VerifiedAnswer


class DraftChoice:
    """The robot's drafts that wait for their place, and what is looked up for it."""

    def __init__(
        self,
        opening: Open,
        answer: VerifiedAnswer,
        rules: DraftRules,
        counters: Counters,
        lookup: AnswerLookup | None,
        own: OwnDrafting | None,
    ) -> None:
        """lookup: None where nothing is to be looked up. own: of the cloud's own draft model;
        None where it has none."""
        self._opening, self._answer, self._rules = opening, answer, rules
        self._counters, self._lookup, self._own = counters, lookup, own
        self._pushed = PushedDrafts(counters)

    def __len__(self) -> int:
        return len(self._pushed)

    def keep(self, message: DraftMessage, *, late: bool) -> None:
        """Keep a draft for a prefix that the answer may reach; raises BadDraft.

        late: or where it is, or for one that it has passed, where the rest of the draft may fit.
        """
        answer, base = self._answer, message.base
        ahead = base.length > len(answer.tokens)
        # Without a cloud that goes on alone a hint would be judged though nobody waits for it.
        useful = late or not message.hint
        drafts = message.resampled is None and self._opening.draft_identity != ""
        if drafts and useful and (ahead or late):
            self._rules.check(message, answer.max_tokens - base.length)
            here = base == answer.digest
            if ahead or here or answer.rest_of(base, message.draft) is not None:
                self._pushed.add(message)
                return
        self._counters.late += 1

    def forget_passed(self) -> None:
        """Drop the drafts whose place the answer has come to, or passed."""
        self._pushed.forget_before(self._answer.digest)

    def end(self) -> None:
        """The answer is over; from now on it was said before."""
        self._pushed.clear()
        # What another verifier verified, and what the robot drew, is the robot's word.
        is_ours = not self._opening.verified and self._opening.split is None
        if self._lookup is not None and is_ours:
            self._lookup.learn(self._answer.tokens)
        self._lookup = None

    def pushed(self, *, alone: bool, late: bool) -> ScoredDraft | None:
        """The robot's draft that waits for the answer's end, if any.

        late: else what is left there of one for an earlier place, of which no robot awaits the
        verdict. alone: it awaits none at all.
        """
        if not alone:
            self._pushed.forget_hints()
        message = self._pushed.take(self._answer.digest)
        if not late:
            self.forget_passed()
        if message is not None:
            return self.given(message, alone=alone)
        if not late:
            return None
        rest = self._pushed.take_rest(self._answer)
        if rest is None:
            return None
        self._counters.judged += 1
        return ScoredDraft(self._with_looked_up(rest), given=len(rest))

    def given(self, message: DraftMessage, *, alone: bool = False) -> ScoredDraft:
        """The robot's draft for the answer's end."""
        self._counters.judged += 1
        return ScoredDraft(
            self._with_looked_up(message.draft, message.open_at),
            given=len(message.draft),
            awaited=not alone,
            exits=not (alone or message.without_exits),
            open_at=message.open_at,
            patience_s=message.patience_s,
        )

    def _with_looked_up(self, draft: Draft, open_at: int | None = None) -> Draft:
        if self._lookup is None or not self._useful:
            return draft
        return self._lookup.beside(draft, self._answer.tokens, self._useful, open_at)

    def own(self, how: Alone) -> ScoredDraft | Propose:
        """What the cloud scores alone, or what its draft model is to draft for that first.

        Unless it has to, that model does not draft for the first token: the prompt gives its row.
        """
        found = self._found()
        if found.given:
            return found
        if how.speculative:
            if found.draft.looked_up:
                return found
        elif not (
            how.may_speculate
            and self._answer.tokens
            and self._useful
            and self._own
            and self._own.pays(len(found.draft))
        ):
            return found
        length = min(self._opening.draft_length or OWN_TOKENS, self._useful, MAX_OWN_TOKENS)
        return Propose(tuple(self._answer.tokens), max(1, length), needed=how.speculative)

    def drafted(self, proposed: Proposed) -> ScoredDraft:
        """What the cloud's draft model drafted; where nothing, what is found.

        One that failed is not asked again for this answer.
        """
        if proposed.failed:
            self._own = None
        draft = proposed.draft
        if not len(draft):
            return self._found()
        both = self._with_looked_up(draft)
        return ScoredDraft(both, given=len(draft), source="cloud", draft_s=proposed.draft_s)

    def _found(self) -> ScoredDraft:
        """What the grammar leaves, and what was said before.

        At first only where the draft waits for the prompt, whose last pass then scores it, too:
        else the row after the prompt is known, and the first token costs no pass.
        """
        forced = self._answer.forced(MAX_OWN_TOKENS)
        if len(forced):
            return ScoredDraft(self._with_looked_up(forced), given=len(forced), source="grammar")
        known = not self._answer.tokens and self._opening.alone is None
        if self._lookup is None or not self._useful or known:
            return ScoredDraft(EMPTY)
        return ScoredDraft(self._lookup.draft(self._answer.tokens, self._useful))

    @property
    def _useful(self) -> int:
        """Tokens of a draft that the answer has room for: the verdict brings one of its own."""
        return max(0, self._answer.room - 1)

    def judged(
        self, scored: ScoredDraft, path: tuple[int, ...], tokens: int, seconds: float
    ) -> None:
        """The path was accepted, and so many tokens are settled; seconds: since the last verdict.

        The first verdict is no measure: the prompt was read for it.
        """
        measured = scored.source == "cloud" or not scored.given
        if self._own and self._answer.tokens and measured:
            self._own.judged(scored, tokens, seconds)
        if self._lookup is not None:
            self._lookup.judged(scored.draft, scored.given, path, tokens)
