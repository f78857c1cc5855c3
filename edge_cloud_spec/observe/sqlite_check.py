"""Whether an sqlite3 bag is whole, and nothing but rows: a view or an expression computes any."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from ..errors import UserError, one_line
from .bag_bounds import MAX_TOPICS

# As recorders make them: no view, trigger, virtual table, generated column, check or expression.
_PLAIN = re.compile(
    r"CREATE (TABLE|INDEX) \w+( ON \w+)?\s*\((?!.*\bDEFAULT\b)[\w\s,]*\)", re.I | re.S
)


def check_sqlite(path: Path) -> dict[str, int]:
    """The messages of each topic of a database whose pages are where they should be."""
    try:
        with path.open("rb") as file:
            if file.read(16) != b"SQLite format 3\0":
                raise UserError(f"{path} is damaged: it does not begin as an sqlite3 file")
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        try:
            return _check(connection)
        finally:
            connection.close()
    except (sqlite3.Error, OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{path} is damaged or cut off: {one_line(error)}") from None


def _check(connection: sqlite3.Connection) -> dict[str, int]:
    for name, sql in connection.execute("SELECT name, sql FROM sqlite_master").fetchall():
        if sql is not None and not _PLAIN.fullmatch(sql):  # None: the index of a primary key
            raise ValueError(f"{name!r} in it is no plain table, as `ros2 bag record` makes them")
    [(found,), *_] = connection.execute("PRAGMA integrity_check(1)").fetchall()
    if found != "ok":
        raise ValueError(found)
    [(topics, ids)] = connection.execute("SELECT count(*), count(DISTINCT id) FROM topics")
    if topics != ids or topics > MAX_TOPICS:
        raise ValueError(f"it has {topics} topics of {ids} numbers; {MAX_TOPICS} are the most")
    [(odd,)] = connection.execute(
        "SELECT (SELECT count(*) FROM topics WHERE typeof(name) != 'text')"
        " + (SELECT count(*) FROM messages WHERE typeof(timestamp) != 'integer')"
    )
    if odd:
        raise ValueError("it has a topic without a name, or a message without a time")
    return dict(
        connection.execute(
            "SELECT name, count(messages.id) FROM topics "
            "LEFT JOIN messages ON topics.id == messages.topic_id GROUP BY topics.id"
        ).fetchall()
    )
