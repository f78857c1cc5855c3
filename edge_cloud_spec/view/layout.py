"""Where the viewer shows what: camera and words, map and link above, the time line, the logs."""

from __future__ import annotations

import rerun.blueprint as rrb

from .entities import CAMERA, CAPTION, LOG, TOKENS
from .floor import ROOT as MAP
from .lanes import ROOT as TIMELINE

TIME = "run"  # the name of the time, seconds since the run began
WINDOW = 8.0  # s before the cursor that the time line shows
PLOTTED = 60.0  # s before the cursor that the plots show


def layout(live: bool) -> rrb.Blueprint:
    """The viewer's layout; a person may change it there.

    ``live``: its time is the newest; that of a recorded run begins at its start, and plays.
    """
    seen = rrb.Vertical(
        rrb.Spatial2DView(origin=CAMERA, name="Camera"),
        rrb.Spatial2DView(origin=CAPTION, name="Decision"),
        row_shares=[1.45, 1.0],
    )
    link = rrb.Vertical(
        rrb.TimeSeriesView(
            origin="link/time", name="Link: time of a round", axis_x=_before(PLOTTED)
        ),
        rrb.TimeSeriesView(
            origin="link/bytes", name="Link: bytes of a decision", axis_x=_before(PLOTTED)
        ),
    )
    above = rrb.Horizontal(
        seen, rrb.Spatial2DView(origin=MAP, name="Map"), link, column_shares=[1.0, 1.0, 1.0]
    )
    below = rrb.Horizontal(
        rrb.TextLogView(origin=TOKENS, name="Tokens", columns=_columns()),
        rrb.TextLogView(origin=LOG, name="Log", columns=_columns()),
    )
    timeline = rrb.StateTimelineView(
        origin=TIMELINE, name="Time line of robot and cloud", time_view=_before(WINDOW)
    )
    return rrb.Blueprint(
        rrb.Vertical(above, timeline, below, row_shares=[1.8, 1.5, 0.8]),
        rrb.TimePanel(
            state="collapsed", timeline=TIME, play_state="following" if live else "playing"
        ),
        collapse_panels=True,
    )


def _before(seconds: float) -> rrb.TimeAxis:
    start = rrb.TimeRangeBoundary.cursor_relative(seconds=-seconds)
    end = rrb.TimeRangeBoundary.cursor_relative(seconds=seconds / 20)
    return rrb.TimeAxis(view_range=rrb.TimeRange(start=start, end=end))


def _columns() -> rrb.TextLogColumns:
    hidden = rrb.encodings.TimelineColumn(TIME, visible=False)
    return rrb.TextLogColumns(timeline_columns=[hidden], text_log_columns=["loglevel", "body"])
