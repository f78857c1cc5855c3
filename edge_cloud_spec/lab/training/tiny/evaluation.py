"""What the shipped pair can do, measured on held-out views: skills, controls and acceptance.

Each skill is measured three times: with the right picture and instruction, with the wrong picture,
and with the wrong instruction. The truth stays that of the right ones, so a model that uses both
falls to chance in the other two, and one that relies on priors does not.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from ....decoding.policy import GREEDY, SamplingPolicy
from ....decoding.propose import coupled_token
from ....models.passes.target_rows import on_host
from ....models.prompt import Prompt, PromptSpec, Request
from ....models.session import PassRequest, Session
from ....models.vlm import Vlm
from ...rows import Row
from .data import Views, draw_instruction
from .language import (
    DISTANCES,
    ORDERS,
    SIDES,
    VISIBLE_PIXELS,
    Statement,
    alike,
    answer,
    askable,
    read,
)

MAX_ANSWER = 32  # tokens
TOGETHER = 32  # answers in one pass


def generate(
    vlm: Vlm, sessions: Sequence[Session], policies: Sequence[SamplingPolicy], spec: PromptSpec
) -> list[list[int]]:
    """The target's own answers, at most ``spec.max_tokens`` long, a token of each a pass."""
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
    return answers


def proposals(vlm: Vlm, prompt: Prompt, answer: Sequence[int]) -> list[int]:
    """The greedy token of ``vlm`` at each place of an answer, after that answer so far."""
    tokens: list[int] = vlm.open(prompt).forward(answer[:-1]).argmax(-1).tolist()
    return tokens


def accepted_and_tested(
    answer: Sequence[int], proposed: Sequence[int], gamma: int
) -> tuple[int, int]:
    """Draft tokens accepted, and tested (the accepted and the first rejected one of each draft).

    A draft of ``gamma`` tokens continues the target's own prefix, and whatever it proposes after a
    right token is what ``proposed`` holds there; after a draft the target adds one token itself.
    """
    accepted = tested = at = 0
    while at < len(answer):
        for _ in range(min(gamma, len(answer) - at)):
            tested += 1
            if proposed[at] != answer[at]:
                break
            accepted += 1
            at += 1
        at += 1  # the recovered or bonus token
    return accepted, tested


SKILLS = ("visible", "side", "distance", "action")
GAMMA = 4


@dataclass(frozen=True)
class Probe:
    """A question whose ``truth`` is known. ``skills``: those that it may be scored on."""

    image: int
    name: str
    order: str
    truth: Statement
    skills: tuple[str, ...]


def _visible(views: Views, index: int) -> list[str]:
    return [t.name for t in views.things(index) if t.pixels >= VISIBLE_PIXELS]


def _absent(views: Views, index: int) -> list[str]:
    things = views.things(index)
    return [name for name in askable(things) if name not in {t.name for t in things}]


def right_probes(views: Views, rng: np.random.Generator) -> list[Probe]:
    """For each view, a question about something visible and one about something that is not.

    Among the visible, the rarest side and distance so far is asked for; among the absent, every
    other time what has its look-alike in view.
    """
    probes: list[Probe] = []
    asked: Counter[str] = Counter()
    for index in range(len(views)):
        things, present = views.things(index), _visible(views, index)
        truths = {}
        for name in present:
            order = ORDERS[rng.integers(2)]
            truths[name, order] = read(answer(things, name, order))
        if truths:
            name, order = min(truths, key=lambda key: asked[_place(truths[key])])
            asked[_place(truths[name, order])] += 1
            probes.append(Probe(index, name, order, truths[name, order], SKILLS))
        absent = _absent(views, index)
        deceptive = [name for name in absent if any(alike(name, other) for other in present)]
        pool = deceptive if deceptive and index % 2 else absent
        if pool:
            name, order = pool[rng.integers(len(pool))], ORDERS[rng.integers(2)]
            truth = read(answer(things, name, order))
            probes.append(Probe(index, name, order, truth, ("visible", "action")))
    return probes


def _place(claim: Statement) -> str:
    return f"{claim.distance} {claim.side}"


def wrong_pictures(probes: Sequence[Probe], views: Views, rng: np.random.Generator) -> list[Probe]:
    """The same questions before other pictures; in half of them the named thing is in view."""
    showing: dict[str, list[int]] = {probe.name: [] for probe in probes}
    lacking: dict[str, list[int]] = {name: [] for name in showing}
    for index in range(len(views)):
        for names, lists in ((_visible(views, index), showing), (_absent(views, index), lacking)):
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


def wrong_instructions(
    probes: Sequence[Probe], views: Views, rng: np.random.Generator
) -> list[Probe]:
    """Other questions before the same pictures; half of them about something in view.

    Two things in one picture are seldom at the same side and distance, so that the question would
    reveal something of the truth: a skill is scored on as many pairs of each two words only.
    """
    wrong = []
    paired: Counter[tuple[str, str, str]] = Counter()
    for number, probe in enumerate(probes):
        present = [name for name in _visible(views, probe.image) if name != probe.name]
        absent = [name for name in _absent(views, probe.image) if name != probe.name]
        if not present or not absent:
            continue
        pool = present if number // 2 % 2 else absent
        name = pool[rng.integers(len(pool))]
        skills = ["visible"]
        if probe.truth.visible and name in present:
            other = read(answer(views.things(probe.image), name, probe.order))
            skills += [skill for skill in SKILLS[1:3] if _even(paired, skill, probe.truth, other)]
        wrong.append(Probe(probe.image, name, probe.order, probe.truth, tuple(skills)))
    return wrong


def _even(
    paired: Counter[tuple[str, str, str]], skill: str, truth: Statement, other: Statement
) -> bool:
    """Count a pair of words in, unless it is already ahead of the rarest pair with that truth."""
    word, true_word = getattr(other, skill), getattr(truth, skill)
    rarest = min(paired[skill, true_word, w] for w in (SIDES if skill == "side" else DISTANCES))
    if paired[skill, true_word, word] > rarest + 4:
        return False
    paired[skill, true_word, word] += 1
    return True


def requests_of(probes: Sequence[Probe], views: Views, rng: np.random.Generator) -> list[Request]:
    """The probes in one of the phrasings each, with their pictures as they are."""
    pictures = [png(image) for image in views.images]
    return [Request(draw_instruction(p.name, rng), pictures[p.image], p.order) for p in probes]


def png(image: np.ndarray) -> bytes:
    """A picture uint8 [H, W, 3] in a file that loses nothing."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def accuracy(
    skill: str, probes: Sequence[Probe], claims: Sequence[Statement], where_said: bool = False
) -> float:
    """The share of right claims; for ``visible`` the mean over the visible and the absent.

    A thing that was missed counts as a wrong side and distance too; ``where_said`` leaves out the
    answers that state none.
    """
    right: dict[bool, list[bool]] = {True: [], False: []}
    for probe, claim in zip(probes, claims, strict=True):
        claimed = getattr(claim, skill)
        if skill in probe.skills and (claimed != "" or not where_said):
            right[bool(probe.truth.visible) or skill != "visible"].append(
                claimed == getattr(probe.truth, skill)
            )
    shares = [np.mean(hits) for hits in right.values() if hits]
    return float(np.mean(shares)) if shares else 0.0


def chance(skill: str, probes: Sequence[Probe]) -> float:
    """What the best constant answer would score."""
    if skill == "visible":
        return 0.5
    truths = Counter(getattr(p.truth, skill) for p in probes if skill in p.skills)
    return max(truths.values()) / truths.total()


def evaluate(models: Mapping[str, Vlm], views: Views, seed: int) -> list[Row]:
    """Skills of the ``models`` target and drafter, and how many draft tokens the target accepts."""
    rng = np.random.default_rng((seed, 0xE7A1))
    probes = right_probes(views, rng)
    sets = {
        "accuracy": probes,
        "wrong_picture": wrong_pictures(probes, views, rng),
        "wrong_instruction": wrong_instructions(probes, views, rng),
    }
    asked = {name: requests_of(some, views, rng) for name, some in sets.items()}
    common = min(vlm.vocabulary for vlm in models.values())
    spec = models["target"].spec("", MAX_ANSWER)
    rows: list[Row] = []
    said: dict[tuple[str, str], list[list[int]]] = {}
    for model, vlm in models.items():
        vlm.crop(common)
        scores: dict[str, Row] = {skill: {} for skill in SKILLS}
        for name, some in sets.items():
            said[model, name] = ids = greedy_answers(vlm, asked[name], spec)
            texts = [vlm.tokenizer.decode(each, skip_special_tokens=True) for each in ids]
            claims = [read(text) for text in texts]
            for skill in SKILLS if some is probes else SKILLS[:3]:
                scores[skill][name] = accuracy(skill, some, claims)
                if some is probes:
                    said_only = accuracy(skill, some, claims, where_said=True)
                    scores[skill]["accuracy_where_said"] = said_only
            print(f"{model}: {name}, {len(some)} answers", flush=True)
        for skill in SKILLS:
            level = chance(skill, probes)
            rows.append({"model": model, "skill": skill, **scores[skill], "chance": level})
    prompts = [models["drafter"].prompt(request, spec) for request in asked["accuracy"]]
    return [*rows, _acceptance(models["drafter"], prompts, said["target", "accuracy"])]


def _acceptance(drafter: Vlm, prompts: Sequence[Prompt], answers: Sequence[Sequence[int]]) -> Row:
    counts = [
        accepted_and_tested(answer, proposals(drafter, prompt, answer), GAMMA)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    accepted, tested = np.sum(counts, axis=0).tolist()
    return {
        "model": "drafter",
        "skill": "acceptance",
        "accuracy": accepted / tested,
        "accepted": accepted,
        "tested": tested,
        "gamma": GAMMA,
        "tokens": sum(map(len, answers)),
    }
