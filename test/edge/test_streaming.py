"""Drafting on as if all were accepted: the cloud leaves open what goes on, pushed ahead or not."""

from __future__ import annotations

from random import Random

import pytest

from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.edge.events import Event, Received
from edge_cloud_spec.lab.harness.toy import END, spec_of
from edge_cloud_spec.lab.harness.virtual_decode import Conditions, Decode
from edge_cloud_spec.wire.messages import DraftMessage, Verdict

LONGEST = 40
RULES = {
    "greedy": GREEDY,
    "coupled": SamplingPolicy(0.9, seed=3),
    "rejection": SamplingPolicy(0.9, seed=3),
}


class Heard(Decode):
    """Keeps the verdicts that the robot heard."""

    def __init__(self, *given, **changes) -> None:
        self.verdicts: list[Verdict] = []
        super().__init__(*given, **changes)

    def on_event(self, event: Event) -> Event:
        if isinstance(event, Received) and isinstance(event.message, Verdict):
            self.verdicts.append(event.message)
        return super().on_event(event)


def decode(seed: int, rule: str, draft_noise: float, **changes) -> Heard:
    chosen = {"spec": spec_of(LONGEST), "seed": seed, "draft_noise": draft_noise, **changes}
    one = Heard(Random(seed), "picospec", rule, RULES[rule], **chosen)
    assert one.run().reason in ("end", "length")
    return one


@pytest.mark.parametrize("draft_noise", [0.0, 0.5])
@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_draft_says_where_it_goes_on_unless_the_answer_ends_there(
    rule: str, draft_noise: float
) -> None:
    pushed = 0
    for seed in range(12):
        conditions = Conditions(jitter=0.1, cuts=0.2, outage=0.2)
        for message in decode(seed, rule, draft_noise, conditions=conditions).sent:
            if not isinstance(message, DraftMessage):
                continue
            tokens = message.draft.tokens
            left = LONGEST - message.base.length - len(tokens)
            goes_on = left > 1 and tokens[-1] != END
            assert message.open_at == (len(tokens) - 1 if goes_on else None)
            pushed += message.base.length > 0
    assert pushed > 30


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_right_draft_costs_the_cloud_no_token_of_its_own(rule: str) -> None:
    """Where the drafter is the target every verdict is open, or ends the answer."""
    verdicts = 0
    for seed in range(12):
        one = decode(seed, rule, 0.0)
        *before, last = one.verdicts
        assert last.finish
        for verdict in before:
            assert verdict.token is None and verdict.path
        assert one.worker.counters.judged == len(one.verdicts)
        verdicts += len(one.verdicts)
    assert verdicts > 20
