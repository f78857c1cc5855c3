"""What the shipped pair can do, measured on held-out views: skills, controls and acceptance.

Each skill is measured three times: with the right picture and instruction, with the wrong picture,
and with the wrong instruction. The truth stays that of the right ones, so a model that uses both
falls to chance in the other two, and one that relies on priors does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3VLForConditionalGeneration

from .architecture import GRID, MERGE, PATCH
from .data import QuestionEncoder, Views, draw_instruction, pixels_of
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
from .packed import AFTER_IMAGE, PREFIX, patches

MAX_ANSWER = 32  # tokens


@dataclass(frozen=True)
class EncodedQuestion:
    """One question: the index of the image that is shown, and the ids after it."""

    image: int
    question: tuple[int, ...]


def _positions(length: int, batch: int) -> Tensor:
    """M-RoPE positions [3, B, L] of a prompt of ``length`` tokens with one 128 x 128 image."""
    side = GRID // MERGE
    cell = torch.arange(side * side)
    image = 1 + torch.stack((torch.zeros_like(cell), cell // side, cell % side))
    after = torch.arange(AFTER_IMAGE, AFTER_IMAGE + length - PREFIX + 1).expand(3, -1)
    row = torch.cat((torch.zeros(3, 1, dtype=torch.long), image, after), dim=1)
    return row[:, None].expand(3, batch, -1)


def _pixel_values(images: np.ndarray) -> Tensor:
    cut = patches(pixels_of(images))
    spread = cut.view(*cut.shape[:2], 3, 1, PATCH, PATCH).expand(-1, -1, -1, 2, -1, -1)
    return spread.reshape(-1, 2 * cut.shape[2])


def _equal_lengths(
    asked: Sequence[EncodedQuestion], extra: Sequence[int], size: int
) -> Iterator[list[int]]:
    """Indices in batches of one prompt length each, so that nothing is padded."""
    groups: dict[int, list[int]] = {}
    for index, one in enumerate(asked):
        groups.setdefault(len(one.question) + extra[index], []).append(index)
    for group in groups.values():
        for start in range(0, len(group), size):
            yield group[start : start + size]


def _inputs(
    model: Qwen3VLForConditionalGeneration, images: np.ndarray, ids: Tensor
) -> dict[str, Tensor]:
    return {
        "input_ids": ids,
        "pixel_values": _pixel_values(images),
        "image_grid_thw": torch.tensor([[1, GRID, GRID]]).expand(len(ids), -1),
        "mm_token_type_ids": (ids == model.config.image_token_id).int(),
        "position_ids": _positions(ids.shape[1], len(ids)),
    }


@torch.inference_mode()
def greedy_answers(
    model: Qwen3VLForConditionalGeneration,
    images: np.ndarray,
    asked: Sequence[EncodedQuestion],
    encoder: QuestionEncoder,
    vocabulary: int,
    size: int = 64,
) -> list[list[int]]:
    """The answer to each question, end token included, over the first ``vocabulary`` tokens."""
    answers: list[list[int]] = [[] for _ in asked]
    for chosen in _equal_lengths(asked, [0] * len(asked), size):
        ids = torch.tensor([[*encoder.prefix, *asked[index].question] for index in chosen])
        shown = images[[asked[index].image for index in chosen]]
        out = model(**_inputs(model, shown, ids), use_cache=True, logits_to_keep=1)
        position = ids.shape[1] - PREFIX + AFTER_IMAGE + 1
        open_rows = torch.ones(len(chosen), dtype=torch.bool)
        for step in range(MAX_ANSWER):
            token = out.logits[:, -1, :vocabulary].argmax(-1)
            for row in open_rows.nonzero().flatten().tolist():
                answers[chosen[row]].append(int(token[row]))
            open_rows &= token != encoder.end
            if not open_rows.any():
                break
            out = model(
                input_ids=token[:, None],
                position_ids=torch.full((3, len(chosen), 1), position + step),
                past_key_values=out.past_key_values,
                use_cache=True,
            )
    return answers


@torch.inference_mode()
def proposals(
    model: Qwen3VLForConditionalGeneration,
    images: np.ndarray,
    asked: Sequence[EncodedQuestion],
    answers: Sequence[Sequence[int]],
    encoder: QuestionEncoder,
    vocabulary: int,
    size: int = 64,
) -> list[list[int]]:
    """The greedy token of ``model`` at each place of each answer, after that answer so far."""
    proposed: list[list[int]] = [[] for _ in asked]
    # an untrained target may emit image tokens, for which there is no image
    given = [[encoder.pad if t == encoder.prefix[1] else t for t in each] for each in answers]
    for chosen in _equal_lengths(asked, list(map(len, answers)), size):
        rows = [[*encoder.prefix, *asked[i].question, *given[i][:-1]] for i in chosen]
        ids = torch.tensor(rows)
        shown = images[[asked[index].image for index in chosen]]
        logits = model(**_inputs(model, shown, ids)).logits[..., :vocabulary]
        for row, index in enumerate(chosen):
            proposed[index] = logits[row].argmax(-1)[-len(answers[index]) :].tolist()
    return proposed


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

Row = dict[str, str | float | int]


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


def encode_questions(
    probes: Sequence[Probe], encoder: QuestionEncoder, rng: np.random.Generator
) -> list[EncodedQuestion]:
    """The probes in one of the phrasings each."""
    return [
        EncodedQuestion(p.image, tuple(encoder.question(draw_instruction(p.name, rng), p.order)))
        for p in probes
    ]


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


@dataclass(frozen=True)
class Evaluation:
    """The rows of the report, and the probes and target's answers behind them."""

    rows: list[Row]
    probes: list[Probe]
    answers: list[str]


def evaluate(
    models: dict[str, Qwen3VLForConditionalGeneration],
    encoder: QuestionEncoder,
    decode: Callable[[list[int]], str],
    views: Views,
    seed: int,
) -> Evaluation:
    """Skills of ``models`` ("target", "drafter") and how many draft tokens the target accepts."""
    rng = np.random.default_rng((seed, 0xE7A1))
    probes = right_probes(views, rng)
    sets = {
        "accuracy": probes,
        "wrong_picture": wrong_pictures(probes, views, rng),
        "wrong_instruction": wrong_instructions(probes, views, rng),
    }
    asked = {name: encode_questions(some, encoder, rng) for name, some in sets.items()}
    common = min(model.config.text_config.vocab_size for model in models.values())
    rows: list[Row] = []
    target_ids: list[list[int]] = []
    target_texts: list[str] = []
    for model_name, model in models.items():
        scores: dict[str, dict[str, float]] = {skill: {} for skill in SKILLS}
        for set_name, some in sets.items():
            ids = greedy_answers(model, views.images, asked[set_name], encoder, common)
            texts = [decode(one[:-1] if one[-1] == encoder.end else one) for one in ids]
            claims = [read(text) for text in texts]
            if model_name == "target" and set_name == "accuracy":
                target_ids, target_texts = ids, texts
            for skill in SKILLS if set_name == "accuracy" else SKILLS[:3]:
                scores[skill][set_name] = accuracy(skill, some, claims)
                if set_name == "accuracy":
                    said_only = accuracy(skill, some, claims, where_said=True)
                    scores[skill]["accuracy_where_said"] = said_only
            print(f"{model_name}: {set_name}, {len(some)} answers", flush=True)
        for skill in SKILLS:
            level = chance(skill, probes)
            rows.append({"model": model_name, "skill": skill, **scores[skill], "chance": level})
    if target_ids and "drafter" in models:
        rows.append(
            _acceptance(models["drafter"], encoder, views, asked["accuracy"], target_ids, common)
        )
    return Evaluation(rows, probes, target_texts)


def _acceptance(
    drafter: Qwen3VLForConditionalGeneration,
    encoder: QuestionEncoder,
    views: Views,
    asked: Sequence[EncodedQuestion],
    answers: Sequence[Sequence[int]],
    common: int,
) -> Row:
    proposed = proposals(drafter, views.images, asked, answers, encoder, common)
    counts = [
        accepted_and_tested(own, proposal, GAMMA)
        for own, proposal in zip(answers, proposed, strict=True)
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
