"""What the next pass of a session is over: a robot's draft, the cloud's own, or nothing."""

from __future__ import annotations

from collections.abc import Callable

from ...decoding.digest import PrefixDigest
from ...decoding.draft import MAX_PUSHED, MAX_PUSHED_BYTES, BadDraft, Draft
from ...decoding.grammar import Grammar, forced_tokens
from ...decoding.mean import PassYield
from ...decoding.verified_answer import VerifiedAnswer
from ...lookup import AnswerLookup
from ...wire.messages import DraftMessage, Generation, Open
from .counters import Counters
from .events import EMPTY, DuePass, Propose, Proposed
from .validation import DraftRules

SERVER_TOKENS = 4  # of a draft by the cloud's own draft model, where the robot does not say
MAX_OWN_TOKENS = 16  # of such a draft, or forced by the grammar, since that holds up all others
FEW = 4  # passes after which a source is judged by what it gave
AGAIN = 32  # choices after which the source that gives less is tried again


class PushedDrafts:
    """Drafts that a robot sent for prefixes where the answer is not: not yet, or not any more.

    The newest are kept, bounded in number and bytes; of a prefix, the first.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._drafts: dict[PrefixDigest, DraftMessage] = {}

    def __len__(self) -> int:
        return len(self._drafts)

    def add(self, message: DraftMessage) -> None:
        """Keep it until the answer reaches its prefix; raises BadDraft where they are too large."""
        kept = sum(pushed.draft.nbytes for pushed in self._drafts.values())
        if kept + message.draft.nbytes > MAX_PUSHED_BYTES:
            raise BadDraft(
                f"pushed drafts would hold more than {MAX_PUSHED_BYTES} bytes; push fewer"
            )
        if self._drafts.setdefault(message.base, message) is not message:
            self._counters.unused += 1
        newest = list(self._drafts)[-MAX_PUSHED:]
        self.keep(lambda pushed: pushed.base in newest)

    def take(self, here: PrefixDigest) -> DraftMessage | None:
        """The draft for this prefix, if there is one."""
        return self._drafts.pop(here, None)

    def take_rest(self, answer: VerifiedAnswer) -> Draft | None:
        """What follows the answer in its newest matching draft; drops drafts that do not match."""
        rests = {
            base: answer.rest_of(base, message.draft)
            for base, message in self._drafts.items()
            if base.length <= len(answer.tokens)
        }
        lost = {base for base, rest in rests.items() if rest is None}
        self.keep(lambda kept: kept.base not in lost)
        last = max(rests.keys() - lost, key=lambda base: base.length, default=None)
        if last is None:
            return None
        del self._drafts[last]
        return rests[last]

    def keep(self, is_kept: Callable[[DraftMessage], bool]) -> None:
        """Drop the others."""
        kept = {base: pushed for base, pushed in self._drafts.items() if is_kept(pushed)}
        self._counters.unused += len(self._drafts) - len(kept)
        self._drafts = kept


class ServerDrafting:
    """Whether the cloud's own draft model pays, beside what is looked up.

    As measured: tokens per second by source, of all sessions whose answer the server generates.

    Seconds are the clock's, from verdict to verdict: sessions share a pass of the target, but wait
    for one another's drafts. Belongs to the model's thread.
    """

    def __init__(self, others_wait: Callable[[], bool] = lambda: False) -> None:
        """others_wait: whether others wait for the model's thread; they do not wait for a draft."""
        self._others_wait = others_wait
        self._drafted, self._looked_up, self._bare = PassYield(), PassYield(), PassYield()
        self._since = 0  # choices since the source that gives less was tried

    def choose(self, looked_up: int) -> bool:
        """Choose whether the draft model drafts, where so many tokens were looked up."""
        other = self._looked_up if looked_up else self._bare
        if other.count < FEW or self._others_wait():
            return False
        if self._drafted.count < FEW:
            return True
        better = self._drafted.rate > other.rate
        self._since += 1
        if self._since < AGAIN:
            return better
        self._since = 0
        return not better

    def judged(self, scored: DuePass, tokens: int, seconds: float) -> None:
        """Learn from a pass over this draft: tokens that it settled, seconds since the last
        verdict."""
        looked_up = self._looked_up if scored.draft.looked_up else self._bare
        (self._drafted if scored.source == "cloud" else looked_up).observe(tokens, seconds)


class DraftChoice:
    """Selects a session's next draft: one that the robot pushed, or one from earlier answers."""

    def __init__(
        self,
        opening: Open,
        answer: VerifiedAnswer,
        rules: DraftRules,
        counters: Counters,
        lookup: AnswerLookup | None,
        server_drafting: ServerDrafting | None,
        grammar: Grammar | None,
    ) -> None:
        """lookup, server_drafting: None where there is no lookup, no draft model in the cloud."""
        self._grammar = grammar
        self._opening, self._answer, self._rules = opening, answer, rules
        self._counters, self._lookup, self._server_drafting = counters, lookup, server_drafting
        self._pushed = PushedDrafts(counters)

    def __len__(self) -> int:
        return len(self._pushed)

    def keep(self, message: DraftMessage, *, late: bool) -> None:
        """Keep a draft for a prefix that the answer may reach; raises BadDraft.

        late: or where it is, or for one that it has passed, where the rest of the draft may fit.
        """
        answer, base = self._answer, message.base
        ahead = base.length > len(answer.tokens)
        # Where the server does not generate, a hint would be judged though nobody waits for it.
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
        here = self._answer.digest
        self._pushed.keep(lambda pushed: pushed.base.length > here.length)

    def end(self) -> None:
        """The answer is over; from now on it was said before."""
        self._pushed.keep(lambda pushed: False)
        # What another verifier verified, and what the robot drew, is the robot's word.
        is_ours = not self._opening.verified and self._opening.split is None
        if self._lookup is not None and is_ours:
            self._lookup.learn(self._answer.tokens)
        self._lookup = None

    def take_pushed(self, *, generating: bool, late: bool) -> DuePass | None:
        """The robot's draft that waits for the answer's end, if any.

        late: else what is left there of one for an earlier place, of which no robot awaits the
        verdict. generating: the server goes on by itself, so that the robot awaits none at all.
        """
        if not generating:
            self._pushed.keep(lambda pushed: not pushed.hint)
        message = self._pushed.take(self._answer.digest)
        if not late:
            self.forget_passed()
        if message is not None:
            return self.given(message, awaited=not generating)
        if not late:
            return None
        rest = self._pushed.take_rest(self._answer)
        if rest is None:
            return None
        self._counters.judged += 1
        return DuePass(self._with_looked_up(rest), given=len(rest))

    def given(self, message: DraftMessage, *, awaited: bool = True) -> DuePass:
        """The robot's draft for the answer's end."""
        self._counters.judged += 1
        return DuePass(
            self._with_looked_up(message.draft, message.open_at),
            given=len(message.draft),
            awaited=awaited,
            exits=awaited and not message.without_exits,
            open_at=message.open_at,
            reply_timeout_s=message.reply_timeout_s,
        )

    def _with_looked_up(self, draft: Draft, open_at: int | None = None) -> Draft:
        if self._lookup is None or not self._useful:
            return draft
        return self._lookup.beside(draft, self._answer.tokens, self._useful, open_at)

    def by_server(self, how: Generation) -> DuePass | Propose:
        """What the server scores by itself, or what its draft model is to draft for that first.

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
            and self._server_drafting
            and self._server_drafting.choose(len(found.draft))
        ):
            return found
        length = min(self._opening.draft_length or SERVER_TOKENS, self._useful, MAX_OWN_TOKENS)
        return Propose(tuple(self._answer.tokens), max(1, length), needed=how.speculative)

    def drafted(self, proposed: Proposed) -> DuePass:
        """What the cloud's draft model drafted; where nothing, what is found.

        One that failed is not asked again for this answer.
        """
        if proposed.failed:
            self._server_drafting = None
        draft = proposed.draft
        if not len(draft):
            return self._found()
        both = self._with_looked_up(draft)
        return DuePass(both, given=len(draft), source="cloud", draft_s=proposed.draft_s)

    def _found(self) -> DuePass:
        """What the grammar leaves, and what was said before.

        At first only where the draft waits for the prompt, whose last pass then scores it, too:
        else the row after the prompt is known, and the first token costs no pass.
        """
        if self._grammar is not None:
            answer, count = self._answer, min(MAX_OWN_TOKENS, self._answer.room - 1)
            forced = forced_tokens(self._grammar, answer.tokens, answer.end_tokens, count)
            if forced:
                both = self._with_looked_up(Draft(forced))
                return DuePass(both, given=len(forced), source="grammar")
        known = not self._answer.tokens and self._opening.generation is None
        if self._lookup is None or not self._useful or known:
            return DuePass(EMPTY)
        return DuePass(self._lookup.draft(self._answer.tokens, self._useful))

    @property
    def _useful(self) -> int:
        """How many tokens of a draft the answer has room for, beside the verdict's own."""
        return max(0, self._answer.room - 1)

    def judged(self, scored: DuePass, path: tuple[int, ...], tokens: int, seconds: float) -> None:
        """The path was accepted, and so many tokens are settled; seconds: since the last verdict.

        The first verdict is no measure: the prompt was read for it.
        """
        measured = scored.source == "cloud" or not scored.given
        if self._server_drafting and self._answer.tokens and measured:
            self._server_drafting.judged(scored, tokens, seconds)
        if self._lookup is not None:
            self._lookup.judged(scored.draft, scored.given, path, tokens)
