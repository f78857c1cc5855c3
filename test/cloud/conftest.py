"""Verifiers over gRPC whose models are functions of the prefix."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from helpers.cloud.grpc_cloud import Cloud

from edge_cloud_spec_lab.harness.toy import toy_worker


@pytest.fixture
def toy() -> Iterator[SimpleNamespace]:
    with Cloud(toy_worker()) as running:
        yield running
