"""How long a pass of the target takes, by its rows: a fixed part and a part for each row."""

from __future__ import annotations

DECAY = 0.98  # weight of a pass, one pass later: the last 50 count
OUTLIER = 3.0  # a pass counts for at most this many times what was expected, and at least 1 / this
WARM_UP = 8  # passes that count as they are: what to expect is not known yet


class PassEstimator:
    """Least squares over the passes so far, the last ones first; robust against a single outlier.

    Neither part is negative. A machine that has become slower is learned in a few passes, since
    what is expected follows the outliers.
    """

    def __init__(self) -> None:
        self.passes = 0
        self._fixed = self._per_row = 0.0  # s
        self._weight = self._rows = self._seconds = 0.0  # decaying sums
        self._rows_rows = self._rows_seconds = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """A pass over this many rows took so long."""
        expected = self.seconds(rows)
        if self.passes >= WARM_UP:
            seconds = min(max(seconds, expected / OUTLIER), expected * OUTLIER)
        self.passes += 1
        self._weight = DECAY * self._weight + 1.0
        self._rows = DECAY * self._rows + rows
        self._seconds = DECAY * self._seconds + seconds
        self._rows_rows = DECAY * self._rows_rows + rows * rows
        self._rows_seconds = DECAY * self._rows_seconds + rows * seconds
        self._fit()

    def seconds(self, rows: int) -> float:
        """How long a pass over this many rows will take; 0 before any was measured."""
        return self._fixed + self._per_row * rows

    @property
    def row_s(self) -> float:
        """What a row has cost, with its share of the fixed part, s; 0 before any was measured."""
        return self._seconds / self._rows if self._rows else 0.0

    def _fit(self) -> None:
        mean_rows, mean_seconds = self._rows / self._weight, self._seconds / self._weight
        spread = self._rows_rows / self._weight - mean_rows**2
        slope = 0.0
        if spread > 1e-9:
            slope = (self._rows_seconds / self._weight - mean_rows * mean_seconds) / spread
        # Through the mean, with neither part below 0.
        self._per_row = min(max(slope, 0.0), mean_seconds / mean_rows)
        self._fixed = mean_seconds - self._per_row * mean_rows
