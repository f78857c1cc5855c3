"""The log says whom and which session it is about, and nothing in it can be forged or flooded."""

from __future__ import annotations

import json
import logging
import sys
from unittest.mock import Mock

from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.cloud.serving.logs import JsonLines, OncePerSecond, TextLines, is_our_error


def record(text: str, level: int = logging.INFO, **about: str) -> logging.LogRecord:
    made = logging.LogRecord("cloud", level, "x.py", 1, text, (), None)
    made.__dict__.update(about)
    return made


def test_a_line_has_the_session_and_the_client_where_it_is_about_them() -> None:
    about = {"session": "5e55", "client": "robot-7"}
    entry = json.loads(JsonLines().format(record("a robot is served", **about)))
    assert entry.pop("time") > 0
    assert entry == {
        "level": "info",
        "logger": "cloud",
        "message": "a robot is served",
        "session": "5e55",
        "client": "robot-7",
    }
    line = TextLines().format(record("a robot is served", **about))
    assert line == 'INFO cloud: a robot is served session="5e55" client="robot-7"'
    assert "session" not in JsonLines().format(record("ready"))


@given(st.text(), st.text())
def test_whatever_a_robot_says_makes_one_line_and_no_other(text: str, client: str) -> None:
    """A client names itself in its certificate; a fault may quote it."""
    for form in (JsonLines(), TextLines()):
        line = form.format(record(f"x{text}", client=client))
        assert len(line.splitlines()) == 1
        assert line.isprintable()
    entry = json.loads(JsonLines().format(record(f"x{text}", client=client)))
    assert (entry["message"], entry.get("client", "")) == (f"x{text}", client)


def test_the_lines_of_a_traceback_cannot_be_taken_for_records() -> None:
    try:
        raise ValueError("wrong\nERROR cloud: forged \x1b[2J")
    except ValueError:
        failed = record("a request failed", logging.ERROR)
        failed.exc_info = sys.exc_info()
    first, *traceback = TextLines().format(failed).split("\n")
    assert first == "ERROR cloud: a request failed"
    assert traceback and all(line.startswith("  | ") and line.isprintable() for line in traceback)
    assert "forged" in json.loads(JsonLines().format(failed))["error"]


def test_a_client_that_makes_the_same_line_without_end_is_held_back_alone() -> None:
    """More and more rarely, as test/package/test_throttle.py has it."""
    clock = Mock()
    once = OncePerSecond(clock)
    for now, client, said in (
        (0.0, "hostile", "refused"),
        (0.9, "hostile", ""),
        (0.9, "honest", "refused"),
        (1.0, "hostile", "refused (1 more of these)"),
        (2.9, "hostile", ""),
        (3.0, "hostile", "refused (1 more of these)"),
    ):
        clock.return_value = now
        line = record("refused", client=client)
        assert once.filter(line) == bool(said)
        assert not said or line.getMessage() == said
    for _ in range(2):
        assert once.filter(record("failed", logging.ERROR, client="hostile"))
        assert once.filter(record("ready"))


def test_a_robot_that_is_gone_as_its_stream_is_ended_leaves_no_traceback() -> None:
    # what grpcio 1.85 logs
    gone = (
        "ExecuteBatchError raised in core by servicer method [/edge_cloud_spec.v2.Verifier/Decode]"
    )
    assert not is_our_error(record(gone, logging.ERROR))
    assert is_our_error(record("Unexpected [KeyError] raised by servicer method", logging.ERROR))
