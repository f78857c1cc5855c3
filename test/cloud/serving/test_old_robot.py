"""A robot with the gRPC and protobuf of Debian 12 and Ubuntu 24.04, and today's verifier."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import grpc
import pytest
from helpers.cloud.grpc_robot import OWN, POLICIES

OLDEST = os.environ.get("EDGE_CLOUD_SPEC_OLDEST", "")
PRESETS = ("dsd", "picospec", "fsd", "specedge", "mc_tslt", "dssd", "auto", "cloud_ar", "cloud_sd")
ROBOT = f"""
import sys
import google.protobuf, grpc
from helpers.cloud.grpc_robot import POLICIES, decode_at, settings
print(grpc.__version__, google.protobuf.__version__)
for preset in {PRESETS}:
    for rule in POLICIES:
        outcome = decode_at(sys.argv[1], settings(preset, rule))
        print(preset, rule, outcome.reason, *outcome.tokens)
"""


@pytest.mark.skipif(not OLDEST, reason="a robot's old libraries are installed by make oldest")
def test_a_robot_of_old_libraries_decodes_at_todays_verifier(toy: SimpleNamespace) -> None:
    assert grpc.__version__ != "1.51.3", "the verifier's are today's"
    done = subprocess.run(
        [sys.executable, "-c", ROBOT, toy.address],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([OLDEST, *sys.path])},
        capture_output=True,
        text=True,
        timeout=500,
    )
    versions, *lines = done.stdout.splitlines()
    assert versions == "1.51.3 4.21.12", done.stderr
    assert len(lines) == len(PRESETS) * len(POLICIES), done.stderr
    for line in lines:
        _, rule, reason, *tokens = line.split()
        assert reason in ("end", "length"), line
        assert rule != "coupled" or tuple(map(int, tokens)) == OWN, line
