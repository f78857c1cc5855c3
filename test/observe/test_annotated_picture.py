"""What people see in RViz's picture."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from helpers.graph.topic_messages import draft, message, settled, verdict
from PIL import Image

from edge_cloud_spec.edge.link.state import LinkQuality, LinkReport
from edge_cloud_spec.nav.status import NavigatorStatus
from edge_cloud_spec.observe.annotated_picture import (
    CAPTION_BACKGROUND,
    CAPTION_LINE_PX,
    CAPTION_WIDTH_PX,
    FATE_COLOURS,
    DecisionCaption,
    annotate,
    draw_caption,
)
from edge_cloud_spec.observe.decision import (
    Fate,
    ShownDraft,
    ShownRound,
    WordSpan,
    words_of_decision,
)
from edge_cloud_spec_lab.running.run_log import RoundSettled, RunLog


def sheet_of(*words: WordSpan, **caption: str) -> np.ndarray:
    picture = Image.fromarray(np.full((100, 200, 3), 90, np.uint8))
    return annotate(picture, draw_caption(DecisionCaption(words=words, **caption)))


def has(sheet: np.ndarray, colour: tuple[int, int, int]) -> bool:
    """Whether something is drawn in this colour, be it only as thin as an antialiased line."""
    drawn = sheet.reshape(-1, 3)[sheet.reshape(-1, 3).max(axis=1) > 100].astype(float)
    hues = drawn / drawn.max(axis=1, keepdims=True)
    return bool((abs(hues - np.array(colour) / max(colour)) < 0.05).all(axis=1).any())


def test_the_picture_keeps_its_shape_and_words_stand_below_it() -> None:
    sheet = sheet_of(WordSpan("action: stop;", "accepted"), instruction="find it", status="idle")
    assert sheet.shape[1] == CAPTION_WIDTH_PX
    assert (sheet[: CAPTION_WIDTH_PX // 2] == 90).all()
    assert sheet[CAPTION_WIDTH_PX // 2 :].any()
    assert (sheet_of()[CAPTION_WIDTH_PX // 2 :] == CAPTION_BACKGROUND).all()


@pytest.mark.parametrize("size", [(1, 8000), (8000, 1), (40, 8000)])
def test_a_strip_is_drawn_in_bounds(size: tuple[int, int]) -> None:
    """As high as wide times 8000 no memory would hold it."""
    caption = draw_caption(DecisionCaption())
    high, wide, _ = annotate(Image.new("RGB", size), caption).shape
    assert wide == caption.shape[1] and high <= 4 * wide + caption.shape[0]


@pytest.mark.parametrize("fate", FATE_COLOURS)
def test_each_fate_of_words_has_its_colour(fate: Fate) -> None:
    others = {name: colour for name, colour in FATE_COLOURS.items() if name != fate}
    assert FATE_COLOURS[fate] not in others.values()
    words = sheet_of(WordSpan("IIII", fate))[
        CAPTION_WIDTH_PX // 2 : -CAPTION_LINE_PX
    ]  # the legend has all of them
    assert has(words, FATE_COLOURS[fate])
    assert not any(has(words, colour) for colour in others.values())


def test_the_links_state_is_told_by_word_and_colour() -> None:
    drawn = {str(each): sheet_of(link=LinkReport(each, "40 ms")) for each in LinkQuality}
    assert len({sheet.tobytes() for sheet in drawn.values()}) == 3


def test_of_a_long_answer_the_newest_words_are_shown() -> None:
    long = [WordSpan(f"word{number}", "accepted") for number in range(200)]
    assert not has(sheet_of(*long)[CAPTION_WIDTH_PX // 2 : -CAPTION_LINE_PX], FATE_COLOURS["own"])
    assert has(
        sheet_of(*long, WordSpan("IIII", "own"))[CAPTION_WIDTH_PX // 2 : -CAPTION_LINE_PX],
        FATE_COLOURS["own"],
    )


def test_words_that_cannot_be_drawn_do_no_harm() -> None:
    odd = (WordSpan("\x00 … " + "x" * 500, "rejected"),)
    annotate(
        Image.new("L", (1, 1)),
        draw_caption(DecisionCaption("найди", odd, "…", LinkReport(LinkQuality.LOST, "… …"))),
    )


def told(run_log: RunLog) -> list[tuple[str, str]]:
    [decision] = run_log.decisions.values()
    return [(words.text, words.fate) for words in words_of_decision(decision)]


def log_of(*said: tuple[str, SimpleNamespace]) -> RunLog:
    run_log = RunLog()
    for topic, heard in said:
        run_log.on_message(topic, heard, 2.0)
    return run_log


def test_words_are_drafted_then_accepted_rejected_or_the_clouds_own() -> None:
    run_log = log_of(("draft", draft(0, ["turn", "left", "medium", ";"])))
    assert told(run_log) == [("turn left medium;", "drafted")]
    run_log.on_message("verdict", verdict(0, 0, 1), 2.0)
    run_log.on_message("verified_tokens", settled(0, "turn left small", [1, 2, 3]), 2.0)
    settled_words = [("turn left", "accepted"), ("medium;", "rejected"), ("small", "own")]
    assert told(run_log) == settled_words
    # A push for a prefix that did not come true is not shown, the draft for the one that did is.
    run_log.on_message("draft", draft(5, ["stop"], hash=2), 2.1)
    assert told(run_log) == settled_words
    run_log.on_message("draft", draft(3, [";"], hash=3), 2.2)
    assert told(run_log) == [*settled_words, (";", "drafted")]


def test_words_without_a_verdict_are_never_shown_as_verified() -> None:
    words = settled(0, "turn left small", [1, 2, 3], verified=False)
    assert told(log_of(("verified_tokens", words))) == [("turn left small", "unverified")]


def test_words_that_were_not_received_leave_a_gap_of_their_number() -> None:
    run_log = log_of(
        ("verified_tokens", settled(0, "turn left", [1, 2])),
        ("verdict", verdict(4, 0, 2)),  # whose words were not received either
        ("verdict", verdict(7, 0, 3)),
        ("verdict", verdict(0, 0, 1)),
    )
    [gap, _] = run_log.on_message("verified_tokens", settled(7, "bottle", [8]), 3.0)
    run_log.on_message("verdict", verdict(2, 0, 4), 3.0)  # late, and adds no round
    assert isinstance(gap, RoundSettled) and gap.round.missed == 5
    words = [("turn left", "own"), ("[5 tokens not received]", "missed"), ("bottle", "own")]
    assert told(run_log) == words
    run_log.on_message("draft", draft(8, ["."], hash=9), 4.0)
    assert told(run_log) == [*words, (".", "drafted")]
    run_log.on_message("verified_tokens", settled(2**32 - 1, "", [], finished=True), 5.0)
    [decision] = run_log.decisions.values()
    assert (decision.tokens, decision.length) == ([1, 2, 8], 2**32 - 1)


@pytest.mark.parametrize(
    ("drafted", "path", "kept"),
    [
        (("turn", "left"), (0, 1, 2), ("turn", "left")),
        ((), (0, 1), ()),
        (("go", "turn", "left"), (1, 2), ("turn", "left")),
    ],
)
def test_of_a_draft_that_was_not_heard_whole_what_was_heard_is_shown(
    drafted: tuple[str, ...], path: tuple[int, ...], kept: tuple[str, ...]
) -> None:
    assert ShownRound(1, 0, draft=ShownDraft(drafted), path=path).kept == kept


def test_a_log_that_keeps_two_decisions_forgets_the_others() -> None:
    run_log = RunLog(keep=2)
    for number in range(10):
        asked = message(kind=0, seed=number, preset="dsd", payload=b"")
        asked.request_id = f"r{number}"
        run_log.on_message("decode_request", asked, float(number))
        run_log.on_message(
            "nav_status", SimpleNamespace(**NavigatorStatus("idle").fields), float(number)
        )
    assert [d.number for d in run_log.decisions.values()] == [9, 10]
    assert len(run_log.statuses) == 2
