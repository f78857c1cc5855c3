"""The tiny pair: its tokenizer, its training, what the shipped one sees before it answers, and its
language."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from edge_cloud_spec.cli import main
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.instruction import instruction_pattern
from edge_cloud_spec.models import EMBEDDED, FLATS
from edge_cloud_spec.models.load import load
from edge_cloud_spec.nav.answer import action_of, parse_action
from edge_cloud_spec_lab.sim.kinds import THING_KINDS
from edge_cloud_spec_lab.sim.room import PHRASINGS
from edge_cloud_spec_lab.sim.thing import VisibleThing
from edge_cloud_spec_lab.training.loop import RATE_FLOOR
from edge_cloud_spec_lab.training.tiny import command, language
from edge_cloud_spec_lab.training.tiny.architecture import TINY_SHAPES, build_model
from edge_cloud_spec_lab.training.tiny.command import (
    QUESTIONS,
    SLOT,
    PairTrainer,
    TrainingPlan,
    learning_rate_share,
    measure,
)
from edge_cloud_spec_lab.training.tiny.data import (
    QuestionEncoder,
    Views,
    draw_batch,
    draw_names,
    make_views,
    pixels_of,
)
from edge_cloud_spec_lab.training.tiny.evaluation import evaluate
from edge_cloud_spec_lab.training.tiny.language import (
    FLAT_PHRASES,
    INSTRUCTION_PATTERN,
    ORDERS,
    ROOM_INSTRUCTION,
    answer,
    askable,
    best_action,
    read,
)
from edge_cloud_spec_lab.training.tiny.packed import PREFIX_TOKENS, PackedForward
from edge_cloud_spec_lab.training.tiny.tokenizer import build_tokenizer

TOKENIZER = build_tokenizer()
ENCODER = QuestionEncoder(TOKENIZER)


def views(count: int, seed: int = 0) -> Views:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(24, 2000, (count, len(THING_KINDS))) * (
        rng.random((count, len(THING_KINDS))) < 0.4
    )
    return Views(
        rng.integers(0, 256, (count, 128, 128, 3)).astype(np.uint8),
        rng.integers(0, len(THING_KINDS) + 1, (count, 16, 16)).astype(np.int8),
        pixels,
        np.where(pixels > 0, rng.uniform(-30, 30, pixels.shape), np.nan),
        np.where(pixels > 0, rng.uniform(0.3, 5, pixels.shape), np.nan),
    )


@given(st.text(max_size=60))
def test_any_text_survives_the_tokenizer(text):
    ids = TOKENIZER(text, add_special_tokens=False).input_ids
    assert TOKENIZER.decode(ids) == text


def test_every_word_of_the_language_is_one_token():
    things = views(20).things(3)
    for name in (thing.name for thing in things):
        for order in ORDERS:
            text = answer(things, name, order)
            words = len(text.replace(";", " ;").replace(",", " ,").split())
            assert len(ENCODER.ids(text)) == words


def test_pieces_spell_what_the_whole_answer_spells():
    some = views(30)
    rng = np.random.default_rng(1)
    for index in range(30):
        things = some.things(index)
        for name in draw_names(things, 4, rng):
            ids, targets, weights = ENCODER.training_example(
                things, name, ORDERS[0], "find the red box"
            )
            question = ENCODER.question("find the red box", ORDERS[0])
            said = ENCODER.ids(answer(things, name, ORDERS[0]))
            assert ids == question + said
            assert targets == [*ids[1:], ENCODER.end]
            assert len(weights) == len(ids) <= SLOT
            assert not any(weights[: len(question) - 1])


def test_the_longest_lesson_fits_its_slot():
    longest = max(len(ENCODER.question(p.format("red box") + ".", ORDERS[0])) for p in PHRASINGS)
    text = (
        "action: turn left small; "
        "reason: silver bottle far 3.0 left 16, right of red chair 2.0, not silver can right;"
    )
    assert longest + len(ENCODER.ids(text)) <= SLOT


@pytest.mark.parametrize("name", TINY_SHAPES)
def test_the_packed_forward_is_transformers_own(name):
    model = build_model(TINY_SHAPES[name], seed=3).eval()
    some = views(2)
    batch = draw_batch(some, np.arange(2), ENCODER, QUESTIONS, SLOT, np.random.default_rng(2))
    packed = PackedForward(model, QUESTIONS, SLOT)
    with torch.inference_mode():
        _, logits = packed(pixels_of(some.images), batch.ids)
        for question in range(QUESTIONS):
            begin = PREFIX_TOKENS + question * SLOT
            ids = torch.cat(
                (batch.ids[:, :PREFIX_TOKENS], batch.ids[:, begin : begin + SLOT]), dim=1
            )
            cut = packed_patches(some.images)
            out = model(
                input_ids=ids,
                pixel_values=cut,
                image_grid_thw=torch.tensor([[1, 16, 16]] * 2),
                mm_token_type_ids=(ids == model.config.image_token_id).int(),
            ).logits
            ours = logits[:, question * SLOT : (question + 1) * SLOT]
            assert torch.allclose(out[:, PREFIX_TOKENS:], ours, atol=2e-5)


def packed_patches(images: np.ndarray) -> torch.Tensor:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
        Qwen2VLImageProcessorPil,
    )

    processor = Qwen2VLImageProcessorPil(
        patch_size=8,
        size={"shortest_edge": 16384, "longest_edge": 16384},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    return processor(images=list(images), return_tensors="pt")["pixel_values"]


def test_the_learning_rate_warms_up_and_falls_to_its_floor():
    shares = [learning_rate_share(progress) for progress in (0.0, 0.1, 0.3, 0.65, 1.0, 1.1)]
    assert shares[0] < 0.1 and shares[1] == 1.0 and shares[4:] == [pytest.approx(RATE_FLOOR)] * 2
    assert shares[2] > shares[3] > shares[4]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--minutes", "0"], "--minutes above 0"),
        (["--json", "/nowhere/pair.json"], "/nowhere/pair.json cannot be written"),
        (["--out", "/dev/null/pair"], "/dev/null/pair cannot be made"),
        (["--threads", "0"], "--threads is 1 or more"),
        (["--seed", "-1"], "--seed 0 or more"),
    ],
    ids=str,
)
def test_what_cannot_end_well_is_refused_before_anything_is_rendered(
    options, complaint, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(command, "make_views", None)
    assert main(["train", "tiny", "--out", str(tmp_path / "new"), *options]) == 2
    told = capsys.readouterr().err
    assert complaint in told and told.count("\n") == 1


def test_both_stages_train_as_long_as_the_plan_says(capsys):
    plan = TrainingPlan(
        sight=2, joint=2, sight_images=4, joint_images=4, batch=2, rate=1e-3, seed=1, compiled=False
    )
    trainer = PairTrainer(TINY_SHAPES["drafter"], views(6), plan)
    before = trainer.model.lm_head.weight.detach().clone()
    model = trainer.run()
    said = capsys.readouterr().out.splitlines()  # more, where a step takes long
    assert [line for line in said if ", " not in line] == ["sight: 0%", "joint: 0%"]
    assert torch.isfinite(model.lm_head.weight).all()
    assert not torch.equal(before, model.lm_head.weight)


MEGABYTES = 25


def parameters(folder: Path) -> dict[str, tuple[str, int]]:
    with safe_open(folder / "model.safetensors", "pt") as stored:
        slices = {key: stored.get_slice(key) for key in stored.keys()}  # noqa: SIM118
        return {key: (s.get_dtype(), int(np.prod(s.get_shape()))) for key, s in slices.items()}


@pytest.mark.parametrize("pair", [EMBEDDED, FLATS], ids=lambda pair: pair.name)
def test_a_pair_is_as_small_as_promised(pair: Path):
    files = [path for name in TINY_SHAPES for path in (pair / name).iterdir()]
    assert sum(path.stat().st_size for path in files) < MEGABYTES * 1e6
    parts = {name: parameters(pair / name).values() for name in TINY_SHAPES}
    sizes = {name: sum(count for _, count in each) for name, each in parts.items()}
    assert 6e6 < sizes["target"] < 8e6
    assert sizes["drafter"] < 1e6
    assert {kind for each in parts.values() for kind, _ in each} == {"F16"}


def test_the_tokenizers_are_one_of_padded_vocabularies_whose_ids_stay():
    from transformers import AutoTokenizer

    texts = {(EMBEDDED / name / "tokenizer.json").read_text() for name in TINY_SHAPES}
    assert len(texts) == 1
    shipped, trained = AutoTokenizer.from_pretrained(EMBEDDED / "target"), build_tokenizer()
    assert shipped.get_vocab().items() < trained.get_vocab().items(), "flats' words come after"
    for text in (
        *(phrase.format(THING_KINDS[0]) for phrase in PHRASINGS),
        "reason: red chair near 1.0;",
    ):
        assert shipped(text)["input_ids"] == trained(text)["input_ids"]
    configs = [json.loads((EMBEDDED / name / "config.json").read_text()) for name in TINY_SHAPES]
    rows = {config["text_config"]["vocab_size"] for config in configs}
    assert len(rows) == 2 and min(rows) >= len(shipped)
    assert min(shape.vocabulary for shape in TINY_SHAPES.values()) >= len(trained)


@pytest.mark.parametrize("name", TINY_SHAPES)
def test_each_model_says_which_instructions_it_understands(name):
    said = json.loads((EMBEDDED / name / "edge_cloud_spec.json").read_text())
    assert said["instructions"] == ROOM_INSTRUCTION
    for phrase in PHRASINGS:
        asked = phrase.format("silver bottle")
        assert re.fullmatch(said["instructions"], asked) and INSTRUCTION_PATTERN.fullmatch(asked)
    assert not any(
        re.fullmatch(said["instructions"], p.format(THING_KINDS[0])) for p in FLAT_PHRASES
    )


@pytest.mark.parametrize("name", TINY_SHAPES)
def test_the_pair_of_flats_understands_what_is_asked_for_in_flats(name):
    pattern = instruction_pattern(FLATS / name)
    assert pattern is not None and pattern.pattern == INSTRUCTION_PATTERN.pattern
    text = (FLATS / name / "tokenizer.json").read_text()
    assert text == (FLATS / "target" / "tokenizer.json").read_text()


def test_the_target_sees_what_it_is_asked_about_and_guesses_when_it_cannot(tmp_path: Path):
    held_out = make_views(tmp_path, 4_000, 30, "rays", 1)  # of a seed that no training has
    models = {name: load(EMBEDDED / name, threads=1) for name in TINY_SHAPES}
    rows = {(row["model"], row["skill"]): row for row in evaluate(models, held_out, seed=1)}
    for skill, least in (("visible", 0.85), ("side", 0.8), ("distance", 0.75)):
        row = rows["target", skill]
        assert row["accuracy"] >= least
        assert row["wrong_picture"] <= row["accuracy"] - 0.2
        assert row["accuracy"] > rows["drafter", skill]["accuracy"] > row["chance"] - 0.1


def test_a_folder_without_weights_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"target/model\.safetensors"):
        measure(tmp_path, seed=1, count=10, threads=1)


# The language: one right answer for every view, and it is always parsed

BOTTLE = VisibleThing("silver bottle", 200, 15.0, 3.0)
CHAIR = VisibleThing("red chair", 900, 20.0, 2.0)
CAN = VisibleThing("silver can", 90, -12.0, 2.0)

some_things = st.lists(
    st.builds(
        VisibleThing,
        st.sampled_from(THING_KINDS),
        st.integers(1, 9000),
        st.floats(-30, 30),
        st.floats(0.2, 6.0),
    ),
    max_size=8,
    unique_by=lambda thing: thing.name,
)


@given(some_things, st.sampled_from(ORDERS))
def test_every_answer_is_an_action_and_a_reason_that_agree(things, order):
    for name in askable(things):
        text = answer(things, name, order)
        assert "reason: " in text
        claim = read(text)
        assert claim.action == str(action_of(text))
        assert claim.visible == (name in {thing.name for thing in things})
        assert (claim.action == "search") == (not claim.visible)
        assert text.startswith(f"{order.split()[0]}:")
        other = answer(things, name, ORDERS[order == ORDERS[0]])
        assert sorted(text.split()) == sorted(other.split()), "the order changes the order only"


def test_a_visible_thing_is_placed_beside_the_nearest_other_and_told_from_its_look_alike():
    assert answer([BOTTLE, CHAIR, CAN], "silver bottle", "action first") == (
        "action: turn left small; "
        "reason: silver bottle far 3.0 left 16, right of red chair 2.0, not silver can right;"
    )


def test_an_absent_thing_is_searched_for_and_its_look_alike_named_first():
    assert answer([CHAIR, CAN], "silver bottle", "reason first") == (
        "reason: no silver bottle, silver can midway 2.0 right 12, red chair midway 2.0 left 20; "
        "action: search;"
    )


def test_a_doubtful_glimpse_is_neither_asked_for_nor_spoken_of():
    glimpse = VisibleThing("silver bottle", 23, 0.0, 4.0)
    assert "silver bottle" not in askable([glimpse, CHAIR])
    assert "silver bottle" not in answer([glimpse, CHAIR], "red chair", "action first")
    with pytest.raises(ValueError, match="cannot be asked"):
        answer([glimpse], "silver bottle", "action first")


@pytest.mark.parametrize(
    ("bearing", "distance", "action"),
    [
        (18.1, 1.0, "turn left medium"),
        (-18.0, 1.0, "turn right small"),
        (6.0, 0.79, "stop"),
        (-6.0, 0.8, "move forward small"),
        (0.0, 1.3, "move forward medium"),
        (0.0, 2.4, "move forward large"),
    ],
)
def test_the_policy_changes_at_the_stated_limits(bearing, distance, action):
    assert best_action(VisibleThing("red box", 400, bearing, distance)) == action
    assert parse_action(action) is not None


@pytest.mark.parametrize("phrase", PHRASINGS)
def test_every_phrasing_is_understood_and_other_words_are_not(phrase):
    asked = phrase.format("silver bottle")
    assert language.INSTRUCTION_PATTERN.fullmatch(asked)
    assert language.INSTRUCTION_PATTERN.fullmatch(asked.capitalize() + ".")
    assert not language.INSTRUCTION_PATTERN.fullmatch(phrase.format("golden bottle"))
    assert not language.INSTRUCTION_PATTERN.fullmatch("finde die silberne Flasche")
    assert not language.INSTRUCTION_PATTERN.fullmatch(f"do not {asked}")
