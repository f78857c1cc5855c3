"""The drafter's settings: what is read once, and what each decision takes from them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec.pilot.settings import DrafterSettings


@pytest.mark.parametrize(
    ("name", "order"),
    [("clauses", "action first"), ("clauses", "reason first"), ("navila", "action first")],
)
def test_settings_have_the_grammar_and_the_reader_of_their_dialect(name: str, order: str) -> None:
    settings = DrafterSettings(dialect=name, grammar="action", order=order)
    dialect = load_dialect(name)
    assert settings.pilot.decode_settings(0).policy.grammar == dialect.grammar("action", order)
    assert settings.pilot.dialect == dialect
    assert (dialect == CLAUSES) == (name == "clauses")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A preset file of one's own, with drafts of five tokens."""
    path = tmp_path / "own.yaml"
    path.write_text("drafter: edge\nsummary: mine\ndraft_length: 5\n", encoding="utf-8")
    return path


def test_a_preset_file_is_read_when_parameters_are_set_and_not_for_each_decision(
    own: Path,
) -> None:
    settings = DrafterSettings(preset=str(own))
    own.write_text(own.read_text(encoding="utf-8").replace("5", "7"), encoding="utf-8")
    lengths = [settings.pilot.decode_settings(number).preset.draft_length for number in (0, 1)]
    changed = replace(settings, seed=1)  # as Parameters makes them anew
    assert lengths == [5, 5]
    assert changed.pilot.decode_settings(2).preset.draft_length == 7
    own.unlink()
    assert changed.pilot.decode_settings(3).preset.draft_length == 7
    with pytest.raises(ValueError, match="preset: there is no preset"):
        replace(changed, seed=2)


def test_every_decision_has_the_rules_own_temperature_and_a_seed_of_its_own() -> None:
    greedy = DrafterSettings(temperature=0.7).pilot.decode_settings(0)
    coupled = [
        DrafterSettings(rule="coupled", temperature=0.7).pilot.decode_settings(n) for n in (0, 1)
    ]
    assert greedy.policy.temperature == 0
    assert [decode.policy.temperature for decode in coupled] == [0.7, 0.7]
    assert coupled[0].policy.seed != coupled[1].policy.seed


@pytest.mark.parametrize(
    ("dialect", "history", "shown_one"),
    [("clauses", -1, False), ("uni_navid", -1, True), ("navila", -1, False), ("navila", 0, True)],
)
def test_a_model_of_several_pictures_that_is_shown_one_is_said(
    dialect: str, history: int, shown_one: bool
) -> None:
    settings = DrafterSettings(dialect=dialect, history=history)
    assert ("is shown one" in settings.caution) == shown_one


def test_as_many_frames_are_remembered_as_the_dialect_has_or_as_is_chosen() -> None:
    for dialect, history, frames in (("navila", -1, 7), ("navila", 3, 3), ("clauses", 8, 8)):
        loaded = DrafterSettings(dialect=dialect, history=history).pilot.dialect
        assert loaded.history.frames == frames
        assert loaded.history.choose == load_dialect(dialect).history.choose


def test_no_other_grammar_or_dialect_is_taken_and_grammars_need_llguidance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert DrafterSettings().pilot.decode_settings(0).policy.grammar == ""
    with pytest.raises(ValueError, match="grammar"):
        DrafterSettings(grammar="verse")
    with pytest.raises(ValueError, match="dialect: there is no dialect 'klingon'; choose one of"):
        DrafterSettings(dialect="klingon")
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ValueError, match=r"grammar: .*pip install 'llguidance"):
        DrafterSettings(grammar="action")
