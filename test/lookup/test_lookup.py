"""Lookup of what was said before, at the cloud and at the robot."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from helpers.cloud.verification import END, opened, says
from helpers.drafting import paths_of

from edge_cloud_spec.cloud.session.events import DuePass
from edge_cloud_spec.cloud.session.session import CloudSession
from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.decoding.split import Split
from edge_cloud_spec.edge import runner as runner_module
from edge_cloud_spec.edge.runner import DecodeRunner
from edge_cloud_spec.lookup import (
    MAX_BEGINNINGS,
    MAX_CREDENTIALS,
    AnswerLookup,
    Lookups,
    NodeBudget,
)
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import Close, Generate, Generation, Open
from edge_cloud_spec_lab.harness.toy import ToyVlm, spec_of
from edge_cloud_spec_lab.harness.virtual_decode import Decode

ASKING = Open(1, CLAUSES.request("find the box", b""), GREEDY, "greedy", lookup=True)
ANSWER = (1, 2, 3, 4, 5)
KNOWN = re.compile("(?:find|go to) the (?:box|ball)")


def lookups(suffixes: int = 1000, nodes: int = 8) -> Lookups:
    return Lookups(suffixes, nodes, KNOWN, lambda rows: 1.0)


def of(all_of_them: Lookups, credential: str = "a", opening: Open = ASKING) -> AnswerLookup:
    found = all_of_them.of(credential, opening)
    assert found is not None
    return found


def found(lookup: AnswerLookup) -> tuple[int, ...]:
    """What follows the answer's first token."""
    return lookup.draft(ANSWER[:1], 8).tokens


def test_an_answer_is_found_by_the_next_one_of_its_credential_and_by_no_other() -> None:
    them = lookups()
    of(them, "a").learn(ANSWER)
    assert found(of(them, "a")) == ANSWER[1:]
    assert found(of(them, "b")) == found(of(them, "")) == ()


def test_who_does_not_ask_has_no_lookup_and_nor_has_anybody_where_it_is_off() -> None:
    assert lookups().of("a", replace(ASKING, lookup=False)) is None
    assert lookups(suffixes=0).of("a", ASKING) is None


def test_strangers_cannot_make_ever_more_indexes() -> None:
    them = lookups(suffixes=64)
    for number in range(3 * MAX_CREDENTIALS):
        of(them, "a").learn(ANSWER)  # which is used all the time, and stays
        of(them, f"stranger {number}")
    assert len(them._answers) == MAX_CREDENTIALS
    assert found(of(them, "a")) == ANSWER[1:]


@pytest.mark.parametrize(
    ("instruction", "order", "same"),
    [
        ("go to the ball", "action first", True),  # of the pattern that the target knows
        ("find the box", "reason first", False),
        ("dance", "action first", False),
    ],
)
def test_how_an_answer_begins_is_known_by_its_instructions_pattern(
    instruction: str, order: str, same: bool
) -> None:
    them = lookups()
    asked = replace(ASKING, request=CLAUSES.request(instruction, b"", order))
    of(them).learn(ANSWER)
    of(them, opening=asked).learn((6, 7, 8))
    begins = [of(them, opening=each).draft((), 1).tokens[0] for each in (ASKING, asked)]
    assert begins == ([6, 6] if same else [1, 6])


def test_a_tree_is_no_larger_than_its_budget() -> None:
    them = lookups(nodes=3)
    of(them).learn(ANSWER)
    assert found(of(them)) == ANSWER[1:4]


def answered(them: Lookups, opening: Open = ASKING, until_end: bool = True) -> CloudSession:
    """An answer that the target alone has said, or has begun to say."""
    cloud = opened(opening, max_tokens=20, lookup=of(them, opening=opening))
    actions = cloud.handle(Generate(cloud.digest, Generation()))
    for token in (*ANSWER, END) if until_end else ANSWER:
        (due,) = [action for action in actions if isinstance(action, DuePass)]
        actions = cloud.handle(says(*[token] * (1 + len(due.draft))))
    return cloud


def test_a_complete_answer_is_learned_and_so_is_one_that_was_closed() -> None:
    for until_end in (True, False):
        them = lookups()
        cloud = answered(them, until_end=until_end)
        assert bool(found(of(them))) == until_end
        cloud.handle(Close())
        assert found(of(them))[:4] == ANSWER[1:]


@pytest.mark.parametrize(
    "opening",
    [
        replace(ASKING, verified=(6,)),  # of which the robot says that another verifier said it
        replace(ASKING, rule="rejection", payload="probabilities", split=Split("dense")),
    ],
)
def test_what_is_the_robots_word_is_not_learned(opening: Open) -> None:
    them = lookups()
    answered(them, opening).handle(Close())
    assert found(of(them)) == ()


def test_no_word_beyond_the_vocabulary_is_proposed() -> None:
    """A tokenizer may have more ids than the smaller model's head."""
    for vocabulary, proposed in ((100, 99), (99, 8)):
        tokens = {"find the box": (7, 8), "go to the ball": (7, 99)}
        them = Lookups(1000, 8, KNOWN, lambda rows: 1.0, vocabulary, tokens.__getitem__)
        for said, asked in zip(((1, 8), ()), tokens, strict=True):
            opening = replace(ASKING, request=CLAUSES.request(asked, b""))
            lookup = of(them, opening=opening)
            lookup.learn(said)
        assert lookup.draft((1,), 1).tokens == ((proposed,) if proposed == 99 else ())


MOST = 16


def cheap(rows: int) -> float:
    return 1.0 + 0.001 * rows


def taught(accepted: int, nodes: int, passes: int = 200) -> NodeBudget:
    """Of so many nodes, a chain, the first ones were right."""
    budget = NodeBudget(MOST)
    for _ in range(passes):
        budget.report(nodes, tuple(range(accepted)), accepted + 1)
    return budget


@pytest.mark.parametrize("cost", [cheap, lambda rows: 0.0])
def test_before_anything_is_known_it_tries_all_that_are_allowed(cost) -> None:
    assert [NodeBudget(most).nodes(1, cost) for most in (MOST, 0)] == [MOST, 0]


@pytest.mark.parametrize("accepted", [0, 3, 9])
def test_it_takes_those_that_are_right(accepted: int) -> None:
    assert taught(accepted, MOST).nodes(1, cheap) == accepted


def test_it_takes_none_where_a_row_costs_as_much_as_a_pass() -> None:
    budget = NodeBudget(MOST)
    for number in range(200):
        right = tuple(range(9)) if number % 2 else ()
        budget.report(MOST, right, len(right) + 1)
    assert (budget.nodes(1, lambda rows: 0.01 + rows), budget.nodes(1, cheap)) == (0, 9)


def test_beside_a_draft_that_settles_much_a_node_has_to_gain_more() -> None:
    for tokens, nodes in ((8, 0), (2, 1)):
        budget = NodeBudget(MOST)
        for _ in range(200):
            budget.report(MOST, (0,), tokens)
        assert budget.nodes(1, lambda rows: 1.0 + 0.2 * rows) == nodes


def test_what_was_not_tried_for_long_is_tried_again() -> None:
    budget = taught(0, MOST)
    assert budget.nodes(1, cheap) == 0
    for _ in range(5000):
        budget.report(0, (), 1)
    assert budget.nodes(1, cheap) == MOST


def test_where_nothing_is_ever_right_it_costs_hardly_anything() -> None:
    budget, tried = NodeBudget(MOST), []
    for _ in range(600):
        nodes = budget.nodes(1, lambda rows: 1.0 + 0.05 * rows)
        budget.report(nodes, (), 1)
        tried.append(nodes)
    assert sum(tried[:100]) < 200 and sum(tried[100:]) < 100


BEGINNINGS = {"a": (1, 2, 9), "b": (1, 2, 8), "c": (1, 7), "d": (1, 77)}
BEGINS = replace(ASKING, request=replace(ASKING.request, candidates=tuple(BEGINNINGS)))


def beginning(nodes: int = 8, row_s: float = 0.0) -> Lookups:
    return Lookups(
        *(1000, nodes, KNOWN, lambda rows: 1.0 + row_s * rows, 50),
        lambda text: BEGINNINGS.get(text, ()),
        (END,),
    )


def test_at_first_all_beginnings_are_proposed_after_what_was_said_before() -> None:
    them, all_of_them = beginning(), {(1,), (1, 2), (1, 7), (1, 2, 8), (1, 2, 9)}
    new = of(them, opening=BEGINS).draft((), 8)
    assert set(paths_of(new)) == all_of_them and len(new) == new.looked_up == 5
    of(them, opening=BEGINS).learn(ANSWER)
    draft = of(them, opening=BEGINS).draft((), 8)
    assert draft.tokens[: len(ANSWER)] == ANSWER  # the likeliest come first
    assert set(paths_of(draft)) == all_of_them | {ANSWER[:end] for end in range(1, 6)}
    assert len(draft) == draft.looked_up == 8
    assert found(of(them, opening=BEGINS)) == ANSWER[1:]  # and only at first


def test_beginnings_are_as_long_as_the_answer_may_be_and_those_that_are_wanted() -> None:
    assert set(paths_of(of(beginning(), opening=BEGINS).draft((), 2))) == {(1,), (1, 2), (1, 7)}
    assert of(beginning()).draft((), 8).tokens == ()
    whole = replace(BEGINS, request=replace(BEGINS.request, whole=True))
    assert set(paths_of(of(beginning(), opening=whole).draft((), 8))) > {
        (1, 2, 8, END),
        (1, 7, END),
    }
    for them in (beginning(row_s=100.0), beginning(nodes=0)):  # no node pays, or is wanted
        assert of(them, opening=BEGINS).draft((), 8).tokens == ()
    endless = Lookups(1000, 8, None, lambda rows: 1.0, tokens_of=lambda text: range(99), end=())
    assert len(of(endless, opening=BEGINS).draft((), 200)) == MAX_BEGINNINGS


def test_candidates_that_come_again_are_tokenized_once_for_each_credential() -> None:
    asked = Counter[str]()

    def tokens_of(text: str) -> tuple[int, ...]:
        asked[text] += 1
        return BEGINNINGS.get(text, ())

    them = Lookups(1000, 8, KNOWN, lambda rows: 1.0, 50, tokens_of, (END,))
    first, again, other = (of(them, name, BEGINS).draft((), 8).tokens for name in "aab")
    assert first == again == other
    assert {text: asked[text] for text in BEGINNINGS} == dict.fromkeys(BEGINNINGS, 2)


def test_the_beginnings_beside_it_do_not_count_for_a_budget() -> None:
    them = beginning()
    of(them, opening=BEGINS).learn(ANSWER)
    for _ in range(50):  # another beginning each time, all of them wrong
        lookup = of(them, opening=BEGINS)
        draft = lookup.draft((), 8)
        lookup.report(len(draft), 0, tuple(range(len(ANSWER))), 1 + len(ANSWER))
    gains = of(them, opening=BEGINS)._answers.by_itself._gains
    assert gains[: len(ANSWER)] == pytest.approx([1.0] * len(ANSWER), abs=0.1)
    assert gains[len(ANSWER)] > 0.5  # as before it was tried


# A robot's own lookup: from verified answers alone, and from those of the same target

ROBOTS = replace(ASKING, request=CLAUSES.request("find", b""), draft_identity="toy")


def looked_up(runner: DecodeRunner, *tokens: int) -> tuple[int, ...]:
    """What the robot finds after these tokens, in what it has learned."""
    lookup = runner._lookup_of(ROBOTS)
    return lookup.draft(tokens, 8).tokens


@pytest.mark.parametrize(
    ("preset", "learns"),
    [("auto", True), ("cloud_lookup", False), ("dsd", False), ("edge_only", False)],
)
def test_a_robot_learns_what_was_verified_where_its_preset_looks_up(
    preset: str, learns: bool
) -> None:
    one = Decode(Random(1), preset)
    outcome = one.run()
    assert outcome.completed and outcome.tokens
    assert looked_up(one._runner)[:1] == (outcome.tokens[:1] if learns else ())


def test_an_answer_that_was_not_completed_is_not_learned() -> None:
    silence = dict.fromkeys(range(5, 999), "lost")  # messages of both sides
    one = Decode(Random(1), "auto", faults=silence, reply_timeout=5.0)
    assert one.run().reason == "timeout" and one.emitted
    assert looked_up(one._runner) == ()


@pytest.mark.parametrize("preset", ["auto", "fsd", "dsd"])
def test_with_a_lookup_of_its_own_a_robot_says_the_targets_words(
    preset: str,
) -> None:
    looking = replace(load_preset(preset), lookup=True)
    for seed in range(3):
        one = Decode(Random(seed), looking, seed=seed)
        assert list(one.run().tokens) == one.own_answer()[0]


def test_another_targets_answers_are_forgotten() -> None:
    model: Any = ToyVlm(1)
    runner = DecodeRunner(model, spec_of(60))
    for spec in (spec_of(60), spec_of(61)):
        runner.remember(spec.to_bytes())
        lookup = runner._lookup_of(ROBOTS)
        assert lookup is not None
        assert looked_up(runner, 1) == ()
        lookup.learn((1, 2, 3))
        runner.remember(spec.to_bytes())
        assert looked_up(runner, 1) == (2, 3)


def test_nothing_is_kept_where_there_are_no_suffixes() -> None:
    model: Any = ToyVlm(1)
    assert DecodeRunner(model, spec_of(60), lookup_suffixes=0)._lookup_of(ROBOTS) is None
    with pytest.raises(ValueError, match="suffixes"):
        DecodeRunner(model, spec_of(60), lookup_suffixes=-1)


def test_the_vocabulary_is_that_of_the_clouds_specification(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[int] = []
    monkeypatch.setattr(runner_module, "Lookups", lambda *args, **_: given.append(args[-1]))
    model: Any = ToyVlm(1)
    runner = DecodeRunner(model, spec_of(vocabulary=60))
    runner.remember(spec_of(vocabulary=61).to_bytes())
    assert given == [60, 61]
