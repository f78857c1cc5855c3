"""Mutated frames of a hostile verifier: the robot ends with a reason and moves nothing."""

from __future__ import annotations

from collections import Counter
from random import Random

from fuzz import Broken
from fuzz.answers import Answer, flaws_of
from fuzz.drafts import MAX_TOKENS, VOCABULARY
from fuzz.frames import garbled
from fuzz.scenes import WHOLE, Scene, scenes

from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.events import Effect, Emit, Finish
from edge_cloud_spec.wire.codec import decode_server, read_server
from edge_cloud_spec.wire.messages import (
    Fault,
    WireError,
)


def hostile(random: Random, scene: Scene, frames: list[bytes]) -> bytes:
    """One mutated frame."""
    kind = random.random()
    if kind < 0.4:
        answer = Answer.of(scene.due)
        random.choice(tuple(flaws_of(scene).values()))(answer, random)
        return answer.frame
    if kind < 0.5:
        return random.randbytes(random.randrange(100))
    return garbled(random, scene.due, random.choice(frames))


def trial(scene: Scene, frame: bytes) -> str:
    """Show the frame to a decoder: what came of it; AssertionError where it must not."""
    robot = scene.robot()
    before = list(robot.tokens)
    try:
        message = decode_server(read_server(frame))
    except WireError as error:
        assert str(error)
        return "refused by the codec"
    effects = robot.handle(message, 1.0)
    assert_bounded(scene, effects)
    finish = next((effect for effect in effects if isinstance(effect, Finish)), None)
    if finish is None:
        if robot.tokens == before:
            assert_still_works(scene, robot)
        return "went on" if robot.tokens != before else "nothing"
    assert finish.reason, "an end without a reason"
    if finish.reason not in WHOLE:
        assert robot.tokens == before, f"{finish} but {robot.tokens} was settled"
        assert finish.text or isinstance(message, Fault)
    return "a fault" if isinstance(message, Fault) else finish.reason


def assert_bounded(scene: Scene, effects: list[Effect]) -> None:
    """What is emitted is of the vocabulary, and no longer than an answer."""
    for effect in effects:
        if isinstance(effect, Emit) and scene.name != "alone":
            assert all(0 <= token < VOCABULARY for token in effect.tokens), effect
            assert effect.position + len(effect.tokens) <= MAX_TOKENS


def assert_still_works(scene: Scene, robot: EdgeDecoder) -> None:
    """What was dropped has done no harm: the frame that is due settles what it always does."""
    expected = scene.robot()
    expected.handle(decode_server(read_server(scene.due)), 2.0)
    robot.handle(decode_server(read_server(scene.due)), 2.0)
    assert robot.tokens == expected.tokens, f"{robot.tokens}, not {expected.tokens}"


def run(frames: int, seed: int) -> Counter[str]:
    """So many mutated frames, each to a decoder that waits for another. Raises Broken."""
    random, counts, all_scenes = Random(f"robot {seed}"), Counter[str](), scenes()
    due = [scene.due for scene in all_scenes]
    for _ in range(frames):
        scene = random.choice(all_scenes)
        frame = hostile(random, scene, due)
        try:
            counts[trial(scene, frame)] += 1
        except Exception as error:
            raise Broken(f"robot in {scene.name}: {error!r} upon {frame[:200].hex()}") from error
    return counts
