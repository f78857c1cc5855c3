"""Camera frames as both models receive them."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image as Picture

from ...errors import UserError

if TYPE_CHECKING:
    from builtin_interfaces.msg import Time
    from sensor_msgs.msg import Image  # a bag's are read without ROS

_CHANNELS = {"rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "mono8": 1}


@dataclass(frozen=True)
class CameraFrame:
    """A camera frame as both models receive it, and the ROS time at which it was taken.

    ``clock_offset``: seconds by which the stamps' clock is ahead of this computer's.
    """

    jpeg: bytes
    stamp: Time
    clock_offset: float = 0.0


def encode_frame(message: Image, quality: int = 90) -> bytes:
    """JPEG bytes of a raw image, encoded once for robot and cloud; raises UserError.

    ``quality``: of the JPEG, 1 to 95.
    """
    channels = _CHANNELS.get(message.encoding)
    if channels is None:
        raise UserError(
            f"camera frames have encoding {message.encoding!r}; "
            f"publish {', '.join(_CHANNELS)}, or compressed frames"
        )
    row = message.width * channels
    data = np.frombuffer(message.data, np.uint8)
    if not row or message.step < row or data.size < message.step * message.height:
        raise UserError(
            f"a camera frame of {message.width}x{message.height} {message.encoding} holds only "
            f"{data.size} bytes: it is truncated"
        )
    pixels = data[: message.step * message.height].reshape(message.height, message.step)[:, :row]
    pixels = pixels.reshape(message.height, message.width, channels)
    if message.encoding.startswith("bgr"):
        pixels = pixels[..., [2, 1, 0]]
    encoded = io.BytesIO()
    picture = Picture.fromarray(pixels[..., 0] if channels == 1 else pixels[..., :3])
    picture.convert("RGB").save(encoded, "JPEG", quality=quality)
    return encoded.getvalue()
