"""A decode that says words at once, then ends as it is told to."""

from __future__ import annotations

import threading
from queue import Empty
from typing import Any

from edge_cloud_spec.edge.events import Cut, Emit
from edge_cloud_spec.edge.measures import DecodeStats
from edge_cloud_spec.edge.runner import Outcome


class ScriptedRunner:
    """A runner that says an action, then reads its inbox until it is told to end."""

    target = ""

    def __init__(self, draft_model: Any, tokens: tuple[int, ...]) -> None:
        self.draft_model, self.tokens = draft_model, tokens
        self.verified = True
        self.by_itself = "end"  # how it ends where nobody ends it
        self.failure, self.presets, self.requests = "", list[str](), list[Any]()
        self.shortened = ""
        self.begun, self.said, self.ends = 0, threading.Semaphore(0), list[str]()
        self.go_on = threading.Event()

    def run(
        self, request: Any, decode: Any, nonce: int, connect: Any, emit: Any, inbox: Any
    ) -> Outcome:
        self.presets.append(decode.preset.name)
        self.requests.append(request)
        emit(Emit(0, self.tokens, self.verified))
        self.begun += 1
        self.said.release()
        reason = "end"
        while reason == "end" and not self.go_on.is_set():
            try:
                reason = "cut" if isinstance(inbox.get(timeout=0.01), Cut) else "aborted"
            except Empty:
                continue
        reason = self.by_itself if reason == "end" else reason
        self.ends.append(reason)
        stats = DecodeStats(failure=self.failure)
        return Outcome(reason, "", self.tokens, 1.0, stats, shortened=self.shortened)
