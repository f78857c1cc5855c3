"""What the bridge says on /diagnostics of each fault of the link, and that it recovers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy")
from diagnostic_msgs.msg import DiagnosticStatus
from helpers.cloud.certificates import Authority
from helpers.cloud.grpc_cloud import Cloud, free_port
from helpers.cloud.grpc_robot import opening
from helpers.graph.running_bridge import Hearer, running_bridge

from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.msg import Verdict
from edge_cloud_spec.nodes.bridge_messages import to_request

OK, ERROR = DiagnosticStatus.OK, DiagnosticStatus.ERROR


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pem"))


@pytest.fixture(scope="module")
def guarded(authority: Authority) -> Iterator[Cloud]:
    with Cloud(toy_worker(), token="secret", **authority.certificate("verifier")) as running:
        yield running


def says(hearer: Hearer, level: bytes, *words: str) -> bool:
    newest = hearer.diagnostics[-1] if hearer.diagnostics else None
    return (
        newest is not None
        and newest.level == level
        and all(word in newest.message for word in words)
    )


def values(hearer: Hearer) -> dict[str, str]:
    return {each.key: each.value for each in hearer.diagnostics[-1].values}


def test_a_wrong_address_shows_before_the_first_instruction_and_ends_with_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    port = free_port()
    with running_bridge(cloud=f"127.0.0.1:{port}", hardware_id="go2-7") as hearer:
        hearer.until(lambda: says(hearer, ERROR, "nothing listens", "edge-cloud-spec serve"))
        hearer.until(lambda: says(hearer, ERROR, "lost", " s)"))  # for how long
        newest = hearer.diagnostics[-1]
        assert (newest.name, newest.hardware_id) == ("/cloud_bridge", "go2-7")
        assert not any(status.level == OK for status in hearer.diagnostics)
        with Cloud(toy_worker(), address=f"127.0.0.1:{port}"):
            hearer.until(lambda: says(hearer, OK, "cloud"))
            assert "round_trip_ms" in values(hearer)
            message = to_request(opening(), "dsd")
            message.request_id = "a"
            hearer.requests.publish(message)
            hearer.until(lambda: any(v.kind == Verdict.OPENED for v in hearer.verdicts))
            hearer.until(lambda: int(values(hearer)["up_bytes_per_s"]) > 0)
            assert int(values(hearer)["down_bytes"]) > 0
            log = [capfd.readouterr().err]
            hearer.until(
                lambda: "cloud: well again" in log[-1] or log.append(capfd.readouterr().err)
            )
        hearer.until(lambda: says(hearer, ERROR, "lost"))
    console = "".join(log)
    assert len(re.findall(r"ERROR.*cloud: lost .*edge-cloud-spec serve", console)) == 1
    assert console.count("relaying to") == 1


def test_a_cloud_that_still_starts_is_no_trouble_and_its_first_answer_ends_the_wait(
    capfd: pytest.CaptureFixture[str],
) -> None:
    port = free_port()
    with running_bridge(cloud=f"127.0.0.1:{port}", startup=600.0) as hearer:
        hearer.until(lambda: len(hearer.diagnostics) > 7)
        with Cloud(toy_worker(), address=f"127.0.0.1:{port}"):
            hearer.until(lambda: hearer.now("cloud"))
        hearer.until(lambda: says(hearer, ERROR, "lost"))  # it had its time
    states = [state.split()[0] for state in hearer.states]
    assert states.index("cloud") < states.index("lost")
    assert "cloud: " not in capfd.readouterr().err.partition("relaying to")[0]


def test_a_wrong_token_is_said_and_a_right_one_in_its_place_is_taken(
    guarded: Cloud, authority: Authority, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("wrong")
    given = {"cloud": guarded.address, "authority": authority.path, "token_file": str(token)}
    with running_bridge(**given) as hearer:
        hearer.until(lambda: says(hearer, ERROR, "token is refused", "token_file"))
        assert not any("wrong" in status.message for status in hearer.diagnostics)
        token.write_text("secret")
        hearer.until(lambda: says(hearer, OK, "cloud"))


@pytest.mark.parametrize(
    ("wrong", "said", "advice"),
    [
        ({"begins": -2, "ends": -1}, "has expired", "make a new one"),
        ({"host": "verifier.example.org"}, "is not for 127.0.0.1", "name in its certificate"),
        (None, "is not signed by", "authority"),
    ],
)
def test_a_certificate_that_is_not_accepted_is_said(
    authority: Authority, tmp_path: Path, wrong: dict[str, Any] | None, said: str, advice: str
) -> None:
    files = authority.certificate("wrong", **(wrong or {}))
    trusted = authority.path if wrong is not None else Authority(tmp_path, "stranger").path
    with (
        Cloud(toy_worker(), token="secret", **files) as running,
        running_bridge(cloud=running.address, authority=trusted) as hearer,
    ):
        hearer.until(lambda: says(hearer, ERROR, said, advice))
        assert not any(status.level == OK for status in hearer.diagnostics)
