"""Sends entities to Rerun, and defines the viewer's layout."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import rerun as rr
import rerun.blueprint as rrb

from edge_cloud_spec.errors import UserError

from .entities import (
    CAMERA_PATH,
    CAPTION_PATH,
    LOG_PATH,
    MAP_PATH,
    TIMELINE_PATH,
    TOKENS_PATH,
    Entity,
)

TIME = "run"  # the name of the time, seconds since the run began
TIMELINE_S = 8.0  # s before the cursor that the time line shows
PLOTTED_S = 60.0  # s before the cursor that the plots show
EYE_HEIGHT_M = 11.0  # m of the eye above the robot


def layout(live: bool) -> rrb.Blueprint:
    """The viewer's layout, which the user can change.

    ``live``: show the newest time; a recorded run starts at its beginning, and plays.
    """
    seen = rrb.Vertical(
        rrb.Spatial2DView(origin=CAMERA_PATH, name="Camera"),
        rrb.Spatial2DView(origin=CAPTION_PATH, name="Decision"),
        row_shares=[1.45, 1.0],
    )
    above_robot = rrb.EyeControls3D(
        position=(0.0, 0.0, EYE_HEIGHT_M), look_target=(0.0, 0.0, 0.0), eye_up=(1.0, 0.0, 0.0)
    )
    plan = rrb.Spatial3DView(origin=MAP_PATH, name="Map", eye_controls=above_robot)
    link = rrb.Vertical(
        *(
            rrb.TimeSeriesView(origin=f"link/{name}", name=title, axis_x=_before(PLOTTED_S))
            for name, title in (
                ("time", "Link: time of a round"),
                ("bytes", "Link: bytes of a decision"),
            )
        )
    )
    hidden = rrb.encodings.TimelineColumn(TIME, visible=False)
    columns = rrb.TextLogColumns(timeline_columns=[hidden], text_log_columns=["loglevel", "body"])
    logs = rrb.Horizontal(
        rrb.TextLogView(origin=TOKENS_PATH, name="Tokens", columns=columns),
        rrb.TextLogView(origin=LOG_PATH, name="Log", columns=columns),
    )
    timeline = rrb.StateTimelineView(
        origin=TIMELINE_PATH, name="Time line of robot and cloud", time_view=_before(TIMELINE_S)
    )
    return rrb.Blueprint(
        rrb.Vertical(rrb.Horizontal(seen, plan, link), timeline, logs, row_shares=[1.8, 1.5, 0.8]),
        rrb.TimePanel(
            state="collapsed", timeline=TIME, play_state="following" if live else "playing"
        ),
        collapse_panels=True,
    )


def _before(seconds: float) -> rrb.TimeAxis:
    start = rrb.TimeRangeBoundary.cursor_relative(seconds=-seconds)
    end = rrb.TimeRangeBoundary.cursor_relative(seconds=seconds / 20)
    return rrb.TimeAxis(view_range=rrb.TimeRange(start=start, end=end))


# A browser takes in a few batches with each frame that it draws, be they small or large.
LIVE, RECORDED = timedelta(seconds=0.5), timedelta(seconds=10)  # between two batches
BATCH_BYTES, BATCH_ROWS = 4 * 2**20, 2**14  # bounds of a batch


class Sink:
    """Sends entities. ``to``: a file to write, or the URL of a server; ``live``: the run is still
    going on.

    Raises UserError.
    """

    def __init__(self, to: Path | str, live: bool) -> None:
        batches = rr.ChunkBatcherConfig(
            flush_tick=LIVE if live else RECORDED,
            flush_num_bytes=BATCH_BYTES,
            chunk_max_rows_if_unsorted=BATCH_ROWS,
        )
        self._stream = rr.RecordingStream("edge_cloud_spec", batcher_config=batches)
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
        """Send these entities."""
        for path, shown, at in entities:
            if at is not None:
                self._stream.set_time(TIME, duration=at)
            self._stream.log(path, shown, static=at is None)

    def flush(self) -> None:
        """Send what is buffered."""
        self._stream.flush()

    def close(self) -> None:
        """Send what is buffered, and disconnect."""
        self._stream.flush()
        self._stream.disconnect()
