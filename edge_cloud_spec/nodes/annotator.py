"""The annotator node: the camera's picture with the verified words and the navigator's status.

``python -m edge_cloud_spec.nodes.annotator --ros-args ...``; for RViz, no other node needs it.
"""

from __future__ import annotations

import contextlib
import sys

import cv2
import numpy as np
from rclpy.node import Node
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from edge_cloud_spec.msg import VerifiedTokens

from ..nav.status import Status
from .runtime.qos import DECODE, LATCHED, SENSOR_DATA
from .runtime.run import spin

WIDTH = 480  # pixels of the published picture
LINE = 22  # pixels
FONT, SCALE = cv2.FONT_HERSHEY_SIMPLEX, 0.45
INK, SETTLED, OPEN = (246, 242, 240), (140, 220, 120), (90, 204, 250)  # BGR


class Annotator(Node):
    """Draws only while there is a subscriber."""

    def __init__(self) -> None:
        super().__init__("annotator")
        self._words = VerifiedTokens()
        self._status = ""
        self._pictures = self.create_publisher(
            CompressedImage, "image_annotated/compressed", SENSOR_DATA
        )
        self.create_subscription(
            CompressedImage, "camera/image_raw/compressed", self._on_frame, SENSOR_DATA
        )
        self.create_subscription(VerifiedTokens, "verified_tokens", self._on_words, DECODE)
        self.create_subscription(String, "nav_status", self._on_status, LATCHED)

    def _on_words(self, message: VerifiedTokens) -> None:
        self._words = message

    def _on_status(self, message: String) -> None:
        with contextlib.suppress(ValueError):
            self._status = Status.parse(message.data).text

    def _on_frame(self, message: CompressedImage) -> None:
        if not self._pictures.get_subscription_count():
            return
        picture = cv2.imdecode(np.frombuffer(message.data, np.uint8), cv2.IMREAD_COLOR)
        if picture is None:
            return  # the drafter reports what is wrong with it
        sheet = annotate(picture, self._words.instruction, self._words.answer, self._status)
        encoded, data = cv2.imencode(".jpg", sheet)
        if encoded:
            annotated = CompressedImage(header=message.header, format="jpeg", data=data.tobytes())
            self._pictures.publish(annotated)


def annotate(picture: np.ndarray, instruction: str, answer: str, status: str) -> np.ndarray:
    """The picture, WIDTH wide, over four lines of text; BGR uint8 [H, W, 3] in and out."""
    height = max(1, round(picture.shape[0] * WIDTH / picture.shape[1]))
    sheet = np.zeros((height + 4 * LINE, WIDTH, 3), np.uint8)
    sheet[:height] = cv2.resize(picture, (WIDTH, height), interpolation=cv2.INTER_AREA)
    lines = [(instruction, INK)]
    lines += [(clause.strip(), SETTLED) for clause in answer.split(";") if clause.strip()][:2]
    lines.append((status, OPEN))
    for row, (text, colour) in enumerate(lines):
        origin = (8, height + LINE * row + 16)
        printable = text.encode("ascii", "replace").decode()
        cv2.putText(sheet, printable, origin, FONT, SCALE, colour, 1, cv2.LINE_AA)
    return sheet


def main() -> int:
    """Run the node until a signal."""
    return spin(Annotator)


if __name__ == "__main__":
    sys.exit(main())
