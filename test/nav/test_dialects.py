"""Dialects: what a file of one must be, how its answers are read, and what they move."""

from __future__ import annotations

import math
import re
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from fuzz import dialects as fuzz
from fuzz import spoil
from helpers.dialects import THINKING, made
from helpers.drill import Drill, read_as, reports

from edge_cloud_spec.dialects import _mistakes, load_dialect
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.nav.answer import CLAUSES, NUMBER, ORDERS, Action, Dialect, parse_action
from edge_cloud_spec.nav.events import Announce
from edge_cloud_spec.share import config_names
from edge_cloud_spec_lab.sim.thing import VisibleThing
from edge_cloud_spec_lab.training.tiny.language import AHEAD_DEG, answer

SHIPPED = ("around", "clauses", "internvla_n1", "navila", "uni_navid")
WHOLE = SHIPPED[2:]  # that are read at their end
FORWARD = Action("move", "forward", amount=0.5)


# Files


def test_ours_in_the_file_reads_as_ours_in_the_code() -> None:
    assert config_names("dialect") == SHIPPED == tuple(sorted(fuzz.TRUTHS))
    assert load_dialect("clauses") == load_dialect("around") == CLAUSES
    assert len({load_dialect(name) for name in WHOLE}) == 3


def test_whoever_reads_otherwise_is_named_otherwise(tmp_path: Path) -> None:
    one = made(tmp_path, THINKING)
    asked = made(tmp_path, f"{THINKING}\nuser_text: 'Go: {{instruction}}'\n")
    other = made(
        tmp_path, THINKING.replace("walk {amount} m/s", "go {amount} m/s").replace("I walk", "I go")
    )
    assert one == asked != other, "how it is asked travels by itself"


FIELDS: dict[str, Any] = {
    "summary": "words",
    "form": "{action}",
    "actions": {"go": "move forward 25 cm", "halt": "stop"},
    "examples": {"go": "move forward 0.25 m", "go go": None},
}
TOLD = {"user_text": "{instruction} {free_space}"}
PLACED = "(?P<metres>.)(?P<side>.)(?P<degrees>.)"

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"summary": ""}, "needs the field summary"),
    ({"examples": {}}, "needs the field examples"),
    ({"actions": {}}, "needs the field actions"),
    ({"forms": "x"}, "unknown field forms"),
    ({"most": "4"}, "most must be a whole number, not '4'"),
    ({"most": True}, "most must be a whole number"),
    ({"most": 0}, "most must be 1 to 32, not 0"),
    ({"most": 33}, "most must be 1 to 32"),
    ({"separator": None}, "separator must be a text, in quotes"),
    ({"actions": {True: "stop"}}, "actions must be a mapping of texts, in quotes"),
    ({"actions": {"go": None}}, "actions must be a mapping of texts"),
    ({"actions": ["go"]}, "actions must be a mapping of texts"),
    ({"examples": {"go": 25}}, "examples must be a mapping of texts"),
    ({"several_frames": 8}, "several_frames must be true or false"),
    ({"history": 8}, "history must be a mapping"),
    ({"history": {"frames": 8, "order": "first"}}, "unexpected keyword argument 'order'"),
    ({"history": {"frames": "8"}}, "history frames '8': give 0 to"),
    ({"history": {"frames": 8, "choose": "some"}}, "one of conversation, last, uniform, spread"),
    ({"history": {"frames": 8, "choose": "last", "text": "seen"}}, "it holds {frames} once"),
    ({"history": {"frames": 8, "text": "seen {frames}"}}, "a conversation has no text"),
    ({"history": {"frames": 8, "size": "big"}}, "give WIDTHxHEIGHT in pixels"),
    ({"history": {"frames": 8, "size": "0x384"}}, "give WIDTHxHEIGHT in pixels"),
    ({"form": "I go"}, "a sentence with one {action}, not 'I go'"),
    ({"form": "{action} {action}"}, "a sentence with one {action}"),
    ({"form": "I\n{action}"}, "not plain text on one line"),
    ({"actions": {"go\x00": "stop"}}, "not plain text on one line"),
    ({"form": " {action}", "thinks_until": "</t>"}, "must not begin with a blank"),
    ({"actions": {"": "stop"}}, "'' cannot mean 'stop'"),
    ({"actions": {" go": "stop"}}, "' go' cannot mean 'stop'"),
    ({"actions": {"go": "fly"}}, "'go' cannot mean 'fly': give an action, such as turn left"),
    ({"actions": {"go": "move left 25 cm"}}, "cannot mean"),
    ({"actions": {"go": "turn left 25 cm"}}, "cannot mean"),
    ({"actions": {"go": "move forward 0 m"}}, "cannot mean"),
    ({"actions": {"go": "move forward -1 m"}}, "cannot mean"),
    ({"actions": {"go": "move forward {amount} m"}}, "in both or in neither"),
    ({"actions": {"go {amount}": "stop"}}, "in both or in neither"),
    ({"actions": {"go {amount} {amount}": "move forward {amount} m"}}, "in both or in neither"),
    ({"actions": {"go {amount}": "move forward {amount}0 m"}}, "cannot mean"),
    (
        {"actions": {"go {amount}": "move forward {amount} m", "go 1": "stop"}},
        "'go 1' can be read in more than one way",
    ),
    ({"most": 2, "actions": {"a": "stop", "ab": "search"}}, "in more than one way: 'a', 'ab'"),
    ({"most": 2, "actions": {"{amount}": "move forward {amount} m"}}, "in more than one way"),
    ({"most": 2, "separator": " ", "actions": {"go on": "stop"}}, "in more than one way"),
    (
        {"most": 2, "separator": ".", "actions": {"go {amount} m": "move forward {amount} m"}},
        "in more than one way",
    ),
    (
        {"most": 2, "separator": "25", "actions": {"go {amount} m": "move forward {amount} m"}},
        "in more than one way",
    ),
    (
        {"most": 2, "separator": "5.", "actions": {"{amount}": "move forward {amount} m"}},
        "a digit or a point beside",
    ),
    (
        {"actions": {"go {amount}5": "turn left {amount} degrees"}},
        "a digit or a point beside",
    ),
    (
        {
            "actions": {
                "go {amount} of 2": "turn left {amount} degrees",
                "go 3 of {amount}": "turn right {amount} degrees",
            }
        },
        "in more than one way",
    ),
    (
        {
            "most": 2,
            "separator": "xx",
            "actions": {"ax": "search", "xb": "search", "a": "stop", "b": "search"},
        },
        "'ax' can be read in more than one way: 'ax', 'xx'",
    ),
    ({"examples": {None: None, "go": "move forward 0.25 m"}}, "examples must be a mapping"),
    ({"examples": {"go": [["go"] * 9 for _ in range(9)]}}, "examples must be a mapping"),
    ({"form": "clauses", "most": 2}, "a clause holds one action"),
    ({"form": "clauses", "actions": {"go;": "stop"}}, "a clause holds one action, and no ';'"),
    ({"user_text": "go"}, "user_text must hold {instruction} once"),
    ({"user_text": "{image}{instruction}{image}"}, "{image}, {history} and {free_space} once or"),
    ({"user_text": "{instruction}{free_space}{free_space}"}, "{free_space} once or never"),
    ({"seen": "(?P<metres>"}, "seen is no regular expression: missing ), unterminated"),
    ({"seen": "a{99999999999999999999}"}, "seen is no regular expression: the repetition number"),
    ({"seen": "(" * 3000 + ")" * 3000}, "seen is no regular expression"),
    ({"seen": "(?P<metres>.)(?P<degrees>.)"}, "seen needs the groups (?P<metres>...), (?P<side>"),
    ({"seen": PLACED}, "seen finds what {seen} in free_space tells: give both, or none"),
    (TOLD | {"free_space": "{seen}"}, "seen finds what {seen} in free_space tells: give both"),
    (
        TOLD | {"free_space": "{sean} {around}"},
        "one line with some of {around}, {path}, {s",
    ),
    (
        TOLD | {"free_space": "{ways} {image}"},
        "one line with some of {around}, {path}, {s",
    ),
    (
        TOLD | {"free_space": ""},
        "one line with some of {around}, {path}, {s",
    ),
    (TOLD | {"free_space": "{ways}\0"}, "free_space is one line with some of"),
    ({"free_space": "{around}"}, "free_space is told at {free_space} of user_text, which has"),
    ({"seen": 3}, "seen must be a text"),
    ({"free_space": ["{ways}"]}, "free_space must be a text"),
    ({"actions": {f"go {n} times": "stop" for n in range(999)}}, "longer than 4096 characters"),
    ({"examples": {"go": "stop"}}, "the example 'go' means move forward 0.25 m, not stop"),
    ({"examples": {"go": None}}, "the example 'go' means move forward 0.25 m, not nothing"),
    ({"examples": {"go!": "stop"}}, "the example 'go!' means nothing, not stop"),
    ({"examples": {"go!": "fly"}}, "the example 'go!' means nothing, not fly"),
]


@pytest.mark.parametrize(("change", "complaint"), MISTAKES, ids=lambda each: str(each)[:40])
def test_a_file_that_cannot_be_meant_is_refused_in_one_sentence(
    change: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    made(tmp_path, FIELDS)
    with pytest.raises(UserError) as error:
        made(tmp_path, FIELDS | change)
    said = str(error.value)
    assert said.startswith(f"dialect {tmp_path}/own.yaml: ")
    assert complaint in said and "\n" not in said


@pytest.mark.parametrize("amounts", [0, 20, 40])
def test_a_table_as_large_as_its_grammar_may_be_is_checked_in_a_moment(
    amounts: int, tmp_path: Path
) -> None:
    """Each number of each phrase may be an amount of another."""
    measured = {f"{chr(65 + n)}{{amount}} m": "move forward {amount} m" for n in range(amounts)}
    plain = {f"{n + 1}": "stop" for n in range((4000 - 85 * amounts) // 5)}
    fields = FIELDS | {"actions": measured | plain, "examples": {"?": None}}
    started = time.process_time()
    assert len(made(tmp_path, fields).actions) == amounts + len(plain)
    assert time.process_time() - started < 10, "it took minutes"


@pytest.mark.parametrize(
    "text",
    [
        *("a: [1\nb: {", "[1, 2]", "5", "", "\udcff", "a: !!python/none", "[" * 9999),
        *("most: 2001-13-45", f"most: {'9' * 5000}", "most: &a [*a]", "a: &a {b: *a}"),
    ],
)
def test_what_is_no_mapping_is_refused_too(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"dialect .*own\.yaml"):
        made(tmp_path, text)
    with pytest.raises(UserError, match=f"no dialect 'none'; choose one of {', '.join(SHIPPED)}"):
        load_dialect("none")


def test_the_file_in_the_documents_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs/dialects.md").read_text()
    text = page.partition("```yaml\n")[2].partition("```")[0]
    own = made(None, text)
    assert own.most == 3 and own.action_of("</think>I will go, go, halt!", ended=True) == Action(
        "move", "forward", amount=1.0
    )


# Reading


def ways(text: str, phrases: list[str], apart: str, most: int) -> int:
    """In how many ways a text is such phrases, with such words between them."""
    found = 0
    for phrase in phrases:
        before, amount, after = phrase.partition("{amount}")
        ends = range(len(text) + 1) if amount else [len(before)]
        for end in ends:
            rest = text[end:]
            number = not amount or re.fullmatch(NUMBER, text[len(before) : end])
            if text[:end].startswith(before) and number and rest.startswith(after):
                rest = rest[len(after) :]
                goes_on = most > 1 and rest.startswith(apart) and rest
                found += not rest
                found += ways(rest[len(apart) :], phrases, apart, most - 1) if goes_on else 0
    return found


def test_what_a_table_that_is_taken_reads_it_reads_in_one_way() -> None:
    random, taken, read = Random(5), 0, 0
    for _ in range(1500):
        pieces = ["a", "b", "1", "2", ".", "{amount}"]
        phrases = list({"".join(random.choices(pieces, k=random.randint(1, 3))) for _ in range(3)})
        apart = random.choice(["", "a", "b", "ab", "1", ".", "1.", "x", "ax"])
        most = random.randint(1, 3)
        table = {each: f"turn left {'{amount}' if '{amount}' in each else '5'} degrees"
                 for each in phrases}  # fmt: skip
        own = Dialect("own", "{action}", tuple(table.items()), apart, most)
        own = replace(own, user_text="{instruction}")
        if next(_mistakes(own, {}), None) is not None:
            continue
        taken += 1
        for _ in range(40):
            said = apart.join(random.choices(phrases, k=random.randint(1, most)))
            while "{amount}" in said:
                said = said.replace("{amount}", random.choice(["1", "2.1", "11", "21.2"]), 1)
            count = ways(said, phrases, apart, most)
            assert count == (own.action_of(said, ended=True) is not None) <= 1, (own, said)
            assert bool(re.fullmatch(own.pattern, said)) == count, (own, said)
            read += count
    assert taken > 100 and read > 2000


def test_what_goes_the_same_way_at_the_beginning_is_one_action(tmp_path: Path) -> None:
    own = made(
        tmp_path,
        FIELDS
        | {"most": 4, "separator": ", "}
        | {"actions": {"go": "move forward 25 cm", "hop": "move forward 10 cm", "back": "move "
           "backward small", "halt": "stop", "look": "search"}}
        | {"examples": {"go": "move forward 25 cm"}},
    )  # fmt: skip
    for text, meaning in (
        ("go, hop, go, halt", "move forward 0.6 m"),
        ("go, halt, go, go", "move forward 0.25 m"),
        ("back, back, go", "move backward small"),
        ("look, look, look", "search"),
        ("halt, go", "stop"),
        ("go, go, go, go, go", "None"),
        ("go, fly", "None"),
        ("go,go", "None"),
    ):
        assert str(own.action_of(text, ended=True)) == meaning, text


@pytest.mark.parametrize("text", [THINKING, "form: clauses\nthinks_until: </think>\nsummary: ours\n"
                                  "examples: {'</think>action: stop;': stop}"])  # fmt: skip
def test_a_thought_is_never_an_action(text: str, tmp_path: Path) -> None:
    dialect = made(tmp_path, text)
    own = "I halt.!" if text == THINKING else "action: stop;"
    assert dialect.action_of(own, ended=True) is None, "it has not thought to the end"
    assert not dialect.read(f"I say: {own}", ended=True).settled
    for gap in ("", "\n\n", " "):
        said = f"maybe {own} or\n not</think>{gap}{own}"
        assert dialect.action_of(said, ended=True) == Action("stop")
    assert dialect.read(f"x</think>y</think>{own};", ended=True).problem
    assert not dialect.candidates, "no draft begins with a thought"


def test_every_answer_of_the_table_is_one_that_an_answer_begins_with() -> None:
    for name in SHIPPED:
        dialect = load_dialect(name)
        meant = {str(dialect.action_of(text, ended=True)) for text in dialect.candidates}
        sizes = [meaning for _, meaning in dialect.actions if "{amount}" not in meaning]
        assert "None" not in meant and {str(parse_action(size)) for size in sizes} <= meant


# The navigator


def test_an_amount_is_carried_out_and_one_above_the_largest_step_is_shortened_and_told() -> None:
    drill, dialect = Drill(), load_dialect("navila")

    def said(what: str, request: str) -> str:
        text = f"The next action is {what}."
        words = drill.current(text, request, finished=True, finish_reason="end")
        effects = drill.on(*read_as(dialect, words))
        (begun,) = [effect for effect in effects if isinstance(effect, Announce)]
        drill.run(4.0)
        goal = f"{begun.goal.distance:g} {math.degrees(begun.goal.angle):g}"
        return f"{begun.action}: {goal}, {reports(effects)}"

    assert said("move forward 75 cm", "a") == "move forward 0.75 m: 0.75 0, "
    assert said("turn right 30 degree", "b") == "turn right 30 degrees: 0 -30, "
    told = said("turn left 90 degrees", "c")
    assert told.startswith(
        "turn left 48 degrees: 0 48, turn left 90 degrees is shortened to turn left 48 degrees"
    )
    assert "steps.turn_large" in told and drill.status.endswith("done: turn left 48 degrees")
    assert said("turn left 180 degrees", "d") == "turn left 48 degrees: 0 48, ", "it is told once"


@pytest.mark.parametrize("name", SHIPPED)
def test_of_fuzzed_answers_none_that_is_no_action_moves_anything(name: str) -> None:
    counts = fuzz.run(2_500, 0, name)
    assert counts["moved"] > 50 and counts["stopped"] > 25 and counts["nothing"] > 1000
    assert counts["actions that were cut off"] > 75


@pytest.mark.parametrize("name", SHIPPED)
def test_a_reader_that_finds_an_action_in_a_text_is_found_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    spoil(
        *(monkeypatch, Dialect, "read"),
        lambda read, self, text, ended=False: read(self, text.removeprefix("Error: "), True),
    )
    with pytest.raises(fuzz.Broken):
        fuzz.run(10_000, 0, name)


SAYS = r"(?P<metres>\S+) m, (?P<side>\w+) (?P<degrees>\S+)? "


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("I see it 2.5 m, left 30 ", (math.radians(30), 2.5)),
        ("I see it 1 m, right 9", None),  # cut within the number, it may be
        ("I see it 1 m, right 90, and more", None),
        ("I see it 1 m, right 90 and more", (math.radians(-90), 1.0)),
        ("I see it 1 m, ahead 4 of us", (0.0, 1.0)),
        ("I see it 1 m, above 30", None),
        ("I see it near m, left 30", None),
        ("I see it 1 m, left ", None),
        ("I see it nan m, left 3", None),
        ("I see it 1e999 m, left 3", None),
        ("I see it -1 m, left 3", None),
        ("I see it 1 m, left 181", None),
        ("I see nothing", None),
        ("", None),
    ],
)
def test_a_place_that_an_answer_tells_is_found_or_none_is(
    text: str, place: tuple[float, float] | None
) -> None:
    assert replace(CLAUSES, seen=SAYS).place(text) == place
    assert CLAUSES.place(text) is None


@pytest.mark.parametrize("order", ORDERS)
def test_the_dialect_of_a_model_that_goes_around_finds_what_it_says_it_sees(order: str) -> None:
    around, rng = load_dialect("around"), np.random.default_rng(0)
    for _ in range(200):
        bearing, distance = float(rng.uniform(-30, 30)), float(rng.uniform(0.3, 6.0))
        things = (
            VisibleThing("silver bottle", 100, bearing, distance),
            VisibleThing("red chair", 100, 3.0, 1.0),
        )
        found = around.place(answer(things, "silver bottle", order))
        assert found is not None
        aside = AHEAD_DEG if abs(bearing) <= AHEAD_DEG else 1.1
        assert abs(found[0] - math.radians(bearing)) < math.radians(aside)
        assert abs(found[1] - distance) <= 0.26
        assert around.place(answer(things, "blue box", order)) is None
