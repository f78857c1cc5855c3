"""A room and what the camera sees in it: each picture is drawn once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...sim.camera import Camera, Eye, encode_jpeg
from ...sim.room import make_room
from ...sim.scene import Scene

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class TakenFrame:
    """When a picture was taken, s, and from where."""

    taken: float
    eye: Eye


class SeenRoom:
    """The room of this number; used by one thread, closed when done."""

    def __init__(self, number: int, renderer: str = "auto") -> None:
        self.number, self.room = number, make_room(number)
        self.scene = Scene(self.room)
        self._camera = Camera(self.scene, renderer)
        self._frames: dict[Eye, bytes] = {}

    def frame(self, eye: Eye) -> bytes:
        """What the camera sees from there, as JPEG."""
        if eye not in self._frames:
            self._frames[eye] = encode_jpeg(self._camera.render(eye))
        return self._frames[eye]

    def close(self) -> None:
        """Free the renderer."""
        self._camera.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
