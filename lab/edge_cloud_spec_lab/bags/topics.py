"""Finds topics in a bag: those of one robot, or the only one of some types."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import product

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.observe.bag_writer import PACKAGE

TEXT = "std_msgs/msg/String"
ROBOTS = {"instruction", "verified_tokens"}  # another namespace that has neither is no robot's


def robot_topics(
    types: Mapping[str, str], wanted: Mapping[str, str], namespace: str = ""
) -> dict[str, str]:
    """The full names of one robot's ``wanted`` topics, by their relative names. Raises UserError.

    ``types``: of the bag's topics. ``wanted``: the type of each, empty for any. ``namespace``: the
    robot's, if the bag has several.
    """
    found: dict[str, dict[str, str]] = {}
    for full, name in product(types, wanted):
        if full.endswith(f"/{name}"):
            found.setdefault(full.removesuffix(name).strip("/"), {})[name] = full
    robots = {space: names for space, names in found.items() if names.keys() & ROBOTS} or found
    namespace = namespace.strip("/")
    if not namespace and len(robots) > 1 and "" not in robots:
        named = ", ".join(sorted(robots))
        raise UserError(f"the bag has several robots, choose one: --namespace {named}")
    if namespace and namespace not in robots:
        raise UserError(f"the bag has none of the graph's topics under /{namespace}")
    topics = robots.get(namespace) or next(iter(robots.values()), {})
    for name, full in topics.items():
        # A topic of somebody else's type is somebody else's.
        if (
            wanted[name].startswith(PACKAGE)
            and types[full].startswith((TEXT, PACKAGE))
            and types[full] != wanted[name]
        ):
            raise UserError(
                f"the bag has {types[full]} on {full}, not {wanted[name]}: "
                "use the edge_cloud_spec that recorded it"
            )
    return {name: full for name, full in topics.items() if wanted[name] in ("", types[full])}


def topic_of(types: Mapping[str, str], given: str, kinds: Collection[str], option: str) -> str:
    """The only topic of these types, or the ``given`` one; empty if there is none.

    Raises UserError naming the option.
    """
    fitting = [topic for topic, kind in types.items() if kind in kinds]
    found = [t for t in fitting if t.strip("/") == given.strip("/")] if given else fitting
    if len(found) > 1 or (given and not found):
        there = ", ".join(fitting) or "none"
        raise UserError(f"{option} must name a topic of {' or '.join(kinds)}; the bag has {there}")
    return found[0] if found else ""
