"""A robot's state machine brought to a place, and the events that drive it."""

from __future__ import annotations

from dataclasses import replace
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
    Prefilled,
    PromptReady,
    Work,
)
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import (
    ClientMessage,
    DraftMessage,
    Open,
    Opened,
    Verdict,
    base_digest,
    spec_digest,
)

SPEC = b"the cloud's specification"
OPENING = Open(1, CLAUSES.request("find", b""), GREEDY, "greedy", spec_digest=spec_digest(SPEC))
BASE = base_digest(OPENING, b"prompt", spec_digest(SPEC))
PROMPT = PromptReady(b"prompt", spec_digest(SPEC), (0,), 20)
OPENED = Opened("s", b"", BASE)


class Robot(EdgeDecoder):
    """A robot's state machine that remembers what it wants to be drafted."""

    wanted: tuple[Branch, ...] = ()

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = super().handle(event, now)
        for effect in effects:
            if isinstance(effect, Work):
                self.wanted = effect.branches
        return effects


def started(preset: str = "dsd", spec: bytes = SPEC, opening: Open = OPENING) -> Robot:
    """Open is on its way, at 0 s."""
    robot = Robot(opening, load_preset(preset), 10.0)
    robot.start(0.0, spec)
    return robot


def begun(preset: str = "dsd", prompt: PromptReady = PROMPT, opening: Open = OPENING) -> Robot:
    """Opened and prepared; a robot that drafts owes the first draft."""
    robot = started(preset, opening=opening)
    play(robot, (0.0, OPENED), (0.0, prompt), (0.0, Prefilled()))
    return robot


def waiting(preset: str = "dsd", prompt: PromptReady = PROMPT) -> Robot:
    """The first draft is on its way."""
    robot = begun(preset, prompt)
    play(robot, (1.0, (3, 4, 5, 6), [(BASE, (3, 4, 5, 6))]))
    return robot


def play(robot: Robot, *steps: tuple[Any, ...]) -> list[Effect]:
    """Tell the robot each event at its time, s; what it does is as each step says. Returns the last
    effects.

    A step is a time, an event and what follows, if that matters: effects, messages that are sent
    (or their types; of a draft its prefix and tokens), or why the decode ends. Tokens in place of
    an event are a chain that is drafted.
    """
    effects: list[Effect] = []
    for now, event, *follows in steps:
        if isinstance(event, tuple):
            effects = drafts(robot, event, now)
        else:
            effects = robot.handle(event, now)
        for expected in follows:
            assert is_as(effects, expected), (now, event, expected, effects)
    return effects


def is_as(effects: list[Effect], expected: list[Any] | str) -> bool:
    """Whether these effects are what a step expects."""
    if isinstance(expected, str):
        return finish(effects).reason == expected
    if effects == expected:
        return True
    said = sent(effects)
    for place, message in enumerate(said[: len(expected)]):
        if isinstance(expected[place], type):
            said[place] = type(message)
        elif isinstance(message, DraftMessage):
            said[place] = (message.base, message.draft.tokens)
    return bool(expected) and said == expected


def work(prefix: tuple[int, ...], shape: Expansion) -> Work:
    """A draft after the verified tokens, and nothing beside it."""
    return Work(prefix, (Branch(prefix, shape),))


def drafted(
    robot: Robot,
    tokens: tuple[int, ...],
    finished: tuple[int, ...] = (),
    prefix: tuple[int, ...] | None = None,
    **others: Any,
) -> Drafted:
    """A pass of the first branch that is wanted, or of that after this prefix."""
    branches = [each for each in robot.wanted if prefix in (None, each.prefix)]
    branch = branches[0] if branches else Branch((), chain(4))
    so_far = finished or tokens
    confidence = ((so_far, 0.9),)
    part = FinishedDraft(Draft(so_far), so_far, len(so_far) - 1, leaves=confidence)
    return replace(Drafted(branch, tokens, part, done=bool(finished)), **others)


def drafts(robot: Robot, tokens: tuple[int, ...], now: float) -> list[Effect]:
    """A chain, pass by pass; nothing happens before it is whole."""
    for token in tokens[:-1]:
        assert robot.handle(drafted(robot, (token,)), now) == []
    return robot.handle(drafted(robot, tokens[-1:], tokens), now)


def sent(effects: list[Effect]) -> list:
    return [effect for effect in effects if isinstance(effect, ClientMessage)]


def verdict(
    base: PrefixDigest,
    path: tuple[int, ...],
    token: int | None,
    draft: tuple[int, ...] = (3, 4, 5, 6),
    **others: Any,
) -> Verdict:
    """The cloud's on a chain of these tokens."""
    last = () if token is None else (token,)
    there = base.extend(draft[: len(path)] + last)
    return Verdict(base, path, token, leads_to=there.short, **others)


def finish(effects: list[Effect]) -> Finish:
    (found,) = [effect for effect in effects if isinstance(effect, Finish)]
    return found
