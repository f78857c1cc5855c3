"""A signal that ends a run ends it once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from edge_cloud_spec.signals import SignalEvent, handled, signals_as_event, signals_as_interrupt

# The handler sets what the main thread uses, between any two of its steps.
STORM = """
import os, signal, sys, threading
from {0} import {1} as Event

event, over, signals = Event(), threading.Event(), 0
signal.signal(signal.SIGINT, lambda number, frame: event.set())

def await_end():
    os.write(1, b"went on" if over.wait(5.0) else b"hung")
    os._exit(0)

def interrupt(frame, what, _):
    global signals
    frame.f_trace_opcodes = True
    if what == "opcode":
        signals += 1
        signal.raise_signal(signal.SIGINT)  # its handler runs here, untraced
    return interrupt

thread = threading.Thread(target=await_end)
thread.start()
sys.settrace(interrupt)
event.set()
event.wait(0.0001)
assert event.is_set()
sys.settrace(None)
assert signals > 20
over.set()
"""


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


@pytest.mark.parametrize("kind", ["edge_cloud_spec.signals SignalEvent", "threading Event"])
def test_a_handler_waits_for_no_lock_of_the_thread_that_it_interrupts(kind: str) -> None:
    """Two signals within microseconds hung a node for ever, and its executor drove on."""
    storm = [sys.executable, "-c", STORM.format(*kind.split())]
    said = subprocess.run(storm, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said == ("went on" if "Signal" in kind else "hung")


def test_a_signal_ends_the_waiting_of_every_thread_and_it_stays_set() -> None:
    with signals_as_event() as came:
        assert not came.is_set() and not came.wait(0.01)
        for _ in range(100_000):  # more than the pipe holds
            came.set()
        assert came.wait() and came.is_set()
    event = SignalEvent()
    with handled(lambda number, frame: event.set()):
        os.kill(os.getpid(), signal.SIGTERM)
        assert event.wait()


def test_what_was_started_with_nohup_does_not_end_with_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_as_event() as came:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not came.is_set()
            os.kill(os.getpid(), signal.SIGINT)
            assert came.is_set()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
