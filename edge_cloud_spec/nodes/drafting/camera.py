"""Camera frames as both models receive them, and whether there is one to decide on.

No ROS is imported here: a bag's frames are read without it.
"""

from __future__ import annotations

import difflib
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image as Picture

from ...errors import UserError
from ...models.image import decode_image, is_black
from ..health import Health, Level

if TYPE_CHECKING:
    from builtin_interfaces.msg import Time
    from sensor_msgs.msg import Image

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


SILENT_S = 3.0  # without a frame for so long, the camera is missing
FROZEN_S = 2.0  # frames come, but their stamps have not gone on for so long
MOVED_S = 2.0  # the robot moved for so long, and the picture's bytes are the same


@dataclass(frozen=True)
class CameraTopics:
    """What the graph knows of pictures. ``subscribed``: full names, the compressed one first.

    ``publishers`` are those of the subscribed topics; ``types`` the types that these publish where
    it is not the subscribed one; ``others`` the other topics with pictures.
    """

    subscribed: tuple[str, ...]
    publishers: int = 0
    types: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def nearest_topic(wanted: str, others: Sequence[str]) -> str:
    """The name among ``others`` that most resembles the wanted one; empty if none does."""
    return next(iter(difflib.get_close_matches(wanted, others, n=1, cutoff=0.4)), "")


def no_picture(topics: CameraTopics, silent: float | None) -> Health:
    """Why no frame comes, and what to do; none came for ``silent`` seconds (None: ever)."""
    name, kind = topics.subscribed[0], Level.ERROR
    values = {} if silent is None else {"camera_silent_s": round(silent, 1)}
    if topics.types:
        return Health(
            kind,
            f"no picture on {name}: it carries {', '.join(topics.types)}",
            "remap camera/image_raw to it if it is sensor_msgs/msg/Image, or name a "
            "sensor_msgs/msg/CompressedImage topic with camera:=",
            values,
        )
    if topics.publishers:
        advice = "see the camera driver's log, or restart it"
        said = f"no picture on {name}, though it has a publisher"
        return Health(kind, said, advice, values)
    nearest = nearest_topic(name, topics.others)
    if nearest:
        others = f"; there is {nearest}"
        advice = f"start with camera:={nearest} if that is it"
    elif topics.others:
        others = f"; there is {', '.join(topics.others[:3])}"
        advice = "start with camera:= and the right one"
    else:
        others = ""
        advice = "start the camera driver, and check ROS_DOMAIN_ID and the namespace"
    return Health(kind, f"no picture on {name}: nothing publishes it{others}", advice, values)


@dataclass
class CameraWatch:
    """Watches the frames as they arrive; times are steady seconds."""

    started: float
    _came: float | None = None
    _stamp: int = -1
    _stamp_went_on: float = 0.0
    _jpeg: bytes = b""
    _hash: bytes = field(default=b"", repr=False)
    _changed: float = 0.0  # when the picture was first as it is
    _moved_s: float = 0.0  # for how long the robot has moved since
    _seen: float = 0.0

    def on_frame(self, stamp: int, jpeg: bytes, now: float) -> None:
        """A frame arrived; ``stamp`` in nanoseconds, ``jpeg`` empty where it was not encoded."""
        if stamp > self._stamp or stamp + 10**9 < self._stamp:  # a driver may begin anew
            self._stamp_went_on = now
        self._stamp, self._jpeg, self._came = stamp, jpeg, now

    def silent(self, now: float) -> float | None:
        """Seconds since the last frame; None before the first."""
        return None if self._came is None else now - self._came

    def missing(self, now: float) -> bool:
        """Whether a frame was due long ago."""
        return now - (self.started if self._came is None else self._came) > SILENT_S

    def health(self, topics: CameraTopics, moving: bool, now: float) -> Health:
        """The camera's state; to be asked about once a second. ``moving``: the robot is."""
        if self.missing(now):
            return no_picture(topics, self.silent(now))
        if self._came is None:
            return Health(Level.OK, "waiting for the first picture")
        values = {"camera_silent_s": round(now - self._came, 1)}
        name = topics.subscribed[0]
        frozen = now - self._stamp_went_on
        if frozen > FROZEN_S:
            said = f"the pictures on {name} are frozen: their stamps do not go on"
            return Health(Level.ERROR, said, "restart the camera driver", values)
        if self._unchanged(moving, now) > MOVED_S:
            said = f"the pictures on {name} are frozen: the robot moves and they stay the same"
            return Health(Level.ERROR, said, "restart the camera driver", values)
        if not self._jpeg:
            return Health(Level.OK, "pictures come", "", values)
        return self._content(name, values)

    def _unchanged(self, moving: bool, now: float) -> float:
        """Seconds that the robot has moved since the picture was another one."""
        digest = hashlib.blake2b(self._jpeg, digest_size=16).digest()
        if digest != self._hash:
            self._hash, self._changed, self._moved_s = digest, now, 0.0
        elif moving:
            self._moved_s += now - self._seen
        self._seen = now
        return self._moved_s

    def _content(self, name: str, values: dict[str, float]) -> Health:
        try:
            black = is_black(decode_image(self._jpeg))
        except UserError as error:
            return Health(Level.ERROR, f"the pictures on {name} cannot be read", str(error), values)
        if black:
            advice = "take the cover off the lens, switch the light on, or restart the camera"
            return Health(Level.WARN, f"the pictures on {name} are black", advice, values)
        return Health(Level.OK, "pictures come", "", values)
