"""Robot and cloud make the same prompt of the same request, also with the frames and answers of a
mission, and refuse what is not one."""

from __future__ import annotations

import io
import json
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.checkpoints import CLOSE, FAMILIES, checkpoint, difference, fresh, jpeg, vlm
from helpers.requests import ANY_FORM, shown, user
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo
from transformers import AutoTokenizer
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import cache as cache_module
from edge_cloud_spec.models.checkpoint import checkpoint_files
from edge_cloud_spec.models.image import (
    MAX_PIXELS,
    MAX_SCANS,
    ImageSpec,
    decode_image,
    is_black,
    patches,
    picture_of,
    plain,
    positions_of,
    target_size,
)
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.processor import Processor
from edge_cloud_spec.models.prompt import Prompt, PromptSpec, chat_of, either, render
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.nav.answer import CLAUSES, Dialect
from edge_cloud_spec.nav.history import MOST_KEPT, HistorySpec, Turn
from edge_cloud_spec.request import (
    USER,
    Message,
    Part,
    Picture,
    Request,
    digests,
    messages_digest,
    with_pictures,
)
from edge_cloud_spec_lab.replay.recording import check_picture


@cache
def png(width: int, height: int, texts: int = 0) -> bytes:
    file, parts = io.BytesIO(), PngInfo()
    for number in range(texts):
        parts.add_text(f"k{number}", "x" * 2000, zip=True)
    Image.new("L", (width, height), 90).save(file, "PNG", pnginfo=parts, compress_level=1)
    return file.getvalue()


GUIDE = "You guide a robot."
ASKS = replace(CLAUSES, system_text=GUIDE)


def spec_of(system: str | None = None) -> PromptSpec:
    return vlm().spec(64, system)


def test_two_models_of_one_tokenizer_make_the_same_prompt() -> None:
    robot, cloud = vlm(seed=1, vocabulary=350), vlm()
    sent = PromptSpec.from_bytes(cloud.spec(64, GUIDE).to_bytes())
    request = ASKS.request("find the red chair", jpeg(3), "reason first")
    one, two = robot.prompt(request, sent), cloud.prompt(request, sent)
    assert one.digest == two.digest
    assert np.array_equal(one.input_ids, two.input_ids)
    text = cloud.tokenizer.decode(one.input_ids)
    assert GUIDE in text and "find the red chair\nreason first" in text


SIZES = "96x96", "97x97"


def test_the_digest_depends_on_all_that_the_models_see() -> None:
    first, second, third = turns(3)
    asked = partial(ASKS.request, "find the red chair", jpeg(3), "action first")
    chair = asked()
    shown = chair.messages[-1].parts
    small, other = (replace(ASKS, history=HistorySpec(8, size=size)) for size in SIZES)
    requests = [
        chair,
        CLAUSES.request("find the red box", jpeg(3)),
        CLAUSES.request("find the red chair", jpeg(4)),
        CLAUSES.request("find the red chair", jpeg(3), "reason first"),
        CLAUSES.request("find the red chair", jpeg(3, 224, 224)),
        asked((first, second, third)),
        asked((first, second, replace(third, answer="stop"))),
        asked((first, Turn.of(jpeg(99, 140, 96), second.answer), third)),
        asked((second, third)),
        asked((second, first, third)),
        replace(ASKS, system_text="Another rule.").request("find the red chair", jpeg(3)),
        CLAUSES.request("find the red chair", jpeg(3)),
        small.request("find the red chair", jpeg(3)),
        other.request("find the red chair", jpeg(3)),  # stretched to as many patches
        Request((*chair.messages[:-1], Message(USER, shown[::-1]))),
        Request((*chair.messages[:-1], Message(USER, shown[1:]))),
        Request((*chair.messages[:-1], Message(USER, (shown[0], *shown)))),
    ]
    digests = {vlm().prompt(request, spec_of()).digest for request in requests}
    assert len(digests) == len(requests) == len({request.digest for request in requests})


def test_spec_survives_the_wire_and_garbage_is_refused() -> None:
    spec = replace(spec_of("Système, 系统"), pictures=3)
    assert PromptSpec.from_bytes(spec.to_bytes()) == spec
    for garbage in (b"", b"{}", b"[1]", b"\xff\xfe", spec.to_bytes()[:-9]):
        with pytest.raises(UserError, match="same version"):
            PromptSpec.from_bytes(garbage)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "instruction is empty"),
        (" \n\t", "instruction is empty"),
        ("a" * 100_000, "100000 characters; give one of at most"),
        ("find \udcff it", "not UTF-8"),
        ("find \N{REPLACEMENT CHARACTER}", "not UTF-8"),
        ("stop<|im_end|>", "control token"),
        ("look <|image_pad|>", "control token"),
    ],
)
def test_an_unusable_instruction_says_what_to_do(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        vlm().prompt(CLAUSES.request(text, jpeg()), spec_of())


def test_an_instruction_in_another_language_is_still_a_prompt() -> None:
    prompt = vlm().prompt(
        CLAUSES.request("найди серебряную бутылку 找到银色的瓶子", jpeg()), spec_of()
    )
    assert "银色" in vlm().tokenizer.decode(prompt.input_ids)


@pytest.mark.parametrize("special", [True, False])
def test_only_a_token_that_steers_is_kept_out_of_an_instruction(special: bool) -> None:
    tokenizer, spec = AutoTokenizer.from_pretrained(checkpoint()), spec_of()
    tokenizer.add_tokens(["bottle"], special_tokens=special)
    request = spec.request(Picture(b""), "find the bottle")
    make = partial(render, tokenizer, request, spec, [(1, 2, 2)], "<|image_pad|>")
    if special:
        with pytest.raises(UserError, match="control token"):
            make()
    else:
        assert "find the bottle" in tokenizer.decode(make())


def chunk(kind: bytes, data: bytes) -> bytes:
    """Of a PNG."""
    crc = zlib.crc32(kind + data).to_bytes(4, "big")
    return len(data).to_bytes(4, "big") + kind + data + crc


PROFILE = chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(2**20)))  # a megabyte, each


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "picture is empty"),
        (b"not a picture at all", "not a JPEG or PNG"),
        (jpeg()[:400], "damaged"),
        (jpeg()[:-200], "damaged"),
        (jpeg(0, 9000, 20), "too large"),
        (png(8192, 8192), "8192x8192 is too large: send one of at most 2097152 pixels"),
        (png(2048, 1025), "2048x1025 is too large"),
        (jpeg()[:-2] + 17 * b"\xff\xda" + jpeg()[-2:], "too many parts: send a plain JPEG"),
        (png(64, 64, texts=17), "too many parts"),
        (png(64, 64)[:33] + 949 * PROFILE + png(64, 64)[33:], "too many parts"),
        (png(64, 64)[:33] + 5000 * chunk(b"IDAT", b"") + png(64, 64)[33:], "too many parts"),
        (jpeg()[:2] + 65 * b"\xff\xfe\x00\x02" + jpeg()[2:], "too many parts"),
        (jpeg()[:2] + b"\xff\xd0" + 2**20 * b"\xff\xe1\x00\x02" + jpeg()[2:], "too many parts"),
        (jpeg()[:2] + b"\xff\xf0" + 2**20 * b"\xff\xe1\x00\x02" + jpeg()[2:], "too many parts"),
        (jpeg()[:2] + b"\xff\xfe\x00\x02" + bytes(2**20) + jpeg()[2:], "too many parts"),
        (jpeg()[:2] + 2**20 * b"\xff" + jpeg()[2:], "too many parts"),
        (jpeg() + bytes(4 * MAX_PIXELS), "more than 8388608: shrink it"),
        (jpeg(0, 3000, 3), "too narrow"),
    ],
)
def test_a_bad_frame_says_what_to_do(data: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        vlm().prompt(CLAUSES.request("find the chair", data), spec_of())


@pytest.mark.parametrize("data", [png(8192, 8192), png(2048, 1025)])
def test_a_frame_that_is_too_large_is_refused_before_it_is_decoded(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(UserError, match="too large"):
        decode_image(data)


def saved(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@given(st.integers(0, 9), st.sampled_from(["JPEG", "PNG"]), st.integers(0, 99))
def test_a_picture_is_seen_upright_however_it_is_stored(
    orientation: int, kind: str, seed: int
) -> None:
    image, exif = decode_image(jpeg(seed, 40, 24)), Image.Exif()
    exif[0x0112] = orientation
    data = saved(image, kind, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert decode_image(data).tobytes() == upright.tobytes()
    if not 2 <= orientation <= 8:
        assert plain(data) == data
    else:
        others = Image.open(io.BytesIO(plain(data)))  # a decoder that does not know EXIF
        assert others.size == upright.size and 0x0112 not in others.getexif()
        apart = np.asarray(others, int) - np.asarray(upright, int)
        assert np.abs(apart).mean() < 8


@given(st.binary(max_size=200))
def test_an_exif_that_lies_changes_nothing(lie: bytes) -> None:
    data = jpeg(0, 40, 24)
    exif = b"Exif\0\0" + lie
    marked = data[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + data[2:]
    assert decode_image(marked).size in ((40, 24), (24, 40))
    assert decode_image(plain(marked)).size in ((40, 24), (24, 40))


def test_of_16_bits_the_higher_8_are_seen() -> None:
    grey = np.random.default_rng(0).integers(0, 65536, (24, 40), dtype=np.uint16)
    data = saved(Image.fromarray(grey), "PNG")
    for seen in (decode_image(data), Image.open(io.BytesIO(plain(data)))):
        assert np.abs(np.asarray(seen.convert("L"), int) - (grey >> 8)).mean() < 2
    assert np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).mean() > 250  # Pillow's own


@pytest.mark.parametrize(
    ("mode", "kind", "more"),
    [
        ("CMYK", "JPEG", {}),
        *((mode, "PNG", {}) for mode in ("RGBA", "LA", "P", "1")),
        ("RGB", "PNG", {"transparency": (0, 0, 0)}),
        ("L", "PNG", {"transparency": 0}),
    ],
)
def test_another_program_is_given_what_every_decoder_shows_alike(
    mode: str, kind: str, more: dict[str, Any]
) -> None:
    image = decode_image(jpeg(0, 40, 24)).convert("L" if mode in "LA" else "RGB").convert(mode)
    if mode in ("RGBA", "LA"):
        image.putalpha(0)  # as some simulators leave it; a decoder may paint it white
    data = saved(image, kind, **more)
    others = Image.open(io.BytesIO(plain(data)))
    assert (others.format, others.mode) == ("JPEG", "RGB")
    assert Image.open(io.BytesIO(data)).mode == mode
    apart = np.asarray(others, int) - np.asarray(decode_image(data), int)
    assert np.abs(apart).mean() < 8


def test_a_frame_of_a_common_camera_is_taken_and_more_where_the_model_can_use_it() -> None:
    for frame in (jpeg(0, 1920, 1080), png(2048, 1024), png(1080, 1920)):
        assert decode_image(frame).width >= 1080
    assert decode_image(png(2048, 1025), 2048 * 1025).size == (2048, 1025)
    assert ImageSpec(784, 12_845_056, 14, 2, 2).max_frame_pixels == 12_845_056
    progressive = saved(decode_image(jpeg(0, 640, 480)), progressive=True)
    assert decode_image(progressive).size == (640, 480)
    filled = jpeg()[:2] + b"\xff\xff" + jpeg()[2:]  # a standard's fill bytes
    assert decode_image(filled).tobytes() == decode_image(jpeg()).tobytes()


@given(
    st.sampled_from([b"\0", b"\xff", b"SEFT", jpeg(), png(64, 64)]) | st.binary(min_size=1),
    st.integers(1, 4096),
    st.sampled_from(["JPEG", "PNG"]),
)
def test_what_lies_behind_a_pictures_end_changes_nothing(
    behind: bytes, times: int, kind: str
) -> None:
    """Drivers hand over their whole buffer. The negative control: before the end it is damage."""
    data = saved(decode_image(jpeg(0, 40, 24)), kind)
    padded = data + (behind * times)[:5000]
    assume(padded.count(b"\xff\xda") <= MAX_SCANS)  # more could be scans
    assert decode_image(padded).tobytes() == decode_image(data).tobytes()
    check_picture(padded)
    with pytest.raises(UserError):
        check_picture(data[: len(data) // 2])


@given(st.integers(0, 255), st.integers(0, 24), st.booleans(), st.integers(1, 100))
def test_an_even_area_is_no_damage_however_it_is_coded(
    level: int, rows: int, optimize: bool, quality: int
) -> None:
    """An optimized code of what is the same all over is all zeros."""
    pixels = np.asarray(decode_image(jpeg(0, 40, 24)).resize((640, 480))).copy()
    pixels[: 20 * rows] = level
    check_picture(saved(Image.fromarray(pixels), optimize=optimize, quality=quality))


def test_a_pointer_to_a_picture_says_how_to_get_it() -> None:
    with pytest.raises(UserError, match="run `git lfs pull`"):
        decode_image(b"version https://git-lfs.example/spec/v1\noid sha256:00\nsize 9\n")


def test_a_black_frame_is_decoded_and_recognized() -> None:
    assert is_black(decode_image(saved(Image.new("RGB", (64, 48)))))
    assert not is_black(decode_image(jpeg()))


ROPES: dict[str, tuple[dict[str, Any], int]] = {
    "none": ({}, 64),
    "yarn": ({"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}, 128),
    "linear": ({"rope_type": "linear", "factor": 4.0}, 256),
    "llama3": (
        {"rope_type": "llama3", "factor": 32.0, "original_max_position_embeddings": 4},
        64,
    ),
    "longrope": ({"type": "longrope", "factor": 32.0}, 64),
}


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("pictures", [0, 2])
def test_a_prompt_that_leaves_no_position_for_an_answer_is_refused_by_its_target_alone(
    rope: str, pictures: int, tmp_path: Path
) -> None:
    """A picture takes as many positions as it is long, not as it has tokens."""
    stretched, positions = ROPES[rope]
    directory = tmp_path / "target"
    shutil.copytree(checkpoint("qwen3_vl"), directory)
    config = json.loads((directory / "config.json").read_text())
    text = config["text_config"]
    text.pop("rope_parameters", None)
    text |= {"max_position_embeddings": 64, "rope_scaling": stretched}
    (directory / "config.json").write_text(json.dumps(config))
    target = Processor(checkpoint_files(directory), "the target")
    spec, shown_too = target.spec(64), [Picture.of(jpeg(n)) for n in range(pictures)]
    drafter = Processor(checkpoint_files(directory), "another model")
    taken: list[int] = []
    for words in range(positions):
        request = Request((Message(USER, (*shown_too, "7" * words + ".")),))
        prompt = drafter.prompt(request, spec)
        grids = [image.grid for image in prompt.images]
        merge = spec.image.merge_size
        places, _ = positions_of(prompt.input_ids, grids, target.image_id, merge)
        taken.append(int(places.max()) + 1)
        if taken[-1] < positions:
            assert target.prompt(request, spec).digest == prompt.digest
            continue
        with pytest.raises(UserError, match=f"{taken[-1]} positions, .* made for {positions},"):
            target.prompt(request, spec)
        break
    assert taken[-1] >= positions > taken[-2]
    assert pictures == 0 or len(prompt.input_ids) > taken[-1]


def test_models_of_unlike_patches_are_refused() -> None:
    with pytest.raises(UserError, match="patch_size"):
        vlm("qwen2_vl").prompt(CLAUSES.request("find it", jpeg()), spec_of())


@given(
    st.integers(8, 400), st.integers(8, 400), st.sampled_from([8, 14, 16]), st.integers(0, 10_000)
)
def test_patches_equal_those_of_transformers(wide: int, high: int, patch: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    image = Image.fromarray(rng.integers(0, 256, (high, wide, 3), dtype=np.uint8))
    spec = ImageSpec(56 * 56, 224 * 224, patch, 2, 2)
    mean, std = (0.48, 0.45, 0.4), (0.26, 0.27, 0.28)
    theirs = Qwen2VLImageProcessorPil(
        size={"shortest_edge": spec.min_pixels, "longest_edge": spec.max_pixels},
        patch_size=patch,
        merge_size=2,
        image_mean=mean,
        image_std=std,
    )(image, return_tensors="np")
    pixels, grid = patches(image, spec, mean, std)
    assert grid == tuple(theirs["image_grid_thw"][0])
    assert np.abs(pixels - theirs["pixel_values"]).max() < 1e-5


@pytest.mark.parametrize("merge", [1, 2])
@pytest.mark.parametrize("mean", [(0.5, 0.5, 0.5), (0.48145466, 0.4578275, 0.40821073)])
def test_a_picture_is_what_its_patches_were_cut_from(mean: tuple[float, ...], merge: int) -> None:
    image, std = decode_image(jpeg(3, 97, 131)), (0.26862954, 0.26130258, 0.27577711)
    spec = ImageSpec(16, 64 * 64 * 3, 8, merge, 2)
    pixels, grid = patches(image, spec, mean, std)
    high, wide = target_size(image.height, image.width, spec)
    seen = np.asarray(image.resize((wide, high), 3))
    assert np.array_equal(picture_of(pixels, grid, spec, mean, std), seen)


@given(st.integers(1, 8000), st.integers(1, 8000))
def test_any_size_fits_the_pixel_limits(high: int, wide: int) -> None:
    assume(max(high, wide) <= 200 * min(high, wide))
    spec = ImageSpec(56 * 56, 28 * 28 * 1280, 14, 2, 2)
    new_high, new_wide = target_size(high, wide, spec)
    assert new_high % 28 == new_wide % 28 == 0
    # A very long picture keeps at least one patch across, so it may exceed the limit by its length.
    assert new_high * new_wide <= spec.max_pixels or min(new_high, new_wide) == 28


def test_a_checkpoint_without_a_chat_template_cannot_be_a_target(tmp_path: Path) -> None:
    copied = shutil.copytree(checkpoint(), tmp_path / "model")
    (copied / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match=r"no chat template: add chat_template\.jinja"):
        load(copied).spec(64)


def test_a_template_that_asks_whether_to_think_is_told_not_to() -> None:
    model, request = vlm(), CLAUSES.request("find the red chair", jpeg(3))
    plain = spec_of()
    asks = "{% if enable_thinking is defined and not enable_thinking %}at once{% endif %}"
    asking = replace(plain, chat_template=plain.chat_template + asks)
    before, after = (model.prompt(request, spec).input_ids for spec in (plain, asking))
    assert model.tokenizer.decode(after) == model.tokenizer.decode(before) + "at once"


# The frames and answers of a mission, against transformers' own classes

ANSWERS = ("action: search;", "action: turn left small; reason: a chair;", "move", "")
TOKENS = [5, 90, 33]


def turns(count: int, first: int = 20) -> tuple[Turn, ...]:
    """Turns with pictures of unequal sizes."""
    return tuple(
        Turn.of(jpeg(first + i, 112 + 28 * (i % 3), 96), ANSWERS[i % len(ANSWERS)])
        for i in range(count)
    )


def spec_in(family: str) -> PromptSpec:
    return vlm(family).spec(64, GUIDE)


def mission_dialect(choose: str = "conversation") -> Dialect:
    history = HistorySpec(8, choose)
    if choose == "spread":
        history = replace(history, text="Before: {frames}. ", size="96x96")
    return replace(ASKS, history=history)


def asked_in(choose: str, turns: Sequence[Turn], newest: int = 0) -> Request:
    dialect = mission_dialect(choose)
    return dialect.request("find the silver bottle", jpeg(newest), turns=turns)


def prompt_of(family: str, count: int, choose: str = "conversation", newest: int = 0) -> Prompt:
    return vlm(family).prompt(asked_in(choose, turns(count), newest), spec_in(family))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("choose", ["conversation", "last"])
def test_prompts_with_history_have_transformers_logits(family: str, choose: str) -> None:
    prompt = prompt_of(family, 3, choose)
    assert difference(fresh(family).open(prompt).forward(TOKENS), family, prompt, TOKENS) < CLOSE


PROCESSORS = {"qwen2_vl": Qwen2VLProcessor, "qwen2_5_vl": Qwen2_5_VLProcessor}  # else Qwen3-VL's


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("choose", ["conversation", "uniform", "spread"])
def test_prompts_equal_those_of_the_checkpoints_own_processor(
    family: str, choose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = PROCESSORS.get(family, Qwen3VLProcessor)
    # Its part for videos wants torchvision, and is not used here.
    monkeypatch.setattr(own, "check_argument_for_proper_class", lambda *_: None)
    directory, spec = checkpoint(family), spec_in(family)
    processor = own(
        image_processor=Qwen2VLImageProcessorPil.from_pretrained(directory),
        tokenizer=AutoTokenizer.from_pretrained(directory),
        video_processor=None,
    )
    request = asked_in(choose, turns(3))
    text = processor.apply_chat_template(
        chat_of(request, spec, either([])),
        chat_template=spec.chat_template,
        add_generation_prompt=True,
    )
    pictures = [Image.open(io.BytesIO(each.data)) for each in request.pictures]
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
    model, spec = fresh(family), spec_in(family)
    history: tuple[Turn, ...] = ()
    known: list[int] = []
    for step in range(4):
        request = asked_in("conversation", history, step)
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
        history = (*history, Turn.of(jpeg(step), answer))


def found_again(model: Vlm, prompt: Prompt) -> int:
    """Rows of the prompt that need not be read; its logits are transformers' own."""
    before = model.memory.prefix_rows
    session = model.open(prompt)
    rows = session.forward(TOKENS)
    assert session.evict()  # so that only prefixes take memory
    assert difference(rows, "qwen3_vl", prompt, TOKENS) < CLOSE
    return model.memory.prefix_rows - before


@pytest.mark.parametrize("seconds", [600.0, -1.0])
def test_a_mission_is_kept_for_its_owner_until_nobody_goes_on_with_it(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes before its first picture is the same for all."""
    monkeypatch.setattr(cache_module, "PREFIX_KEPT_S", seconds)
    model, prompt = fresh("qwen3_vl"), prompt_of("qwen3_vl", 2)
    assert found_again(model, replace(prompt, owner="a")) == 0
    first_picture = int(np.argmax(prompt.input_ids == model.image_id))
    assert found_again(model, replace(prompt, owner="b")) == first_picture
    again = found_again(model, replace(prompt, owner="a"))
    assert again == len(prompt.input_ids) if seconds > 0 else again < len(prompt.input_ids) / 2


@pytest.mark.parametrize("other", ["b", "a"])
def test_a_robot_with_many_missions_takes_no_place_of_another(other: str) -> None:
    """Its own oldest ones go; where all are one robot's, the oldest of all (the control)."""
    model, prompt = fresh("qwen3_vl"), prompt_of("qwen3_vl", 0)
    size = model.transformer.cache_layout.row_bytes * len(prompt.input_ids)
    model.use_memory(KvMemory(cache_module.PREFIX_ONE_IN * 6 * size))
    first = replace(prompt, owner="a")
    found_again(model, first)
    for number in range(1, 15):
        some = replace(prompt_of("qwen3_vl", 0, newest=number), owner=other)
        assert found_again(model, some) < len(some.input_ids)
    assert (found_again(model, first) == len(prompt.input_ids)) == (other == "b")


def test_an_answer_with_control_tokens_adds_none() -> None:
    bad = "<|im_<|im_end|>end|><|image_pad|>stop"
    one, two = (
        vlm().prompt(asked_in("conversation", (Turn.of(jpeg(1), said),)), spec_of()).input_ids
        for said in (bad, "stop")
    )
    assert np.array_equal(one, two)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", ANY_FORM)
def test_a_request_of_any_form_has_transformers_tokens_and_logits(family: str, form: str) -> None:
    request, model, spec = Request(ANY_FORM[form]), fresh(family), vlm(family).spec(64)
    prompt = model.prompt(request, spec)
    said = [
        {"role": each.role, "content": [content_of(part) for part in each.parts]}
        for each in request.messages
    ]
    ids = model.tokenizer.apply_chat_template(
        said, chat_template=spec.chat_template, add_generation_prompt=True, tokenize=False
    )
    assert model.tokenizer.decode(prompt.input_ids[prompt.input_ids != model.image_id]) == (
        ids.replace("<|image_pad|>", "")
    )
    assert len(prompt.images) == len(request.pictures)
    assert difference(model.open(prompt).forward(TOKENS), family, prompt, TOKENS) < CLOSE


def content_of(part: Part) -> dict[str, str]:
    return {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}


@pytest.mark.parametrize(
    ("messages", "imposed", "advice"),
    [
        ((), None, "ends with a message of the user"),
        ((user("a"), Message("assistant", ("b",))), None, "ends with a message of the user"),
        ((user("a"), Message("tool", ("b",)), user("c")), None, "of system, user, assistant"),
        ((user("a"), Message("system", ("b",)), user("c")), None, "the first one at most"),
        ((user("a"), user("", "")), None, "is empty: leave it out"),
        ((user("<|im_", "end|>"),), None, "'<|im_end|>', a control token"),
        ((Message("system", ("<|im_end|>",)), user("a")), None, "a control token"),
        (
            (user("a"), Message("assistant", ("<|im_" * 9 + "end|>" * 9,)), user("b")),
            None,
            "a control token",
        ),
        ((user(*[shown(1)] * 66),), None, "at most 65 pictures, not 66"),
        ((user(shown(1, (2**13, 2**13))),), None, "is stretched to 1 to"),
        ((user(shown(1, (0, 9))),), None, "is stretched to 1 to"),
        ((user("a" * 2**18, "b"),), None, "characters of text"),
        ((user("a"), Message("assistant", ("b",))) * 200 + (user("c"),), None, "256 messages"),
        ((user("a"),), GUIDE, "begin with its own system text ('You guide a robot.' ...)"),
        ((Message("system", ("Be brief.",)), user("a")), GUIDE, "the same dialect"),
        ((Message("system", ("Be brief.",)), user("a")), "", "of no system text"),
    ],
)
def test_a_request_that_no_prompt_is_made_of_says_what_to_do(
    messages: tuple[Message, ...], imposed: str | None, advice: str
) -> None:
    with pytest.raises(UserError) as refused:
        vlm().prompt(Request(messages), spec_of(imposed))
    assert advice in str(refused.value) and "\n" not in str(refused.value)


def test_what_an_operator_imposes_is_taken_as_it_is() -> None:
    """Its system text may hold what no robot may say."""
    spec = spec_of("Write <|im_start|> first.")
    assert "Write <|im_start|> first." in vlm().tokenizer.decode(
        vlm().prompt(spec.request("a"), spec).input_ids
    )
    with pytest.raises(UserError, match="control token"):
        vlm().prompt(spec.request("a"), spec_of())


@given(st.sampled_from([None, "", GUIDE]), st.sampled_from([*ANY_FORM.values()]), st.integers(0, 3))
def test_no_word_of_a_robot_is_common_to_all(
    imposed: str | None, form: tuple[Message, ...], count: int
) -> None:
    """What the first ids say is the operator's text and the template's; the control: an imposed
    text is common."""
    model, spec = vlm(), spec_of(imposed)
    own = [each for each in form if each.role != "system"]
    messages = (*spec.imposed, *own) if imposed is not None else form
    prompt = model.prompt(Request(messages), spec)
    common = model.tokenizer.decode(prompt.input_ids[: prompt.common])
    assert common.replace(imposed or "", "").strip("\n") in (
        "<|im_start|>",
        "<|im_start|>user",
        "<|im_start|>user\n<|vision_start|>",
        *(
            f"<|im_start|>system\n{end}<|im_end|>\n<|im_start|>user{more}"
            for end in ("", "You are a helpful assistant.")
            for more in ("", "\n<|vision_start|>")
        ),
    ), common
    assert (GUIDE in common) == (imposed == GUIDE)


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


def test_the_name_of_messages_is_a_chain_that_names_them_however_they_are_cut() -> None:
    request = asked_in("conversation", turns(3))
    names = list(digests(request.messages))
    assert len({b"", *names}) == 1 + len(request.messages)
    for count, name in enumerate(names, start=1):
        assert messages_digest(request.messages[:count]) == name
        assert messages_digest(request.messages[count:], name) == request.digest
    bare = with_pictures(request.messages, lambda picture: replace(picture, data=b""))
    assert messages_digest(bare) == request.digest
    unlike = [("ab",), ("a", "b"), ("b", "a"), ("a", "text", "b"), (shown(1),), (shown(1, (9, 9)),)]
    assert len({messages_digest([user(*parts)]) for parts in unlike}) == len(unlike)
