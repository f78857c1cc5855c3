"""Turns JPEG bytes into patches for the vision part, identically on robot and cloud."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from ..errors import UserError, refuse
from ..options import bounded

Grid = tuple[int, int, int]  # time, height and width of a picture, in patches

MAX_PIXELS = 2**21  # of a picture (1920 x 1080 fits), unless the model can use more
MAX_SCANS = 16  # of a progressive JPEG (10 are usual); each is as costly as a whole picture
MAX_SEGMENTS = 64  # of a JPEG before its pixels, and stray bytes between them; each must be parsed
MAX_OTHER_CHUNKS = 16  # of a PNG, other than pixel data; each may be compressed
MAX_CHUNKS = 4096  # of a PNG, in total
MAX_SIDE = 8192
MAX_ASPECT = 200  # of the model family's resize rule

# How a picture is stored turned or mirrored, by EXIF's orientation.
_TURNED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SEGMENT = re.compile(rb"\xff[\xc0-\xc7\xc9-\xcf\xda-\xef\xfe]")


@dataclass(frozen=True)
class ImageSpec:
    """The bounds of an image's size in pixels, and how it is cut into patches.

    Robot and cloud must share them: they determine the number of image tokens in a prompt.
    """

    min_pixels: int
    max_pixels: int
    patch_size: int
    merge_size: int
    temporal_patch_size: int

    def __post_init__(self) -> None:
        side = self.patch_size * self.merge_size
        refuse(
            (
                min(self.patch_size, self.merge_size, self.temporal_patch_size) < 1,
                f"patch, merge and temporal patch size must be positive: {self}",
            ),
            (
                not 0 < self.min_pixels <= self.max_pixels or self.max_pixels < side * side,
                f"pixels must obey 0 < min <= max, max >= {side * side}: {self}",
            ),
            error=ValueError,
        )

    @property
    def max_frame_pixels(self) -> int:
        """The largest picture accepted, in pixels."""
        return max(MAX_PIXELS, self.max_pixels)

    @property
    def token_pixels(self) -> int:
        """Pixels per image token."""
        return (self.patch_size * self.merge_size) ** 2


NO_PICTURES = ImageSpec(1, 1, 1, 1, 1)  # of a model that reads none


@dataclass(frozen=True)
class PictureLimits:
    """Limits that make the draft model's picture smaller, or keep fewer of its tokens.

    ``diverse_tokens`` chooses the tokens that are kept. UserError: a negative number.
    """

    max_pixels: int = bounded(
        0, 0, 2**31 - 1, "pixels of its own picture; 0: as the target's", fixed=True
    )
    max_image_tokens: int = bounded(
        0, 0, 2**31 - 1, "tokens of its picture that it keeps; 0: all", fixed=True
    )

    def __post_init__(self) -> None:
        for name in ("max_pixels", "max_image_tokens"):
            if getattr(self, name) < 0:
                raise UserError(
                    f"{name} is {getattr(self, name)}: give 1 or more, or 0 for the target's"
                )

    @property
    def suffix(self) -> str:
        """The part of a model's identity that names these limits; empty if there are none."""
        return "".join(
            f":{number}{unit}"
            for number, unit in ((self.max_pixels, "px"), (self.max_image_tokens, "tokens"))
            if number
        )

    def resized(self, spec: ImageSpec) -> ImageSpec:
        """The target's image specification, reduced to these limits for the draft model.

        Raises UserError if the pixels are too few for one token.
        """
        if not 0 < self.max_pixels < spec.max_pixels:
            return spec
        if self.max_pixels < spec.token_pixels:
            raise UserError(
                f"max_pixels is {self.max_pixels}: one image token of this model stands for "
                f"{spec.token_pixels} pixels; give as many or more, or 0 for the target's"
            )
        low = min(spec.min_pixels, self.max_pixels)
        return replace(spec, min_pixels=low, max_pixels=self.max_pixels)

    def kept(self, tokens: int) -> int:
        """How many of a picture's ``tokens`` are kept."""
        return min(tokens, self.max_image_tokens or tokens)


def decode_image(data: bytes, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The RGB image of JPEG (or PNG) bytes; raises UserError if it is damaged or too large.

    The orientation in its EXIF is applied, as every viewer does; of 16 bits the higher 8 are kept.
    Anything costlier to decode than a frame of ``max_pixels`` is refused before it is decoded.
    """
    refuse(
        (not data, "the picture is empty: check its source, such as the camera topic"),
        (
            len(data) > 4 * max_pixels,
            f"the picture has {len(data)} bytes, more than {4 * max_pixels}: shrink it",
        ),
    )
    has_too_many_parts = _is_split_jpeg if data[:2] == b"\xff\xd8" else _is_split_png
    if has_too_many_parts(data):
        raise UserError("the picture is in too many parts: send a plain JPEG")
    try:
        image = Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))
        check_size(*image.size, max_pixels)
        image.load()
        turned = _turned(image)
        upright = image if turned is None else image.transpose(turned)
        return _of_8_bits(upright).convert("RGB")
    except UnidentifiedImageError as error:
        raise UserError(
            "the picture is a Git LFS pointer: run `git lfs pull` where it was cloned"
            if data.startswith(b"version https://git-lfs")
            else "the picture is not a JPEG or PNG image: check its encoding"
        ) from error
    except Image.DecompressionBombError as error:  # of Pillow, by the header
        raise UserError(
            f"the picture is too large: send one of at most {max_pixels} pixels, such as 1920x1080"
        ) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"the picture is damaged ({error}): send another one") from error


def plain(data: bytes, max_pixels: int = MAX_PIXELS) -> bytes:
    """The same picture for another program's decoder, which may ignore EXIF's orientation, clip 16
    bits, show what is transparent in white, or read no CMYK: these bytes if it is upright, of 8
    bits, opaque, and in colour or grey; else a new JPEG. Raises UserError as ``decode_image``.
    """
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            opaque = image.mode in ("RGB", "L") and "transparency" not in image.info
            if opaque and _turned(image) is None:
                return data
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        pass  # said below
    encoded = io.BytesIO()
    decode_image(data, max_pixels).save(encoded, "JPEG", quality=95, subsampling=0)
    return encoded.getvalue()


def _turned(image: Image.Image) -> Image.Transpose | None:
    """What makes the picture upright; None: it is. An EXIF that cannot be read says nothing."""
    try:
        return _TURNED.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # of Pillow's reader of whatever a stranger wrote
        return None


def _is_deep(image: Image.Image) -> bool:
    return image.mode == "I" or image.mode.startswith("I;16")


def data_url(picture: bytes) -> str:
    """A PNG or JPEG as a URL that contains it."""
    kind = "png" if picture.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"


def _of_8_bits(image: Image.Image) -> Image.Image:
    """Pillow's own conversion would clip: a picture of 16 bits would be white."""
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if _is_deep(image) else image


def _is_split_jpeg(data: bytes) -> bool:
    """Whether it has more segments, scans, or bytes between them than a camera's JPEG; reads
    headers only."""
    at, parts = 2, 0
    while at < len(data) and data[at : at + 2] != b"\xff\xda":
        # Stray bytes are counted one by one: a decoder skips them.
        has_length = _SEGMENT.match(data, at)
        at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big")) if has_length else 1
        parts += 1
        if parts > MAX_SEGMENTS:
            return True
    return data.count(b"\xff\xda") > MAX_SCANS


def _is_split_png(data: bytes) -> bool:
    """Whether it has more chunks than a picture needs; reads headers only."""
    at, chunks, others, kind = 8, 0, 0, b""
    while at + 8 <= len(data) and kind != b"IEND":  # what is behind the end is no chunk
        kind = data[at + 4 : at + 8]
        others += kind != b"IDAT"
        chunks += 1
        if others > MAX_OTHER_CHUNKS or chunks > MAX_CHUNKS:
            return True
        at += 12 + int.from_bytes(data[at : at + 4], "big")
    return False


def check_size(width: int, height: int, max_pixels: int) -> None:
    """Raise UserError for an impossible size, or more than ``max_pixels``."""
    picture = f"a picture of {width}x{height}"
    low, high = sorted((width, height))
    refuse(
        (low < 1, f"{picture} has no pixels: send another one"),
        (
            low * high > max_pixels or high > MAX_SIDE,
            f"{picture} is too large: send one of at most {max_pixels} pixels, such as 1920x1080",
        ),
        (high > MAX_ASPECT * low, f"{picture} is too narrow"),
    )


def is_black(image: Image.Image, level: int = 8) -> bool:
    """Whether no pixel is brighter than `level` of 255, as under a covered lens."""
    return int(np.asarray(image.convert("L")).max(initial=0)) <= level


def target_size(height: int, width: int, spec: ImageSpec) -> tuple[int, int]:
    """Height and width after the model family's `smart_resize`: multiples of a merged patch."""
    factor = spec.patch_size * spec.merge_size
    high, wide = round(height / factor) * factor, round(width / factor) * factor
    if high * wide > spec.max_pixels:
        beta = math.sqrt(height * width / spec.max_pixels)
        high = max(factor, math.floor(height / beta / factor) * factor)
        wide = max(factor, math.floor(width / beta / factor) * factor)
    elif high * wide < spec.min_pixels:
        beta = math.sqrt(spec.min_pixels / (height * width))
        high = math.ceil(height * beta / factor) * factor
        wide = math.ceil(width * beta / factor) * factor
    return high, wide


def grid_of(height: int, width: int, spec: ImageSpec) -> Grid:
    """The grid (t, h, w), in patches, of a picture of this size in pixels."""
    high, wide = target_size(height, width, spec)
    return 1, high // spec.patch_size, wide // spec.patch_size


def patches(
    image: Image.Image, spec: ImageSpec, mean: tuple[float, ...], std: tuple[float, ...]
) -> tuple[np.ndarray, Grid]:
    """Pixel values float32 [t*h*w, 3*temporal*patch*patch] and the grid (t, h, w) in patches.

    The same numbers as `Qwen2VLImageProcessorPil` of transformers (tested), without its overhead.
    """
    high, wide = target_size(image.height, image.width, spec)
    if (wide, high) != image.size:
        image = image.resize((wide, high), Image.Resampling.BICUBIC)
    scale = 1.0 / (255.0 * np.asarray(std, np.float32))
    shift = np.asarray(mean, np.float32) / np.asarray(std, np.float32)
    pixels = np.asarray(image, np.float32) * scale - shift  # [H, W, 3]
    patch, merge = spec.patch_size, spec.merge_size
    grid_h, grid_w = high // patch, wide // patch
    cut = pixels.reshape(grid_h // merge, merge, patch, grid_w // merge, merge, patch, 3)
    cut = cut.transpose(0, 3, 1, 4, 6, 2, 5)  # [h/m, w/m, m, m, 3, patch, patch]
    cut = np.broadcast_to(
        cut[:, :, :, :, :, None], (*cut.shape[:5], spec.temporal_patch_size, *cut.shape[5:])
    )
    return cut.reshape(grid_h * grid_w, -1), (1, grid_h, grid_w)


def picture_of(
    pixels: np.ndarray, grid: Grid, spec: ImageSpec, mean: tuple[float, ...], std: tuple[float, ...]
) -> np.ndarray:
    """The inverse of ``patches``: the picture, uint8 [H, W, 3]."""
    patch, merge = spec.patch_size, spec.merge_size
    high, wide = grid[1] // merge, grid[2] // merge
    cut = pixels.reshape(high, wide, merge, merge, 3, spec.temporal_patch_size, patch, patch)
    whole = cut[:, :, :, :, :, 0].transpose(0, 2, 5, 1, 3, 6, 4)
    colours = whole.reshape(grid[1] * patch, grid[2] * patch, 3) * np.asarray(std) + mean
    return np.asarray((255 * colours).round(), np.uint8)


def picture_spans(ids: np.ndarray, image_id: int) -> list[tuple[int, int]]:
    """Start and end of each picture's rows in the ids [n]; text separates the pictures."""
    edges = np.flatnonzero(np.diff(np.pad(ids == image_id, 1).astype(np.int8)))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def positions_of(
    ids: np.ndarray, grids: Sequence[Grid], image_id: int, merge: int
) -> tuple[np.ndarray, int]:
    """Rotary positions int64 [3, n] (time, height, width) of a prompt with pictures of these grids,
    and the position of the first row after it minus that row's index (transformers'
    `get_rope_index`).

    A picture's tokens share one time and span max(h, w) positions, not h * w. If the prompt keeps
    only some of the picture's tokens, they get the first positions.
    """
    positions = np.tile(np.arange(len(ids)), (3, 1))
    delta = 0
    for (start, end), grid in zip(picture_spans(ids, image_id), grids, strict=True):
        first = start + delta
        positions[:, start:end] = first + picture_positions(grid, merge)[:, : end - start]
        delta += max(grid[1], grid[2]) // merge - (end - start)
        positions[:, end:] = np.arange(end, len(ids)) + delta
    return positions, delta


def picture_positions(grid: Grid, merge: int) -> np.ndarray:
    """Rotary positions int64 [3, m] of a picture's tokens, relative to the first."""
    high, wide = grid[1] // merge, grid[2] // merge
    return np.indices((grid[0], high, wide)).reshape(3, -1)


def diverse_tokens(count: int, kept: int, likeness: Callable[[], np.ndarray]) -> np.ndarray:
    """Indices [kept], ascending, of the most diverse of ``count`` image tokens; ``likeness`` makes
    the cosines [count, count] between their features.

    DivPrune (Alvar et al., CVPR 2025, arXiv 2503.02175): maximizes the least cosine distance
    between two kept tokens, greedily. ValueError: there are fewer tokens.
    """
    if not 0 < kept <= count:
        raise ValueError(f"{kept} of {count} tokens cannot be kept")
    if kept == count:
        return np.arange(count)
    cosines = likeness()
    taken = [int(cosines.sum(axis=1).argmin())]
    nearest = cosines[
        taken[0]
    ].copy()  # [count]: similarity to the most similar of the taken tokens
    while len(taken) < kept:
        nearest[taken[-1]] = np.inf
        taken.append(int(nearest.argmin()))
        np.maximum(nearest, cosines[taken[-1]], out=nearest)
    return np.sort(np.asarray(taken))


def cosines_of(features: np.ndarray) -> np.ndarray:
    """The cosines [m, m] between features [m, E]."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    unit = features / np.maximum(lengths, 1e-12)
    return np.asarray(unit @ unit.T)
