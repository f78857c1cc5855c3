"""What the bridge publishes of the cloud's messages and of the link."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rclpy")
from builtin_interfaces.msg import Time

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.edge.events import LinkLost, LinkUp
from edge_cloud_spec.msg import Prediction, Verdict
from edge_cloud_spec.nodes import bridge_messages
from edge_cloud_spec.nodes.bridge_messages import from_verdict, to_topic
from edge_cloud_spec.wire.codec import decode_server, encode_server
from edge_cloud_spec.wire.messages import Fault, Opened, RowMessage, ServerMessage
from edge_cloud_spec.wire.messages import Prediction as WirePrediction
from edge_cloud_spec.wire.messages import Verdict as WireVerdict

STAMP = Time(sec=3, nanosec=4)
BASE = PrefixDigest(5, 6)
VERDICT = WireVerdict(BASE, (0, 1), 9, verify_s=1.5)
ROW = RowMessage(BASE, TokenDistribution(np.ones(1), np.array([2])))


@pytest.mark.parametrize(
    ("message", "kind", "fields"),
    [
        (VERDICT, Verdict.VERDICT, {"accepted": 2, "base_length": 5, "base_hash": 6}),
        (Opened("s", b"", BASE), Verdict.OPENED, {"base_length": 5, "base_hash": 6}),
        (ROW, Verdict.ROW, {"base_length": 5, "base_hash": 6}),
        (Fault("f", "no such thing"), Verdict.FAULT, {"text": "no such thing"}),
    ],
)
def test_a_message_of_the_cloud_has_typed_fields_and_its_own_bytes(
    message: ServerMessage, kind: int, fields: dict[str, object]
) -> None:
    data = encode_server(message)
    verdict = to_topic(data, STAMP, "r1")
    assert isinstance(verdict, Verdict)
    assert (verdict.request_id, verdict.header.stamp, verdict.kind) == ("r1", STAMP, kind)
    assert {name: getattr(verdict, name) for name in fields} == fields
    assert from_verdict(verdict) == data


def test_the_time_of_a_verification_is_a_duration() -> None:
    verdict = to_topic(encode_server(VERDICT), STAMP, "r1")
    assert (verdict.verify_time.sec, verdict.verify_time.nanosec) == (1, 500_000_000)


def test_a_prediction_is_a_message_of_its_own_topic() -> None:
    data = encode_server(WirePrediction(BASE, (0,), 9, 0.5))
    prediction = to_topic(data, STAMP, "r1")
    assert isinstance(prediction, Prediction)
    assert (prediction.confidence, prediction.base_length, prediction.base_hash) == (0.5, 5, 6)
    assert (prediction.request_id, prediction.header.stamp) == ("r1", STAMP)
    assert prediction.payload.tobytes() == data


def test_what_cannot_be_decoded_is_a_fault_that_says_so() -> None:
    verdict = to_topic(b"\xff\xff", STAMP, "r1")
    assert isinstance(verdict, Verdict)
    assert verdict.kind == Verdict.FAULT and "not a message of this protocol" in verdict.text
    assert from_verdict(verdict) == b"\xff\xff"


@pytest.mark.parametrize("event", [LinkLost("out of range"), LinkUp()])
def test_the_links_own_events_come_back_as_they_were(event: LinkLost | LinkUp) -> None:
    verdict = to_topic(event, STAMP, "r1")
    assert isinstance(verdict, Verdict) and not len(verdict.payload)
    assert from_verdict(verdict) == event


@pytest.mark.parametrize("message", [VERDICT, WirePrediction(BASE, (0,), 9, 0.5)])
def test_the_bridge_decodes_each_message_once(
    message: ServerMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []

    def counted(data: bytes) -> ServerMessage:
        decoded.append(data)
        return decode_server(data)

    monkeypatch.setattr(bridge_messages, "decode_server", counted)
    data = encode_server(message)
    published = to_topic(data, STAMP, "r1")
    if isinstance(published, Verdict):
        from_verdict(published)  # in the drafter, whose decode decodes it
    assert decoded == [data]
