"""A fleet's ``/metrics``: all replicas' own, told apart, and which of them does not answer."""

from __future__ import annotations

import json
import pickle
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.cloud.grpc_robot import OWN, decode_at
from helpers.cloud.promql import missing, read_scrape
from helpers.cloud.small_fleet import SmallFleet
from prometheus_client.parser import text_string_to_metric_families

from edge_cloud_spec.cloud.fleet.ray_fleet import fleet_metrics
from edge_cloud_spec.cloud.fleet.replica import Replica
from edge_cloud_spec.cloud.fleet.roster import ReplicaLoad
from edge_cloud_spec.cloud.serving.metrics import PREFIX, MetricsServer
from edge_cloud_spec.cloud.serving.server import ServerSettings
from edge_cloud_spec.lab.harness.toy import toy_worker

DASHBOARD = Path(__file__).parents[3] / "config/grafana.json"


def scrape(server: MetricsServer) -> str:
    with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def of(text: str, name: str) -> dict[str, float]:
    """The samples of this name, summed by replica."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.name == PREFIX + name:
                found[one.labels["replica"]] = found.get(one.labels["replica"], 0.0) + one.value
    return found


@pytest.fixture(scope="module")
def busy() -> Iterator[SimpleNamespace]:
    """Two replicas after a decode at each, and a third that does not answer."""
    made = ServerSettings("127.0.0.1:0", grace_s=0.1)
    with SmallFleet("") as fleet:
        replicas = {name: Replica(toy_worker(), made, name, fleet.key) for name in "ab"}
        for replica in replicas:
            fleet.roster.reported(replica, replicas[replica].address, ReplicaLoad())
            assert decode_at(fleet.address).tokens == OWN
            fleet.roster.left(replica)

        def ask() -> dict[str, Any]:
            """As they come from another process."""
            said = {name: one.metrics() for name, one in replicas.items()}
            return {**pickle.loads(pickle.dumps(said)), "c": None}

        server = MetricsServer("127.0.0.1:0", partial(fleet_metrics, ask, fleet.roster))
        alone = MetricsServer("127.0.0.1:0", replicas["a"].metrics)
        yield SimpleNamespace(text=scrape(server), again=scrape(server), alone=scrape(alone))
        alone.stop()
        server.stop()
        for replica in replicas.values():
            replica.stop()


def test_each_replica_says_what_happened_there(busy: Any) -> None:
    assert of(busy.text, "generation_tokens_total") == {"a": len(OWN), "b": len(OWN)}
    assert of(busy.text, "request_success_total") == {"a": 1, "b": 1}
    assert of(busy.text, "fleet_placements_total") == {"a": 1, "b": 1}
    assert of(busy.again, "generation_tokens_total") == {"a": len(OWN), "b": len(OWN)}


def test_one_that_does_not_answer_is_down_and_hides_no_other(busy: Any) -> None:
    assert of(busy.text, "fleet_replica_up") == {"a": 1, "b": 1, "c": 0}


def test_a_family_is_there_once_and_the_dashboard_reads_it_like_a_single_verifiers(
    busy: Any,
) -> None:
    helps = [line for line in busy.text.splitlines() if line.startswith("# TYPE")]
    assert len(helps) == len(set(helps))
    found, alone = read_scrape(busy.text), read_scrape(busy.alone)
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    read = [query for query in queries if not missing(query, alone)]
    assert len(read) > len(queries) / 2  # the others read what has not happened here
    assert [what for query in read for what in missing(query, found)] == []
    assert set(alone) < set(found)
