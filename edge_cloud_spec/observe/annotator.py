"""The annotator node: publishes the camera's picture with the decision's words, and the robot's
path.

``python -m edge_cloud_spec.observe.annotator --ros-args ...``; it is for RViz, and no other node
needs it.
"""

from __future__ import annotations

import io
import math
from array import array
from functools import partial
from typing import Any

from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Odometry, Path
from PIL import Image as Picture
from rclpy.node import Node
from sensor_msgs.msg import CompressedImage, Image

from ..errors import UserError
from ..health import Health, Level
from ..models.image import decode_image
from ..nodes.drafting.camera import encode_frame
from ..nodes.runtime.diagnostics import Diagnostics
from ..nodes.runtime.qos import SENSOR_DATA
from ..nodes.runtime.run import spin
from ..nodes.topics import DRAWN, TOPICS
from .annotated_picture import annotate, caption_of, draw_caption
from .decision import ShownDecision
from .word_log import WordLog

DRAWN_DECISIONS = 2  # that are remembered
MAX_DRAWN = 2**24  # pixels of a picture: as many as a model may take
LOGGED = (
    *("decode_request", "draft", "verdict", "verified_tokens"),
    *("nav_status", "link_state"),
)
TRAIL_STEP_M = 0.05  # m between two points of the path
TRAIL_POINTS = 4000  # of the path: 200 m


class Annotator(Node):
    """Publishes the camera's picture with the decision's words, while it has subscribers.

    The picture is published raw as well as compressed: RViz shows compressed ones only if
    image_transport's plugins are installed.
    """

    def __init__(self) -> None:
        super().__init__("annotator")
        self._words, self._instruction = WordLog(lambda *_: ShownDecision(), DRAWN_DECISIONS), ""
        self._raw, self._compressed, self._paths = (
            self.create_publisher(kind, topic, qos) for topic, (kind, qos) in DRAWN.items()
        )
        self._path = Path()
        self.create_subscription(
            CompressedImage, "camera/image_raw/compressed", self._draw, SENSOR_DATA
        )
        self.create_subscription(Image, "camera/image_raw", self._on_image, SENSOR_DATA)
        self.create_subscription(Odometry, "odom", self._on_odometry, SENSOR_DATA)
        for topic in LOGGED:
            kind, qos = TOPICS[topic]
            self.create_subscription(kind, topic, partial(self._on_logged, topic), qos)
        self.create_timer(1.0, self._publish_path)
        Diagnostics(self).report(lambda: Health(Level.OK, "drawing where somebody looks"))

    def _on_logged(self, topic: str, message: Any) -> None:
        self._words.hear(topic, message, self.get_clock().now().nanoseconds / 1e9)
        self._instruction = getattr(message, "instruction", "") or self._instruction

    # Pictures

    def _on_image(self, message: Image) -> None:
        if not self.count_publishers(self.resolve_topic_name("camera/image_raw/compressed")):
            self._draw(message)

    def _draw(self, message: CompressedImage | Image) -> None:
        raw_wanted = self._raw.get_subscription_count()
        jpeg_wanted = self._compressed.get_subscription_count()
        if not (raw_wanted or jpeg_wanted):
            return
        try:
            caption = draw_caption(caption_of(self._words, self._instruction))
            sheet = annotate(decode_image(encode_frame(message), MAX_DRAWN), caption)
        except UserError:
            return  # the drafter reports what is wrong with it
        header = message.header
        if raw_wanted:
            height, width, channels = sheet.shape
            raw = Image(header=header, height=height, width=width, encoding="rgb8")
            raw.step, raw.data = width * channels, array("B", sheet.tobytes())
            self._raw.publish(raw)
        if jpeg_wanted:
            encoded = io.BytesIO()
            Picture.fromarray(sheet).save(encoded, "JPEG", quality=85)
            jpeg_data = array("B", encoded.getvalue())  # an array's bytes Humble does not check
            self._compressed.publish(CompressedImage(header=header, format="jpeg", data=jpeg_data))

    # Path

    def _on_odometry(self, message: Odometry) -> None:
        place, poses = message.pose.pose.position, self._path.poses
        if poses:
            last = poses[-1].pose.position
            if math.hypot(place.x - last.x, place.y - last.y) < TRAIL_STEP_M:
                return
        poses.append(PoseStamped(header=message.header, pose=message.pose.pose))
        del poses[:-TRAIL_POINTS]
        self._path.header = message.header

    def _publish_path(self) -> None:
        if self._path.poses and self._paths.get_subscription_count():
            self._paths.publish(self._path)


main = partial(spin, Annotator)  # runs it until a signal

if __name__ == "__main__":
    main()
