"""Robot and cloud make the same prompt of the same request, and refuse what is not one."""

from __future__ import annotations

import dataclasses
import io
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
from helpers.checkpoints import checkpoint, jpeg, vlm
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.image import (
    MAX_PIXELS,
    ImageSpec,
    decode_image,
    is_black,
    patches,
    target_size,
)
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import PromptSpec, Request


def png(width: int, height: int, texts: int = 0) -> bytes:
    file, parts = io.BytesIO(), PngInfo()
    for number in range(texts):
        parts.add_text(f"k{number}", "x" * 2000, zip=True)
    Image.new("L", (width, height), 90).save(file, "PNG", pnginfo=parts)
    return file.getvalue()


def spec_of(system: str = "You guide a robot.") -> PromptSpec:
    return vlm().spec(system, 64)


def test_two_models_of_one_tokenizer_make_the_same_prompt() -> None:
    robot, cloud = vlm(seed=1, vocabulary=350), vlm()
    sent = PromptSpec.from_bytes(cloud.spec("Guide.", 64).to_bytes())
    request = Request("find the red chair", jpeg(3), "reason first")
    one, two = robot.prompt(request, sent), cloud.prompt(request, sent)
    assert one.digest == two.digest
    assert np.array_equal(one.input_ids, two.input_ids)
    text = cloud.tokenizer.decode(one.input_ids)
    assert "Guide." in text and "find the red chair\nreason first" in text


def test_the_digest_depends_on_all_that_the_models_see() -> None:
    requests = [
        Request("find the red chair", jpeg(3)),
        Request("find the red box", jpeg(3)),
        Request("find the red chair", jpeg(4)),
        Request("find the red chair", jpeg(3), "reason first"),
        Request("find the red chair", jpeg(3, 224, 224)),
    ]
    digests = [vlm().prompt(request, spec_of()).digest for request in requests]
    digests.append(vlm().prompt(requests[0], spec_of("Another rule.")).digest)
    assert len(set(digests)) == 6


def test_spec_survives_the_wire_and_garbage_is_refused() -> None:
    spec = spec_of("Système, 系统")
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
        vlm().prompt(Request(text, jpeg()), spec_of())


def test_an_instruction_in_another_language_is_still_a_prompt() -> None:
    prompt = vlm().prompt(Request("найди серебряную бутылку 找到银色的瓶子", jpeg()), spec_of())
    assert "银色" in vlm().tokenizer.decode(prompt.input_ids)


def chunk(kind: bytes, data: bytes) -> bytes:
    """Of a PNG."""
    crc = zlib.crc32(kind + data).to_bytes(4, "big")
    return len(data).to_bytes(4, "big") + kind + data + crc


PROFILE = chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(2**20)))  # a megabyte, each


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "frame is empty"),
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
        vlm().prompt(Request("find the chair", data), spec_of())


@pytest.mark.parametrize("data", [png(8192, 8192), png(2048, 1025)])
def test_a_frame_that_is_too_large_is_refused_before_it_is_decoded(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(UserError, match="too large"):
        decode_image(data)


def saved(image: Image.Image, **options: bool) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def test_a_frame_of_a_common_camera_is_taken_and_more_where_the_model_can_use_it() -> None:
    for frame in (jpeg(0, 1920, 1080), png(2048, 1024), png(1080, 1920)):
        assert decode_image(frame).width >= 1080
    assert decode_image(png(2048, 1025), 2048 * 1025).size == (2048, 1025)
    assert ImageSpec(784, 12_845_056, 14, 2, 2).max_frame_pixels == 12_845_056
    progressive = saved(decode_image(jpeg(0, 640, 480)), progressive=True)
    assert decode_image(progressive).size == (640, 480)
    filled = jpeg()[:2] + b"\xff\xff" + jpeg()[2:]  # a standard's fill bytes
    assert decode_image(filled).tobytes() == decode_image(jpeg()).tobytes()


def test_a_black_frame_is_decoded_and_recognized() -> None:
    assert is_black(decode_image(saved(Image.new("RGB", (64, 48)))))
    assert not is_black(decode_image(jpeg()))


def test_models_of_unlike_patches_are_refused() -> None:
    with pytest.raises(UserError, match="patch_size"):
        vlm("qwen2_vl").prompt(Request("find it", jpeg()), spec_of())


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
        load(copied).spec("Guide.", 64)


def test_a_template_that_asks_whether_to_think_is_told_not_to() -> None:
    model, request = vlm(), Request("find the red chair", jpeg(3))
    plain = spec_of()
    asks = "{% if enable_thinking is defined and not enable_thinking %}at once{% endif %}"
    asking = dataclasses.replace(plain, chat_template=plain.chat_template + asks)
    before, after = (model.prompt(request, spec).input_ids for spec in (plain, asking))
    assert model.tokenizer.decode(after) == model.tokenizer.decode(before) + "at once"
