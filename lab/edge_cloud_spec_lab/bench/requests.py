"""Requests to decode: simulated views, each with an instruction."""

from __future__ import annotations

import numpy as np

from edge_cloud_spec.models.prompt import ORDERS, Request

from ..sim.camera import encode_jpeg
from ..sim.kinds import KINDS
from ..sim.view import sample_views

PHRASES = ("find the {}", "go to the {}", "where is the {}")


def sample_requests(seed: int, count: int, renderer: str = "mixed") -> list[Request]:
    """``count`` requests, each with its own picture; mostly for things in view."""
    rng = np.random.default_rng((seed, 0xBE))
    requests = []
    for view in sample_views(seed + 10_000_019, count, renderer):
        seen = [thing.name for thing in view.things if thing.pixels >= 24]
        names = seen if seen and rng.random() < 0.7 else list(KINDS)
        phrase = PHRASES[rng.integers(len(PHRASES))]
        jpeg = encode_jpeg(view.image, 90)
        order = ORDERS[rng.integers(2)]
        requests.append(Request(phrase.format(names[rng.integers(len(names))]), jpeg, order))
    return requests
