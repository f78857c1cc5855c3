"""Answers that were given, told again in their order, each pass with a looked-up draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....decoding.accept import follow
from ....decoding.draft import Draft
from ....decoding.suffix_index import SuffixIndex


@dataclass(frozen=True)
class RecordedAnswer:
    """An answer, and the tokens of its instruction."""

    pattern: str
    words: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Replayed:
    """What the passes of a replay came to."""

    passes: int
    tokens: int
    proposed: int  # tokens that the drafts held

    @property
    def tokens_per_pass(self) -> float:
        """1 is what no draft gives."""
        return self.tokens / self.passes


def replay(
    said: Sequence[RecordedAnswer], index: SuffixIndex, nodes: int, with_words: bool
) -> Replayed:
    """The passes that greedy answers take with trees of so many nodes; ``index`` learns from each.

    with_words: the index knows the instructions' words.
    """
    passes = proposed = 0
    for answer in said:
        words = answer.words if with_words else ()
        done = 0
        while done < len(answer.tokens):
            room = len(answer.tokens) - done - 1  # the token after the draft is the target's
            draft = index.look_up(answer.pattern, answer.tokens[:done], nodes, nodes, words)
            done += 1 + min(room, _accepted(draft, answer.tokens[done:]))
            passes += 1
            proposed += len(draft)
        index.add(answer.pattern, answer.tokens, words)
    return Replayed(passes, sum(len(answer.tokens) for answer in said), proposed)


def _accepted(draft: Draft, own: Sequence[int]) -> int:
    """How many of the target's own next tokens a path of the draft has."""
    paths = {-1: 0}
    for node in range(len(draft)):
        paths[node] = paths[draft.parent(node)] + 1
    after = [*own, -1]  # what follows its end is never drafted
    return len(follow(draft, lambda node: after[paths[node]]).path)
