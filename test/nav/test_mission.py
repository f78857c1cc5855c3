"""A mission ends: found, not found, blocked, given up; never by what does not belong to it."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.drill import Drill
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.answer import Action, action_of, every_action, parse_action
from edge_cloud_spec.nav.events import Effect, Odometry, Show
from edge_cloud_spec.nav.mission import (
    FollowedGoal,
    GoalEnd,
    Mission,
    MissionSettings,
    frames_all_around,
)
from edge_cloud_spec.nav.motion import BLIND, IN_THE_WAY, STEP_BLOCKED, STOPPED_SHORT
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.status import (
    MISSION_ENDS,
    NAV_STATES,
    WAYS,
    GoalStatus,
    NavCode,
    NavigatorStatus,
)
from edge_cloud_spec.nav.steps import Steps

BALL, LOST = "find the yellow ball", "the link is lost"
SEARCH, FORWARD, NOTHING = "search", "move forward large", "fly"
SEEN = frames_all_around(Steps().search)
NONE, DONE, REFUSED = NavCode.NONE, NavCode.DONE, NavCode.REFUSED
TWICE = (NavCode.BLOCKED,) * 2


def ended(
    request: str,
    code: NavCode,
    answer: str = "",
    why: str = "so",
    clear: tuple[str, ...] = (),
) -> NavigatorStatus:
    """What the navigator says at a motion's end, or of what it refuses."""
    action = parse_action(answer)
    return NavigatorStatus("idle", request, why, code=code, action=action, clear=clear)


class Story:
    """A mission that hears of one decision after the other, and of the navigator's statuses."""

    def __init__(self, settings: MissionSettings | None = None, step: float = 1.0) -> None:
        self.mission, self.now, self.ends = Mission(), 50.0, list[str]()
        self.step = step  # s from one event to the next
        self.settings = settings or MissionSettings()
        self._requests = count()
        self.mission.follow(BALL, self.now)

    def end(self, after: float | None = None) -> None:
        self.now += self.step if after is None else after
        end = self.mission.end(self.settings, self.now)
        self.ends += [] if end is None else [str(end)]

    def tell(self, *statuses: NavigatorStatus) -> None:
        for status in statuses:
            self.mission.on_status(status)
            self.end()

    def decide(
        self,
        answer: str,
        *codes: NavCode,
        why: str = "so",
        problem: str = "",
        by_link: bool = False,
        clear: tuple[str, ...] = (),
    ) -> str:
        """A decision with this action, whose motion ended with these codes."""
        request, action = f"r{next(self._requests)}", parse_action(answer)
        self.mission.begin(request)
        self.mission.conclude(request, action, problem, by_link)
        self.end()
        for code in codes:
            moving = NavigatorStatus("moving", request, answer, action=action)
            self.tell(moving, ended(request, code, answer, why, clear))
        return request

    def fail(self, why: str = "garbage", by_link: bool = False) -> None:
        self.decide("", problem=why, by_link=by_link)


@pytest.mark.parametrize(
    ("answer", "why", "ends", "trouble"),
    [
        ("action: stop; reason: th", LOST, True, ""),
        ("action: stop", LOST, False, LOST),
        ("", LOST, False, LOST),
        ("error; action: stop;", LOST, False, LOST),
        ("error; action: stop;", "", False, "the answer holds no action"),
        ("reason: a ball; action: stop;", "", True, ""),
    ],
)
def test_a_verified_action_counts_whatever_became_of_the_rest(
    answer: str, why: str, ends: bool, trouble: str
) -> None:
    """And the target's stop is the mission's end."""
    story = Story()
    story.mission.begin("r")
    story.mission.conclude("r", action_of(answer), why, by_link=True)
    assert story.mission.trouble == trouble
    story.end()
    assert story.ends == [f"done {BALL}"] * ends


@pytest.mark.parametrize(("degrees", "frames"), [(48.0, 9), (-48.0, 9), (90.0, 5), (7.0, 53)])
def test_a_search_sees_all_around_and_once_more(degrees: float, frames: int) -> None:
    assert frames_all_around(degrees) == frames
    assert (frames - 1) * abs(degrees) >= 360 > (frames - 2) * abs(degrees)


def test_what_did_not_look_around_does_not_count_as_looked() -> None:
    """Failed or refused decisions, repeated statuses, turns that did not arrive, other motions."""
    story = Story(MissionSettings(blocked_after=1000, failed_after=1000))
    for _ in range(SEEN - 1):
        request = story.decide(SEARCH, DONE)
    story.tell(*[ended(request, DONE, SEARCH)] * 5)
    for _ in range(5):
        story.fail("the link is lost", by_link=True)
        story.fail()
        story.decide(NOTHING)
        story.tell(ended(story.decide(SEARCH), REFUSED))
        story.decide(SEARCH, NONE)
        story.tell(ended("another", DONE, SEARCH))
    assert not story.ends
    story.decide(FORWARD, DONE)
    for _ in range(SEEN - 1):
        story.decide(SEARCH, DONE)
    assert not story.ends, "it looked from another place"
    story.tell(NavigatorStatus("stopped", "-", "e_stop is on"))
    for _ in range(SEEN):
        assert not story.ends, "somebody stopped it, and may have turned it"
        story.decide(SEARCH, DONE)
    assert story.ends == [f"not_found {BALL}: not seen on {SEEN} frames all around"]


def test_motions_in_a_row_that_do_not_arrive_end_as_blocked() -> None:
    story, given_up = Story(), (NONE, NONE)
    for code in (*TWICE, *given_up, DONE, *TWICE):
        story.decide(FORWARD, code)
    story.tell(NavigatorStatus("stopped", "r", "so", code=NavCode.E_STOP))
    for code in TWICE:
        story.decide(FORWARD, code)
    assert not story.ends, "a robot that was stopped may stand elsewhere"
    story.decide(FORWARD, NavCode.BLOCKED, why="blocked: by a wall")
    assert story.ends == [
        f"blocked {BALL}: 3 motions in a row did not arrive; the last was blocked: by a wall"
    ]


OUT = {"left": "turn left small", "right": SEARCH, "behind": "move backward small"}


@pytest.mark.parametrize("way", OUT)
def test_a_dead_end_is_left_while_a_way_is_clear_and_verified_words_ask_for_it(way: str) -> None:
    story = Story()
    for _ in range(20):
        for _ in range(3):
            story.decide(FORWARD, NavCode.BLOCKED, clear=(way,))
        assert not story.ends, "a way out is clear, and nothing was decided since"
        story.decide(OUT[way], DONE)
    for _ in range(3):
        assert not story.ends, "what was clear before does not count"
        story.decide(FORWARD, NavCode.BLOCKED, why="blocked: by a wall")
    assert story.ends == [
        f"blocked {BALL}: 3 motions in a row did not arrive; the last was blocked: by a wall"
    ]


@pytest.mark.parametrize("answers", [(FORWARD,), (FORWARD, "turn left small"), (*OUT.values(),)])
def test_no_mission_goes_on_for_ever_at_a_dead_end(answers: tuple[str, ...]) -> None:
    """Whose words insist, or ask for ways that are said to be clear and are not: twice as many
    motions. Whose words go to and fro: so many actions as any."""
    insists, dithers = Story(), Story()
    for number in range(6):
        assert not insists.ends
        insists.decide(answers[number % len(answers)], NavCode.BLOCKED, clear=WAYS)
    assert insists.ends[0].startswith(f"blocked {BALL}: 6 motions in a row")
    for number in range(50):
        assert not dithers.ends
        dithers.decide(FORWARD, NavCode.BLOCKED, clear=WAYS)
        dithers.decide(f"turn {('left', 'right')[number % 2]} small", DONE)
    assert dithers.ends == [f"given_up {BALL}: not reached after 100 decisions"]


def test_the_cloud_out_of_reach_ends_nothing_before_the_time_is_over() -> None:
    story = Story()
    for _ in range(200):
        story.fail("the link is lost: connection refused", by_link=True)
    assert not story.ends and story.mission.trouble.startswith("the link is lost")
    story.end(after=600.0)
    assert story.ends[0].startswith("given_up") and "connection refused" in story.ends[0]


@pytest.mark.parametrize("why", ["failed", "no action", "refused"])
def test_decisions_in_a_row_that_come_to_nothing_are_given_up(why: str) -> None:
    story = Story()
    for number in range(59):
        assert not story.ends
        if number == 29:
            story.decide(FORWARD, DONE)
        if why == "failed":
            story.fail("the prompts differ")
        elif why == "no action":
            story.decide(NOTHING)
        else:
            request = story.decide(FORWARD)
            story.tell(ended(request, REFUSED))
    [end] = story.ends
    assert end.startswith("given_up") and "30 decisions" in end


def drive_on(story: Story, *actions: str) -> str:
    """Motions, each of which is replaced by the next; the request of the last."""
    for action in actions:
        request = story.decide(action)
        moving = NavigatorStatus("moving", request, action=parse_action(action))
        story.tell(moving, replace(moving, state="ready"))
    return request


def test_a_motion_that_is_replaced_has_neither_arrived_nor_failed_and_is_counted_as_one() -> None:
    story = Story(MissionSettings(blocked_after=1, max_decisions=4))
    drive_on(story, *["turn left small"] * 20, *[SEARCH] * 20, *[FORWARD] * 20)
    assert story.ends == [], "three motions, the last of which goes on"
    refused = story.decide("turn right small")  # on the move: the one before goes on
    goes_on = NavigatorStatus("ready", refused, action=parse_action(FORWARD))
    story.tell(goes_on, ended(refused, DONE, FORWARD))
    assert story.ends == []
    drive_on(story, "turn left small", FORWARD)
    assert story.ends == [f"given_up {BALL}: not reached after 4 decisions"]


def test_searches_that_replace_each_other_count_as_often_as_one_is_done() -> None:
    story = Story()
    for _ in range(SEEN):
        assert not story.ends
        request = drive_on(story, *[SEARCH] * 3)
        done = ended(request, DONE, SEARCH)
        story.tell(*(replace(done, state="ready", code=code) for code in (DONE, NONE)))
    assert story.ends[0].startswith("not_found")


def test_a_new_instruction_begins_anew_and_nothing_older_counts() -> None:
    story = Story()
    for _ in range(SEEN - 1):
        story.decide(SEARCH, DONE)
    story.mission.begin("old")
    story.mission.follow("find the red box", story.now)
    story.mission.conclude("old", Action("stop"))
    story.tell(ended("old", DONE, SEARCH))
    story.end(after=100.0)
    assert not story.ends and story.mission.instruction == "find the red box"
    story.mission.begin("a")
    story.mission.follow("", story.now)
    story.mission.conclude("a", Action("stop"))
    story.end(after=700.0)
    assert not story.ends, "nothing ends after a stop"


REQUESTS = st.sampled_from(["a", "b", "c"])
ANSWERS = st.sampled_from([None, *every_action()])
STATUSES = st.builds(
    NavigatorStatus,
    st.sampled_from(NAV_STATES),
    REQUESTS,
    code=st.sampled_from(NavCode),
    action=ANSWERS,
    clear=st.sampled_from([(), ("left",), WAYS]),
)
SEQUENCE = st.lists(
    st.one_of(
        st.tuples(st.just(Mission.begin), REQUESTS),
        st.tuples(
            st.just(Mission.conclude), REQUESTS, ANSWERS, st.sampled_from(["", LOST]), st.booleans()
        ),
        st.tuples(st.just(Mission.on_status), STATUSES),
        st.tuples(st.just(Mission.follow), st.sampled_from([BALL, "other", ""])),
    ),
    max_size=80,
)


@given(SEQUENCE)
def test_whatever_happens_an_instruction_ends_once_and_within_its_limits(
    events: list[tuple[Any, ...]],
) -> None:
    limits = MissionSettings(3, 2, 4.0, 4, 12, 60.0)
    mission, followed, begun = Mission(), "", 0.0
    for now, (tell, *said) in enumerate(events):
        if tell is Mission.follow:
            followed, begun = said[0], now
            said.append(now)
        tell(mission, *said)
        end = mission.end(limits, now)
        if end is not None:
            assert end.instruction == followed and followed
            followed = ""
        assert mission.instruction == followed
        assert not followed or now - begun < limits.max_seconds


PROSE = st.one_of(
    st.text(),
    st.sampled_from([IN_THE_WAY, BLIND, STEP_BLOCKED, STOPPED_SHORT, "done: search", "refused: x"]),
)


@given(st.sampled_from(NavCode), st.sampled_from([SEARCH, FORWARD]), PROSE, PROSE)
def test_a_mission_goes_by_codes_and_by_no_words_beside_them(
    code: NavCode, answer: str, one: str, other: str
) -> None:
    """Whatever stands beside a code, five motions that end so lead to the same end."""

    def states(words: str) -> list[str]:
        story = Story(MissionSettings(2, 3, 0.0, 3, 4))
        for _ in range(5):
            story.decide(answer, code, why=words)
        return [end.partition(" ")[0] for end in story.ends]

    assert states(one) == states(other)


def test_each_code_that_a_mission_goes_by_has_an_end_of_its_own() -> None:
    """The control: it does go by them."""

    def end(code: NavCode) -> str:
        story = Story(MissionSettings(2, 3, 0.0, 3, 4))
        for _ in range(5):
            story.decide(SEARCH, code)
        return story.ends[0].partition(" ")[0] if story.ends else ""

    ends = {code: end(code) for code in NavCode}
    assert [ends[code] for code in (NavCode.DONE, NavCode.BLOCKED, NavCode.REFUSED)] == [
        "not_found",
        "blocked",
        "given_up",
    ]
    assert ends[NavCode.STOP] == ""


@given(
    *(st.sampled_from(NAV_STATES), st.sampled_from(NavCode), st.text(), ANSWERS),
    st.sets(st.sampled_from(WAYS)),
)
def test_code_action_and_clear_ways_are_read_back_from_a_status_whatever_its_words(
    state: str, code: NavCode, words: str, action: Action | None, ways: set[str]
) -> None:
    clear = tuple(way for way in WAYS if way in ways)
    status = NavigatorStatus(state, "r", words, 3, code, action, clear)
    assert NavigatorStatus.read(SimpleNamespace(**status.fields)) == status


def test_somebody_who_walks_through_the_way_does_not_block_it() -> None:
    story, held = Story(MissionSettings(max_decisions=1000), 0.03), "blocked: by somebody"
    for code in (NavCode.BLOCKED, DONE, NavCode.BLOCKED):
        for _ in range(40):  # what cannot begin ends at once, and is decided on again
            story.decide(FORWARD, code)
    assert story.ends == []
    for _ in range(20):
        story.decide(FORWARD, NavCode.BLOCKED, why=held)
    assert story.ends[0].startswith(f"blocked {BALL}: 5") and story.ends[0].endswith(held)


@pytest.mark.parametrize(("held", "state"), [(False, "not_found"), (True, "blocked")])
def test_the_navigators_own_words_tell_a_turn_that_arrived_from_one_that_did_not(
    held: bool, state: str
) -> None:
    drill, story = Drill(), Story()

    def run() -> list[Effect]:
        if held:  # odometry says that the base stays where it is; without it motions are timed
            drill.on(Odometry(Pose(0.0, 0.0, 0.0), round(drill.now * 1e9)))
        return drill.run(0.05)

    for number in range(SEEN):
        request = f"r{number}"
        story.mission.begin(request)
        stamp = round((drill.now - 0.15) * 1e9)
        effects = run() + drill.on(drill.current("action: search;", request, stamp=stamp))
        while drill.navigator.moving:
            effects += run()
        story.tell(*(effect.status for effect in effects if isinstance(effect, Show)))
        story.mission.conclude(request, Action("search"))  # the end of the words may come last
    [end] = story.ends
    assert end.startswith(state)


BOX = "find the red box"
AGAIN = "another instruction came: {}"
RESTARTED = "the drafter was started again, or ended; send the goal again"


def following(instruction: str = BOX, goal_id: str = "a-1", detail: str = "") -> GoalStatus:
    return GoalStatus("following", instruction, detail, goal_id)


def followed() -> FollowedGoal:
    goal = FollowedGoal(f" {BOX} ")
    assert goal.on_status(following()) is None and goal.state == "following"
    return goal


@pytest.mark.parametrize(
    ("waits", "status", "end"),
    [
        *(
            (True, status, None)  # what is said of an earlier instruction
            for status in (
                *(GoalStatus(state) for state in ("inactive", "idle", "stopped")),
                *(GoalStatus(state, BOX, "why", "a-1") for state in MISSION_ENDS),
                following("a cup"),
            )
        ),
        (True, GoalStatus("failed", detail="it is empty"), GoalEnd("failed", "it is empty")),
        (False, GoalStatus("done", BOX, goal_id="a-1"), GoalEnd("found", BOX)),
        *(
            (False, GoalStatus(end, BOX, "why"), GoalEnd(end, f"{BOX}: why"))
            for end in MISSION_ENDS[1:]
        ),
        (False, GoalStatus("stopped", detail="e_stop"), GoalEnd("cancelled", "e_stop")),
        (False, following(f"{BOX} now"), GoalEnd("cancelled", AGAIN.format(f"{BOX} now"))),
        (False, GoalStatus("idle"), GoalEnd("failed", RESTARTED)),
        (False, GoalStatus("inactive"), GoalEnd("failed", RESTARTED)),
        (False, GoalStatus("failed", detail="it is empty"), GoalEnd("failed", "it is empty")),
        (False, following(), None),
        (False, GoalStatus("unknown", detail="of no drafter"), None),
        (False, following(detail="the link is lost"), None),
    ],
)
def test_a_status_ends_a_goal_that_waits_or_is_followed_only_where_it_is_about_it(
    waits: bool, status: GoalStatus, end: GoalEnd | None
) -> None:
    goal = FollowedGoal(BOX) if waits else followed()
    assert goal.on_status(status) == end
    assert end or goal.state == ("waiting" if waits else "following")


def test_only_words_of_this_goal_count_and_each_decision_once() -> None:
    goal = FollowedGoal(BOX)
    assert not goal.on_words("r0", "", "action", True), "it has no name yet"
    goal.on_status(following())
    assert not goal.on_words("r1", "a-0", "action", True), "an earlier goal's, of the same words"
    assert goal.on_words("r2", "a-1", "action: search", False) and goal.decisions == 0
    assert goal.on_words("r3", "a-1", "", False), "it failed"
    for _ in range(2):
        assert goal.on_words("r2", "a-1", "action: search;", True)
    assert (goal.words, goal.decisions) == ("action: search;", 1)
    goal.on_status(following(goal_id="a-2"))
    assert not goal.on_words("r4", "a-1", "", True), "the drafter took it anew"
