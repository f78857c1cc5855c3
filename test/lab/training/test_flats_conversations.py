"""Conversations for training: the tokens and rows that transformers itself would make of them."""

from __future__ import annotations

import multiprocessing.dummy
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from edge_cloud_spec.cli import main
from edge_cloud_spec.instruction import instruction_pattern
from edge_cloud_spec.models import EMBEDDED, FLATS
from edge_cloud_spec.models.load import load
from edge_cloud_spec.nav.answer import action_of
from edge_cloud_spec_lab.bench.requests import sample_requests
from edge_cloud_spec_lab.training import rendered
from edge_cloud_spec_lab.training.flats import episodes
from edge_cloud_spec_lab.training.flats.command import FLATS_DRAFTER_SHARE
from edge_cloud_spec_lab.training.flats.conversations import (
    ConversationBatch,
    Tuner,
    TuningPlan,
    conversation,
)
from edge_cloud_spec_lab.training.flats.episodes import (
    MOST_ROLLED,
    REMEMBERED_FRAMES,
    EpisodeTurn,
    ModelPlayer,
    read_episodes,
    write_episodes,
)
from edge_cloud_spec_lab.training.tiny.architecture import (
    DRAFTER,
    IMAGE_PX,
    TINY_SHAPES,
    VISUAL,
)
from edge_cloud_spec_lab.training.tiny.data import QuestionEncoder, pixels_of
from edge_cloud_spec_lab.training.tiny.evaluation import greedy_answers
from edge_cloud_spec_lab.training.tiny.language import ORDERS, Piece, assembled
from edge_cloud_spec_lab.training.tiny.packed import ConversationForward, patches
from edge_cloud_spec_lab.training.tiny.tokenizer import TINY_TEMPLATE, build_tokenizer

ANSWERS = (
    "action: search; reason: no blue box, nothing known;",
    "action: turn left large; reason: red chair done, hallway turn left;",
    "action: move forward small; reason: enter second door far 3.0 left 10;",
)
REASON = "no blue box|door 2"
ASKED = "first go to the red chair, then go back to the blue box"


def test_a_conversation_has_the_ids_of_the_chat_template() -> None:
    tokenizer = build_tokenizer()
    encoder = QuestionEncoder(tokenizer)
    row = conversation([[Piece(a, 1.0)] for a in ANSWERS], "action first", ASKED, encoder)
    messages: list[dict[str, object]] = []
    for number, answer in enumerate(ANSWERS):
        asked = [] if number else [{"type": "text", "text": f"{ASKED}\naction first"}]
        messages.append({"role": "user", "content": [{"type": "image"}, *asked]})
        messages.append({"role": "assistant", "content": answer})
    text = tokenizer.apply_chat_template(messages, chat_template=TINY_TEMPLATE, tokenize=False)
    text = text.replace("<|image_pad|>", "<|image_pad|>" * VISUAL)
    assert row.ids == tokenizer(text, add_special_tokens=False)["input_ids"]
    weighed = [row.ids[i] for i, weight in enumerate(row.weights) if weight == 1.0]
    assert tokenizer.decode(weighed) == "".join(ANSWERS)


def test_its_logits_are_those_of_transformers(tmp_path: Path) -> None:
    encoder = QuestionEncoder(build_tokenizer())
    row = conversation([[Piece(a, 1.0)] for a in ANSWERS], "action first", ASKED, encoder)
    images = np.random.default_rng(0).integers(0, 256, (3, IMAGE_PX, IMAGE_PX, 3), np.uint8)
    shorter = conversation([[Piece(ANSWERS[0], 1.0)]], "action first", ASKED, encoder)
    tuner = Tuner(DRAFTER, EMBEDDED / "drafter", tmp_path, TuningPlan(1.0, 1, 1, 1e-3))
    encoded, model = tuner.encode(list(images)), tuner.model.eval()
    batch = ConversationBatch.of([shorter, row], [encoded[:1], encoded], encoder.pad)
    last = torch.arange(len(row.ids)) + batch.ids.shape[1]
    with torch.no_grad():
        parts = batch.rows, batch.ids, batch.visual, batch.positions
        ours = ConversationForward(model).converse(*parts, last)
        pixels = patches(pixels_of(images)).flatten(0, 1).view(-1, 3, 1, 64)
        theirs = model(
            input_ids=torch.tensor([row.ids]),
            pixel_values=pixels.expand(-1, -1, 2, -1).flatten(1),
            image_grid_thw=torch.tensor([[1, 16, 16]] * 3),
            mm_token_type_ids=(torch.tensor([row.visual]) >= 0).int(),
        ).logits[0]
    assert torch.allclose(ours, theirs, atol=0.02), "encoded pictures are kept in half precision"
    assert not torch.allclose(ours, theirs.roll(1, 0), atol=0.02)


def test_a_tuned_pair_loads_and_a_second_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This process renders: others would import torch first.
    here = SimpleNamespace(get_context=lambda _: multiprocessing.dummy)
    monkeypatch.setattr(rendered, "multiprocessing", here)
    few = ("--episodes", "1", "--rollouts", "1", "--rounds", "1", "--views", "4", "--batch", "1")
    few += ("--threads", "1", "--seed", "2")  # whose missions are short
    steps, minutes = dict.fromkeys(TINY_SHAPES, 0), 0.001
    for _ in range(2):
        command = ("train", "flats", "--minutes", str(minutes), "--out", str(tmp_path), *few)
        assert main(command) == 0
        for name in TINY_SHAPES:
            state = torch.load(tmp_path / name / "tuning.pt", weights_only=True)
            assert state["steps"] > steps[name]
            steps[name] = state["steps"]
            minutes = max(minutes, state["spent"] / 60 / FLATS_DRAFTER_SHARE + 0.001)
    for name in TINY_SHAPES:
        model = load(tmp_path / name, threads=1)
        pattern = instruction_pattern(tmp_path / name)
        assert pattern is not None and pattern.fullmatch("go through the second door on the left")
        (ids,) = greedy_answers(model, [sample_requests(0, 1)[0]], model.spec(8))
        assert ids


@pytest.mark.parametrize(
    "options", [("--episodes", "0"), ("--minutes", "nan"), ("--pair", "nowhere"), ("--seed", "-1")]
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_rendered(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "flats", "--out", str(tmp_path / "new"), *options]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("action", "taken", "said", "learned"),
    [
        ("turn left large", "turn left large", "", f"turn left large|{REASON}"),
        ("turn left large", "turn left small", "", f"turn left large|{REASON}"),
        ("turn left large", "turn right large", "", f"turn left|{REASON}"),
        ("turn left large", "move forward medium", "", f"turn|{REASON}"),
        ("turn left large", "search", "", f"turn|{REASON}"),
        ("search", "", "action: search; reason: no blue box, door 2;", f"search|{REASON}"),
        (
            "search",
            "",
            "action: turn left; reason: no blue box, look 2;",
            "search|no blue box|door",
        ),
        ("search", "", "action: stop; reason: blue box near 0.6 ahead 2;", "search|no"),
        ("search", "", "reason: no blue box, door 2; action: search;", "no blue box|door 2|search"),
        ("search", "", "reason: no blue box; action: stop;", "no blue box|search"),
        ("search", "", "action: stop", "search"),
        ("search", "", "stop;", ""),
    ],
)
def test_an_answer_teaches_the_first_word_that_differs_in_each_part(
    action: str, taken: str, said: str, learned: str
) -> None:
    """An expert's answer whose action was drawn at random, or what a model said."""
    right = (Piece(" no", 1.0), Piece(" blue box", 1.0), Piece(",", 0.5), Piece(" door", 1.0))
    turn = EpisodeTurn(action, taken, (*right, Piece(" 2", 1.0)), said)
    tokenizer = build_tokenizer()
    order = ORDERS[said.startswith("reason")]
    row = conversation([turn.pieces(order)], order, ASKED, QuestionEncoder(tokenizer))
    answer = said or f"action: {taken}; reason: no blue box, door 2;"
    assert f"<|im_start|>{answer}<|im_end|>" in tokenizer.decode(row.ids)
    words = [row.targets[i] if weight >= 1.0 else None for i, weight in enumerate(row.weights)]
    parts = [list(part) for known, part in groupby(words, lambda word: word is not None) if known]
    assert "|".join(tokenizer.decode(part).strip() for part in parts) == learned


def test_a_rollout_is_what_the_model_says_of_its_frames_and_of_its_own_earlier_words(
    tmp_path: Path,
) -> None:
    write_episodes(tmp_path / "some.npz", 7, 2, "rays", EMBEDDED / "drafter")
    model = load(EMBEDDED / "drafter", threads=1)
    answers = 0
    for episode in read_episodes(tmp_path / "some.npz"):
        assert len(episode) == len(episode.jpegs) <= MOST_ROLLED
        player = ModelPlayer(model, episode.instruction, episode.order, REMEMBERED_FRAMES)
        for turn, jpeg in zip(episode.turns, episode.jpegs, strict=True):
            answer = player.answer(jpeg)
            player.remember(jpeg, turn.said)
            right = "".join(p.text for p in assembled(turn.action, turn.reason, episode.order))
            assert turn.said in (answer, right)
            answers += turn.said != right
    assert answers, "the model answered some of them"


def test_the_pair_of_flats_decides_by_what_it_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the expert's ways through three flats begin, with eight earlier frames and without."""
    monkeypatch.setattr(episodes, "MOST_FRAMES", 12)
    write_episodes(tmp_path / "some.npz", 99, 3, "rays")
    model = load(FLATS / "target", threads=1)
    right: dict[int, list[bool]] = {REMEMBERED_FRAMES: [], 0: []}
    for episode in read_episodes(tmp_path / "some.npz"):
        for frames, found in right.items():
            player = ModelPlayer(model, episode.instruction, ORDERS[0], frames)
            for turn, jpeg in zip(episode.turns, episode.jpegs, strict=True):
                found.append(str(action_of(player.answer(jpeg)) or "") == turn.action)
                said = "".join(piece.text for piece in turn.pieces(ORDERS[0]))
                player.remember(jpeg, said)
    assert np.mean(right[REMEMBERED_FRAMES]) > max(0.7, np.mean(right[0]) + 0.15)
