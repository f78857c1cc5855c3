"""What verdicts tell of log probabilities, from sessions without a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.cloud.verification import BASE, END, OPENING, VOCABULARY, draft, says, verdict_of

from edge_cloud_spec.candidates import candidates_of
from edge_cloud_spec.cloud.session.events import DuePass
from edge_cloud_spec.cloud.session.session import CloudSession
from edge_cloud_spec.cloud.session.validation import check_opening
from edge_cloud_spec.decoding.split import Split
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.wire.messages import ANSWER, CANDIDATES, Generate, Open, Resume

REQUEST = replace(OPENING.request, candidates=("12", "1"), whole=True)
SCORING = replace(OPENING, request=REQUEST, log_probs=CANDIDATES)
# Of the likeliest token of ``says``, and of any other.
LIKELY, OTHER = (logit - np.logaddexp.reduce([5.0] + [0.0] * (VOCABULARY - 1)) for logit in (5, 0))


def session(opening: Open, max_tokens: int = 20) -> CloudSession:
    candidates = None
    if opening.log_probs == CANDIDATES:
        candidates = candidates_of(
            opening.request, lambda text: [*map(int, text)], (END, 8), VOCABULARY, 99
        )
    return CloudSession(
        "a session",
        opening,
        BASE,
        end_tokens=(END, 8),
        max_tokens=max_tokens,
        vocabulary=VOCABULARY,
        candidates=candidates,
    )


def test_candidates_are_scored_first_whatever_end_follows_and_told_again_after_a_cut() -> None:
    cloud = session(SCORING, max_tokens=1)
    (due,) = cloud.handle(Generate(BASE))
    assert isinstance(due, DuePass) and due.draft.paths[1:] == [
        (1,),
        (1, 2),
        (1, 2, END),
        (1, 2, 8),
        (1, END),
        (1, 8),
    ]
    told = verdict_of(cloud.handle(says(1, 2, END, 0, 0, 0, 0)))
    whole = LIKELY + LIKELY + np.logaddexp(LIKELY, OTHER)
    beginning = LIKELY + OTHER + np.log(2)
    assert told.log_probs == pytest.approx((whole, beginning)) and told.finish == "length"
    cloud.pause()
    cloud.handle(Resume("a session", BASE))
    assert verdict_of(cloud.handle(Generate(BASE))) == told


def test_a_robots_own_draft_is_not_taken_for_candidates() -> None:
    cloud = session(SCORING)
    cloud.handle(draft(3, 4, 5, 6, 7, 1))
    assert verdict_of(cloud.handle(says(3, 4, 0, 0, 0, 0, 0))).log_probs == ()
    (due,) = cloud.handle(Generate(BASE.extend((3, 4, 0))))
    assert isinstance(due, DuePass) and not len(due.draft), "an answer has begun"


def test_an_answers_tokens_are_told_and_no_others() -> None:
    for asked, expected in ((ANSWER, (LIKELY, LIKELY, LIKELY)), ("", ())):
        cloud = session(replace(OPENING, log_probs=asked))
        cloud.handle(draft(1, 2, 3))
        assert verdict_of(cloud.handle(says(1, 2, 5, 0))).log_probs == pytest.approx(expected)


@pytest.mark.parametrize(
    "wrong",
    [{"log_probs": "all"}, {"log_probs": ANSWER, "split": Split("dense", 1, 1)}],
)
def test_what_no_verdict_tells_is_refused(wrong: dict[str, object]) -> None:
    rejects = {"rule": "rejection", "policy": replace(OPENING.policy, temperature=1.0)}
    payload = "probabilities" if "split" in wrong else "ids"
    opening = replace(OPENING, payload=payload, **rejects, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="are told of answer, candidates"):
        check_opening(opening, b"")
    check_opening(replace(opening, log_probs=""), b"")
