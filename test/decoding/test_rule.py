"""The names of the acceptance rules, and which temperature each goes with."""

from __future__ import annotations

import pytest

from edge_cloud_spec.decoding.policy import RULES, check_rule, temperature_of
from edge_cloud_spec.errors import UserError


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_accepted_at_its_own_temperatures_only(rule: str) -> None:
    check_rule(rule, temperature_of(rule, 0.8))
    with pytest.raises(UserError, match="greedy goes with temperature 0"):
        check_rule(rule, 0.8 if rule == "greedy" else 0.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_unknown_rule_is_refused_with_the_names_that_there_are(temperature: float) -> None:
    with pytest.raises(UserError, match="must be greedy, coupled or rejection, not 'luck'"):
        check_rule("luck", temperature)
