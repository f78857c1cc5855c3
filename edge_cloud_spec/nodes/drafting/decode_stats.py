"""What a decision cost, for the topic ``decode_stats``."""

from __future__ import annotations

from builtin_interfaces.msg import Time

from edge_cloud_spec.msg import DecodeStats

from ...edge.runner import DecodeSettings, Outcome
from .drafter_settings import WITHOUT_CLOUD, DrafterSettings


def to_decode_stats(
    request_id: str,
    stamp: Time,
    settings: DrafterSettings,
    decode: DecodeSettings,
    outcome: Outcome,
) -> DecodeStats:
    """The figures of one decode; ``stamp`` is its frame's."""
    stats, rounds = outcome.stats, outcome.stats.rounds
    message = DecodeStats(
        request_id=request_id,
        preset=WITHOUT_CLOUD if decode.preset is settings.preset_without_cloud else settings.preset,
        rule=settings.rule,
        seed=decode.policy.seed,
        tokens=len(outcome.tokens),
        rounds=len(rounds),
        drafted=stats.drafted,
        accepted=stats.accepted,
        stale=stats.stale,
        up_bytes=stats.up_bytes,
        down_bytes=stats.down_bytes,
        tokens_per_second=len(outcome.tokens) / outcome.seconds,
        draft_ms=1e3 * sum(r.sent - r.start for r in rounds),
        verify_ms=1e3 * sum(r.verify_s for r in rounds),
        link_ms=1e3 * sum(r.link_s for r in rounds),
        total_ms=1e3 * outcome.seconds,
        overhead_ms=[1e3 * r.overhead_s for r in rounds],
        finish_reason=outcome.reason,
    )
    message.header.stamp = stamp
    return message
