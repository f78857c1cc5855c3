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
from edge_cloud_spec.observe.console_view import words_of
from edge_cloud_spec.observe.decision import (
    DecisionFinished,
    RoundSettled,
    ShownRound,
    after,
    joined,
)
from edge_cloud_spec.observe.run_log import STATS, RunLog
from edge_cloud_spec.wire.codec import encode_server
from edge_cloud_spec.wire.messages import Verdict


@pytest.mark.parametrize("words_first", [True, False])
def test_a_round_tells_accepted_rejected_and_the_clouds_own_words(words_first: bool) -> None:
    run_log = RunLog()
    assert run_log.on_message("draft", draft(0, ["turn", "left", "medium", ";"]), 1.0) == []
    answers = [
        ("verified_tokens", settled(0, "turn left small", [1, 2, 3])),
        ("verdict", verdict(0, 0, 1)),
    ]
    news = [
        item
        for topic, answer in (answers if words_first else answers[::-1])
        for item in run_log.on_message(topic, answer, 2.0)
    ]
    [item] = news
    assert isinstance(item, RoundSettled)
    assert item.round.kept == ("turn", "left")
    assert item.round.branches == (("medium", ";"),) and item.round.others == 0
    assert item.round.own == "small"
    assert (item.round.drafting, item.round.sent, item.round.answered) == (0.75, 1.0, 2.0)
    assert words_of(item.round).plain == "turn left [-medium;-] {+small+}"
    assert item.decision.stamp == 5_000_000_007


def settle(
    run_log: RunLog, draft: SimpleNamespace, verdict: SimpleNamespace, text: str
) -> ShownRound:
    run_log.on_message("draft", draft, 1.0)
    run_log.on_message("verdict", verdict, 2.0)
    [news] = run_log.on_message("verified_tokens", settled(0, text, [1]), 2.0)
    assert isinstance(news, RoundSettled)
    return news.round


def test_a_trees_draft_is_told_as_branches_and_not_as_one_chain() -> None:
    words = ["turn", "move", "left", "right", "small", "large"]
    tree = draft(0, words, (-1, -1, 0, 0, 2, 3))
    round_ = settle(RunLog(), tree, verdict(0, 0, 3), "turn right medium")
    assert words_of(round_).plain == "turn right [-large-] (+3) {+medium+}"
    round_ = settle(RunLog(), tree, verdict(0, 0), "turn around")
    assert words_of(round_).plain == "turn [-left small | right large-] (+1) {+around+}"
    round_ = settle(RunLog(), tree, verdict(0), "stop")
    assert words_of(round_).plain == "[-turn left small | move-] (+2) {+stop+}"


def test_a_pushed_draft_for_another_guess_is_not_the_rounds() -> None:
    run_log = RunLog()
    run_log.on_message("draft", draft(0, ["turn", ";"], hash=8), 0.5)
    round_ = settle(run_log, draft(0, ["stop", ";"], hash=9), verdict(0, 0, hash=9), "stop.")
    assert words_of(round_).plain == "stop [-;-] {+.+}"
    run_log.on_message("draft", draft(3, ["left"], hash=8), 1.5)
    assert [r.base for r in run_log.decisions["r"].rounds.values()] == [0]


@pytest.mark.parametrize(
    ("sent", "shown"),
    [(0.5, "turn [-left;-] {+right small+}"), (1.5, "turn right small")],
    ids=["before", "after"],
)
def test_what_a_cloud_alone_says_is_no_node_of_the_robots_draft(sent: float, shown: str) -> None:
    """The path is one of the cloud's own nodes, though the robot drafted for that prefix, too."""
    run_log, hint = RunLog(), draft(0, ["turn", "left", ";"])
    answer = verdict(0, 1, 3)
    said = Verdict(PrefixDigest(0, 0), (1, 3), 9, tokens=(0, 8), drafted=5, generated=True)
    answer.payload = encode_server(said)
    for at, topic, what in sorted(((sent, "draft", hint), (1.0, "verdict", answer))):
        run_log.on_message(topic, what, at)
    [news] = run_log.on_message("verified_tokens", settled(0, "turn right small", [0, 8, 9]), 2.0)
    assert isinstance(news, RoundSettled)
    assert words_of(news.round).plain == shown


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
    round_ = settle(RunLog(), draft(0, words, parents), verdict(0, *path), "x")
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
