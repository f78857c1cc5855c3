"""Reads the JSON body of a request: its values by kind, or an error that names the field."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from PIL import ExifTags, Image

from ..errors import UserError
from ..models.image import MAX_PIXELS, check_size, decode_image
from ..request import MOST_PICTURES, Picture
from .api_error import ApiError, Unserved

MOST_PICTURE_BYTES = 15 * 2**20  # of a request, which is one message of the link
LOW_SIDE = 512  # pixels of a picture with ``detail: low``
HEADER = 2**17  # bytes of a picture in which its size is looked for; EXIF has at most 2**16
# What a PNG can say its orientation in, maybe behind its pixels.
_PNG_EXIF = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")
_DATA_URL = re.compile(r"data:[^,]{0,100};base64,", re.IGNORECASE)
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    ((int, float), "a number"),
    (list, "a list"),
    (dict, "an object"),
    (type(None), "null"),
)


def json_of(data: bytes) -> dict[str, Any]:
    """The object in a body, without what is null in it."""
    try:
        body = json.loads(data.decode(), parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is no JSON in UTF-8 ({error!s:.80}): send an object") from None
    if not isinstance(body, dict):
        raise ApiError("the body must be a JSON object")
    # null is what a client says of a field that it does not use
    return {name: value for name, value in body.items() if value is not None}


def no_number(text: str) -> None:
    """Raise ValueError for what Python reads as a number and JSON does not have."""
    raise ValueError(f"{text} is no number of JSON")


def check_model(body: Mapping[str, Any], models: Sequence[str]) -> str:
    """The model that is asked for; raises Unserved for none of these."""
    model = text_of(body.get("model"), "model")
    if model not in models:
        raise Unserved(
            f"there is no model {model!r:.80} here, but {', '.join(models)}: ask for that, or give "
            "the endpoint this name (--served-model-name)",
            "model",
            404,
            "model_not_found",
        )
    return model


def object_of(given: Any, where: str) -> dict[str, Any]:
    """A value that must be an object."""
    if not isinstance(given, dict):
        raise ApiError(f"{where} must be a JSON object", where)
    return given


def list_of(given: Any, where: str, least: int, most: int) -> list[Any]:
    """A value that must be a list of so many."""
    if not isinstance(given, list) or not least <= len(given) <= most:
        raise ApiError(f"{where} must be a list of {least} to {most}", where)
    return given


def check_fields(body: Mapping[str, Any], known: Container[str]) -> None:
    """Raise Unserved for a field of a body that is not known."""
    for name in body:
        if name not in known:
            raise Unserved(f"the field {name!r:.80} is unknown here: leave it out", name[:80])


def check_keys(given: Mapping[str, Any], where: str, known: tuple[str, ...]) -> None:
    """Raise Unserved for a key that says something and is not known."""
    for name, value in given.items():
        if name not in known and value not in (None, "", [], {}):
            raise Unserved(f"{where} has {name!r:.80}, which is not supported: leave it out", where)


def text_of(given: Any, where: str, what: str = "a text") -> str:
    """A value that must be a text; ``what``: and what else it might have been."""
    if not isinstance(given, str):
        kind = next(name for kinds, name in _KINDS if isinstance(given, kinds))
        raise ApiError(f"{where} must be {what}, not {kind}", where)
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ApiError(f"{where} has half a surrogate pair: send whole characters", where) from None
    return given


def json_text(given: Any, where: str) -> str:
    """A value as JSON."""
    try:
        return text_of(json.dumps(given, ensure_ascii=False, allow_nan=False), where)
    except RecursionError:
        raise ApiError(f"{where} is nested too deep", where) from None
    except ValueError:
        raise ApiError(f"{where} has a number beyond JSON's range", where) from None


def check_pictures(pictures: Sequence[Picture]) -> None:
    """Raise Unserved for more pictures than a request may have."""
    if (
        len(pictures) > MOST_PICTURES
        or sum(len(each.data) for each in pictures) > MOST_PICTURE_BYTES
    ):
        raise Unserved(
            f"a request has at most {MOST_PICTURES} pictures of {MOST_PICTURE_BYTES} bytes in all",
            "messages",
        )


def picture_of(url: Any, small: bool, where: str) -> Picture:
    """The picture of a data URL. Its media type is not looked at: the bytes say what they are."""
    found = _DATA_URL.match(url) if isinstance(url, str) else None
    if found is None:
        # Not passed through: a server of --upstream may be in that network, too.
        raise ApiError(
            f"{where} must be a data URL (data:image/jpeg;base64,...): nothing is fetched from the "
            "robot's network",
            where,
        )
    try:
        data = base64.b64decode(url[found.end() :], validate=True)
    except ValueError:
        raise ApiError(f"{where} is no base64 in one line, with its padding (=)", where) from None
    if not data.startswith((b"\xff\xd8", b"\x89PNG\r\n\x1a\n")):
        raise Unserved(f"{where} is neither a JPEG nor a PNG: convert it", where)
    if not small:
        return Picture.of(data)
    try:
        width, height = _size_of(data)
    except UserError as error:
        raise ApiError(f"{where}: {error}", where) from None
    scale = LOW_SIDE / max(width, height)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return Picture.of(data, size if scale < 1 else (0, 0))


def _size_of(data: bytes) -> tuple[int, int]:
    """Width and height of an upright picture, by its header where that says it; raises UserError
    for one that is too large, or has no header."""
    if data.startswith(b"\x89PNG") and any(name in data for name in _PNG_EXIF):
        return decode_image(data).size
    try:
        with Image.open(io.BytesIO(data[:HEADER]), formats=("JPEG", "PNG")) as image:
            width, height = image.size
            is_jpeg = data.startswith(b"\xff\xd8")  # Pillow would decode a PNG for its EXIF
            lies = is_jpeg and _lies(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return decode_image(data).size  # which says what is wrong
    check_size(width, height, MAX_PIXELS)
    return (height, width) if lies else (width, height)


def _lies(image: Image.Image) -> bool:
    """Whether its EXIF says that it is stored lying on its side."""
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)
    except Exception:  # of Pillow's reader of whatever a stranger wrote
        return False
