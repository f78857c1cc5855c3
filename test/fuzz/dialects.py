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

from edge_cloud_spec.dialects import dialect_names, load_dialect
from edge_cloud_spec.nav.answer import Dialect
from edge_cloud_spec.nav.events import Announce, Drive, Words
from edge_cloud_spec.nav.motion import Goal, Steps
from edge_cloud_spec.nav.navigator import Navigator

Truth = Callable[[str], "Goal | str"]  # of a whole answer: where it goes, or "" for nowhere
STEPS = Steps()
FAR, WIDE = STEPS.move_large, STEPS.turn_large
STOP = Goal()
SIGNS = {"forward": 1, "backward": -1, "left": 1, "right": -1}


def move(metres: float, sign: int = 1) -> Goal:
    return Goal(distance=sign * min(metres, FAR))


def turn(degrees: float, sign: int) -> Goal:
    return Goal(angle=math.radians(sign * min(degrees, WIDE)))


def is_amount(word: str) -> bool:
    """Digits without a needless zero, a point and one or two more, and above nothing."""
    whole, point, rest = word.partition(".")
    digits = set(whole + rest) <= set("0123456789") and 0 < len(whole) <= 4
    plain = whole == "0" or whole[:1] != "0"
    fraction = len(rest) in (1, 2) if point else not rest
    return digits and plain and fraction and float(word) > 0


def navila(text: str) -> Goal | str:
    said = text.split(" ")
    if said[:4] != ["The", "next", "action", "is"] or not text.endswith("."):
        return ""
    words = [*said[4:-1], said[-1][:-1]]
    if words == ["stop"]:
        return STOP
    if len(words) != 4 or not is_amount(words[2]):
        return ""
    amount = float(words[2])
    if words[:2] == ["move", "forward"] and words[3] == "cm":
        return move(amount / 100)
    if words[0] == "turn" and words[1] in ("left", "right") and words[3] in ("degree", "degrees"):
        return turn(amount, SIGNS[words[1]])
    return ""


def in_a_row(words: list[str], goals: dict[str, Callable[[int], Goal]]) -> Goal | str:
    if not 1 <= len(words) <= 4 or not all(word in goals for word in words):
        return ""
    alike = next((n for n, word in enumerate(words) if word != words[0]), len(words))
    return goals[words[0]](alike)


def uni_navid(text: str) -> Goal | str:
    goals: dict[str, Callable[[int], Goal]] = {
        "forward": lambda count: move(0.5 * count),
        "left": lambda count: turn(30 * count, 1),
        "right": lambda count: turn(30 * count, -1),
        "stop": lambda count: STOP,
    }
    return in_a_row(text.split(" "), goals)


def internvla_n1(text: str) -> Goal | str:
    goals: dict[str, Callable[[int], Goal]] = {
        "\u2191": lambda count: move(0.25 * count),
        "\u2190": lambda count: turn(15 * count, 1),
        "\u2192": lambda count: turn(15 * count, -1),
        "S": lambda count: STOP,
    }
    return (
        "" if "S" in text.replace("STOP", "") else in_a_row(list(text.replace("STOP", "S")), goals)
    )


OURS = re.compile(r"(?:\s*reason: [^;\s][^;]*;)*\s*action: ([a-z ]+);.*", re.DOTALL)


def clauses(text: str) -> Goal | str:
    found = OURS.fullmatch(text)
    words = found[1].split(" ") if found else []
    if words in (["stop"], ["search"]):
        return STOP if words == ["stop"] else Goal(angle=math.radians(STEPS.search))
    if len(words) != 3 or words[2] not in ("small", "medium", "large"):
        return ""
    if words[0] == "move" and words[1] in ("forward", "backward"):
        return move(getattr(STEPS, f"move_{words[2]}"), SIGNS[words[1]])
    if words[0] == "turn" and words[1] in ("left", "right"):
        return turn(getattr(STEPS, f"turn_{words[2]}"), SIGNS[words[1]])
    return ""


TRUTHS: dict[str, Truth] = {
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
        end = min(len(text), place + random.randint(0, 3))
        words = text.split(" ")
        match random.randrange(9):
            case 0:
                text = text[:place] + random.choice(ODD) + text[place:]
            case 1:
                text = text[:place] + text[end:]
            case 2:
                text = text[:place] + random.choice(ODD) + text[end:]
            case 3:
                text = text[:place]
            case 4:
                text = random.choice(
                    (f"Error: {text}", f"{text} {text}", text + text, f" {text}", text + "\n")
                )
            case 5:
                text = random.choice((text.swapcase(), text[:place] + text[place:].upper()))
            case 6:
                words.insert(random.randint(0, len(words)), random.choice(WORDS))
                text = " ".join(words)
            case 7:
                words[random.randrange(len(words))] = random.choice(WORDS)
                text = " ".join(words)
            case 8:
                text = " ".join(random.choices([*WORDS, *ODD], k=random.randint(0, 6)))
    return text


def hear(dialect: Dialect, text: str, finish: str, random: Random) -> tuple[Goal | str, bool]:
    """What a navigator did on this answer, and whether all of it had come."""
    navigator, now, request = Navigator(), 100.0, "r1"
    navigator.read_in(dialect)
    cuts = sorted(random.choices(range(len(text) + 1), k=random.randint(0, 4)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    missing = random.randrange(len(pieces)) if random.random() < 0.1 else -1
    done: Goal | str = ""
    for place, piece in enumerate([*pieces, ""]):
        if place == missing:
            continue
        last = place == len(pieces)
        said = Words(
            request, place, (0,), piece, True, last, 0, 0.1, finish_reason=finish if last else ""
        )
        for effect in navigator.on(said, now):
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
        if name == "clauses":
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
    counts = {name: run(answers, seed, name) for name in dialect_names()}
    return Counter({f"{name}: {what}": n for name in counts for what, n in counts[name].items()})


def same(done: Goal | str, due: Goal | str) -> bool:
    if isinstance(done, str) or isinstance(due, str):
        return done == due
    return math.isclose(done.distance, due.distance) and math.isclose(done.angle, due.angle)
