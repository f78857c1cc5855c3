"""llguidance's grammars over real tokenizers: every answer is an action, and no text costs much."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from helpers.checkpoints import vlm

from edge_cloud_spec.decoding.grammar import forced_token
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.lab.training.tiny.tokenizer import build_tokenizer
from edge_cloud_spec.models.prompt import ORDERS
from edge_cloud_spec.models.token_grammar import GrammarCompiler, TokenGrammar
from edge_cloud_spec.nav.answer import answer_grammar, every_action, read_answer

TINY = build_tokenizer()
TOKENIZERS = {"embedded": TINY, "random": vlm().tokenizer}


def grammar(text: str, name: str = "embedded") -> TokenGrammar:
    tokenizer = TOKENIZERS[name]
    return GrammarCompiler(tokenizer).grammar(text, tokenizer.eos_token_id, len(tokenizer))


def tokens_of(text: str) -> list[int]:
    return TINY(text, add_special_tokens=False)["input_ids"]


def accepts(kept: TokenGrammar, text: str) -> bool:
    tokens = [*tokens_of(text), TINY.eos_token_id]
    return all(kept.allowed(tokens[:place])[token] for place, token in enumerate(tokens))


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("order", ORDERS)
def test_whatever_is_drawn_is_an_answer_with_an_action(order: str, name: str) -> None:
    kept, tokenizer = grammar(answer_grammar("action", order), name), TOKENIZERS[name]
    random = np.random.default_rng(4)
    for _ in range(40):
        tokens: list[int] = []
        decided = 0
        while tokens[-1:] != [tokenizer.eos_token_id]:
            tokens.append(int(random.choice(np.flatnonzero(kept.allowed(tokens)))))
            if not decided and read_answer(tokenizer.decode(tokens)):
                decided = len(tokens)
        assert 0 < decided <= 64
        assert len(tokens) <= 80


def test_the_answers_of_the_language_are_in_the_grammar_and_nothing_else_is() -> None:
    kept = grammar(answer_grammar("action", "action first"))
    for action in every_action():
        assert accepts(kept, f"action: {action};")
        assert accepts(kept, f"action: {action}; reason: silver bottle far 3.0 left 14;")
    for text in (
        "",
        "action: move forward small",
        "action: move forward;",
        "action: move left small;",
        "action: cannot move forward small;",
        "reason: red chair; action: stop;",
        "action: stop; action: search;",
        "action: stop; stop",
    ):
        assert not accepts(kept, text)
    assert accepts(
        grammar(answer_grammar("action", "reason first")), "reason: red chair; action: stop;"
    )


def test_a_state_is_a_function_of_the_tokens_alone() -> None:
    text = answer_grammar("action", "reason first")
    tokens = tokens_of("reason: silver bottle far 3.0 left 14; action: turn left medium;")
    kept = grammar(text)
    for place in np.random.default_rng(1).permutation(np.arange(len(tokens) + 1).repeat(2)):
        fresh = grammar(text).allowed(tokens[:place])
        assert (kept.allowed(tokens[:place]) == fresh).all()


def test_forced_characters_are_the_tokenizers_own_tokens() -> None:
    kept = grammar(answer_grammar("action", "action first"))
    assert forced_token(kept.allowed([])) == tokens_of("action:")[0]
    assert forced_token(kept.allowed(tokens_of("action:"))) is None


def test_an_answer_against_the_grammar_cannot_go_on() -> None:
    kept = grammar(answer_grammar("action", "action first"))
    with pytest.raises(UserError, match="cannot go on in its grammar"):
        kept.allowed(tokens_of("reason: red chair;"))
    assert kept.allowed([]).any()  # and others are as before


@pytest.mark.parametrize(
    "text",
    [
        "start: @@@",
        "start: nothing",
        "",
        "start: \x00",
        "no grammar at all",
        'start: "bild" <|im_start|>"',
        "start: " + "(" * 1000 + '"a"' + ")" * 1000,
    ],
)
def test_a_text_that_is_no_grammar_is_named(text: str) -> None:
    with pytest.raises(UserError, match="grammar"):
        grammar(text)


@pytest.mark.parametrize(
    "text",
    [
        "start: A\nA: /.*a.{20}/ & /.*b.{21}/ & /.*c.{22}/ & /.*d.{23}/",
        "start: a0\n" + "\n".join(f"a{i}: a{i + 1} a{i + 1}" for i in range(60)) + '\na60: "x"',
        "start: /(a|b)*a(a|b){30}c/",
        'start: (a{0,1000}){0,1000}\na: "x"?',
        'start: start start | "a" | ""',
    ],
)
def test_a_grammar_that_blows_up_ends_at_its_limits(text: str) -> None:
    """No time is asserted: without the limits some of these would not end."""
    random = np.random.default_rng(0)
    tokens: list[int] = []
    try:
        kept = grammar(text)
        while len(tokens) < 40 and tokens[-1:] != [TINY.eos_token_id]:
            tokens.append(int(random.choice(np.flatnonzero(kept.allowed(tokens)))))
    except UserError as error:
        assert len(str(error)) < 500


def test_a_tokenizer_without_the_needed_characters_is_refused() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    few = Tokenizer(models.WordLevel({"move": 0, "stop": 1, "<end>": 2}, unk_token="<end>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=few, eos_token="<end>")
    with pytest.raises(UserError, match="grammar"):
        GrammarCompiler(tokenizer).grammar(answer_grammar("action", "action first"), 2, 3)


def test_without_llguidance_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UserError, match=r"pip install 'llguidance>=1.3'$"):
        grammar("start: /a/")
