"""Requests to decode: simulated views, each with an instruction; and texts alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from edge_cloud_spec.dialects import ours
from edge_cloud_spec.nav.answer import ORDERS
from edge_cloud_spec.request import USER, Message, Request

from ..sim.camera import encode_jpeg
from ..sim.kinds import THING_KINDS
from ..sim.view import sample_views

TASKS = (
    "Explain {} to a child.",
    "Write a short story about {}.",
    "List five facts about {}.",
    "Write a poem about {}.",
    "Write an email to a friend about {}.",
    "What are the good and the bad sides of {}?",
    "Write JSON with three fields that describe {}.",
    "Summarize what is known about {}, step by step.",
    "Repeat three times: I like {}.",
    "Translate to French: where can I read about {}?",
)
TASK_TOPICS = (
    *("bicycles", "the moon", "robots", "bees", "bread", "rivers", "trains", "the sea", "cats"),
    *("volcanoes", "chess", "rain", "libraries", "gardens", "bridges", "music", "winter", "tea"),
    *("maps", "light"),
)
INSTRUCTION_PHRASES = ("find the {}", "go to the {}", "where is the {}")


@dataclass(frozen=True)
class Question:
    """An instruction and a camera frame."""

    instruction: str
    jpeg: bytes
    order: str

    @property
    def request(self) -> Request:
        """The messages that ask it."""
        return ours().request(self.instruction, self.jpeg, self.order)


def sample_requests(seed: int, count: int, renderer: str = "mixed") -> list[Request]:
    """``count`` requests, each with its own picture; mostly for things in view."""
    return [question.request for question in sample_questions(seed, count, renderer)]


def sample_questions(seed: int, count: int, renderer: str = "mixed") -> list[Question]:
    """The same as questions."""
    return list(_questions(seed, count, renderer))


@cache  # a picture takes a GL context and a room, and suites ask again for the same ones
def _questions(seed: int, count: int, renderer: str) -> tuple[Question, ...]:
    rng = np.random.default_rng((seed, 0xBE))
    questions = []
    for view in sample_views(seed + 10_000_019, count, renderer):
        seen = [thing.name for thing in view.things if thing.pixels >= 24]
        names = seen if seen and rng.random() < 0.7 else list(THING_KINDS)
        phrase = INSTRUCTION_PHRASES[rng.integers(len(INSTRUCTION_PHRASES))]
        jpeg = encode_jpeg(view.image, 90)
        order = ORDERS[rng.integers(2)]
        questions.append(Question(phrase.format(names[rng.integers(len(names))]), jpeg, order))
    return tuple(questions)


def text_requests(seed: int, count: int) -> list[Request]:
    """``count`` requests of text alone."""
    rng = np.random.default_rng((seed, 0x7E))
    texts = [task.format(topic) for task in TASKS for topic in TASK_TOPICS]
    places = rng.permutation(len(texts))
    asked = [texts[places[number % len(texts)]] for number in range(count)]
    return [Request((Message(USER, (text,)),)) for text in asked]
