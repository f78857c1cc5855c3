"""A signal that ends a run ends it once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from edge_cloud_spec.signals import SignalEvent, handled, signals_as_event, signals_as_interrupt

# The handler sets what the main thread uses all the time, until standard input ends.
STORM = """
import os, signal, sys, threading, time
from {0} import {1} as Event

event, over = Event(), []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: event.set())

def await_end():
    sys.stdin.read()
    over.append(True)
    time.sleep(2.0)  # in which a thread that goes on ends the program
    os.write(1, b"hung")
    os._exit(0)

thread = threading.Thread(target=await_end)
thread.start()
print("ready", flush=True)
while not over:
    event.set()
    event.wait(0.0001)
    assert event.is_set()
print("went on", flush=True)
os._exit(0)
"""


@pytest.fixture(autouse=True)
def signals_are_not_ignored() -> Iterator[None]:
    """As they are under ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


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
    process = subprocess.Popen(
        [sys.executable, "-c", STORM.format(*kind.split())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    for _ in range(5000):
        for number in (signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
    said, _ = process.communicate()
    assert said.strip() == ("went on" if "Signal" in kind else "hung")


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
