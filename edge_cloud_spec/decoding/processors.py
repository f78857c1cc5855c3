"""Logits processors: how logits change before temperature, top-k and top-p.

A checkpoint's own (``LogitsProcessing``) and the grammar of a request. They are functions of the
tokens before a place alone, so that robot and cloud apply the same to Q and P, after each node of a
draft by the path to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .draft import Draft
from .grammar import Allowed, Grammar, forced_token, masked

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class LogitsProcessing:
    """What a checkpoint does to its logits: fields of generation_config.json, applied as
    transformers' ``generate`` does. They look at the prompt, too.

    ValueError, TypeError: a value of the wrong kind or range.
    """

    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    min_new_tokens: int = 0
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("suppress_tokens", "begin_suppress_tokens"):
            object.__setattr__(self, name, tuple(map(int, getattr(self, name))))
        counts = self.no_repeat_ngram_size, self.min_new_tokens
        whole = all(type(count) is int and count >= 0 for count in counts)
        if not (0 < self.repetition_penalty < np.inf and whole):
            raise ValueError(str(self))


UNPROCESSED = LogitsProcessing()


@dataclass(frozen=True, eq=False)
class Adjustment:
    """How logits [V] after one node change.

    allowed: a mask bool [V] of the tokens that may follow; None: all. Of the ``seen`` tokens, a
    logit below 0 is multiplied by the penalty, another divided.
    """

    allowed: Allowed | None = None
    seen: Ids | None = None
    penalty: float = 1.0

    @cached_property
    def forced(self) -> int | None:
        """The only token that may follow; None if there are several."""
        return None if self.allowed is None else forced_token(self.allowed)

    def of(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The changed logits [V]."""
        if self.seen is not None:
            few, logits = logits[self.seen], logits.copy()
            logits[self.seen] = np.where(few < 0, few * self.penalty, few / self.penalty)
        return logits if self.allowed is None else masked(logits, self.allowed)

    def among(self, ids: Ids) -> Adjustment:
        """The same change of the logits [S] of these tokens alone."""
        seen = None if self.seen is None else np.flatnonzero(np.isin(ids, self.seen))
        return Adjustment(None if self.allowed is None else self.allowed[ids], seen, self.penalty)


UNADJUSTED = Adjustment()
AdjustmentAfter = Callable[[int], Adjustment]  # after a node of a draft; -1: after the prefix


@dataclass(frozen=True, eq=False)
class LogitsProcessors:
    """The processors of one decode. own: the target checkpoint's. prompt: token ids."""

    vocabulary: int
    grammar: Grammar | None = None
    own: LogitsProcessing = UNPROCESSED
    prompt: Sequence[int] | Ids = ()
    end_tokens: Sequence[int] = ()

    def after(self, answer: Sequence[int]) -> Adjustment:
        """The change of the logits after these tokens of the answer.

        A token that is the last one left by the grammar stays. UserError: the answer breaks the
        grammar.
        """
        allowed = None if self.grammar is None else self.grammar.allowed(answer)
        if self.own == UNPROCESSED:
            return Adjustment(allowed)
        context = np.array([*self.prompt, *answer], np.int64)
        excluded = [t for t in self._excluded(context, len(answer)) if 0 <= t < self.vocabulary]
        if excluded:
            left = np.ones(self.vocabulary, bool) if allowed is None else allowed.copy()
            left[excluded] = False
            allowed = left if allowed is None or left.any() else allowed
        if self.own.repetition_penalty == 1:
            return Adjustment(allowed)
        seen = np.unique(context[context < self.vocabulary])
        return Adjustment(allowed, seen, self.own.repetition_penalty)

    def _excluded(self, context: Ids, answered: int) -> list[int]:
        """Tokens that the checkpoint excludes after prompt and answer."""
        own, size = self.own, self.own.no_repeat_ngram_size
        found = [
            *own.suppress_tokens,
            *(own.begin_suppress_tokens if not answered else ()),
            *(self.end_tokens if answered < own.min_new_tokens else ()),
        ]
        if 0 < size <= len(context):
            same = np.ones(len(context) - size + 1, bool)  # where the last tokens were before
            for place, token in enumerate(context[len(context) - size + 1 :]):
                same &= context[place : place + len(same)] == token
            found += context[size - 1 :][same].tolist()
        return found


def adjustment_after(
    processors: LogitsProcessors | None, prefix: Sequence[int], draft: Draft
) -> AdjustmentAfter | None:
    """A function from a node to the change of the logits after it, for a draft after this prefix.

    None without processors.
    """
    if processors is None:
        return None
    verified = tuple(prefix)

    return lambda node: processors.after(verified + draft.tokens_to(node))
