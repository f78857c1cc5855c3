"""A robot's state machine brought to a place, and the events that drive it."""

from __future__ import annotations

from typing import Any

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.decoding.propose import FinishedDraft
from edge_cloud_spec.decoding.shape import Branch, Expansion, chain
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.events import (
    Drafted,
    Effect,
    Event,
    Finish,
    PromptReady,
    Received,
    Send,
    Work,
)
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import Open, Opened, Verdict, base_digest, spec_digest

SPEC = b"the cloud's specification"
OPENING = Open(1, "find", b"", "action first", GREEDY, "greedy", spec_digest=spec_digest(SPEC))
BASE = base_digest(OPENING, b"prompt", spec_digest(SPEC))
PROMPT = PromptReady(b"prompt", spec_digest(SPEC), (0,), 20)
OPENED = Received(Opened("s", b"", BASE))


class Robot(EdgeDecoder):
    """A robot's state machine that remembers what it wants to be drafted."""

    wanted: tuple[Branch, ...] = ()

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = super().handle(event, now)
        for effect in effects:
            if isinstance(effect, Work):
                self.wanted = effect.branches
        return effects


def decoder(preset: str = "dsd", reply_timeout: float = 10.0) -> Robot:
    return Robot(OPENING, load_preset(preset), reply_timeout)


def drafting() -> Robot:
    """Opened and prepared; the first draft is due."""
    robot = decoder()
    robot.start(0.0, SPEC)
    robot.handle(OPENED, 0.0)
    assert robot.handle(PROMPT, 0.0) == [work((), chain(4))]
    return robot


def waiting(tokens: tuple[int, ...] = (3, 4, 5, 6)) -> Robot:
    """The first draft is on its way."""
    robot = drafting()
    assert sent(drafts(robot, tokens, 1.0))[0].draft.tokens == tokens
    return robot


def work(prefix: tuple[int, ...], shape: Expansion) -> Work:
    """A draft after the verified tokens, and nothing beside it."""
    return Work(prefix, (Branch(prefix, shape),))


def drafted(robot: Robot, tokens: tuple[int, ...], finished: tuple[int, ...] = ()) -> Drafted:
    """A pass of the draft after the verified tokens."""
    branch = robot.wanted[0] if robot.wanted else Branch((), chain(4))
    so_far = finished or tokens
    confidence = ((so_far, 0.9),)
    part = FinishedDraft(Draft(so_far), so_far, len(so_far) - 1, leaves=confidence)
    return Drafted(branch, tokens, part, done=bool(finished))


def drafts(robot: Robot, tokens: tuple[int, ...], now: float) -> list[Effect]:
    """A chain, pass by pass; nothing happens before it is whole."""
    for token in tokens[:-1]:
        assert robot.handle(drafted(robot, (token,)), now) == []
    return robot.handle(drafted(robot, tokens[-1:], tokens), now)


def sent(effects: list[Effect]) -> list:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def verdict(
    base: PrefixDigest,
    path: tuple[int, ...],
    token: int | None,
    draft: tuple[int, ...] = (3, 4, 5, 6),
    **others: Any,
) -> Received:
    """The cloud's on a chain of these tokens."""
    last = () if token is None else (token,)
    there = base.extend(draft[: len(path)] + last)
    return Received(Verdict(base, path, token, leads_to=there.short, **others))


def finish(effects: list[Effect]) -> Finish:
    (found,) = [effect for effect in effects if isinstance(effect, Finish)]
    return found
