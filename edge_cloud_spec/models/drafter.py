"""The interface of drafters for the robot's decoder.

Drafts are verified, so a drafter that is wrong, or sees the picture differently from the target,
lowers acceptance and never changes the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..decoding.grammar import Grammar
from ..decoding.token_tree import TokenTree
from ..request import Request
from .prompt import Prompt, PromptSpec

# Called between the parts of a pass with their number, as often as the library permits. If it
# raises, the pass ends without effect.
OnLayer = Callable[[int, Any], None]
ALL_ROWS = 1 << 30  # more rows than any prompt has


class DraftSession(Protocol):
    """One decode: a prefix (the prompt and tokens after it) and a tree of nodes after the prefix.

    Nodes are numbered in the order of their growth. Belongs to one thread. Any method that computes
    may raise UserError.
    """

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the prefix after the prompt."""

    @property
    def nodes(self) -> TokenTree:
        """The nodes after the prefix."""

    @property
    def pending_rows(self) -> int:
        """How many tokens of the prefix the next pass computes before its nodes."""

    def truncate(self, length: int) -> None:
        """Roll the prefix back to ``length`` tokens after the prompt; drops all nodes."""

    def commit(self, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Append the nodes of ``path``, root to leaf, to the prefix.

        keep: descendants of its end, each after its parent, that stay as nodes 0, 1, ...; all
        others are dropped. ValueError: there are no such nodes.
        """

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the prefix, which the next pass computes; drops all nodes."""

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], on_layer: OnLayer | None = None
    ) -> NDArray[np.float32]:
        """Add n nodes in one pass; returns the logits [n, V] after them.

        A parent is the index of an earlier node, or -1 for the prefix.
        """

    def logits_after(self, node: int, on_layer: OnLayer | None = None) -> NDArray[np.float32]:
        """Logits [V] after a node, or after the prefix (-1); may take a pass."""

    def close(self) -> None:
        """The decode is over; what a later prompt can begin with may be kept."""


class DraftPrefill(Protocol):
    """The pass over a prompt, in steps; methods may raise UserError."""

    @property
    def session(self) -> DraftSession:
        """The session after the prompt; ValueError before the last step."""

    def step(self, rows: int, on_layer: OnLayer | None = None) -> bool:
        """Compute at most ``rows`` prompt tokens, or the vision part; True once the prompt is
        read."""


class Drafter(Protocol):
    """A draft model with the tokenizer of the target. Its sessions belong to one thread."""

    identity: str  # identifies weights and dtype
    tokenizer: Any  # a ``Tokenizer``, or an object with what ``TextStream`` uses
    tokenizer_digest: bytes  # ``tokenizer.tokenizer_digest``; must equal the target's
    vocabulary: int  # V, the length of its logits
    # Whether its logits allow one token only (all others -inf), so that it cannot draft trees.
    chains_only: bool

    def crop(self, vocabulary: int) -> None:
        """Use only the first ``vocabulary`` tokens; ValueError: the model has fewer."""

    def spec(self, max_tokens: int) -> PromptSpec:
        """The prompt specification for a robot without a cloud; raises UserError."""

    def prompt(self, request: Request, spec: PromptSpec) -> Prompt:
        """The prompt of this specification, with the same digest as the target's; raises
        UserError."""

    def grammar(self, text: str, spec: PromptSpec) -> Grammar:
        """Compile a grammar for this tokenizer; raises UserError."""

    def prefill(self, prompt: Prompt) -> DraftPrefill:
        """Begin to read a prompt; raises UserError."""
