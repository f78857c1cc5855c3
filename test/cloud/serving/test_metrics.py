"""``/metrics`` after real decodes, of one verifier and of a fleet, say what happened there."""

from __future__ import annotations

import json
import pickle
import re
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import promql_parser
import pytest
from helpers.bounded_toy import SESSION_BYTES, BoundedToy
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.grpc_robot import OWN, Talk, decode_at, opening
from helpers.cloud.small_fleet import SmallFleet
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from edge_cloud_spec.cloud.fleet.ray_fleet import fleet_metrics
from edge_cloud_spec.cloud.fleet.registry import ReplicaLoad
from edge_cloud_spec.cloud.fleet.replica import Replica
from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.cloud.serving.meter import OTHER, SECONDS, Histogram
from edge_cloud_spec.cloud.serving.metrics import METRIC_PREFIX, MetricsServer, metrics_address
from edge_cloud_spec.cloud.serving.server import ServerSettings
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.wire.messages import DraftMessage, Fault, Verdict
from edge_cloud_spec_lab.harness.toy import ToyVlm, spec_of, toy_worker

BOARD = json.loads((Path(__file__).parents[3] / "config/grafana.json").read_text())
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
PRESETS = ("dsd", "cloud_ar", "picospec")


Scrape = dict[str, set[str]]  # the labels of each series' name


def read_scrape(text: str) -> Scrape:
    """The series of a scrape and their labels, by Prometheus' own reader of the format."""
    found: Scrape = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def missing(query: str, scrape: Scrape) -> list[str]:
    """What this query reads and the scrape has not; raises ValueError where it is no PromQL."""
    plain = re.sub(r"\$__\w+", "5m", query).replace("$preset", ".*")
    lacking: list[str] = []
    _labels(promql_parser.parse(plain), scrape, lacking)
    return lacking


def _labels(expr: Any, scrape: Scrape, lacking: list[str]) -> set[str]:
    """The labels of what this expression gives."""
    match type(expr).__name__:
        case "VectorSelector":
            return _selected(expr, scrape, lacking)
        case "MatrixSelector":
            return _selected(expr.vector_selector, scrape, lacking)
        case "AggregateExpr":
            inner = _labels(expr.expr, scrape, lacking)
            named = set(expr.modifier.labels) if expr.modifier else set()
            lacking += [f"label {name} of {expr}" for name in named - inner]
            return named
        case "Call":
            given = [_labels(argument, scrape, lacking) for argument in expr.args]
            labels = set().union(*given)
            if expr.func.name == "histogram_quantile" and "le" not in labels:
                lacking.append(f"label le of {expr}")
            return labels - ({"le"} if expr.func.name == "histogram_quantile" else set())
        case "BinaryExpr":
            return _labels(expr.lhs, scrape, lacking) | _labels(expr.rhs, scrape, lacking)
        case "ParenExpr" | "UnaryExpr" | "SubqueryExpr":
            return _labels(expr.expr, scrape, lacking)
        case "NumberLiteral" | "StringLiteral":
            return set()
    raise ValueError(f"an expression of a kind that this test does not know: {expr}")


def _selected(selector: Any, scrape: Scrape, lacking: list[str]) -> set[str]:
    labels = scrape.get(selector.name)
    if labels is None:
        lacking.append(f"series {selector.name}")
        return set()
    named = {matcher.name for matcher in selector.matchers.matchers}
    lacking += [f"label {name} of {selector.name}" for name in named - labels]
    return labels


def scrape(server: MetricsServer) -> str:
    with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def samples(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """By name, then by the labels' values."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            key = tuple(one.labels.values())
            found.setdefault(one.name.removeprefix(METRIC_PREFIX), {})[key] = one.value
    return found


@pytest.fixture(scope="module")
def busy() -> Iterator[SimpleNamespace]:
    """A verifier after decodes of some presets, a refusal of each kind, and a bad request."""
    limits = WorkerLimits(sessions_per_robot=1, kv_mb=2 * SESSION_BYTES / 2**20)
    worker = Worker(BoundedToy(1), spec_of(60), ToyVlm(1, 0.5), limits)  # type: ignore[arg-type]
    with Cloud(worker, token="sesame", metrics="127.0.0.1:0") as cloud:
        outcomes = [
            decode_at(cloud.address, preset, nonce, token="sesame")
            for nonce, preset in enumerate(PRESETS)
        ]
        with Talk(cloud.address) as stranger:
            assert stranger.ask(opening()).code == "unauthenticated"
        with (
            Talk(cloud.address, token="sesame") as robot,
            Talk(cloud.address, token="sesame") as other,
        ):
            assert isinstance(robot.ask(b"\x99 no message"), Fault)
            opened = robot.ask(opening(nonce=77, preset="one of mine\n"))
            assert isinstance(robot.ask(DraftMessage(opened.base, Draft(OWN[:2]), 0)), Verdict)
            assert other.ask(opening(nonce=78)).code == "overloaded"
            server = cloud._server.metrics
            text = scrape(server)
        yield SimpleNamespace(cloud=cloud, server=server, text=text, outcomes=outcomes)


def test_what_is_counted_is_what_happened(busy: Any) -> None:
    found, outcomes = samples(busy.text), busy.outcomes
    assert [outcome.tokens for outcome in outcomes] == [OWN] * len(PRESETS)
    settled = sum(len(outcome.tokens) for outcome in outcomes) + 3  # two of OWN, and the bonus
    assert found["generation_tokens_total"][()] == settled
    assert found["request_success_total"] == {("end",): len(PRESETS)}
    by_source = found["spec_decode_num_accepted_tokens_total"]
    assert by_source[("robot",)] > 0 == by_source[("lookup",)]
    accepted = sum(by_source.values())
    assert accepted == sum(outcome.stats.accepted for outcome in outcomes) + 2
    places = found["spec_decode_num_accepted_tokens_per_pos_total"]
    assert sum(places.values()) == accepted
    assert places[("0",)] >= places[("1",)] > 0
    assert found["requests_refused_total"][("unauthenticated",)] == 1
    assert found["requests_refused_total"][("sessions_per_robot",)] == 1
    assert found["requests_failed_total"] == {("bad_request",): 1, ("overloaded",): 1}
    assert found["num_requests_running"][()] == 1
    assert found["model_thread_up"][()] == 1
    assert 0 < found["kv_cache_usage_perc"][()] < 1 < found["kv_cache_bytes"][()]
    assert found["received_bytes_total"][()] > 0 < found["sent_bytes_total"][()]
    assert set(found["waiting_bytes"]) == {("received",), ("to_send",)}
    # Times are by preset, one for each answer and one for each verdict.
    first = found["time_to_first_token_seconds_count"]
    assert first == {(name,): 1 for name in (*PRESETS, OTHER)}, "a robot's own preset is a label"
    verdicts = sum(found["verify_time_seconds_count"].values())
    assert verdicts == busy.cloud.worker.counters.verdicts
    assert found["request_queue_time_seconds_count"] == found["verify_time_seconds_count"]
    between = sum(found["inter_token_latency_seconds_count"].values())
    assert 0 < between < found["generation_tokens_total"][()]


def test_the_names_are_those_that_vllms_users_know(busy: Any) -> None:
    """As in vLLM 0.11's metrics, with our prefix in place of ``vllm:``."""
    names = read_scrape(busy.text)
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "spec_decode_num_accepted_tokens_per_pos_total",
        "generation_tokens_total",
        "request_success_total",
        "request_queue_time_seconds_bucket",
        "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_bucket",
        "kv_cache_usage_perc",
        "prefix_cache_hits_total",
        "kv_cache_evictions_total",  # and ours
        "session_evictions_total",
        "stream_evictions_total",
        "slow_readers_dropped_total",
    ):
        assert METRIC_PREFIX + name in names


def test_every_query_of_the_dashboard_reads_what_a_scrape_has(busy: Any) -> None:
    everything = read_scrape(scrape(busy.server))
    assert len(QUERIES) > 20
    assert [what for query in QUERIES for what in missing(query, everything)] == []
    variables = {one["name"]: one["query"] for one in BOARD["templating"]["list"]}
    name, label = variables["preset"].removeprefix("label_values(").rstrip(")").split(", ")
    assert label in everything[name]


@pytest.mark.parametrize(
    "broken",
    [
        "edge_cloud_spec_num_requests_runing",
        'edge_cloud_spec_verify_time_seconds_count{presett="dsd"}',
        "sum by (client) (edge_cloud_spec_sessions)",
        "histogram_quantile(0.9, rate(edge_cloud_spec_verify_time_seconds_sum[5m]))",
        "sum(rate(edge_cloud_spec_drafts_received[5m]))",
        "sum by (outcome) (sum(edge_cloud_spec_drafts_received_total))",
    ],
)
def test_a_query_that_reads_what_is_not_there_or_is_no_promql_is_found(
    busy: Any, broken: str
) -> None:
    assert missing(broken, read_scrape(busy.text))
    with pytest.raises(ValueError, match=r"."):
        missing(f"sum({broken}", read_scrape(busy.text))


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 5))))
def test_a_histogram_counts_each_value_once_below_its_bounds(
    values: list[tuple[float, int]],
) -> None:
    histogram = Histogram()
    for value, times in values:
        histogram.observe(value, times)
    counts, total = histogram.read()
    for bound, count in zip((*SECONDS, float("inf")), counts, strict=True):
        assert count == sum(times for value, times in values if value <= bound)
    assert total == pytest.approx(sum(value * times for value, times in values))


def test_a_port_alone_is_on_this_machine_only() -> None:
    assert metrics_address("9464") == ("127.0.0.1", 9464)
    assert metrics_address("[::1]:1") == ("::1", 1)
    for wrong in ("nine", "host:", ":", "unix:/tmp/x", "1.2.3.4:99999", ":9464"):
        with pytest.raises(UserError, match="--metrics is HOST:PORT"):
            ServerSettings(metrics=wrong)


def test_a_port_that_is_taken_is_said(busy: Any) -> None:
    with pytest.raises(UserError, match="cannot serve metrics"):
        Cloud(toy_worker(), metrics=busy.server.address)


@pytest.fixture(scope="module")
def replicas() -> Iterator[SimpleNamespace]:
    """Two replicas after a decode at each, and a third that does not answer."""
    made = ServerSettings("127.0.0.1:0", grace_s=0.1)
    with SmallFleet("") as fleet:
        served = {name: Replica(toy_worker(), made, name, fleet.key) for name in "ab"}
        for name, replica in served.items():
            fleet.registry.reported(name, replica.address, ReplicaLoad())
            assert decode_at(fleet.address).tokens == OWN
            fleet.registry.left(name)

        def ask() -> dict[str, Any]:
            """As they come from another process."""
            said = {name: one.metrics() for name, one in served.items()}
            return {**pickle.loads(pickle.dumps(said)), "c": None}

        server = MetricsServer("127.0.0.1:0", partial(fleet_metrics, ask, fleet.registry))
        alone = MetricsServer("127.0.0.1:0", served["a"].metrics)
        yield SimpleNamespace(text=scrape(server), again=scrape(server), alone=scrape(alone))
        for each in (alone, server, *served.values()):
            each.stop()


def test_each_replica_says_what_happened_there_and_one_that_does_not_answer_hides_no_other(
    replicas: Any,
) -> None:
    found, again = samples(replicas.text), samples(replicas.again)
    assert found["fleet_replica_up"] == {("a",): 1, ("b",): 1, ("c",): 0}
    assert found["fleet_placements_total"] == {("a",): 1, ("b",): 1}
    assert found["request_success_total"] == {("end", "a"): 1, ("end", "b"): 1}
    for scraped in (found, again):
        assert scraped["generation_tokens_total"] == {("a",): len(OWN), ("b",): len(OWN)}
    # A family is there once, and the dashboard reads it like a single verifier's.
    helps = [line for line in replicas.text.splitlines() if line.startswith("# TYPE")]
    assert len(helps) == len(set(helps))
    whole, alone = read_scrape(replicas.text), read_scrape(replicas.alone)
    read = [query for query in QUERIES if not missing(query, alone)]
    assert len(read) > len(QUERIES) / 2  # the others read what has not happened here
    assert [what for query in read for what in missing(query, whole)] == []
    assert set(alone) < set(whole)
