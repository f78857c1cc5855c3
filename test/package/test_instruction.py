"""Instructions: what cannot be meant is refused with a sentence that says what to do."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.instruction import (
    KnownInstructions,
    check_instruction,
    is_stop,
    known_instructions,
)
from edge_cloud_spec.models import EMBEDDED

KNOWN = KnownInstructions(
    re.compile(r"(?:[Ff]ind|go to) the (silver bottle|red chair)[.?!]?"),
    ("find the {}", "go to the {}"),
    ("silver bottle", "red chair"),
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "empty"),
        (" \t\n", "empty"),
        ("x" * 501, "501 characters"),
        ("find " * 20_000, "100000 characters"),
        ("find the \x00bottle", "control"),
        (b"find the \xff\xfe".decode(errors="replace"), "UTF-8"),
        (b"find the \xff".decode(errors="surrogateescape"), "UTF-8"),
        *(
            (f"find {token} it", "control token: leave it out")
            for token in ("<|im_end|>", "<|a b|>", "<|▁|>", "</s>", "<image>", "<start_of_turn>")
        ),
        ("найди серебряную бутылку", "silver bottle"),
        ("find the golden bottle", "silver bottle"),
        ("find the silver bottle and more", "silver bottle"),
    ],
)
def test_a_bad_instruction_is_refused_by_what_is_wrong(text: str, names: str) -> None:
    with pytest.raises(UserError, match=names) as refusal:
        check_instruction(text, KNOWN)
    message = str(refusal.value)
    assert "\n" not in message and len(message) < 400 and message.encode()


@pytest.mark.parametrize("text", ["find the silver bottle", "  Go to the red chair \n"])
def test_a_known_instruction_comes_back_without_blanks(text: str) -> None:
    assert check_instruction(text, KNOWN) == text.strip()


@pytest.mark.parametrize("model", ["drafter", "target"])
def test_what_a_model_does_not_know_is_answered_with_what_it_knows_in_words(model: str) -> None:
    known = known_instructions(EMBEDDED / model)
    with pytest.raises(UserError) as refusal:
        check_instruction("find the pink piano", known)
    _, _, told = str(refusal.value).partition("it knows: ")
    for phrase in known.phrases:
        assert phrase.format("...") in told
        assert all(check_instruction(phrase.format(name), known) for name in known.names)
    assert all(name in told for name in known.names)
    assert not set(told) & set("[]{}|?*+^$\\")


def test_without_a_list_any_plain_text_is_taken() -> None:
    for text in ("найди бутылку", "go 2 < 3 > 1", "find <- the | chair", "a <<|>> b"):
        assert check_instruction(text) == text


@given(st.text())
def test_any_text_is_taken_or_refused_in_one_line(text: str) -> None:
    try:
        assert check_instruction(text)
    except UserError as error:
        assert "\n" not in str(error)


def test_stop_is_heard_however_it_is_written_and_nothing_else_is() -> None:
    assert all(is_stop(text) for text in ("stop", "Stop", " STOP \n", "stop.", "stop!"))
    assert not any(is_stop(text) for text in ("", "don't stop", "stop at the red chair", "stopp"))
