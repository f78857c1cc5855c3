"""Random answers in each dialect to a navigator; an independent reader says which may move it.

An answer comes in pieces, of which one may be missing, and ends in some way. It moves the robot
exactly where it is whole and an action to the letter, by the goal that its words have; nothing else
moves anything.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from random import Random

from fuzz import Broken
from helpers.drill import read_as

from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.nav.answer import Dialect
from edge_cloud_spec.nav.events import Announce, Drive, Words
from edge_cloud_spec.nav.navigator import Navigator
from edge_cloud_spec.nav.steps import Goal, Steps
from edge_cloud_spec.share import config_names

Truth = Callable[[str], "Goal | str"]  # of a whole answer: where it goes, or "" for nowhere
STEPS = Steps()
FAR, WIDE = STEPS.move_large, STEPS.turn_large
STOP = Goal()
SIGNS = {"forward": 1, "backward": -1, "left": 1, "right": -1}


def move(metres: float) -> Goal:
    return Goal(distance=max(-FAR, min(metres, FAR)))


def turn(degrees: float) -> Goal:
    return Goal(angle=math.radians(max(-WIDE, min(degrees, WIDE))))


def is_amount(word: str) -> bool:
    """Digits without a needless zero, a point and one or two more, and above nothing."""
    whole, point, rest = word.partition(".")
    digits = set(whole + rest) <= set("0123456789") and 0 < len(whole) <= 4
    plain = whole == "0" or whole[:1] != "0"
    fraction = len(rest) in (1, 2) if point else not rest
    return digits and plain and fraction and float(word) > 0


NAVILA = re.compile(
    r"The next action is (stop|move forward (?P<cm>\S+) cm|turn (left|right) (\S+) degrees?)\."
)


def navila(text: str) -> Goal | str:
    found = NAVILA.fullmatch(text)
    if found is None:
        return ""
    if found[1] == "stop":
        return STOP
    amount = found["cm"] or found[4]
    if not is_amount(amount):
        return ""
    return move(float(amount) / 100) if found["cm"] else turn(SIGNS[found[3]] * float(amount))


def in_a_row(words: list[str], goals: dict[str, tuple[float, float]]) -> Goal | str:
    """The first words that are alike; each goes so many metres and degrees."""
    if not 1 <= len(words) <= 4 or not all(word in goals for word in words):
        return ""
    alike = next((n for n, word in enumerate(words) if word != words[0]), len(words))
    metres, degrees = goals[words[0]]
    return move(alike * metres) if metres else turn(alike * degrees)


def uni_navid(text: str) -> Goal | str:
    goals = {"forward": (0.5, 0), "left": (0, 30), "right": (0, -30), "stop": (0, 0)}
    return in_a_row(text.split(" "), goals)


def internvla_n1(text: str) -> Goal | str:
    goals = {"\u2191": (0.25, 0), "\u2190": (0, 15), "\u2192": (0, -15), "S": (0, 0)}
    letters = list(text.replace("STOP", "S"))
    return "" if "S" in text.replace("STOP", "") else in_a_row(letters, goals)


OURS = re.compile(r"(?:\s*reason: [^;\s][^;]*;)*\s*action: ([a-z ]+);.*", re.DOTALL)


SIZES = ("small", "medium", "large")
SAID = {
    **{f"move {way} {size}": move(SIGNS[way] * getattr(STEPS, f"move_{size}"))
       for way in ("forward", "backward") for size in SIZES},
    **{f"turn {way} {size}": turn(SIGNS[way] * getattr(STEPS, f"turn_{size}"))
       for way in ("left", "right") for size in SIZES},
    "stop": STOP,
    "search": Goal(angle=math.radians(STEPS.search)),
}  # fmt: skip


def clauses(text: str) -> Goal | str:
    found = OURS.fullmatch(text)
    return SAID.get(found[1], "") if found else ""


TRUTHS: dict[str, Truth] = {
    "around": clauses,
    "clauses": clauses,
    "navila": navila,
    "uni_navid": uni_navid,
    "internvla_n1": internvla_n1,
}
ENDS = ("end", "end", "end", "length", "cut", "aborted", "timeout", "fault", "")
NUMBERS = (
    *("75", "30", "0.5", "2.", ".5", "0", "00", "015", "1e3", "-5", "9999", "9999.99", "12345"),
    *("1.234", "\u0667\u0665", "\uff17", "\u00b2", "inf", "nan"),
)
ODD = (
    *"\u2191\u2190\u2192\u2193\u21d1 .;:,\n\t\x00{}()|\u200b\ufffd\N{COMBINING ACUTE ACCENT}",
    *NUMBERS,
)
WORDS = (
    *("The", "next", "action", "is", "move", "turn", "forward", "backward", "left", "right"),
    *("stop", "search", "small", "cm", "degree", "degrees", "STOP", "ahead", "Error:"),
    *("reason:", "action:", "</think>", "<think>"),
)
THOUGHTS = ("", "the chair is near ", "stop. ", "\n", "</thin")


def genuine(dialect: Dialect, random: Random) -> str:
    """An answer that the dialect has, or nearly."""
    phrases = [phrase for phrase, _ in dialect.actions]
    count = random.randint(1, dialect.most)
    if random.random() < 0.5:
        phrases = [random.choice(phrases)]
    amounts = [
        *NUMBERS,
        f"{random.uniform(0.0, 200.0):.{random.randint(0, 2)}f}",
        str(random.randint(1, 99)),
    ]
    said = [
        random.choice(phrases).replace("{amount}", random.choice(amounts)) for _ in range(count)
    ]
    if dialect.form != "clauses":
        thought = f"{random.choice(THOUGHTS)}{dialect.thinks_until}" * bool(dialect.thinks_until)
        return thought + dialect.form.replace("{action}", dialect.separator.join(said))
    parts = [f"action: {said[0]};", "reason: a chair;"]
    random.shuffle(parts)
    return " ".join(parts)


def mutated(text: str, random: Random) -> str:
    """The same with an error or two, of a letter, a word or the whole."""
    for _ in range(random.randint(0, 2)):
        place = random.randint(0, len(text))
        end = random.choice((place, min(len(text), place + random.randint(0, 3)), len(text)))
        words = text.split(" ")
        at = random.randint(0, len(words))
        match random.randrange(5):
            case 0:
                text = text[:place] + random.choice((*ODD, "", "")) + text[end:]
            case 1:
                wholes = f"Error: {text}", f"{text} {text}", text + text, f" {text}", text + "\n"
                text = random.choice(wholes)
            case 2:
                text = random.choice((text.swapcase(), text[:place] + text[place:].upper()))
            case 3:
                words[at : at + random.randint(0, 1)] = [random.choice(WORDS)]
                text = " ".join(words)
            case 4:
                text = " ".join(random.choices([*WORDS, *ODD], k=random.randint(0, 6)))
    return text


def hear(dialect: Dialect, text: str, finish: str, random: Random) -> tuple[Goal | str, bool]:
    """What a navigator did on this answer of a drafter, and whether all of it had come."""
    navigator, now, request = Navigator(), 100.0, "r1"
    cuts = sorted(random.choices(range(len(text) + 1), k=random.randint(0, 4)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    missing = random.randrange(len(pieces)) if random.random() < 0.1 else -1
    done: Goal | str = ""
    said = [Words(request, at, (0,), piece, True, False, 0, 0.1) for at, piece in enumerate(pieces)]
    last = Words(request, len(pieces), (0,), "", True, True, 0, 0.1, finish_reason=finish)
    for place, words in enumerate(read_as(dialect, *said, last)):
        if place == missing:
            continue
        for effect in navigator.on(words, now):
            if isinstance(effect, Announce):
                if done:
                    raise Broken(f"{text!r} moved the robot twice")
                done = effect.goal
            if isinstance(effect, Drive) and not done:
                raise Broken(f"{text!r} drove the robot without an action")
    return done, missing < 0


def run(answers: int, seed: int, name: str) -> Counter[str]:
    """So many answers in this dialect; raises Broken."""
    random, truth, dialect = Random(f"{seed} {name}"), TRUTHS[name], load_dialect(name)
    counts: Counter[str] = Counter()
    for _ in range(answers):
        text, finish = mutated(genuine(dialect, random), random), random.choice(ENDS)
        done, whole = hear(dialect, text, finish, random)
        if truth is clauses:
            due = truth(text) if whole else done if truth(text) == done else ""
        else:
            due = truth(text) if whole and finish == "end" else ""
        if not same(done, due):
            raise Broken(
                f"{name}: {text!r}, which ended with {finish!r}, did {done!r}, not {due!r}"
            )
        counts["moved" if due not in ("", STOP) else "stopped" if due else "nothing"] += 1
        counts["actions that were cut off"] += not due and bool(truth(text))
    return counts


def run_all(answers: int, seed: int) -> Counter[str]:
    """So many answers in each dialect; raises Broken."""
    counts = {name: run(answers, seed, name) for name in config_names("dialect")}
    return Counter({f"{name}: {what}": n for name in counts for what, n in counts[name].items()})


def same(done: Goal | str, due: Goal | str) -> bool:
    if isinstance(done, str) or isinstance(due, str):
        return done == due
    return math.isclose(done.distance, due.distance) and math.isclose(done.angle, due.angle)
