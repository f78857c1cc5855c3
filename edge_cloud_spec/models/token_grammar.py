"""Grammars over a tokenizer's tokens, by llguidance (the extra ``grammar``); needs no model."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..decoding.grammar import Allowed
from ..errors import UserError, check_installed, library_errors
from ..lru_cache import LruCache

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


GRAMMAR_STATES = 256  # cached prefixes of answers, each with its state and mask (one bit per token)


class TokenGrammar:
    """A ``Grammar`` over llguidance's matchers; belongs to one thread.

    If the grammar forces the next characters, it forces the tokens that the tokenizer would choose
    for them. An answer may end, with ``end_token``, only where it is complete.
    """

    def __init__(self, start: LLMatcher, end_token: int, vocabulary: int) -> None:
        """start: the state before the first token. vocabulary: the size of the common
        vocabulary."""
        self._start, self._end, self._vocabulary = start, end_token, vocabulary
        self._states: LruCache[Hashable, tuple[LLMatcher, bytes]] = LruCache(GRAMMAR_STATES)

    def allowed(self, answer: Sequence[int]) -> Allowed:
        """A mask bool [V] of the tokens that may follow an answer; UserError: the answer breaks the
        grammar."""
        if answer and answer[-1] == self._end:
            # After the end the mask does not matter.
            ended: Allowed = np.arange(self._vocabulary) == self._end
            return ended
        prefix = tuple(answer)
        _, mask = self._states.get_or_make(prefix, lambda: self._state(prefix))
        return self._unpacked(mask)

    def _unpacked(self, mask: bytes) -> Allowed:
        bits = np.frombuffer(mask, np.uint8)
        return np.unpackbits(bits, count=self._vocabulary, bitorder="little").view(bool)

    def _state(self, answer: tuple[int, ...]) -> tuple[LLMatcher, bytes]:
        """The state after these tokens, usually one step from a cached one, and the allowed tokens
        as bits, lowest first; at least one is set."""
        before = self._states.get(answer[:-1]) if answer else None
        matcher = (self._start if before is None else before[0]).deep_copy()
        rest = answer if before is None else answer[-1:]
        if not matcher.consume_tokens(list(rest)):
            raise self._unusable(matcher)
        mask = matcher.compute_bitmask()
        if matcher.is_error() or not self._unpacked(mask).any():
            raise self._unusable(matcher)
        return matcher, mask

    def _unusable(self, matcher: LLMatcher) -> UserError:
        """The error of a grammar that allows no token."""
        why = first_line(matcher.get_error()) or "no token of the tokenizer can follow"
        return UserError(f"the answer cannot go on in its grammar: {why}")


def first_line(text: str) -> str:
    """The first line of an error of llguidance, without the grammar and the parser's state."""
    return (text.splitlines() or [""])[0][:200]


COMPILED_GRAMMARS = 16  # compiled grammars


class GrammarCompiler:
    """Compiles text to a ``TokenGrammar``; belongs to the model's thread.

    A robot may send any text: ``SamplingPolicy`` bounds its length, and llguidance's limits, each a
    fraction of its default, bound its cost.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokenizers: LruCache[int, LLTokenizer] = LruCache(1)  # by the end token
        self._grammars: LruCache[Hashable, TokenGrammar] = LruCache(COMPILED_GRAMMARS)

    def grammar(self, text: str, end_token: int, vocabulary: int, owner: str = "") -> TokenGrammar:
        """Compile a grammar, once for each owner; UserError: it is invalid, or llguidance is not
        installed."""
        check_installed("llguidance", "a grammar")
        key = text, end_token, vocabulary
        return self._grammars.get_or_make((owner, *key), lambda: self._compiled(*key))

    def _compiled(self, text: str, end_token: int, vocabulary: int) -> TokenGrammar:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            initial_lexer_fuel=200_000,
            max_grammar_size=5_000,
            step_lexer_fuel=50_000,
            step_max_items=10_000,
            max_items_in_row=500,
            max_lexer_states=5_000,
            verbose_errors=False,
        )
        tokenizer = self._tokenizers.get_or_make(end_token, lambda: self._wrapped(end_token))
        lark = LLMatcher.grammar_from_lark(text)
        start = LLMatcher(tokenizer, lark, log_level=0, limits=limits)
        if start.is_error():
            raise UserError(
                f"the grammar {text[:60]!r} cannot be used: {first_line(start.get_error())}"
            )
        grammar = TokenGrammar(start, end_token, vocabulary)
        grammar.allowed(())
        return grammar

    def _wrapped(self, end_token: int) -> LLTokenizer:
        from llguidance import LLTokenizer

        with library_errors(
            "no grammar can be kept with this checkpoint's tokenizer",
            "take one with a tokenizer.json, or decode without a grammar",
        ):
            return LLTokenizer(self._tokenizer.backend_tokenizer.to_str(), eos_token=end_token)
