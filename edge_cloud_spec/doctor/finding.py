"""One thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Finding:
    """One thing looked at. ``advice`` is empty where nothing needs doing."""

    check: str
    state: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        advice = f"\n      {self.advice}" if self.advice else ""
        return f"{self.state:4}  {self.check}: {self.found}{advice}"
