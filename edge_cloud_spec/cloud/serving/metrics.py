"""``/metrics`` of a verifier, for Prometheus, with vLLM's metric names.

A name is vLLM's with our prefix in place of ``vllm:``. Nothing is counted here: a scrape reads the
worker's counters and the server's meter. Needs ``prometheus-client`` (extra ``metrics``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from ...errors import UserError, check_installed
from ...wire.channel import check_address
from ..model_thread.worker import Worker
from .meter import SECONDS, Histogram
from .service import DecodeService

if TYPE_CHECKING:
    from prometheus_client.core import Metric

METRIC_PREFIX = "edge_cloud_spec_"

Value = float | Mapping[str, float]
# Name, help text, and a value; or values by a label, and its name.
Family = tuple[str, str, Value] | tuple[str, str, Value, str]


def verifier_metrics(worker: Worker, service: DecodeService) -> Iterator[Metric]:
    """All metric families with their current values; from any thread."""
    for family in _gauges(worker, service):
        yield gauge(*family)
    for family in _counters(worker, service):
        yield counter(*family)
    meter = service.meter
    for name, text, by_preset in (
        ("request_queue_time_seconds", "From a draft to its pass.", meter.queue_s),
        ("verify_time_seconds", "The target's pass.", meter.verify_s),
        ("time_to_first_token_seconds", "From Open to the first verdict.", meter.first_token_s),
        ("inter_token_latency_seconds", "Between tokens.", meter.between_tokens_s),
    ):
        yield _histogram(name, text, dict(by_preset))


def _gauges(worker: Worker, service: DecodeService) -> tuple[Family, ...]:
    connected, memory = worker.held.connected, worker.kv_memory
    sessions = {"connected": connected, "kept": max(0, len(worker.held) - connected)}
    waiting_bytes = service.streams.waiting_bytes
    return (
        ("num_requests_running", "Decodes whose robot is connected.", connected),
        ("num_requests_waiting", "Messages and passes that wait.", worker.waiting),
        ("sessions", "Sessions, by whether their robot is there.", sessions, "state"),
        ("streams", "Open streams.", len(service.streams.streams)),
        (
            "waiting_bytes",
            "Bytes of messages that wait, by their direction.",
            waiting_bytes,
            "direction",
        ),
        ("pushed_drafts", "Drafts that wait for their place.", worker.held.pushed),
        ("model_thread_up", "1: the model's thread works.", not service.problem),
        ("kv_cache_usage_perc", "KV memory in use; 1 is all of the bound.", memory.usage),
        ("kv_cache_bytes", "KV memory in use.", memory.in_use),
    )


def _counters(worker: Worker, service: DecodeService) -> tuple[Family, ...]:
    counters, meter, memory = worker.counters, service.meter, worker.kv_memory
    answers = counters.answers
    places = {str(place): count for place, count in dict(answers.accepted_at).items()}
    outcomes = ("verified", "repeated", "late", "unused", "refused")
    received = {name: getattr(counters, name) for name in outcomes}
    refused = {**dict(service.gate.refused), **dict(answers.refused)}
    return (
        ("spec_decode_num_drafts", "Drafts that were verified.", answers.drafts),
        (
            "spec_decode_num_draft_tokens",
            "Drafted tokens that were verified, of all branches, by who drafted them.",
            dict(answers.drafted),
            "source",
        ),
        (
            "spec_decode_num_accepted_tokens",
            "Drafted tokens that were accepted, by who drafted them.",
            dict(answers.accepted),
            "source",
        ),
        (
            "spec_decode_num_accepted_tokens_per_pos",
            "The same, by the place in the draft.",
            places,
            "position",
        ),
        ("generation_tokens", "Tokens that verdicts settled.", answers.tokens),
        ("request_success", "Complete answers.", dict(answers.finished), "finished_reason"),
        ("drafts_received", "Drafts, by what became of them.", received, "outcome"),
        (
            "requests_refused",
            "Streams and sessions that were refused, by the bound in the way.",
            refused,
            "reason",
        ),
        (
            "requests_failed",
            "Requests that ended with a fault, by its code.",
            dict(meter.faults),
            "code",
        ),
        (
            "kv_cache_evictions",
            "Caches that gave way to others, and are computed again when they are needed.",
            memory.evictions,
        ),
        (
            "prefix_cache_hits",
            "Tokens of prompts whose keys and values were there already.",
            memory.prefix_rows,
        ),
        (
            "kv_cache_restored_tokens",
            "Tokens that caches which gave way have computed again.",
            memory.restored_rows,
        ),
        ("session_evictions", "Sessions dropped to make room.", worker.held.evicted),
        ("stream_evictions", "Streams dropped to make room.", service.streams.evicted),
        (
            "slow_readers_dropped",
            "Streams dropped since their robots did not read.",
            meter.slow_readers,
        ),
        ("streams_opened", "Streams that were let in.", meter.opened_streams),
        ("received_bytes", "Bytes of robots' messages.", meter.received_bytes),
        ("sent_bytes", "Bytes of messages to robots.", meter.sent_bytes),
    )


def _family(kind: str, name: str, text: str, value: Value, label: str = "") -> Metric:
    """A metric family with one value, or one value per value of a label."""
    from prometheus_client import core

    families = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
    family: core.CounterMetricFamily | core.GaugeMetricFamily = families[kind](
        METRIC_PREFIX + name, text, labels=[label] if label else None
    )
    if isinstance(value, Mapping):
        for of, number in value.items():
            family.add_metric([of], float(number))
    else:
        family.add_metric([], float(value))
    return family


counter = partial(_family, "counter")
gauge = partial(_family, "gauge")  # for values that can decrease


def _histogram(name: str, text: str, by_preset: Mapping[str, Histogram]) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(METRIC_PREFIX + name, text, labels=["preset"])
    for preset, histogram in by_preset.items():
        counts, total = histogram.read()
        bounds = (*map(str, SECONDS), "+Inf")
        buckets = list(zip(bounds, map(float, counts), strict=True))
        family.add_metric([preset], buckets, total)
    return family


def metrics_address(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``, or a port, which means loopback; raises UserError."""
    given = f"127.0.0.1:{text}" if text.isdecimal() else text
    try:
        check_address(given)
        host, port = given.rsplit(":", 1)
        return host.strip("[]"), int(port)
    except (UserError, ValueError):
        text = f"--metrics is HOST:PORT, or a port of this machine, not {text!r}"
        raise UserError(text) from None


class MetricsServer:
    """Serves ``/metrics`` over HTTP at ``address``, in threads of its own, without TLS."""

    def __init__(self, address: str, collect: Callable[[], Iterable[Metric]]) -> None:
        """collect: returns all families; called at each scrape, in its thread.

        Raises UserError if it cannot listen, or prometheus-client is missing.
        """
        host, port = metrics_address(address)
        check_installed("prometheus_client", "--metrics")
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        self.collect = collect  # the method that prometheus-client calls
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            text = f"cannot serve metrics on {address}: {error.strerror or error}"
            raise UserError(text) from None
        self.address = f"{host}:{self._server.server_port}"

    def stop(self) -> None:
        """End the server and its thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
