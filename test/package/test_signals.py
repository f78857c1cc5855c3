"""A signal that ends a run ends it once."""

from __future__ import annotations

import os
import signal

import pytest

from edge_cloud_spec.signals import signals_as_event, signals_as_interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_repeated_signal_does_not_interrupt_the_cleaning_up(number: signal.Signals) -> None:
    """``timeout`` signals twice, and ``view`` ended with a traceback from inside a lock."""
    cleaned = False
    before = signal.getsignal(number)
    with signals_as_interrupt():
        with pytest.raises(KeyboardInterrupt):
            try:
                os.kill(os.getpid(), number)
            finally:
                os.kill(os.getpid(), number)
                os.kill(os.getpid(), number)
                cleaned = True
        assert cleaned
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_loop_hears_of_a_signal_between_its_steps(number: signal.Signals) -> None:
    """``view`` forgot half of a message in which it was interrupted, and met the other half."""
    before, steps = signal.getsignal(number), 0
    with signals_as_event() as came:
        while not came.is_set():
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
            steps += 1
    assert steps == 1
    assert signal.getsignal(number) == before
