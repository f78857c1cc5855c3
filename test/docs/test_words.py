"""One word for one thing: a word that has gone for the field's own does not come back."""

from __future__ import annotations

import re

import pytest
from helpers.documents import ROOT

# For cost profile, reply timeout, commanded motion, registry and server drafting.
GONE = re.compile("regime|patience|ledger|roster|own_?drafting", re.IGNORECASE)
NAMES = re.compile(r"^ *(?:class|def) +(\w+)|self\.(\w+) *[:=]|^ *(\w+): ", re.MULTILINE)
OLD = "class OwnDrafting:\n    patience: float\n    def ledger(self):\n        self._regime = 1\n"


def gone(text: str) -> list[str]:
    """The names that a text of Python defines with a word that is gone."""
    return [name for found in NAMES.findall(text) for name in found if GONE.search(name)]


@pytest.mark.parametrize("folder", ["edge_cloud_spec", "test", "launch", "examples"])
def test_no_name_has_a_word_that_is_gone(folder: str) -> None:
    assert gone(OLD) == ["OwnDrafting", "patience", "ledger", "_regime"]
    files = [file for file in (ROOT / folder).rglob("*.py") if file.name != "test_words.py"]
    assert files
    found = {str(file): gone(file.read_text()) for file in files}
    assert not {file: names for file, names in found.items() if names}
