"""Recorded answers and drafts: a draft model that costs no computing, with its real acceptance.

What a draft model would say after the target's own tokens is known once those are: under ``greedy``
no other prefix is ever verified, and what follows a wrong token is rejected with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from ....models.prompt import PromptSpec, Request
from ..scripted.model import ScriptedSession
from ..scripted.prefill import ScriptedPrefill

if TYPE_CHECKING:
    from ....models.vlm import Vlm

LIKELY = 8.0  # the logit of what the draft model says; the others have 0


@dataclass(frozen=True)
class RecordedDecode:
    """A request, the target's own greedy answer, and the draft model's token before each of it."""

    request: Request
    prompt_digest: bytes
    own: tuple[int, ...]
    drafted: tuple[int, ...]

    @property
    def acceptance(self) -> float:
        """Share of the drafted tokens that are the target's."""
        pairs = zip(self.own, self.drafted, strict=True)
        return sum(one == other for one, other in pairs) / len(self.own)


def record(target: Vlm, drafter: Vlm, spec: PromptSpec, request: Request) -> RecordedDecode:
    """The answer of this request, and the drafts along it, by both models."""
    session = target.open(target.prompt(request, spec))
    own: list[int] = []
    while len(own) < spec.max_tokens and not (own and own[-1] in spec.end_ids):
        own.append(int(session.logits_after(-1).argmax()))
        session.extend(own[-1:])
    prompt = drafter.prompt(request, spec)
    rows = drafter.open(prompt).forward(own[:-1])
    drafted = tuple(int(row.argmax()) for row in rows)
    return RecordedDecode(request, prompt.digest, tuple(own), drafted)


class RecordedDrafter:
    """What a robot asks of its draft model, out of recordings; a pass takes ``pass_s``."""

    def __init__(
        self,
        recordings: Sequence[RecordedDecode],
        identity: str,
        tokenizer_digest: bytes,
        vocabulary: int,
        pass_s: float,
        sleep: Callable[[float], None],
    ) -> None:
        self.identity, self.tokenizer_digest = identity, tokenizer_digest
        self._vocabulary, self._pass_s, self._sleep = vocabulary, pass_s, sleep
        self._recordings = {recording.request.jpeg: recording for recording in recordings}

    def crop(self, vocabulary: int) -> None:
        """See `Vlm.crop`."""
        assert vocabulary == self._vocabulary

    def prompt(self, request: Request, spec: PromptSpec) -> Any:
        """The prompt of a recorded request."""
        recording = self._recordings[request.jpeg]
        return SimpleNamespace(digest=recording.prompt_digest, recording=recording)

    def open(self, prompt: Any) -> ScriptedSession:
        """A session at the beginning of the recorded answer."""
        return ScriptedSession(self, (prompt.recording, 0))

    def prefill(self, prompt: Any) -> ScriptedPrefill[ScriptedSession]:
        """`open`, which is a single step."""
        return ScriptedPrefill(lambda: self.open(prompt))

    def after(self, state: tuple[RecordedDecode, int], token: int) -> tuple[RecordedDecode, int]:
        """The next place of the answer, whatever the token is."""
        return (state[0], state[1] + 1)

    def row(self, state: tuple[RecordedDecode, int]) -> np.ndarray:
        """Logits float32 [V]."""
        recording, place = state
        row = np.zeros(self._vocabulary, np.float32)
        row[recording.drafted[min(place, len(recording.drafted) - 1)]] = LIKELY
        return row

    def spend(self, rows: int) -> None:
        """A pass takes its time, whatever its rows."""
        self._sleep(self._pass_s)
