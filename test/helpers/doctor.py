"""The command ``doctor`` without its look at this machine, which takes a torch and a simulator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from edge_cloud_spec.doctor import command
from edge_cloud_spec.health import Health, Level

FINE = Health(Level.OK, "not looked at", check="this machine")


@contextmanager
def elsewhere_only() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "check_plugins", lambda: [FINE])
        for check in ("check_model", "check_threads"):
            patch.setattr(command, check, lambda *_: FINE)
        yield
