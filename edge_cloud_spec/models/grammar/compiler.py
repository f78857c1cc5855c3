"""Grammars of a tokenizer, compiled within limits and kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import UserError, library_errors
from ..memory.lru_cache import LruCache
from .token_grammar import TokenGrammar, first_line

if TYPE_CHECKING:
    from llguidance import LLTokenizer

KEPT = 8  # grammars


class GrammarCompiler:
    """Makes a grammar's text a ``TokenGrammar``; belongs to the model's thread.

    A robot may send any text: its length is bounded by ``SamplingPolicy``, its cost by limits in
    llguidance's own units, each a fraction of its default.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokenizers: LruCache[LLTokenizer] = LruCache(1)  # by the end token
        self._grammars: LruCache[TokenGrammar] = LruCache(KEPT)

    def grammar(self, text: str, end_token: int, vocabulary: int) -> TokenGrammar:
        """The grammar of this text; UserError names what is wrong with it, or what is missing."""
        check_installed()
        key = text, end_token, vocabulary
        return self._grammars.get(key, lambda: self._compiled(*key))

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
        tokenizer = self._tokenizers.get(end_token, lambda: self._wrapped(end_token))
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
        from llguidance.hf import from_tokenizer

        with library_errors(
            "no grammar can be kept with this checkpoint's tokenizer",
            "take one with a tokenizer.json, or decode without a grammar",
        ):
            return from_tokenizer(self._tokenizer, eos_token=end_token)


def check_installed() -> None:
    """Raise UserError where llguidance is not there."""
    try:
        import llguidance  # noqa: F401
    except ImportError as error:
        raise UserError(
            "a grammar needs llguidance: pip install 'edge-cloud-spec[grammar]'"
        ) from error
