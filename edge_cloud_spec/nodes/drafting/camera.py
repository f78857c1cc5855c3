"""Camera frames as both models receive them, and a watch over their arrival.

Imports no ROS, so that a bag's frames can be read without it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image as Picture

from ...errors import UserError, refuse
from ...health import Health, Level
from ...models.image import MAX_SIDE, check_size, decode_image, is_black
from ...nav.clock_offset import clock_sentence
from ..endpoints import Endpoint, endpoints_of

if TYPE_CHECKING:
    from rclpy.node import Node
    from sensor_msgs.msg import CompressedImage, Image

# Bytes of a pixel, by encoding.
_WIDTHS = {"rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "mono8": 1, "8UC1": 1, "mono16": 2}
_DEPTHS = ("16UC1", "32FC1")
_CONVERTED = ("bayer_", "yuv", "uyvy", "yuyv", "nv")  # into colours, by who knows how


def encode_frame(message: Image | CompressedImage) -> bytes:
    """The bytes of a compressed frame, or a JPEG of a raw one, encoded once for robot and cloud.

    UserError: it is no picture, or cannot be read.
    """
    if hasattr(message, "format"):
        _check_format(message.format)
        return bytes(message.data)
    encoding = message.encoding
    _refuse_depth(encoding)
    width = _WIDTHS.get(encoding)
    if width is None:
        raise UserError(
            f"camera frames have encoding {encoding!r:.40}; "
            f"publish {', '.join(_WIDTHS)}, or compressed frames"
        )
    check_size(message.width, message.height, MAX_SIDE**2)  # only the model knows how many pixels
    row, size = message.width * width, len(message.data)
    shape = f"a camera frame of {message.width}x{message.height} {encoding}"
    refuse(
        (
            message.step < row,
            f"{shape} has rows of {message.step} bytes (its step), not {row}: its driver is wrong, "
            "or publish compressed frames",
        ),
        (
            size < message.step * message.height,
            f"{shape} holds only {size} bytes: it is truncated",
        ),
    )
    data = np.frombuffer(message.data, np.uint8)[: message.step * message.height]
    pixels = data.reshape(message.height, message.step)[:, :row]
    pixels = pixels.reshape(message.height, message.width, width)
    if encoding.startswith("bgr"):
        pixels = pixels[..., [2, 1, 0]]
    if encoding == "mono16":
        pixels = pixels[..., [0 if message.is_bigendian else 1]]  # the higher byte
    encoded = io.BytesIO()
    picture = Picture.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels[..., :3])
    picture.convert("RGB").save(encoded, "JPEG", quality=90)
    return encoded.getvalue()


def _check_format(said: str) -> None:
    """What image_transport compressed is judged by what it was before: ``rgb8; jpeg compressed
    bgr8``. It makes a grey picture of what it does not convert."""
    encoding, *converted = (part.strip() for part in said.split(";"))
    _refuse_depth(encoding)
    if not converted or not encoding.startswith(_CONVERTED):
        return
    if not {"rgb", "bgr"} & {word[:3] for word in converted[0].split()}:
        raise UserError(
            f"camera frames are compressed without their colours ({said!r:.60}): have the driver "
            "publish rgb8, or convert its pictures first (image_proc's debayer node, for example)"
        )


def _refuse_depth(encoding: str) -> None:
    if encoding in _DEPTHS:
        raise UserError(
            f"camera frames have encoding {encoding!r}, which is a depth camera's: "
            "name the topic of the colour camera (camera:=, --camera)"
        )


COMPRESSED, RAW = "camera/image_raw/compressed", "camera/image_raw"
TYPES = {COMPRESSED: "sensor_msgs/msg/CompressedImage", RAW: "sensor_msgs/msg/Image"}
PICTURE_TYPES = frozenset(TYPES.values())
COME = "pictures come"
CLOCKS_APART_S = 0.5  # of the camera's stamps, or its latency
SILENT_S = 3.0  # without a frame for so long, the camera is missing
NO_STAMP = "their header.stamp is 0: have the driver stamp them, since an old one moves nothing"
FROZEN_S = 2.0  # frames come, but their stamps have not gone on for so long


@dataclass(frozen=True)
class CameraTopics:
    """The graph's picture topics. ``subscribed``: full names, the compressed one first.

    ``publishers``: how many publish on these; ``types``: their types, if not the subscribed ones;
    ``others``: other topics with pictures.
    """

    subscribed: tuple[str, ...]
    publishers: int = 0
    types: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def no_picture(topics: CameraTopics) -> Health:
    """Why no frame arrives, and what to do."""
    name = topics.subscribed[0]
    nearest = get_close_matches(name, topics.others, n=1, cutoff=0.4)
    if topics.types:
        said = f": it carries {', '.join(topics.types)}"
        advice = (
            "remap camera/image_raw to it if it is sensor_msgs/msg/Image, or name a "
            "sensor_msgs/msg/CompressedImage topic with camera:="
        )
    elif topics.publishers:
        said = ", though it has a publisher"
        advice = "see the camera driver's log, or restart it"
    elif nearest:
        said = f": nothing publishes it; there is {nearest[0]}"
        advice = f"start with camera:={nearest[0]} if that is it"
    elif topics.others:
        said = f": nothing publishes it; there is {', '.join(topics.others[:3])}"
        advice = "start with camera:= and the right one"
    else:
        said = ": nothing publishes it"
        advice = "start the camera driver, and check ROS_DOMAIN_ID and the namespace"
    return Health(Level.ERROR, f"no picture on {name}{said}", advice)


def topics_of(node: Node, look: bool) -> CameraTopics:
    """The graph's picture topics for this node; without ``look`` only the subscribed names."""
    names = {node.resolve_topic_name(name): TYPES[name] for name in TYPES}
    if not look:
        return CameraTopics(tuple(names))
    found = {topic for topic, types in node.get_topic_names_and_types() if PICTURE_TYPES & {*types}}
    return camera_topics(names, endpoints_of(node, {*names, *found}))


def camera_topics(names: Mapping[str, str], endpoints: Iterable[Endpoint]) -> CameraTopics:
    """The picture topics of a graph; ``names``: those that are subscribed to, with their types."""
    publishers = [e for e in endpoints if e.publishes]
    ours = [e for e in publishers if e.topic in names]
    wrong = {e.kind for e in ours if e.kind != names[e.topic]}
    pictures = {e.topic for e in publishers if e.kind in PICTURE_TYPES} - {*names}
    others = [topic for topic in sorted(pictures) if "image_annotated" not in topic]
    return CameraTopics(tuple(names), len(ours), tuple(sorted(wrong)), tuple(others))


@dataclass
class CameraWatch:
    """Watches the arrival of frames; times are monotonic, s."""

    started: float
    _came: float | None = None
    _stamp: int = -1
    _stamp_went_on: float = 0.0
    _jpeg: bytes = b""
    _problem: str = ""  # why the last frame that was needed could not be encoded

    def on_frame(self, stamp: int, jpeg: bytes, now: float, problem: str = "") -> None:
        """Record a frame; ``stamp`` in nanoseconds, ``jpeg`` empty if it was not encoded.

        ``problem``: why it cannot be.
        """
        if stamp > self._stamp or stamp + 10**9 < self._stamp:  # a driver may begin anew
            self._stamp_went_on = now
        self._stamp, self._jpeg, self._came = stamp, jpeg, now
        self._problem = problem or ("" if jpeg else self._problem)  # until the next that is needed

    def missing(self, now: float) -> bool:
        """Whether a frame is long overdue."""
        return now - (self.started if self._came is None else self._came) > SILENT_S

    def health(self, topics: CameraTopics, now: float, clock_offset: float | None = None) -> Health:
        """The camera's state. ``clock_offset``: how far its stamps are ahead, s; None: unknown."""
        health, ahead, values = self._health(topics, now), clock_offset, dict[str, object]()
        if self._came is not None:
            values["camera_silent_s"] = round(now - self._came, 1)
        values["camera_clock_offset_s"] = "unknown" if ahead is None else round(ahead, 3)
        if health.level == Level.OK and ahead is not None and abs(ahead) > CLOCKS_APART_S:
            advice = "synchronize the clocks (chrony), or say its latency (camera_lag)"
            health = Health(Level.WARN, clock_sentence("the camera's", ahead), advice)
        return replace(health, values=values)

    def _health(self, topics: CameraTopics, now: float) -> Health:
        name = topics.subscribed[0]
        if self.missing(now):
            return no_picture(topics)
        if self._came is None:
            return Health(Level.OK, "waiting for the first picture")
        if not self._stamp:
            return Health(Level.ERROR, f"the pictures on {name} have no time", NO_STAMP)
        if now - self._stamp_went_on > FROZEN_S:
            frozen = f"the pictures on {name} are frozen: their stamps do not go on"
            return Health(Level.ERROR, frozen, "restart the camera driver")
        if self._problem:
            return Health(Level.ERROR, self._problem)
        return self._content(name) if self._jpeg else Health(Level.OK, COME)

    def _content(self, name: str) -> Health:
        try:
            black = is_black(decode_image(self._jpeg))
        except UserError as error:
            return Health(Level.ERROR, f"the pictures on {name} cannot be read", str(error))
        if black:
            advice = "take the cover off the lens, switch the light on, or restart the camera"
            return Health(Level.WARN, f"the pictures on {name} are black", advice)
        return Health(Level.OK, COME)
