"""Where a replayed decision parts from the recorded one, and what likely made it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import zip_longest

from ..edge.events import CUT
from ..errors import UserError
from ..models.prompt import PromptSpec
from ..observe.decision import Decision
from ..observe.run_log import RunLog
from ..wire.codec import decode_client, decode_server
from ..wire.messages import Open, Opened, WireError
from .recording import ReplayTask


@dataclass(frozen=True)
class Parting:
    """The first token that differs, from 1, and the words from there on."""

    token: int
    recorded: str
    replayed: str

    def __str__(self) -> str:
        return (
            f"they part at token {self.token}: it was {self.recorded or 'the end'!r}, "
            f"and is {self.replayed or 'the end'!r}"
        )


def parting(recorded: Decision, replayed: Decision) -> Parting | None:
    """Where two answers part; None where all tokens are equal.

    Of one that was cut off only what was said counts: when that was is a matter of time.
    """
    cut = min((len(d.tokens) for d in (recorded, replayed) if d.finish == CUT), default=None)
    pairs = zip_longest(recorded.tokens[:cut], replayed.tokens[:cut])
    token = next((n for n, (was, now) in enumerate(pairs, 1) if was != now), None)
    if token is None:
        return None
    was, now = recorded.answer.split(), replayed.answer.split()
    at = next((n for n, (a, b) in enumerate(zip_longest(was, now)) if a != b), 0)
    return Parting(token, " ".join(was[at : at + 3]), " ".join(now[at : at + 3]))


@dataclass(frozen=True)
class Identities:
    """What a decision's words depend on; empty where the run did not record it."""

    target: str = ""
    prompt: str = ""
    drafter: str = ""
    versions: str = ""


def identities_of(run_log: RunLog, decision: Decision | None = None) -> Identities:
    """What a run says of its models: by its messages, else by ``run_info``."""
    noted = _noted(run_log.run_info)
    spec, opening = spec_of(run_log), opening_of(decision) if decision else None
    return Identities(
        target=spec.target if spec else str(noted.get("target", "")),
        prompt=_prompt(spec) if spec else "",
        drafter=opening.draft_identity if opening else str(noted.get("drafter", "")),
        versions=str(noted.get("versions", "")),
    )


def dialect_of(run_log: RunLog) -> str:
    """The dialect of a run's answers, as it was named; empty where the run does not say."""
    return str(_noted(run_log.run_info).get("dialect", ""))


def spec_of(run_log: RunLog) -> PromptSpec | None:
    """The prompt specification that the run's cloud sent last."""
    for payload in reversed(run_log.opened):
        try:
            message = decode_server(payload)
            if isinstance(message, Opened) and message.spec:
                return PromptSpec.from_bytes(message.spec)
        except (WireError, UserError):
            continue
    return None


def opening_of(decision: Decision) -> Open | None:
    """What the decision was asked with."""
    try:
        message = decode_client(decision.opening) if decision.opening else None
    except WireError:
        return None
    return message if isinstance(message, Open) else None


def reasons(recorded: tuple[RunLog, Decision], replayed: tuple[RunLog, Decision]) -> str:
    """Differences between both runs that may have changed the words."""
    was, now = identities_of(*recorded), identities_of(*replayed)
    found = []
    first, second = opening_of(recorded[1]), opening_of(replayed[1])
    draws = first is None or first.rule == "rejection"
    for name, then, here in (
        ("target", was.target, now.target),
        ("prompt of the target", was.prompt, now.prompt),
        ("draft model", was.drafter, now.drafter),
        ("preset", recorded[1].preset, replayed[1].preset),
    ):
        drafted = name in ("draft model", "preset")
        if then and here and then != here and (draws or not drafted):
            depends = ", and words depend on it" if drafted else ""
            found.append(f"the {name} is another ({here}; it was {then}){depends}")
    if first is not None and second is not None:
        found += _requested(first, second)
    if found:
        return "; ".join(found)
    versions = ""
    if was.versions and now.versions and was.versions != now.versions:
        versions = f", but versions ({now.versions}; they were {was.versions})"
    return (
        f"nothing that the bag knows of differs{versions}: tokens that are nearly tied fall "
        "otherwise on another processor, with another torch or in another arithmetic"
    )


def _requested(was: Open, now: Open) -> list[str]:
    """The differences of two requests."""
    found = []
    if was.jpeg != now.jpeg:
        found.append("another picture was decided on")
    for name, then, here in (
        ("instruction", was.instruction, now.instruction),
        ("order", was.order, now.order),
        ("rule", was.rule, now.rule),
        ("temperature", was.policy.temperature, now.policy.temperature),
        ("top_k", was.policy.top_k, now.policy.top_k),
        ("top_p", was.policy.top_p, now.policy.top_p),
        ("grammar", was.policy.grammar, now.policy.grammar),
        ("seed", was.policy.seed, now.policy.seed),
        ("max_tokens", was.max_tokens, now.max_tokens),
    ):
        if then != here and (name != "seed" or now.policy.temperature):
            found.append(f"{name} is {here}, and was {then}")
    return found


def _prompt(spec: PromptSpec) -> str:
    """The fields of a specification that make the prompt and its end, in short."""
    text = hashlib.blake2b(
        "\0".join((spec.chat_template, spec.system_text, spec.user_text)).encode(), digest_size=3
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
    """One replayed decision beside the recorded one, which may be missing (``recorded`` None).

    ``at``: seconds since the bag's start. ``replayed`` is None if ``problem`` prevented it;
    ``equal`` is None without both. ``token``: number of the first token that differs, from 1;
    ``why``: the likely cause.
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
        """The place in the bag, for people."""
        picture = f"picture {self.frame}" if self.frame else "a picture that only it holds"
        return f"decision {self.number}, {picture}, at {self.at:.2f} s"


def compare(
    number: int, task: ReplayTask, answer: Decision | str, was: RunLog, now: RunLog
) -> Comparison:
    """``was``: the recorded run, ``now``: this one."""
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
        token=part.token if part else len(recorded.tokens) + 1,
        difference=str(part) if part else f"it ended with {recorded.finish}, not {answer.finish}",
        why=reasons((was, recorded), (now, answer)),
    )
