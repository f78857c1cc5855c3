"""The published cost profiles, from ``config/cost_profiles.yaml``; times in ms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import yaml

from edge_cloud_spec.errors import UserError, refuse
from edge_cloud_spec.share import share

CUSTOM = "custom"
COSTS = ("draft_ms", "verify_ms", "ar_ms", "alpha")  # what a cost profile must give
# What one of today gives, by part of the model.
PREFILLS = ("prefill_ms", "draft_prefill_ms", "cloud_draft_prefill_ms")
HEAD_COST = 0.03  # of a drafted token, as a share of a pass; assumed


@dataclass(frozen=True)
class Head:
    """A head of the target that drafts a chain before each of its passes (MTP, EAGLE); raises
    UserError.

    ``acceptance``: how often all drafted tokens up to each position are right, as vLLM counts it.
    ``cost``: of drafting a token, as a share of ``ar_ms``.
    """

    acceptance: tuple[float, ...]
    cost: float = HEAD_COST

    def __post_init__(self) -> None:
        falling = (1.0, *self.acceptance, 0.0)
        refuse(
            (
                not self.acceptance or list(falling) != sorted(falling, reverse=True),
                "a head's acceptance by position is from 0 to 1, and never rises",
            ),
            (self.cost < 0, "a head's cost is 0 or more of a pass"),
        )

    @property
    def tokens(self) -> float:
        """The mean tokens of a pass."""
        return 1 + sum(self.acceptance)


@dataclass(frozen=True)
class CostProfile:
    """The costs of two models and a link, and how often a draft is right; raises UserError.

    ``runner_up``: share of the draft's misses in which its second choice is the target's.
    ``exit_hit``: share of rounds in which an exit after ``exit_depth`` of the pass predicts the
    verdict (0: there are no exits). Papers do not print the target's and the draft model's
    ``prefill_ms`` and ``draft_prefill_ms`` per frame (0: unknown), nor how long a pass takes when
    its exits are not used, as a share ``without_exits`` of ``ar_ms`` (0: as long as any); see
    ``with_assumed``. ``cloud_draft_ms``, ``cloud_draft_prefill_ms``: of a draft model in the cloud
    (0: as the robot's). ``head``: how the target speculates by itself (None: it does not).
    """

    name: str
    draft_ms: float
    verify_ms: float
    ar_ms: float
    one_way_ms: float
    alpha: float
    gamma: int = 4
    runner_up: float = 0.5
    exit_hit: float = 0.0
    exit_depth: float = 0.3
    flat_tokens: int = 16
    per_token: float = 0.015
    width_factors: dict[int, float] = field(default_factory=lambda: {1: 1.0})
    prefill_ms: float = 0.0
    draft_prefill_ms: float = 0.0
    without_exits: float = 0.0
    cloud_draft_ms: float = 0.0
    cloud_draft_prefill_ms: float = 0.0
    head: Head | None = None
    published: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        times = (self.draft_ms, self.verify_ms, self.ar_ms)
        shares = (self.alpha, self.runner_up, self.exit_hit, self.exit_depth)
        where = f"cost profile {self.name}"
        refuse(
            (
                min(times) <= 0 or self.one_way_ms < 0,
                f"{where}: a pass takes more than 0 ms, the link 0 or more",
            ),
            (
                min(self.prefill_ms, self.draft_prefill_ms, self.without_exits) < 0,
                f"{where}: prefills and without_exits are 0 or more",
            ),
            (
                not all(0 <= share <= 1 for share in shares),
                f"{where}: alpha, runner-up and exit-hit are from 0 to 1",
            ),
            (
                not 1 <= self.gamma <= 64,
                f"{where}: gamma, the length of a draft, is 1 to 64",
            ),
        )

    @property
    def rtt_ms(self) -> float:
        """The round trip, ms."""
        return 2 * self.one_way_ms

    def with_rtt(self, rtt_ms: float) -> CostProfile:
        """This profile with another round-trip time, without the published figures."""
        published = self.published if rtt_ms == self.rtt_ms else {}
        return replace(self, one_way_ms=rtt_ms / 2, published=published)

    def with_assumed(self) -> CostProfile:
        """This profile, with times that are 0 (not published) set to the assumptions of
        ``cost_profiles.yaml``."""
        costs = _content()["costs"]
        return replace(
            self,
            prefill_ms=self.prefill_ms or costs["prefill"] * self.ar_ms,
            draft_prefill_ms=self.draft_prefill_ms or costs["draft_prefill"] * self.draft_ms,
            without_exits=self.without_exits or costs["without_exits"] * bool(self.exit_hit),
        )

    def of_cloud_drafter(self) -> CostProfile:
        """This profile for the cloud's own draft model, with its times in place of the robot's."""
        return replace(
            self,
            draft_ms=self.cloud_draft_ms or self.draft_ms,
            draft_prefill_ms=self.cloud_draft_prefill_ms or self.draft_prefill_ms,
        )

    def draft_pass_ms(self, width: int) -> float:
        """The time of a draft model's pass over this many branches, ms."""
        widths, factors = self._width_curve
        if width > widths[-1]:
            return float(self.draft_ms * factors[-1] * width / widths[-1])
        return self.draft_ms * float(np.interp(width, widths, factors))

    @cached_property
    def _width_curve(self) -> tuple[np.ndarray, np.ndarray]:
        """``width_factors``: widths, ascending, and their factors. Each virtual pass asks."""
        widths = sorted(self.width_factors)
        return np.array(widths), np.array([self.width_factors[each] for each in widths])

    def verify_pass_ms(self, tokens: int) -> float:
        """The time of a target's pass over this many drafted tokens, ms."""
        return self.verify_ms * (1 + self.per_token * max(0, tokens - self.flat_tokens))

    def batch_pass_ms(self, drafted: Sequence[int], exits: bool = True) -> float:
        """The time of a pass over several sessions, which drafted so many tokens each, ms.

        The weights are read once. Each session after the first adds its tokens: those that it
        drafted and the one before them. exits: whether any session uses them.
        """
        rows = sum(drafted) + len(drafted) - 1
        whole = self.verify_pass_ms(rows)
        if not any(drafted):
            return whole * self.ar_ms / self.verify_ms
        if exits or not self.without_exits:
            return whole
        return whole * min(1.0, self.without_exits * self.ar_ms / self.verify_ms)


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((share() / "config/cost_profiles.yaml").read_text())
    return content


@dataclass(frozen=True)
class Prices:
    """What a busy second of a cloud's GPU and of a robot's drafter takes, and what data costs."""

    gpu_usd_per_h: float
    gpu_w: float
    drafter_w: float
    link_usd_per_gb: float

    def usd(self, gpu_s: float, link_bytes: float) -> float:
        """The cost of so many busy seconds of a GPU and bytes of a link, US dollars."""
        return gpu_s / 3600 * self.gpu_usd_per_h + link_bytes / 1e9 * self.link_usd_per_gb

    def joules(self, gpu_s: float, drafter_s: float) -> float:
        """The energy of so many busy seconds of a GPU and of a drafter, J."""
        return gpu_s * self.gpu_w + drafter_s * self.drafter_w


def prices() -> Prices:
    """The prices of ``cost_profiles.yaml``."""
    return Prices(**_content()["prices"])


def cost_profile_names() -> tuple[str, ...]:
    """The names of the pipelines' cost profiles."""
    return _names("pipeline")


def _names(kind: str) -> tuple[str, ...]:
    return tuple(
        name
        for name, entry in _content().items()
        if isinstance(entry, dict) and entry.get("kind") == kind
    )


def load_cost_profile(name: str) -> CostProfile:
    """Load a cost profile; raises UserError."""
    if name not in cost_profile_names():
        raise UserError(
            f"there is no cost profile {name!r}; choose one of {', '.join(cost_profile_names())}, "
            f"or {CUSTOM} with costs of your own"
        )
    entry = _content()[name]
    return _cost_profile(
        entry,
        name=name,
        one_way_ms=entry["one_way_ms"],
        exit_hit=1 - entry["cache_miss"] if "cache_miss" in entry else 0.0,
        published=entry.get("published", {}),
        head=Head(tuple(entry["head"]["acceptance"]), entry["head"]["cost"])
        if "head" in entry
        else None,
        **{prefill: sum(entry[prefill].values()) for prefill in PREFILLS if prefill in entry},
        **{name: entry[name] for name in (*COSTS, "gamma", "cloud_draft_ms") if name in entry},
    )


@dataclass(frozen=True)
class ServerCostProfile:
    """A published server with many robots that draft trees of ``nodes`` nodes.

    ``server_only_depth``, ``server_only_alpha``: its baseline drafts trees of this depth itself
    before each pass, with this acceptance.
    """

    cost_profile: CostProfile
    nodes: int
    width: int
    server_only_depth: int
    server_only_alpha: float


def load_server_cost_profile(name: str) -> ServerCostProfile:
    """Load a cost profile of kind server; raises UserError."""
    content = _content()
    known = _names("server")
    if name not in known:
        raise UserError(
            f"there is no server cost profile {name!r}; choose one of {', '.join(known)}"
        )
    entry = content[name]
    factors, width = content["costs"]["draft_by_width"], entry["width"]
    wider = {w: factor / factors[width] for w, factor in factors.items() if w >= width}
    cost_profile = _cost_profile(
        entry,
        name=name,
        one_way_ms=entry["rtt_ms"] / 2,
        width_factors={1: 1.0, **wider},
        gamma=entry["server_only"]["depth"],
        published=entry["published"],
        **{field: entry[field] for field in COSTS},
    )
    return ServerCostProfile(
        cost_profile,
        entry["nodes"],
        width,
        entry["server_only"]["depth"],
        entry["server_only"]["alpha"],
    )


def custom_cost_profile(rtt_ms: float | None, **given: Any) -> CostProfile:
    """A cost profile from a user's values and the published assumptions; raises UserError."""
    missing = [name for name in COSTS if name not in given] + ["rtt"] * (rtt_ms is None)
    if missing:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise UserError(
            f"costs of your own need {flags} too; or name a published --cost-profile to change"
        )
    assert rtt_ms is not None
    return _cost_profile({}, name=CUSTOM, one_way_ms=rtt_ms / 2, **given)


def _cost_profile(entry: dict[str, Any], **given: Any) -> CostProfile:
    """Make a cost profile from a file's entry; missing fields have the defaults of all profiles."""
    costs = _content()["costs"] | entry
    assumed = {
        "runner_up": costs["runner_up"],
        "exit_depth": costs["exit_depth"],
        "flat_tokens": costs["verify_flat_tokens"],
        "per_token": costs["verify_per_token"],
        "width_factors": costs["draft_by_width"],
    }
    return CostProfile(**(assumed | given))
