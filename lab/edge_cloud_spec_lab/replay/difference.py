"""Finds where a replayed decision differs from the recorded one, and the likely cause."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import zip_longest

from edge_cloud_spec.models.prompt import PromptSpec
from edge_cloud_spec.nav.history import MOST_TURNS
from edge_cloud_spec.request import Picture, messages_digest, with_pictures
from edge_cloud_spec.wire.messages import CUT

from ..running.run_log import Decision, RunLog
from .recording import ReplayTask, longest_answer, opening_of, spec_of


def parting(recorded: Decision, replayed: Decision) -> tuple[int, str] | None:
    """The first token that differs, from 1, and both sides' words there; None: no difference.

    Of an answer that was cut off only the common length counts, as the time of the cut varies.
    """
    cut = min((len(d.tokens) for d in (recorded, replayed) if d.finish == CUT), default=None)
    pairs = zip_longest(recorded.tokens[:cut], replayed.tokens[:cut])
    token = next((n for n, (was, now) in enumerate(pairs, 1) if was != now), None)
    if token is None:
        return None
    was, now = recorded.answer.split(), replayed.answer.split()
    at = next((n for n, (a, b) in enumerate(zip_longest(was, now)) if a != b), 0)
    first, second = (" ".join(words[at : at + 3]) or "the end" for words in (was, now))
    return token, f"they part at token {token}: it was {first!r}, and is {second!r}"


DRAFTED = ("draft model", "preset")
"""What words depend on under the rule ``rejection`` only."""


def influences(run_log: RunLog, decision: Decision | None = None) -> dict[str, object]:
    """What the answers of a run, or of one decision, depend on, as far as it was recorded."""
    noted = _noted(run_log.run_info)
    spec, opening = spec_of(run_log), opening_of(decision) if decision else None
    found: dict[str, object] = {
        "target": spec.target if spec else noted.get("target"),
        "prompt of the target": _prompt(spec) if spec else None,
        "draft model": opening.draft_identity if opening else noted.get("drafter"),
        "preset": decision.preset if decision else None,
        "software": noted.get("versions"),
    }
    found = {name: value for name, value in found.items() if value}
    if opening is not None and decision is not None:
        policy, request = opening.policy, opening.request
        newest = request.pictures[-1] if request.pictures else Picture(b"")
        others = with_pictures(request.messages, lambda p: Picture(b"") if p is newest else p)
        found |= {
            "picture": newest.digest.hex()[:8],
            "instruction": decision.instruction,
            "earlier frames": decision.remembered,
            "rest of the messages": messages_digest(others, opening.after).hex()[:8],
            "rule": opening.rule,
            **vars(policy),
            "max_tokens": longest_answer(opening, spec),
        }
        if not policy.temperature:
            del found["seed"]
    return found


def dialect_of(run_log: RunLog) -> str:
    """The dialect of a run's answers by name; empty if not recorded."""
    return str(_noted(run_log.run_info).get("dialect", ""))


def history_of(run_log: RunLog) -> int:
    """How many earlier frames the run's prompts remembered; -1 if not recorded."""
    frames = _noted(run_log.run_info).get("history")
    return frames if isinstance(frames, int) and 0 <= frames <= MOST_TURNS else -1


def reasons(recorded: tuple[RunLog, Decision], replayed: tuple[RunLog, Decision]) -> str:
    """A sentence on differences between the two runs that may have changed the answer."""
    was, now = influences(*recorded), influences(*replayed)
    draws = was.get("rule", "rejection") == "rejection"
    found = {
        name: f"the {name} is {now[name]}, and was {then}"
        for name, then in was.items()
        if now.get(name, then) != then and (draws or name not in DRAFTED)
    }
    software = found.pop("software", "")
    if found:
        return "; ".join(found.values())
    but = f", but {software}" if software else ""
    return (
        f"nothing that the bag knows of differs{but}: tokens that are nearly tied fall otherwise "
        "on another processor, with another torch or in another arithmetic"
    )


def _prompt(spec: PromptSpec) -> str:
    """The fields of a specification that determine the prompt and the answer's end, in short."""
    text = hashlib.blake2b(
        "\0".join((spec.chat_template, spec.system_text or "")).encode(), digest_size=3
    ).hexdigest()
    image = f"{spec.image.min_pixels} to {spec.image.max_pixels} pixels"
    return f"text {text}, {image}, at most {spec.max_tokens} tokens, {spec.vocabulary} ids"


def _noted(run_info: str) -> dict[str, object]:
    try:
        content = json.loads(run_info or "{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


@dataclass(frozen=True)
class Comparison:
    """A replayed decision and the recorded one, which may be missing (``recorded`` None).

    ``at``: seconds since the bag's start. ``replayed`` is None if ``problem`` prevented it;
    ``equal`` is None unless there are both. ``token``: number of the first token that differs, from
    1; ``why``: the likely cause.
    """

    number: int
    frame: int
    at: float
    stamp: int
    instruction: str
    recorded: str | None
    replayed: str | None
    equal: bool | None
    problem: str = ""
    token: int | None = None
    difference: str = ""
    why: str = ""

    @property
    def place(self) -> str:
        """The place in the bag as text for the user."""
        picture = f"picture {self.frame}" if self.frame else "a picture that only it holds"
        return f"decision {self.number}, {picture}, at {self.at:.2f} s"


def compare(
    number: int, task: ReplayTask, answer: Decision | str, was: RunLog, now: RunLog
) -> Comparison:
    """Compare a replayed decision with the recorded one. ``was``: the recorded run, ``now``: this
    one."""
    recorded = task.recorded
    place = (number, task.frame, task.at, task.stamp, task.instruction)
    words = recorded.answer if recorded is not None else None
    if isinstance(answer, str):
        equal = None if recorded is None else False
        return Comparison(*place, words, None, equal, problem=answer)
    if recorded is None:
        return Comparison(*place, None, answer.answer, None)
    part = parting(recorded, answer)
    cut = CUT in (recorded.finish, answer.finish)
    if part is None and (cut or recorded.finish == answer.finish):
        return Comparison(*place, words, answer.answer, True)
    return Comparison(
        *place,
        words,
        answer.answer,
        False,
        token=part[0] if part else len(recorded.tokens) + 1,
        difference=part[1] if part else f"it ended with {recorded.finish}, not {answer.finish}",
        why=reasons((was, recorded), (now, answer)),
    )
