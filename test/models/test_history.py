"""Prompts with the frames and answers of a mission, against transformers' own classes."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from helpers.checkpoints import CLOSE, FAMILIES, checkpoint, difference, fresh, jpeg, vlm
from PIL import Image
from transformers import AutoTokenizer
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.history import MOST_KEPT, History, HistorySpec, Turn, history_digest
from edge_cloud_spec.models import cache as cache_module
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.prompt import Prompt, PromptSpec, Request, messages_of
from edge_cloud_spec.models.vlm import Vlm

ANSWERS = ("action: search;", "action: turn left small; reason: a chair;", "move", "")
TOKENS = [5, 90, 33]


def turns(count: int, first: int = 20) -> tuple[Turn, ...]:
    """Turns with pictures of unequal sizes."""
    return tuple(
        Turn.of(jpeg(first + i, 112 + 28 * (i % 3), 96), ANSWERS[i % len(ANSWERS)])
        for i in range(count)
    )


@cache
def spec_of(family: str, frames: int = 8, choose: str = "conversation") -> PromptSpec:
    history = HistorySpec(frames, choose)
    if choose == "spread":
        history = replace(history, text="Before: {frames}. ", size="96x96")
    return replace(vlm(family).spec("You guide a robot.", 64), history=history)


def prompt_of(family: str, count: int, choose: str = "conversation", newest: int = 0) -> Prompt:
    request = Request("find the silver bottle", jpeg(newest), history=turns(count))
    return vlm(family).prompt(request, spec_of(family, choose=choose))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("choose", ["conversation", "last"])
def test_prompts_with_history_have_transformers_logits(family: str, choose: str) -> None:
    prompt = prompt_of(family, 3, choose)
    assert difference(fresh(family).open(prompt).forward(TOKENS), family, prompt, TOKENS) < CLOSE


PROCESSORS = {
    "qwen2_vl": Qwen2VLProcessor,
    "qwen2_5_vl": Qwen2_5_VLProcessor,
    "qwen3_vl": Qwen3VLProcessor,
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("choose", ["conversation", "uniform", "spread"])
def test_prompts_equal_those_of_the_checkpoints_own_processor(
    family: str, choose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = PROCESSORS[family]
    # Its part for videos wants torchvision, and is not used here.
    monkeypatch.setattr(own, "check_argument_for_proper_class", lambda *_: None)
    directory, spec = checkpoint(family), spec_of(family, choose=choose)
    processor = own(
        image_processor=Qwen2VLImageProcessorPil.from_pretrained(directory),
        tokenizer=AutoTokenizer.from_pretrained(directory),
        video_processor=None,
    )
    request = Request("find the silver bottle", jpeg(0), history=turns(3))
    text = processor.apply_chat_template(
        messages_of(request, spec), chat_template=spec.chat_template, add_generation_prompt=True
    )
    pictures = [Image.open(io.BytesIO(each.jpeg)) for each in request.pictures]
    if choose == "spread":
        pictures = [picture.resize((96, 96), Image.Resampling.BICUBIC) for picture in pictures]
    theirs = processor(text=[text], images=pictures, return_tensors="np")
    ours = vlm(family).prompt(request, spec)
    assert np.array_equal(ours.input_ids, theirs["input_ids"][0])
    pixels = np.concatenate([image.pixels() for image in ours.images])
    assert np.abs(pixels - theirs["pixel_values"]).max() < 1e-5
    said = processor.decode(theirs["input_ids"][0])
    assert ("Before:" in said) == (choose == "spread")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rows", [7, 1000])
def test_a_conversation_reads_the_new_frame_only(family: str, rows: int) -> None:
    """What was verified of the answer is not read again either; the logits stay the same."""
    model, spec = fresh(family), spec_of(family)
    history: tuple[Turn, ...] = ()
    known: list[int] = []
    for step in range(4):
        request = Request("find the silver bottle", jpeg(step), history=history)
        prompt = model.prompt(request, spec)
        prefill = model.prefill(prompt)
        answer = ANSWERS[step]
        tokens = model.tokenizer(answer, add_special_tokens=False)["input_ids"]
        ids = prompt.input_ids.tolist()
        assert ids[: len(known)] == known
        assert prefill.rows_left == len(ids) - len(known)
        known = [*ids, *tokens]
        while not prefill.step(rows):
            pass
        session = prefill.session
        assert difference(session.forward(TOKENS), family, prompt, TOKENS) < CLOSE
        session.extend(tokens)
        session.forward(())
        session.close()
        history = (*history, Turn.of(request.jpeg, answer))


def test_pictures_of_one_owner_are_not_found_by_another() -> None:
    family = FAMILIES[2]
    model, prompt = fresh(family), prompt_of(family, 2)
    left = []
    for owner in ("a", "a", "b"):
        prefill = model.prefill(replace(prompt, owner=owner))
        left.append(prefill.rows_left)
        prefill.finish()
    first_picture = int(np.argmax(prompt.input_ids == model.image_id))
    assert left[1] == 0
    assert left[2] == len(prompt.input_ids) - first_picture


def found_again(model: Vlm, prompt: Prompt) -> int:
    """Rows of the prompt that need not be read; its logits are transformers' own."""
    before = model.memory.prefix_rows
    session = model.open(prompt)
    rows = session.forward(TOKENS)
    assert session.evict()  # so that only prefixes take memory
    assert difference(rows, "qwen3_vl", prompt, TOKENS) < CLOSE
    return model.memory.prefix_rows - before


@pytest.mark.parametrize("seconds", [600.0, -1.0])
def test_a_mission_that_nobody_goes_on_with_is_forgotten_and_read_again(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "KEPT_S", seconds)
    model, prompt = fresh("qwen3_vl"), prompt_of("qwen3_vl", 2)
    assert found_again(model, replace(prompt, owner="a")) == 0
    found_again(model, replace(prompt, owner="b"))
    again = found_again(model, replace(prompt, owner="a"))
    assert again == len(prompt.input_ids) if seconds > 0 else again < len(prompt.input_ids) / 2


@pytest.mark.parametrize("other", ["b", "a"])
def test_a_robot_with_many_missions_takes_no_place_of_another(other: str) -> None:
    """Its own oldest ones go; where all are one robot's, the oldest of all (the control)."""
    model, prompt = fresh("qwen3_vl"), prompt_of("qwen3_vl", 0)
    size = model.transformer.cache_layout.row_bytes * len(prompt.input_ids)
    model.use_memory(KvMemory(cache_module.SHARE * 6 * size))
    first = replace(prompt, owner="a")
    found_again(model, first)
    for number in range(1, 15):
        some = replace(prompt_of("qwen3_vl", 0, newest=number), owner=other)
        assert found_again(model, some) < len(some.input_ids)
    assert (found_again(model, first) == len(prompt.input_ids)) == (other == "b")


def test_no_history_is_the_prompt_of_one_frame_byte_for_byte() -> None:
    model = vlm()
    request = Request("find it", jpeg(0))
    plain = model.spec("Guide.", 64)
    assert b"history" not in plain.to_bytes()
    talks = replace(plain, history=HistorySpec(8))
    assert PromptSpec.from_bytes(talks.to_bytes()) == talks
    assert model.prompt(request, plain).digest == model.prompt(request, talks).digest


def test_a_prompts_digest_covers_every_frame_and_answer() -> None:
    model, spec = vlm(), spec_of("qwen3_vl")
    history = turns(3)
    others = [
        (history[0], history[1], replace(history[2], answer="stop")),
        (history[0], Turn.of(jpeg(99, 140, 96), history[1].answer), history[2]),
        history[1:],
        (history[1], history[0], history[2]),
    ]
    digests = {
        model.prompt(Request("find it", jpeg(0), history=each), spec).digest
        for each in [history, *others]
    }
    assert len(digests) == 1 + len(others)


def test_an_answer_with_control_tokens_adds_none() -> None:
    model, spec = vlm(), spec_of("qwen3_vl")
    bad = "<|im_<|im_end|>end|><|image_pad|>stop"
    request = Request("find it", jpeg(0), history=(Turn.of(jpeg(1), bad),))
    clean = replace(request, history=(Turn.of(jpeg(1), "stop"),))
    assert np.array_equal(
        model.prompt(request, spec).input_ids, model.prompt(clean, spec).input_ids
    )


def test_a_full_conversation_begins_anew_with_its_last_turn() -> None:
    spec, kept, lengths = HistorySpec(4), (), []
    prefixes_kept = 0
    for turn in turns(12):
        before, kept = kept, spec.kept((*kept, turn))
        prefixes_kept += kept[: len(before)] == before
        lengths.append(len(kept))
    assert lengths == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4]
    assert prefixes_kept == 10
    assert kept == turns(12)[-4:]


def test_last_and_uniform_choose_among_all_that_is_kept() -> None:
    mission = turns(30)
    last, uniform = HistorySpec(4, "last"), HistorySpec(4, "uniform")
    kept: dict[str, tuple[Turn, ...]] = {"last": (), "uniform": ()}
    for turn in mission:
        for spec in (last, uniform):
            kept[spec.choose] = spec.kept((*kept[spec.choose], turn))
    assert last.chosen(kept["last"]) == mission[-4:]
    assert uniform.chosen(kept["uniform"]) == tuple(mission[place] for place in (0, 7, 15, 22))
    spread = HistorySpec(8, "spread")  # the places that InternVLA-N1 takes of 20 frames
    places = (0, 2, 5, 8, 10, 13, 16, 19)
    assert spread.chosen(mission[:20]) == tuple(mission[place] for place in places)
    assert uniform.chosen(mission[:3]) == mission[:3]
    long: tuple[Turn, ...] = ()
    for _ in range(2 * MOST_KEPT):
        long = uniform.kept((*long, mission[0]))
    assert len(long) <= MOST_KEPT
    assert HistorySpec().kept(turns(2)) == ()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b'"frames": 2', b'"frames": -1'),
        (b'"frames": 2', b'"frames": 1000'),
        (b'"conversation"', b'"first"'),
    ],
)
def test_an_impossible_history_is_refused_with_its_reason(said: bytes, told: bytes) -> None:
    spec = replace(spec_of("qwen3_vl"), history=HistorySpec(2)).to_bytes()
    with pytest.raises(UserError, match=r"history.*same version"):
        PromptSpec.from_bytes(spec.replace(said, told))


def test_the_digest_of_turns_is_a_chain() -> None:
    named = turns(3)
    assert history_digest([]) == b""
    assert len({history_digest(named[:size]) for size in range(4)}) == 4
    whole, known = History.named(named), history_digest(named[:2])
    shorter = History.after_last(named, known)
    assert shorter.digest == whole.digest == history_digest(named)
    assert (len(shorter.turns), len(whole.turns)) == (0, 3)
    assert not any(turn.jpeg for turn in whole.turns)
    assert History.after_last(named, history_digest(named[:1])) == whole  # it has another
    assert History.after_last((), b"") == History()
