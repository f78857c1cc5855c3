"""Requests to decode: simulated views, each with an instruction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_cloud_spec.dialects import ours
from edge_cloud_spec.nav.answer import ORDERS
from edge_cloud_spec.request import Request

from ..sim.camera import encode_jpeg
from ..sim.kinds import KINDS
from ..sim.view import sample_views

PHRASES = ("find the {}", "go to the {}", "where is the {}")


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
    rng = np.random.default_rng((seed, 0xBE))
    questions = []
    for view in sample_views(seed + 10_000_019, count, renderer):
        seen = [thing.name for thing in view.things if thing.pixels >= 24]
        names = seen if seen and rng.random() < 0.7 else list(KINDS)
        phrase = PHRASES[rng.integers(len(PHRASES))]
        jpeg = encode_jpeg(view.image, 90)
        order = ORDERS[rng.integers(2)]
        questions.append(Question(phrase.format(names[rng.integers(len(names))]), jpeg, order))
    return questions
