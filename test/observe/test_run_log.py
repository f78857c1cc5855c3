"""The log of a run: rounds and decisions are what the topics said."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("mujoco")
from helpers.graph.topic_messages import draft, message, settled, verdict
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.observe.decision import ShownRound, after, joined
from edge_cloud_spec.wire.codec import encode_server
from edge_cloud_spec.wire.messages import Verdict
from edge_cloud_spec_lab.running.console_view import words_of
from edge_cloud_spec_lab.running.run_log import STATS, DecisionFinished, RoundSettled, RunLog

Heard = tuple[str, SimpleNamespace, float]


def settle(run_log: RunLog, *messages: Heard) -> ShownRound:
    """The one round that these messages settle."""
    [news] = [item for message in messages for item in run_log.on_message(*message)]
    assert isinstance(news, RoundSettled) and news.decision.stamp == 5_000_000_007
    return news.round


def answered(verdict: SimpleNamespace, text: str, *tokens: int) -> list[Heard]:
    return [("verdict", verdict, 2.0), ("verified_tokens", settled(0, text, list(tokens)), 2.0)]


@pytest.mark.parametrize("order", [1, -1])
def test_a_round_tells_accepted_rejected_and_the_clouds_own_words(order: int) -> None:
    drafted = ("draft", draft(0, ["turn", "left", "medium", ";"]), 1.0)
    answers = answered(verdict(0, 0, 1), "turn left small", 1, 2, 3)
    round_ = settle(RunLog(), drafted, *answers[::order])
    assert round_.kept == ("turn", "left")
    assert round_.branches == (("medium", ";"),) and round_.others == 0
    assert round_.own == "small"
    assert (round_.draft.sent, round_.answered) == (1.0, 2.0)
    assert words_of(round_).plain == "turn left [-medium;-] {+small+}"


WORDS = ["turn", "move", "left", "right", "small", "large"]
TREE = ("draft", draft(0, WORDS, (-1, -1, 0, 0, 2, 3)), 1.0)
PUSHED = ("draft", draft(0, ["turn", ";"], hash=8), 0.5)
STOP = ("draft", draft(0, ["stop", ";"], hash=9), 1.0)
GENERATED = verdict(0, 1, 3)
GENERATED.payload = encode_server(
    Verdict(PrefixDigest(0, 0), (1, 3), 9, tokens=(0, 8), drafted=5, generated=True)
).data
SAID = answered(GENERATED, "turn right small", 0, 8, 9)
CHAIN = draft(0, ["turn", "left", ";"])


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        # a tree is told as branches and not as one chain
        (
            [TREE, *answered(verdict(0, 0, 3), "turn right medium", 1)],
            "turn right [-large-] (+3) {+medium+}",
        ),
        (
            [TREE, *answered(verdict(0, 0), "turn around", 1)],
            "turn [-left small | right large-] (+1) {+around+}",
        ),
        (
            [TREE, *answered(verdict(0), "stop", 1)],
            "[-turn left small | move-] (+2) {+stop+}",
        ),
        # a draft that was pushed for another guess is not the round's
        ([PUSHED, STOP, *answered(verdict(0, 0, hash=9), "stop.", 1)], "stop [-;-] {+.+}"),
        # a cloud alone says a path of its own nodes, though the robot drafted for that prefix, too
        ([("draft", CHAIN, 1.0), *SAID], "turn [-left;-] {+right small+}"),
        ([SAID[0], ("draft", CHAIN, 2.5), SAID[1]], "turn right small"),
    ],
)
def test_a_round_is_told_by_the_draft_that_its_verdict_judges(
    messages: list[Heard], shown: str
) -> None:
    run_log = RunLog()
    assert words_of(settle(run_log, *messages)).plain == shown
    run_log.on_message("draft", draft(3, ["left"], hash=8), 3.0)
    assert [r.base for r in run_log.decisions["r"].rounds.values()] == [0]


@given(st.data())
def test_every_drafted_word_is_kept_told_or_counted(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    parents = tuple(data.draw(st.integers(-1, node - 1)) for node in range(size))
    tree, path = Draft((0,) * size, parents), []
    while children := list(tree.children(path[-1] if path else -1)):
        if data.draw(st.booleans()):
            break
        path.append(data.draw(st.sampled_from(children)))
    words = [f"w{node}" for node in range(size)]
    drafted = ("draft", draft(0, words, parents), 1.0)
    round_ = settle(RunLog(), drafted, *answered(verdict(0, *path), "x", 1))
    told = [word for branch in round_.branches for word in branch]
    assert round_.kept == tuple(words[node] for node in path)
    assert len({*told, *round_.kept}) + round_.others == size and round_.others >= 0


def test_a_decision_is_told_once_when_its_end_and_its_cost_are_known() -> None:
    run_log = RunLog()
    cost = dict.fromkeys(STATS, 1)
    assert not run_log.on_message("decode_stats", message(**cost), 1.0)
    end = settled(0, "", [], finished=True, finish_reason="end", answer="action: stop;")
    [news] = run_log.on_message("verified_tokens", end, 1.1)
    assert isinstance(news, DecisionFinished)
    assert news.decision.answer == "action: stop;"


def test_words_of_any_tokenizer_are_joined_and_taken_away_again() -> None:
    assert joined(["turn", "left", ";", "reason", ":"]) == "turn left; reason:"
    assert joined(["turn", " left", ";"]) == "turn left;"
    assert joined([";", "<|im_end|>"]) == ";"
    assert after(" turn left small;", ["turn", "left"]) == "small;"
    assert after(" turn left small;", [" turn", " le", "ft"]) == "small;"
    assert after("turn left", ["move"]) == ""
    assert after("turn left", []) == "turn left"
