"""What people see in RViz."""

from __future__ import annotations

import numpy as np

from edge_cloud_spec.nodes.annotator import WIDTH, annotate


def test_the_picture_keeps_its_shape_and_words_stand_below_it() -> None:
    picture = np.full((100, 200, 3), 90, np.uint8)
    sheet = annotate(picture, "find the silver bottle", "action: stop; reason: near;", "idle 12")
    below = sheet[WIDTH // 2 :]
    assert sheet.shape[1] == WIDTH
    assert (sheet[: WIDTH // 2] == 90).all()
    assert below.any()
    assert not annotate(picture, "", "", "")[WIDTH // 2 :].any()


def test_words_that_cannot_be_drawn_do_no_harm() -> None:
    annotate(np.zeros((1, 1, 3), np.uint8), "найди", "action: \x00;;; ;", "…")
