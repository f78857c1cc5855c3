"""What a drafter is to the robot's decoder.

Whatever computes the logits, drafts are verified: a drafter that is wrong, or that sees the picture
otherwise than the target, costs acceptance and never exactness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..decoding.grammar import Grammar
from .prompt import USER_TEXT, Prompt, PromptSpec, Request

# Called between the parts of a pass, with their number, as often as the library lets one in. What
# it raises ends the pass, which then changes nothing.
OnLayer = Callable[[int, Any], None]


class DraftSession(Protocol):
    """One decode: a prefix (the prompt and tokens after it) and a tree of nodes after the prefix.

    Nodes are numbered in the order of their growth. Belongs to one thread. UserError: by
    whatever computes.
    """

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prefix after the prompt."""

    @property
    def pending_rows(self) -> int:
        """Rows of the prefix that the next pass computes before its nodes."""

    def truncate(self, length: int) -> None:
        """Roll the prefix back to so many tokens after the prompt; there are no nodes then."""

    def commit(self, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Make the nodes of ``path``, root to leaf, part of the prefix.

        keep: descendants of its end, each after its parent, that stay as nodes 0, 1, ...; all
        others are dropped. ValueError: there are no such nodes.
        """

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the prefix, which the next pass computes; there are no nodes then."""

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], on_layer: OnLayer | None = None
    ) -> NDArray[np.float32]:
        """Logits [n, V] after n more nodes, of one pass; a parent is an earlier node or -1, the
        prefix."""

    def logits_after(self, node: int, on_layer: OnLayer | None = None) -> NDArray[np.float32]:
        """Logits [V] after a node, or after the prefix (-1), which may take a pass."""

    def close(self) -> None:
        """The decode is over; what a later prompt can begin with may be kept."""


class DraftPrefill(Protocol):
    """The pass over a prompt, in steps; UserError."""

    @property
    def session(self) -> DraftSession:
        """The session after the prompt, once all steps are made; ValueError before."""

    def step(self, rows: int, on_layer: OnLayer | None = None) -> bool:
        """Compute so many rows at most, or the vision part alone; True: the prompt is read."""


class Drafter(Protocol):
    """A draft model with the tokenizer of the target. Its sessions belong to one thread."""

    identity: str  # names weights and arithmetic
    tokenizer: Any  # of transformers, or as ``TextStream`` uses one
    tokenizer_digest: bytes  # ``tokenizer.tokenizer_digest``: the target's must be the same
    vocabulary: int  # V, the rows of its logits
    # Whether its logits name one token only, all others -inf: there is no second one for a tree.
    chains_only: bool

    def crop(self, vocabulary: int) -> None:
        """Use only the first so many tokens of the vocabulary; ValueError: it has fewer."""

    def spec(
        self, system_text: str, max_tokens: int, user_text: str = USER_TEXT, dialect: str = ""
    ) -> PromptSpec:
        """How prompts are made where no cloud says it; UserError."""

    def prompt(self, request: Request, spec: PromptSpec) -> Prompt:
        """The prompt of this specification, whose digest is as the target's; UserError."""

    def grammar(self, text: str, spec: PromptSpec) -> Grammar:
        """The grammar of this text in its tokens; UserError."""

    def prefill(self, prompt: Prompt) -> DraftPrefill:
        """Begin to read a prompt, for a session after it; UserError."""
