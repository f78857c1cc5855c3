"""Where entities go: to a file, or to the server of the viewer."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import rerun as rr

from ..errors import UserError
from .entity import Entity
from .layout import TIME, layout

APPLICATION = "edge_cloud_spec"
# A browser takes in a few batches with each frame that it draws, be they small or large.
LIVE, RECORDED = timedelta(seconds=0.5), timedelta(seconds=10)  # between two batches
BATCH_BYTES, BATCH_ROWS = 4 * 2**20, 2**14  # bounds of a batch


class Sink:
    """``to``: a file to write, or the URL of a server; ``live``: for people who watch it grow.

    Raises UserError.
    """

    def __init__(self, to: Path | str, live: bool) -> None:
        batches = rr.ChunkBatcherConfig(
            flush_tick=LIVE if live else RECORDED,
            flush_num_bytes=BATCH_BYTES,
            chunk_max_rows_if_unsorted=BATCH_ROWS,
        )
        self._stream = rr.RecordingStream(APPLICATION, batcher_config=batches)
        if isinstance(to, Path):
            try:
                to.open("ab").close()
            except OSError as error:
                raise UserError(f"{to} cannot be written: {error.strerror}") from None
            self._stream.save(to, default_blueprint=layout(live=False))
        else:
            self._stream.connect_grpc(to, default_blueprint=layout(live))
            self._stream.send_blueprint(layout(live))

    def log(self, entities: Iterable[Entity]) -> None:
        """Send these."""
        for path, shown, at in entities:
            if at is None:
                self._stream.log(path, shown, static=True)
            else:
                self._stream.set_time(TIME, duration=at)
                self._stream.log(path, shown)

    def flush(self) -> None:
        """Send what waits."""
        self._stream.flush()

    def close(self) -> None:
        """Send what waits, and end."""
        self._stream.flush()
        self._stream.disconnect()
