"""Chooses a session's next draft: the robot's, the cloud's own, or an empty one."""

from __future__ import annotations

from collections.abc import Callable

from ...decoding.digest import PrefixDigest
from ...decoding.draft import MAX_PUSHED, MAX_PUSHED_BYTES, BadDraft, Draft
from ...decoding.grammar import Grammar, forced_tokens
from ...decoding.mean import Mean, PassYield
from ...decoding.verified_answer import VerifiedAnswer
from ...lookup import AnswerLookup, NodeBudget
from ...wire.messages import DraftMessage, Generation, Open
from .counters import Counters
from .events import EMPTY, DuePass, Propose, Proposed
from .validation import DraftRules

SERVER_TOKENS = 4  # default length of a draft by the cloud's draft model
MAX_OWN_TOKENS = 16  # of such a draft, or of forced tokens, since drafting delays all sessions
LEAST_PASSES = 4  # passes before a source is measured
MOST_TRIALS = 16  # of a draft model whose passes cannot be measured, as answers are short
RETRIAL_CHOICES = 64  # choices after which the worse source is tried again


class PushedDrafts:
    """Drafts that a robot sent for prefixes other than the answer's current one.

    The newest are kept, bounded in number and bytes; for one prefix, the first.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._drafts: dict[PrefixDigest, DraftMessage] = {}

    def __len__(self) -> int:
        return len(self._drafts)

    def add(self, message: DraftMessage) -> None:
        """Keep a draft until the answer reaches its prefix; raises BadDraft if they take too much
        memory."""
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
        """Remove and return the draft for this prefix; None if there is none."""
        return self._drafts.pop(here, None)

    def take_rest(self, answer: VerifiedAnswer) -> Draft | None:
        """The tokens after the answer in the newest draft that matches it; drops drafts that do
        not."""
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
        """Drop all drafts except those for which ``is_kept`` is true."""
        kept = {base: pushed for base, pushed in self._drafts.items() if is_kept(pushed)}
        self._counters.unused += len(self._drafts) - len(kept)
        self._drafts = kept


class ServerDrafting:
    """Measures whether the cloud's own draft model pays, compared with lookup drafts alone.

    It compares tokens per second by source, over all sessions that the server generates. Seconds
    are wall time from verdict to verdict: sessions share a pass of the target, but wait for one
    another's drafts. Belongs to the model's thread.
    """

    def __init__(self, others_wait: Callable[[], bool] = lambda: False) -> None:
        """others_wait: whether others wait for the model's thread, which drafting must not
        delay."""
        self._others_wait = others_wait
        self._drafted, self._looked_up, self._bare = PassYield(), PassYield(), PassYield()
        self._beside, self._token_s = NodeBudget(SERVER_TOKENS), Mean(0.0)
        self._trials = 0  # of the draft model, before it was measured
        self._since = 0  # choices since the worse source was tried

    def choose(self, looked_up: int) -> bool:
        """Whether the draft model should draft now; ``looked_up``: tokens that a lookup already
        drafted."""
        other = self._looked_up if looked_up else self._bare
        if self._others_wait():
            return False
        # A robot that measures this server's first passes then sees what it can do.
        if self._drafted.count < LEAST_PASSES and self._trials < MOST_TRIALS:
            self._trials += 1
            return True
        if other.count < LEAST_PASSES:
            return False
        better = self._drafted.upper_rate > other.upper_rate
        self._since += 1
        if self._since < RETRIAL_CHOICES:
            return better
        self._since = 0
        return not better

    def beside(self, rows: int, seconds: Callable[[int], float]) -> int:
        """How many tokens a head of the target should draft beside a robot's draft; rows: of its
        pass without them; seconds: of a pass, by its rows."""
        if self._others_wait():
            return 0
        return self._beside.nodes(
            rows, lambda all_rows: seconds(all_rows) + (all_rows - rows) * self._token_s.value
        )

    def report_beside(self, scored: DuePass, path: tuple[int, ...], tokens: int) -> None:
        """Record the verdict on a robot's draft."""
        if scored.drafted:
            self._token_s.observe(scored.draft_s / scored.drafted)
        end, added = len(scored.draft), len(scored.draft) - scored.beside
        # By its place in the chain, whose first tokens the draft may have had: these gain nothing.
        accepted = tuple(node - end + scored.drafted for node in path if node >= added)
        self._beside.report(scored.drafted, accepted, tokens)

    def report(self, scored: DuePass, tokens: int, seconds: float) -> None:
        """Record a verdict: the tokens that it added, and the seconds since the last one."""
        looked_up = self._looked_up if scored.draft.looked_up else self._bare
        (self._drafted if scored.source == "cloud" else looked_up).observe(tokens, seconds)


class DraftChoice:
    """Selects a session's next draft: the robot's, a lookup's, or the cloud draft model's."""

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
        """lookup: None without lookup. server_drafting: None without a draft model in the cloud."""
        self._grammar = grammar
        self._opening, self._answer, self._rules = opening, answer, rules
        self._counters, self._lookup, self._server_drafting = counters, lookup, server_drafting
        self.pushed = PushedDrafts(counters)
        self._prompt_read = False  # by the cloud's draft model

    def keep(self, message: DraftMessage, *, late: bool) -> None:
        """Keep a robot's draft for a later prefix; raises BadDraft.

        late: also accept drafts for the current prefix, or for an earlier one whose rest matches
        the answer.
        """
        answer, base = self._answer, message.base
        ahead = base.length > len(answer.tokens)
        # Unless the server generates, a hint would be verified, and no robot awaits its verdict.
        useful = late or not message.hint
        drafts = message.resampled is None and self._opening.draft_identity != ""
        if drafts and useful and (ahead or late):
            self._rules.check(message, answer.max_tokens - base.length)
            here = base == answer.digest
            if ahead or here or answer.rest_of(base, message.draft) is not None:
                self.pushed.add(message)
                return
        self._counters.late += 1

    def forget_passed(self) -> None:
        """Drop the drafts for prefixes no longer than the answer."""
        here = self._answer.digest
        self.pushed.keep(lambda pushed: pushed.base.length > here.length)

    def end(self) -> None:
        """The answer is over: drop all drafts, and add the answer to the lookup."""
        self.pushed.keep(lambda pushed: False)
        # Only tokens verified here are learned, not those that the robot claims or drew.
        is_ours = not self._opening.verified and self._opening.split is None
        if self._lookup is not None and is_ours:
            self._lookup.learn(self._answer.tokens)
        self._lookup = None

    def take_pushed(self, *, generating: bool, late: bool) -> DuePass | None:
        """The pass for a pushed draft at the answer's end, None if there is none.

        late: otherwise use the rest of a draft for an earlier prefix, whose verdict no robot
        awaits. generating: the server generates by itself, so the robot awaits no verdict.
        """
        if not generating:
            self.pushed.keep(lambda pushed: not pushed.hint)
        message = self.pushed.take(self._answer.digest)
        if not late:
            self.forget_passed()
        if message is not None:
            return self.given(message, awaited=not generating)
        rest = self.pushed.take_rest(self._answer) if late else None
        if rest is None:
            return None
        self._counters.verified += 1
        return DuePass(self._with_looked_up(rest), given=len(rest))

    def given(self, message: DraftMessage, *, awaited: bool = True) -> DuePass:
        """The pass for the robot's draft at the answer's end; ``awaited``: the robot waits for its
        verdict."""
        self._counters.verified += 1
        return DuePass(
            self._with_looked_up(message.draft, message.open_at),
            given=len(message.draft),
            awaited=awaited,
            exits=awaited and not message.without_exits,
            open_at=message.open_at,
            reply_timeout_s=message.reply_timeout_s,
        )

    def _with_looked_up(self, draft: Draft, open_at: int | None = None) -> Draft:
        if self._lookup is None or not self.useful:
            return draft
        return self._lookup.beside(draft, self._answer.tokens, self.useful, open_at)

    def by_server(self, how: Generation) -> DuePass | Propose:
        """The next pass when the server generates by itself, or a request to its draft model.

        The draft model does not draft the first token unless ``how.speculative``: the prompt gives
        its logits.
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
            and self.useful
            and self._server_drafting
            and self._server_drafting.choose(len(found.draft))
        ):
            return found
        length = min(self._opening.draft_length or SERVER_TOKENS, self.useful, MAX_OWN_TOKENS)
        return Propose(tuple(self._answer.tokens), max(1, length), needed=how.speculative)

    def drafted(self, proposed: Proposed) -> DuePass:
        """The pass for the cloud draft model's draft; if that is empty, for grammar or lookup
        tokens.

        After a failure the draft model is not used again for this answer.
        """
        if proposed.failed:
            self._server_drafting = None
        draft = proposed.draft
        if not len(draft):
            return self._found()
        both = self._with_looked_up(draft)
        return DuePass(both, given=len(draft), source="cloud", draft_s=proposed.draft_s)

    def _found(self) -> DuePass:
        """The pass over tokens that the grammar forces, else over a lookup's draft.

        For the first token there is no draft unless the server generates from the start: the prompt
        gives its logits, so it needs no pass. (When it generates, the prompt's last pass scores the
        draft, too.)
        """
        if self._grammar is not None:
            answer, count = self._answer, min(MAX_OWN_TOKENS, self._answer.room - 1)
            forced = forced_tokens(self._grammar, answer.tokens, answer.end_tokens, count)
            if forced:
                both = self._with_looked_up(Draft(forced))
                return DuePass(both, given=len(forced), source="grammar")
        known = not self._answer.tokens and self._opening.generation is None
        if self._lookup is None or not self.useful or known:
            return DuePass(EMPTY)
        return DuePass(self._lookup.draft(self._answer.tokens, self.useful))

    @property
    def useful(self) -> int:
        """How many draft tokens the answer can take, besides the verdict's token."""
        return max(0, self._answer.room - 1)

    def report(self, scored: DuePass, path: tuple[int, ...], tokens: int, seconds: float) -> None:
        """Record a verdict: its path, the ``tokens`` it added, and the seconds since the last one.

        The first verdict is not measured, since its time includes the prompt; nor is the first over
        the cloud's draft, whose model has read the prompt, too.
        """
        drafted = scored.source == "cloud"
        measured = self._prompt_read if drafted else not scored.given
        self._prompt_read |= drafted
        if self._server_drafting and self._answer.tokens and measured:
            self._server_drafting.report(scored, tokens, seconds)
        if self._server_drafting and scored.given and scored.source == "robot":
            self._server_drafting.report_beside(scored, path, tokens)
        if self._lookup is not None:
            end = len(scored.draft) - scored.beside
            self._lookup.report(end, scored.given, path, tokens)
