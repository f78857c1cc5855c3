"""One word for one thing: a word that has gone for the field's own does not come back."""

from __future__ import annotations

import re

import pytest
from helpers.documents import ROOT

GONE = {
    "regime": "cost profile",
    "patience": "reply timeout",
    "ledger": "commanded motion",
    "roster": "registry",
    "own_drafting": "server drafting",
}
NAMES = re.compile(r"^ *(?:class|def) +(\w+)|self\.(\w+) *[:=]|^ *(\w+): ", re.MULTILINE)


def words_of(text: str) -> set[str]:
    """The names that a text of Python defines, and their parts, in lower case: ``StopLatch`` gives
    stop_latch, stop and latch."""
    names = {name for found in NAMES.findall(text) for name in found if name}
    snake = {re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_") for name in names}
    return snake | {part for name in snake for part in name.split("_")}


def test_the_words_of_a_text() -> None:
    text = "class StopLatch:\n    def own_drafting(self) -> None:\n        self._regime = 1\n"
    assert {"stop", "latch", "stop_latch", "own_drafting", "regime"} <= words_of(text)


@pytest.mark.parametrize("folder", ["edge_cloud_spec", "test", "launch", "examples"])
def test_no_name_has_a_word_that_is_gone(folder: str) -> None:
    files = [file for file in (ROOT / folder).rglob("*.py") if file.name != "test_words.py"]
    assert files
    found = {str(file): words_of(file.read_text()) & set(GONE) for file in files}
    assert not {file: words for file, words in found.items() if words}
