"""How a robot paces its drafts: by its preset, by the target's pass, or by what promises most."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest

from edge_cloud_spec.decoding.cost_model import Costs, rate
from edge_cloud_spec.decoding.mean import Mean, PassYield
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.decoding.shape import BestFirst, Shape, chain
from edge_cloud_spec.edge.draft_planner import (
    HINTED,
    PLAN_GAIN,
    PROBE,
    REPLAN,
    TRIED,
    AutoPlanner,
    DraftPlan,
    Observations,
    PlannerSettings,
    candidate_pipelines,
    candidate_shapes,
    planner_of,
    scored_plans,
)
from edge_cloud_spec.edge.measures import Measures
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.pilot.settings import DrafterSettings
from edge_cloud_spec.presets import load_preset, preset_names

AUTO = load_preset("auto")
BOUND = Preset("x", "", "edge", draft_length=16, pacing="verify_bound")


def known(
    draft: float = 0.02, verify: float = 0.2, one_way: float = 0.05, acceptance: float = 0.8
) -> Measures:
    """Measures of a robot that has seen passes of all kinds, which all cost the same.

    Hints gain nothing.
    """
    measures = Measures()
    measures.server_pass.observe(verify)
    for nodes in (1, 64):
        measures.drafted(nodes, draft)
        measures.verified(nodes, verify, 2 * one_way)
    for _ in range(HINTED):
        measures.generated(0, 1, verify, hints=True)
    measures.acceptance = Mean(acceptance, 1e6)
    return measures


PICOSPEC = load_preset("picospec")
TREE = replace(BOUND, draft_length=0, best_first=BestFirst(8, 9, 3), payload="ids")


@pytest.mark.parametrize(
    ("measured", "preset", "shape"),
    [
        ({}, PICOSPEC, PICOSPEC.shape),
        ({}, load_preset("cloud_ar"), None),
        (None, BOUND, chain(16)),  # nothing is known yet
        ({}, BOUND, chain(5)),  # 5 * 0.02 + 0.1 = 0.2
        ({"verify": 0.3}, BOUND, chain(10)),
        ({"one_way": 0.2}, BOUND, chain(1)),
        ({"draft": 0.001}, BOUND, chain(16)),
        ({}, TREE, BestFirst(8, 5, 3)),
    ],
)
def test_a_preset_has_its_own_shape_or_paces_it_by_the_targets_pass(
    measured: dict[str, float] | None, preset: Preset, shape: Shape | None
) -> None:
    """Then drafting and round trip last as long."""
    planner = planner_of(preset, Measures() if measured is None else known(**measured))
    assert planner.plan(0.0, 0) == DraftPlan(shape, preset.speculation)


def test_the_width_of_a_tree_is_what_its_passes_cost() -> None:
    measures = known()
    for _ in range(400):
        measures.drafted(3, 0.05)  # a pass over three nodes; the mean forgets the first
    for preset, shape in ((TREE, BestFirst(8, 2, 3)), (BOUND, chain(5))):
        assert planner_of(preset, measures).plan(0.0, 0).shape == shape


def taken(seen: Observations) -> DraftPlan:
    """The plan that is worth most."""
    return max(scored_plans(seen, AUTO.speculation), key=lambda scored: scored[0])[1]


def test_auto_learns_what_the_target_costs_first_and_then_takes_the_best_plan() -> None:
    assert AutoPlanner(AUTO, Measures()).plan(0.0, 0) == DraftPlan(
        None, AUTO.speculation, generate=PROBE
    )
    measures = known()
    plan = AutoPlanner(AUTO, measures).plan(0.0, 0)
    assert plan.shape in candidate_shapes() and plan.generate == 0
    assert plan.shape is not None
    costs = measures.costs()
    promised = rate(plan.shape, plan.speculation, costs)
    assert promised == max(
        rate(shape, each, costs)
        for shape in candidate_shapes()
        for each in candidate_pipelines(plan.speculation, shape.depth)
    )
    assert promised > PLAN_GAIN / 0.2
    assert plan.speculation.ahead >= 1 + 2 * 0.05 / 0.2


DRAFTING = [name for name in preset_names() if load_preset(name).drafts_on_robot]


@pytest.mark.parametrize("name", DRAFTING)
def test_a_drafter_that_knows_one_token_is_asked_for_chains_or_the_preset_is_refused(
    name: str,
) -> None:
    preset = load_preset(name)
    if preset.pacing != "auto" and not preset.shape.is_chain:
        with pytest.raises(UserError, match=f"{name}.* auto .*dsd, fsd"):
            preset.in_chains()
        return
    chains = preset.in_chains()
    assert chains.shape.is_chain and chains.in_chains() == chains
    assert (chains == preset) == preset.shape.is_chain
    planner = planner_of(chains, known())
    assert all(planner.plan(0.1 * n, 3 * n).shape.is_chain for n in range(100))
    if isinstance(planner, AutoPlanner):
        assert {shape.is_chain for shape, _ in planner.observations().promises} == {True}
        trees = AutoPlanner(preset, known()).observations().promises
        assert not all(shape.is_chain for shape, _ in trees)


@pytest.mark.parametrize(("one_way", "ahead"), [(0.0, 2), (0.05, 2), (0.11, 3), (0.3, 4), (0.9, 8)])
def test_auto_drafts_as_far_ahead_as_a_round_trip_is_long(one_way: float, ahead: int) -> None:
    told = replace(AUTO, speculation=replace(AUTO.speculation, ahead=2))
    seen = AutoPlanner(told, known(one_way=one_way, acceptance=0.97)).observations()
    assert {speculation.ahead for _, speculation in seen.promises} == {ahead}


def test_auto_leaves_the_target_alone_where_no_plan_promises_more() -> None:
    measures = known(draft=0.5, one_way=0.5, acceptance=0.05)
    auto = AutoPlanner(AUTO, measures)
    plan = auto.plan(0.0, 0)
    assert plan == DraftPlan(None, AUTO.speculation, REPLAN[-1])
    measures.acceptance = Mean(0.95, 1e6)
    for _ in range(500):
        measures.drafted(1, 0.001)
        measures.drafted(64, 0.001)
        measures.one_way.observe(0.0)
    assert auto.plan(1.0, plan.generate - 1) is plan
    assert auto.plan(2.0, plan.generate).shape is not None  # it looks again then


def test_auto_keeps_its_plan_for_so_many_rounds() -> None:
    measures = known()
    auto = AutoPlanner(AUTO, measures)
    plans = [auto.plan(0.1 * n, 3 * n) for n in range(200)]
    assert len(set(map(id, plans[: REPLAN[0]]))) == 1
    made = [n for n in range(1, 200) if plans[n] is not plans[n - 1]]
    expected = accumulate((*REPLAN, *REPLAN[-1:] * 9))
    assert made == [n for n in expected if n < 200]


def test_auto_plans_anew_once_it_knows_what_a_pass_over_a_draft_costs() -> None:
    measures = Measures()
    measures.server_pass.observe(0.2)
    measures.drafted(1, 0.02)
    measures.one_way.observe(0.05)
    auto = AutoPlanner(AUTO, measures)
    first = auto.plan(0.0, 0)
    assert auto.plan(0.1, 3) is first
    measures.verified(4, 0.2, None)
    assert auto.plan(0.2, 6) is not first
    assert auto.plan(0.3, 9) is not first


def test_auto_learns_what_a_plan_yields_of_its_promise_and_trusts_others_no_more() -> None:
    measures = known()
    auto = AutoPlanner(AUTO, measures)
    plan = auto.plan(0.0, 0)
    assert plan.shape is not None
    promised = rate(plan.shape, plan.speculation, measures.costs())
    now = 0.0
    while not measures.yields:
        now += 1.0
        auto.plan(now, int(now * promised / 2))  # half of what was promised
        assert now < 200
    assert now > TRIED
    for tried in (None, (plan.shape, plan.speculation)):
        assert measures.yields[tried].value == pytest.approx((2 * 1.0 + 0.5) / 3, rel=0.05)
    other = AutoPlanner(AUTO, measures)
    assert other.observations().usual == measures.yields[None].value
    measures.yields[None] = Mean(1.7, 5.0)
    # What was not tried is not taken to yield more than it promises.
    assert other.observations().usual == 1.0


def lead(auto: AutoPlanner, costs: Costs, until: float) -> list[DraftPlan]:
    """The plans of one long answer. A robot that leads is as fast as these costs promise."""
    now, tokens, plans = 0.0, 0.0, [DraftPlan(None, AUTO.speculation)]
    while now < until:
        plans.append(auto.plan(now, int(tokens), generated=not plans[-1].leads))
        shape, speculation = plans[-1].shape, plans[-1].speculation
        hinted = auto.observations().hinted
        tokens += 0.5 * (rate(shape, speculation, costs) if plans[-1].leads else hinted)
        now += 0.5
        if plans[-1].leads and speculation.exits:
            auto._measures.exits.observe(costs.exits)
    return plans[1:]


def test_a_run_of_bad_luck_does_not_count_against_a_plan_twice() -> None:
    """It has lowered the acceptance, and with it what each plan promises."""
    measures, unlucky = known(), known(acceptance=0.6)
    auto = AutoPlanner(AUTO, measures)
    auto.plan(0.0, 0)
    measures.acceptance = unlucky.acceptance
    lead(auto, unlucky.costs(), 60.0)
    assert measures.yields[None].value == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_exits_which_a_robot_sees_only_while_it_leads_are_given_a_try(share: float) -> None:
    """Hints are faster than to lead without exits, and slower than to lead with them."""
    measures = known(draft=0.05, one_way=0.12, acceptance=0.7)
    costs = replace(measures.costs(), exits=share)
    for _ in range(HINTED, 200):
        measures.generated(3, 77, 10.0, hints=True)
    plans = lead(AutoPlanner(AUTO, measures), costs, 300.0)
    assert any(plan.leads for plan in plans)
    assert all(plan.leads == bool(share) for plan in plans[-20:])


def test_a_long_first_answer_is_worth_leading() -> None:
    """How long answers are is unknown until one has ended; to take the lead costs a while."""
    measures = known(one_way=0.5)
    auto = AutoPlanner(AUTO, measures)
    seen = auto.observations()
    measures.server_yields[True] = PassYield()
    for _ in range(HINTED):
        measures.generated(3, 100, 115 / max(seen.promises.values()), hints=True)
    plans = lead(auto, measures.costs(), 300.0)
    assert not plans[0].leads and plans[-1].leads


def test_auto_changes_its_plan_only_for_one_that_promises_a_little_more() -> None:
    measures = known()
    auto = AutoPlanner(AUTO, measures)
    plan = auto.plan(0.0, 0)
    assert plan.shape is not None
    key = (plan.shape, plan.speculation)
    for yields, stays in ((0.995, True), (0.5, False)):
        measures.yields = {key: Mean(yields, 1e9), None: Mean(1.0, 1e9)}
        seen = replace(auto.observations(), using=plan)
        chosen = taken(seen)
        assert ((chosen.shape, chosen.speculation) == key) == stays


@pytest.mark.parametrize(
    ("more", "is_drafting", "left", "drafts"),
    [
        pytest.param(1.01, False, 1e9, False, id="a little more is no reason to begin"),
        pytest.param(1.05, False, 1e9, True, id="more is"),
        pytest.param(1.05, False, 1.0, False, id="but not at the end of an answer"),
        pytest.param(1.01, True, 1e9, True, id="who drafts goes on for a little more"),
        pytest.param(0.9, True, 1e9, False, id="and not for less"),
    ],
)
def test_a_robot_drafts_where_that_promises_more_than_the_server_by_itself(
    more: float, is_drafting: bool, left: float, drafts: bool
) -> None:
    seen = AutoPlanner(AUTO, known()).observations()
    most = max(seen.promises, key=seen.promises.__getitem__)
    using = DraftPlan(*most) if is_drafting else DraftPlan(None, AUTO.speculation)
    seen = replace(seen, generated=seen.promises[most] / more, using=using, left=left)
    assert (taken(seen).shape is not None) == drafts


def test_hints_go_up_where_they_pay_as_the_owner_of_the_robot_says() -> None:
    """Each decode brings what its owner says now, the planner lasts."""
    measures = known()
    for hints_pay, hints in ((1.1, True), (5.0, False), (1.1, True)):
        chosen = DrafterSettings(planner=PlannerSettings(hints_pay)).pilot.decode
        planner = planner_of(chosen.preset, measures, chosen.planner)
        assert isinstance(planner, AutoPlanner)
        seen = planner.observations()
        most = max(seen.promises.values())
        seen = replace(seen, generated=most, hinted=1.2 * most, using=None)
        plans = scored_plans(seen, AUTO.speculation, planner.settings)
        plan = max(plans, key=lambda scored: scored[0])[1]
        assert plan.generate and (plan.shape is not None) == hints
    assert len(measures.planners) == 1


def test_what_was_promised_is_worked_out_once_for_costs_that_are_about_the_same() -> None:
    measures = known()
    first = AutoPlanner(AUTO, measures)
    first.plan(0.0, 0)
    (kept,) = measures.promises.values()
    AutoPlanner(AUTO, measures).plan(0.0, 0)
    assert list(measures.promises.values()) == [kept]
    for n in range(40):
        measures.one_way = Mean(0.05 * 1.5**n, 1.0)
        AutoPlanner(AUTO, measures).plan(0.0, 0)
        assert len(measures.promises) <= 32
    assert kept not in measures.promises.values()


def test_auto_gives_up_drafting_at_a_crowded_cloud_and_drafts_again_later() -> None:
    """Queue and pass, as its verdicts say: a row is dear among many, and a pass waits."""
    measures = Measures()
    planner = planner_of(load_preset("auto"), measures)
    now, tokens = 0.0, 0
    drafted: dict[str, list[bool]] = {"quiet": [], "crowded": [], "quiet again": []}
    for phase, plans in drafted.items():
        end = now + 120.0
        while now < end:
            plan = planner.plan(now, tokens)
            plans.append(plan.leads)
            for _ in range(1 if plan.leads else plan.generate):
                nodes = plan.shape.max_nodes if plan.shape is not None and plan.leads else 0
                row_s, wait_s = (0.0, 0.0) if phase != "crowded" else (0.06, 0.06)
                seconds = wait_s + 0.05 + row_s * nodes
                if nodes:
                    measures.drafted(1, 0.005)
                    for right in (1.0, 1.0, 1.0, 0.0):
                        measures.acceptance.observe(right)
                else:
                    measures.generated(0, 1, seconds, hints=plan.shape is not None)
                measures.verified(nodes, seconds, 0.01)
                now += seconds + (0.01 + 0.005 * nodes if nodes else 0.0)
                tokens += 3 if nodes else 1
    assert sum(drafted["quiet"]) > 0.9 * len(drafted["quiet"])
    assert not any(drafted["crowded"][-3:])
    assert all(drafted["quiet again"][-3:])


@pytest.mark.parametrize(("given", "leads"), [(1, True), (8, False)])
def test_a_robot_that_leads_looks_now_and_then_what_the_server_gives_by_itself(
    given: int, leads: bool
) -> None:
    """``given``: tokens of its pass, of late. The look costs a hundredth of the time."""
    measures = known()
    for _ in range(500):
        measures.generated(0, 1, 0.2, hints=False)
    auto, now, tokens, led = AutoPlanner(AUTO, measures), 0.0, 0, []
    for _ in range(2000):
        led.append(auto.plan(now, tokens).leads)
        if not led[-1]:
            measures.generated(given - 1, given, 0.2, hints=False)
        now, tokens = (now + 0.3, tokens + 3) if led[-1] else (now + 0.2, tokens + given)
    assert led[0] and not all(led)
    assert led[-1] == leads
    assert tokens / now > 0.98 * 10
