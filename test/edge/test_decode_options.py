"""The options of a decode are declared once, and every program has all of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from typing import get_type_hints

import pytest

from edge_cloud_spec.edge.command import add_decode_arguments
from edge_cloud_spec.edge.decode_options import DecodeKeywords, DecodeOptions
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.options import flag, flat_fields, given
from edge_cloud_spec.pilot.settings import DrafterSettings
from edge_cloud_spec_lab.replay.command import add_replay_arguments

DECLARED = flat_fields(DecodeOptions())


def test_python_takes_each_option_as_a_keyword_and_a_node_as_a_parameter() -> None:
    hints, names = get_type_hints(DecodeOptions), [each.name for each in fields(DecodeOptions)]
    assert get_type_hints(DecodeKeywords) == {name: hints[name] for name in names}
    parameters = flat_fields(DrafterSettings())
    for name, (_, metadata) in DECLARED.items():
        assert {**parameters[name][1], "range": ()} == {**metadata, "range": ()}


@pytest.mark.parametrize(
    ("add", "others"),
    [(add_decode_arguments, ["a.jpg", "find it"]), (add_replay_arguments, ["bag"])],
)
def test_a_command_has_each_option_and_knows_which_were_given(
    add: Callable[[argparse.ArgumentParser], None], others: list[str]
) -> None:
    parser = argparse.ArgumentParser()
    add(parser)
    assert given(DecodeOptions(), parser.parse_args(others)) == {}
    for name, (value, metadata) in DECLARED.items():
        args = parser.parse_args([*others, flag(name, metadata), str(value)])
        assert given(DecodeOptions(), args) == {name: value}, "also where it is the default"


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"max_tokens": 0}, "max_tokens must be a whole number from 1 to 65536, not 0"),
        ({"reply_timeout": 0.0}, "reply_timeout must be a number from 0.2 to 120"),
        ({"top_p": 0}, "top_p must be a number from 0.01 to 1"),
        ({"rule": "lazy"}, "rule must be one of greedy, coupled, rejection"),
        ({"temperature": 0.5}, "rule greedy goes with temperature 0"),
        ({"planner.hints_pay": 0.0}, "hints_pay must be a number from 1.03"),
        ({"preset": "warp"}, "preset: there is no preset 'warp'"),
        ({"grammar": "verse"}, "grammar: 'verse' is none of none, action, and has no rule start:"),
    ],
    ids=str,
)
def test_what_cannot_be_is_a_sentence(wrong: dict[str, object], complaint: str) -> None:
    with pytest.raises(UserError) as refused:
        DecodeOptions.of(wrong)
    assert str(refused.value).startswith(complaint)


def test_a_grammar_is_named_or_written() -> None:
    text = 'start: "yes" | "no"'
    assert DecodeOptions(grammar=text).settings.policy.grammar == text
    action = DecodeOptions(grammar="action", dialect="navila")
    assert action.loaded_grammar == action.loaded_dialect.grammar("action", action.order)
