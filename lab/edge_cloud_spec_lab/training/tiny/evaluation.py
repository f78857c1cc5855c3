"""Measures the shipped pair's skills on held-out views, with a control.

Each skill is measured with the right picture, and with a wrong one. The ground truth stays that of
the right one, so a model that uses the picture falls to chance with a wrong one, and one that
relies on priors does not.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.propose import coupled_token
from edge_cloud_spec.dialects import ours
from edge_cloud_spec.models.pass_request import PassRequest
from edge_cloud_spec.models.passes.target_rows import on_host
from edge_cloud_spec.models.prompt import PromptSpec
from edge_cloud_spec.models.session import Session
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.nav.answer import ORDERS
from edge_cloud_spec.request import Request

from ...rows import Row
from .data import Views, draw_instruction
from .language import (
    Statement,
    absent,
    answer,
    deceptive,
    read,
    visible,
)

MAX_ANSWER_TOKENS = 32
TOGETHER = 32  # answers in one pass


def generate(
    vlm: Vlm, sessions: Sequence[Session], policies: Sequence[SamplingPolicy], spec: PromptSpec
) -> list[list[int]]:
    """The target's answers, of at most ``spec.max_tokens`` tokens, one token of each per pass."""
    answers: list[list[int]] = [[] for _ in sessions]
    rows = [session.forward(())[0] for session in sessions]
    live = list(range(len(sessions)))
    for position in range(spec.max_tokens):
        for index in live:
            answers[index].append(coupled_token(rows[index], policies[index], position))
        live = [index for index in live if answers[index][-1] not in spec.end_ids]
        if not live:
            break
        for index in live:
            sessions[index].extend(answers[index][-1:])
        passes = vlm.forward_together([PassRequest(sessions[index]) for index in live])
        for index, logits in zip(live, passes, strict=True):
            if isinstance(logits, Exception):
                raise logits
            rows[index] = on_host(logits)[0]
    return answers


def greedy_answers(vlm: Vlm, requests: Sequence[Request], spec: PromptSpec) -> list[list[int]]:
    """The answer to each request, end token included."""
    answers: list[list[int]] = []
    for start in range(0, len(requests), TOGETHER):
        some = requests[start : start + TOGETHER]
        sessions = [vlm.open(vlm.prompt(request, spec)) for request in some]
        answers += generate(vlm, sessions, [GREEDY] * len(some), spec)
        for session in sessions:
            session.close()
    return answers


SKILLS = ("visible", "side", "distance", "action")


@dataclass(frozen=True)
class Probe:
    """A question whose answer ``truth`` is known. ``skills``: those that it is scored on."""

    image: int
    name: str
    order: str
    truth: Statement
    skills: tuple[str, ...]


def right_probes(views: Views, rng: np.random.Generator) -> list[Probe]:
    """For each view, a question about something visible and one about something absent.

    Among the visible things, it asks for the rarest side and distance so far; among the absent
    ones, every other time for one with a look-alike in view.
    """
    probes: list[Probe] = []
    asked: Counter[str] = Counter()
    for index in range(len(views)):
        things = views.things(index)
        truths = {}
        for name in visible(things):
            order = ORDERS[rng.integers(2)]
            truths[name, order] = read(answer(things, name, order))
        if truths:
            name, order = min(truths, key=lambda key: asked[_place(truths[key])])
            asked[_place(truths[name, order])] += 1
            probes.append(Probe(index, name, order, truths[name, order], SKILLS))
        pool = deceptive(things) if index % 2 else []
        pool = pool or absent(things)
        if pool:
            name, order = pool[rng.integers(len(pool))], ORDERS[rng.integers(2)]
            truth = read(answer(things, name, order))
            probes.append(Probe(index, name, order, truth, ("visible", "action")))
    return probes


def _place(claim: Statement) -> str:
    return f"{claim.distance} {claim.side}"


def wrong_pictures(probes: Sequence[Probe], views: Views, rng: np.random.Generator) -> list[Probe]:
    """The same questions with other pictures; in half of them the named thing is in view."""
    showing: dict[str, list[int]] = {probe.name: [] for probe in probes}
    lacking: dict[str, list[int]] = {name: [] for name in showing}
    for index in range(len(views)):
        things = views.things(index)
        for names, lists in ((visible(things), showing), (absent(things), lacking)):
            for name in names:
                if name in lists:
                    lists[name].append(index)
    wrong = []
    for number, probe in enumerate(probes):
        shown = bool(number // 2 % 2)
        pool = [i for i in (showing if shown else lacking)[probe.name] if i != probe.image]
        if pool:
            skills = ("visible",) if not shown or not probe.truth.visible else SKILLS[:3]
            image = pool[rng.integers(len(pool))]
            wrong.append(Probe(image, probe.name, probe.order, probe.truth, skills))
    return wrong


def requests_of(probes: Sequence[Probe], views: Views, rng: np.random.Generator) -> list[Request]:
    """Requests for the probes, each in a random phrasing, with their pictures lossless."""
    pictures = [png(image) for image in views.images]
    return [
        ours().request(draw_instruction(p.name, rng), pictures[p.image], p.order) for p in probes
    ]


def png(image: np.ndarray) -> bytes:
    """Encode a picture uint8 [H, W, 3] as PNG (lossless)."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def accuracy(skill: str, probes: Sequence[Probe], claims: Sequence[Statement]) -> float:
    """The share of right claims; for ``visible`` the mean over visible and absent things.

    A missed thing also counts as a wrong side and distance.
    """
    right: dict[bool, list[bool]] = {True: [], False: []}
    for probe, claim in zip(probes, claims, strict=True):
        if skill in probe.skills:
            right[bool(probe.truth.visible) or skill != "visible"].append(
                getattr(claim, skill) == getattr(probe.truth, skill)
            )
    shares = [np.mean(hits) for hits in right.values() if hits]
    return float(np.mean(shares)) if shares else 0.0


def chance(skill: str, probes: Sequence[Probe]) -> float:
    """The score of the best constant answer."""
    if skill == "visible":
        return 0.5
    truths = Counter(getattr(p.truth, skill) for p in probes if skill in p.skills)
    return max(truths.values()) / truths.total()


def evaluate(models: Mapping[str, Vlm], views: Views, seed: int) -> list[Row]:
    """Measure the skills of the ``models`` target and drafter."""
    rng = np.random.default_rng((seed, 0xE7A1))
    probes = right_probes(views, rng)
    sets = {
        "accuracy": probes,
        "wrong_picture": wrong_pictures(probes, views, rng),
    }
    asked = {name: requests_of(some, views, rng) for name, some in sets.items()}
    common = min(vlm.vocabulary for vlm in models.values())
    spec = models["target"].spec(MAX_ANSWER_TOKENS)
    rows: list[Row] = []
    for model, vlm in models.items():
        vlm.crop(common)
        scores: dict[str, Row] = {skill: {} for skill in SKILLS}
        for name, some in sets.items():
            ids = greedy_answers(vlm, asked[name], spec)
            texts = [vlm.tokenizer.decode(each, skip_special_tokens=True) for each in ids]
            claims = [read(text) for text in texts]
            for skill in SKILLS if some is probes else SKILLS[:3]:
                scores[skill][name] = accuracy(skill, some, claims)
            print(f"{model}: {name}, {len(some)} answers", flush=True)
        for skill in SKILLS:
            level = chance(skill, probes)
            rows.append({"model": model, "skill": skill, **scores[skill], "chance": level})
    return rows
