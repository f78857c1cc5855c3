"""Which topics of a bag are the camera, the instruction and the run's own messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import UserError

COMPRESSED, RAW = "sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/Image"
TEXT = "std_msgs/msg/String"
CAMERAS = {"camera/image_raw/compressed": COMPRESSED, "camera/image_raw": RAW}
OURS = {
    "decode_request": "edge_cloud_spec/msg/DecodeRequest",
    "draft": "edge_cloud_spec/msg/Draft",
    "verdict": "edge_cloud_spec/msg/Verdict",
    "verified_tokens": "edge_cloud_spec/msg/VerifiedTokens",
    "decode_stats": "edge_cloud_spec/msg/DecodeStats",
    "run_info": TEXT,
    "e_stop": "std_msgs/msg/Bool",
}
"""What else is read of a run, where its namespace has it."""


@dataclass(frozen=True)
class TopicChoice:
    """Full names; empty where the bag has none. ``run`` maps the names in ``OURS`` to full ones."""

    camera: str
    is_raw: bool
    instruction: str
    run: Mapping[str, str]

    @property
    def has_decisions(self) -> bool:
        """Whether decisions of our nodes were recorded."""
        return {"decode_request", "verified_tokens"} <= set(self.run)


def choose_topics(types: Mapping[str, str], camera: str = "", instruction: str = "") -> TopicChoice:
    """The topics of a bag with these types, by full name; raises UserError.

    ``camera`` and ``instruction`` are what the user names; else they are found by the names that
    our graph has, in any one namespace, or by being the only one of their type.
    """
    chosen = _named(types, camera, (COMPRESSED, RAW), "--camera") if camera else _camera(types)
    namespace = _namespace(types, chosen)
    inside = f"{namespace}/instruction"
    if instruction:
        text = _named(types, instruction, (TEXT,), "--instruction")
    else:
        text = inside if types.get(inside) == TEXT else _only_instruction(types)
    names = {ours: f"{namespace}/{ours}" for ours in OURS}
    run = {ours: full for ours, full in names.items() if types.get(full) == OURS[ours]}
    wrong = next((f for o, f in names.items() if f in types and types[f] != OURS[o]), "")
    if wrong:
        raise UserError(
            f"{wrong} holds {types[wrong]} in this bag, which is not what our nodes publish there"
        )
    return TopicChoice(chosen, types.get(chosen) == RAW, text, run)


def _named(types: Mapping[str, str], given: str, kinds: tuple[str, ...], option: str) -> str:
    name = f"/{given.lstrip('/')}"
    if name not in types:
        raise UserError(f"the bag has no messages on {name} ({option}): {_listed(types)}")
    if types[name] not in kinds:
        raise UserError(f"{name} holds {types[name]}; {option} takes {' or '.join(kinds)}")
    return name


def _camera(types: Mapping[str, str]) -> str:
    """Ours by name, compressed first; else the only one of its type. Empty: the bag has none."""
    for ours, kind in CAMERAS.items():
        named = [t for t, k in types.items() if k == kind and t.endswith(f"/{ours}")]
        if found := _one(named, "--camera"):
            return found
    for kind in CAMERAS.values():
        others = [t for t, k in types.items() if k == kind and "annotated" not in t]
        if found := _one(others, "--camera"):
            return found
    return ""


def _only_instruction(types: Mapping[str, str]) -> str:
    named = [t for t, k in types.items() if k == TEXT and t.endswith("/instruction")]
    return _one(named, "--instruction")


def _namespace(types: Mapping[str, str], camera: str) -> str:
    """That of the run's decisions: the camera's, else the only one, else the root."""
    for ours in CAMERAS:
        if camera.endswith(f"/{ours}"):
            own = camera.removesuffix(f"/{ours}")
            if f"{own}/verified_tokens" in types or not own:
                return own
    end = "/verified_tokens"
    found = [t.removesuffix(end) for t in types if t.endswith(end)]
    if len(found) > 1:
        raise UserError(
            f"the bag has the decisions of {len(found)} robots ({', '.join(sorted(found))}): "
            "name one by its --camera"
        )
    return found[0] if found else _own_namespace(camera)


def _own_namespace(camera: str) -> str:
    ends = (f"/{ours}" for ours in CAMERAS)
    return next((camera.removesuffix(end) for end in ends if camera.endswith(end)), "")


def _one(topics: list[str], option: str) -> str:
    if len(topics) > 1:
        raise UserError(
            f"the bag has {len(topics)} such topics ({', '.join(sorted(topics))}): "
            f"choose one with {option}"
        )
    return topics[0] if topics else ""


def _listed(types: Mapping[str, str]) -> str:
    names = sorted(topic for topic, kind in types.items() if kind in (COMPRESSED, RAW, TEXT))
    return f"it has {', '.join(names) or 'no pictures and no texts'}"
