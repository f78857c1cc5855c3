"""Messages survive the wire; other bytes are refused with a named error and nothing else."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.split import RESIDUALS, SparseResidual, Split
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.request import DIGEST, Message, Picture, Request
from edge_cloud_spec.wire import decode_pb2 as pb
from edge_cloud_spec.wire.channel import MAX_PAUSE_S
from edge_cloud_spec.wire.codec import (
    decode_client,
    decode_server,
    encode_client,
    encode_server,
    read_client,
    read_server,
)
from edge_cloud_spec.wire.frames import ClientFrame, Head, ServerFrame
from edge_cloud_spec.wire.messages import (
    ClientMessage,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Generation,
    Open,
    Opened,
    Prediction,
    Residual,
    Resume,
    RowMessage,
    RowRequest,
    ServerMessage,
    Verdict,
    WireError,
)

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
digests = st.builds(PrefixDigest, u32, u64)
policies = st.builds(
    SamplingPolicy,
    st.floats(0, 100),
    u32,
    st.floats(0, 1, exclude_min=True),
    u64,
    text,
)
digest16 = st.binary(min_size=DIGEST, max_size=DIGEST)
pictures = st.builds(Picture, digest16, st.binary(max_size=60), st.tuples(u32, u32))
sayings = st.builds(Message, text, st.lists(text | pictures, max_size=4).map(tuple))
requests = st.builds(
    Request,
    st.lists(sayings, max_size=4).map(tuple),
    st.lists(text, max_size=3).map(tuple),
    st.booleans(),
    st.booleans(),
)
opens = st.builds(
    Open,
    u64,
    requests,
    policies,
    st.sampled_from(["greedy", "coupled", "rejection"]),
    payload=text,
    tokenizer_digest=st.binary(max_size=16),
    draft_identity=text,
    spec_digest=st.binary(max_size=16),
    max_tokens=u32,
    draft_length=u32,
    protocol=u32,
    oldest_protocol=u32,
    split=st.none() | st.builds(Split, st.sampled_from(RESIDUALS), u32, u32),
    replacement=st.booleans(),
    predictions=st.booleans(),
    key=st.binary(max_size=16),
    secret=st.binary(max_size=16),
    preset=text,
    generation=st.none() | st.builds(Generation, st.booleans(), st.booleans()),
    lookup=st.booleans(),
    after=st.just(b"") | digest16,
    log_probs=text,
)
float32s = st.floats(0, 1, width=32)


@st.composite
def dense_rows(draw: st.DrawFn) -> TokenDistribution:
    return TokenDistribution(np.array(draw(st.lists(float32s, min_size=1, max_size=6)), np.float32))


@st.composite
def sparse_rows(draw: st.DrawFn) -> TokenDistribution:
    ids = draw(st.lists(st.integers(0, 2**18), min_size=1, max_size=6, unique=True))
    numbers = draw(st.lists(float32s, min_size=len(ids), max_size=len(ids)))
    return TokenDistribution(np.array(numbers, np.float32), np.array(sorted(ids)))


@st.composite
def draft_messages(draw: st.DrawFn) -> DraftMessage:
    size = draw(st.integers(0, 9))
    tokens = tuple(draw(u32) for _ in range(size))
    parents = tuple(draw(st.integers(-1, i)) for i in range(size)) if draw(st.booleans()) else ()
    kind = draw(st.sampled_from([dense_rows(), sparse_rows()]))
    rows = tuple(draw(st.lists(kind, max_size=4))) or None
    values = tuple(draw(float32s) for _ in range(size)) if draw(st.booleans()) else None
    draft = Draft(tokens, parents or None, rows, values or None, draw(st.integers(0, 2**32 - 1)))
    return DraftMessage(
        draw(digests),
        draft,
        draw(u32),
        draw(st.none() | u32),
        draw(st.none() | u32),
        hint=draw(st.booleans()),
        without_exits=draw(st.booleans()),
    )


@st.composite
def residuals(draw: st.DrawFn) -> Residual:
    if draw(st.booleans()):
        return draw(dense_rows() | sparse_rows())
    top = draw(sparse_rows())
    assert top.ids is not None
    tail = draw(st.lists(st.tuples(st.integers(0, 2**18), float32s), max_size=4))
    ids, numbers = tuple(i for i, _ in tail), tuple(p for _, p in tail)
    return SparseResidual(top.ids, top.probabilities, draw(float32s), ids, numbers)


micro = st.integers(0, 2**32 - 1).map(lambda n: n * 1e-6)
clients = st.one_of(
    opens,
    draft_messages(),
    st.builds(Generate, digests, st.builds(Generation, st.booleans(), st.booleans())),
    st.builds(Resume, text, digests, st.binary(max_size=16)),
    st.builds(Close, st.none() | u32),
    st.builds(RowRequest, digests),
)
servers = st.one_of(
    st.builds(Opened, text, st.binary(max_size=50), digests, u32, u32, st.booleans()),
    st.builds(
        Verdict,
        digests,
        st.lists(u32, max_size=9).map(tuple) | st.integers(0, 9).map(lambda n: tuple(range(n))),
        st.none() | u32,
        st.sampled_from(["", "end", "length"]),
        st.lists(u32, max_size=9).map(tuple),
        u32,
        micro,
        micro,
        micro,
        st.none() | residuals(),
        u32,
        st.booleans(),
        st.lists(st.floats(max_value=0, width=32), max_size=9).map(tuple),
    ),
    st.builds(
        Prediction,
        digests,
        st.lists(u32, max_size=9).map(tuple),
        u32,
        st.integers(0, 10**6).map(lambda n: n * 1e-6),
    ),
    st.builds(RowMessage, digests, dense_rows() | sparse_rows()),
    st.builds(Fault, text, text, st.integers(0, 30_000).map(lambda ms: ms / 1e3)),
)


def plain(thing: object) -> object:
    """A message that can be compared, whatever arrays it holds."""
    if isinstance(thing, np.ndarray):
        return thing.tolist()
    if isinstance(thing, tuple):
        return tuple(plain(part) for part in thing)
    if is_dataclass(thing):
        return (type(thing), *(plain(getattr(thing, field.name)) for field in fields(thing)))
    return thing


@given(servers)
def test_what_a_relay_needs_is_in_the_head_of_a_clouds_frame(message: ServerMessage) -> None:
    frame = read_server(encode_server(message).data)
    head, said = frame.head, frame.fault
    assert said == (message if isinstance(message, Fault) else None)
    is_verdict = isinstance(message, Verdict)
    finish = message.finish if isinstance(message, Verdict) else ""
    assert head.ends_decode == (isinstance(message, Fault) or bool(finish))
    assert (head.kind == "verdict", head.finish) == (is_verdict, finish)
    if not isinstance(message, Fault):
        assert head.base == message.base
    if isinstance(message, Verdict | Prediction):
        assert head.accepted == len(message.path)


@settings(max_examples=200)
@given(clients, servers)
def test_messages_arrive_as_they_were(client: ClientMessage, server: ServerMessage) -> None:
    sent, said = encode_client(client), encode_server(server)
    assert (read_client(sent.data), read_server(said.data)) == (sent, said)
    assert plain(decode_client(sent)) == plain(client)
    assert plain(decode_server(said)) == plain(server)


VERDICT = ServerFrame.of(Head("verdict"), b"").data
ROW = pb.Rows(sizes=[1], probabilities=b"1234")


def resampled(residual: pb.Residual) -> bytes:
    return VERDICT + pb.Verdict(residual=residual).SerializeToString()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "no whole head"),
        (VERDICT[:-1], "no whole head"),
        (b"\x02\x01" + VERDICT[2:] + bytes(24), "earlier protocol"),  # with the times of protocol 4
        (b"\xff\x00" + bytes(40), "later protocol"),
        (b"\x03" + ServerFrame.of(Head("verdict", finish="end"), b"").data[1:], "ends the answer"),
        (ServerFrame.of(Head("verdict", accepted=1025), b"").data, "more is accepted"),
        (ServerFrame.of(Head("verdict", accepted=2), b"\x12\x01\x07").data, "whose head says 2"),
        (ServerFrame.of(Head("prediction", millionths=10**6 + 1), b"").data, "surer than certain"),
        (b"\x0a" + VERDICT[1:], "the version that recorded it"),  # a bag of before
        (encode_server(Fault("x", "y")).data + b"\xff", "not a message of this protocol"),
        (resampled(pb.Residual(top=ROW, tail=ROW)), "needs the ids"),
        (resampled(pb.Residual()), "one row is expected"),
    ],
)
def test_what_a_cloud_cannot_mean_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        decode_server(read_server(data))


@settings(max_examples=300)
@given(
    (clients.map(encode_client) | servers.map(encode_server)).map(lambda frame: frame.data)
    | st.binary(max_size=200),
    st.lists(st.tuples(u32, st.integers(0, 255)), max_size=4),
    u32,
)
def test_random_bytes_and_mutated_messages_are_a_named_error_or_a_message(
    data: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    mutated = bytearray(data)
    for place, value in changes:
        if mutated:
            mutated[place % len(mutated)] = value
    for each in (bytes(mutated), bytes(mutated[: cut % (len(mutated) + 1)])):
        for decode in (
            lambda data: decode_client(read_client(data)),
            lambda data: decode_server(read_server(data)),
        ):
            try:
                decode(each)
            except ValueError as error:  # WireError is one
                assert str(error)


def opening(*parts: pb.Part) -> pb.Open:
    return pb.Open(messages=[pb.Message(role="user", parts=parts)])


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (pb.Draft(tokens=[1], values=b"12345"), "not whole float32"),
        (pb.Draft(tokens=[1], rows=pb.Rows(sizes=[2], probabilities=b"1234")), "4 bytes for 2"),
        (pb.Draft(tokens=[1], rows=pb.Rows(sizes=[2**31])), "0 bytes for"),
        (pb.Draft(rows=pb.Rows(sizes=[1], probabilities=b"1234", id_bits=9)), "ids of 9 bits"),
        (pb.Draft(rows=pb.Rows(sizes=[1], probabilities=b"1234", id_bits=77)), "ids of 77 bits"),
        (
            pb.Open(policy=pb.Policy(grammar="a" * 10**6)),
            "at most 4096 characters, not 1000000",
        ),
        (pb.Open(after=b"12"), "named by 16 bytes"),
        (opening(pb.Part(picture=pb.Picture(digest=b"12"))), "a picture is named by 16 bytes"),
        (opening(pb.Part()), "of a later protocol; update the verifier"),
        (opening(*[pb.Part(text="a")] * 257), "256 messages of 256 parts"),
        (pb.Open(messages=[pb.Message(role="user")] * 257), "256 messages of 256 parts"),
        (opening(pb.Part(text="a" * 2**18), pb.Part(text="b")), "262144 characters of text"),
        (pb.Open(candidates=["a"] * 65), "64 candidates of 256 characters"),
        (pb.Open(candidates=["a" * 257]), "64 candidates of 256 characters"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_message_that_is_not_whole_or_too_long_is_refused(
    body: pb.Draft | pb.Open, complaint: str
) -> None:
    head = Head("draft" if isinstance(body, pb.Draft) else "open")
    with pytest.raises(ValueError, match=complaint):
        decode_client(read_client(ClientFrame.of(head, body.SerializeToString()).data))


@pytest.mark.parametrize("told", [b"12345", *np.array([[0.5], [np.nan]], "<f4")], ids=str)
def test_a_verdict_tells_logarithms_of_probabilities_or_is_refused(told: object) -> None:
    body = pb.Verdict(token=1, log_probs=bytes(told)).SerializeToString()  # type: ignore[call-overload]
    with pytest.raises(WireError, match="probabilit"):
        decode_server(read_server(ServerFrame.of(Head("verdict"), body).data))


def test_no_cloud_makes_a_robot_wait_for_longer_than_the_longest_pause() -> None:
    told = decode_server(encode_server(Fault("overloaded", "full", 1e6)))
    assert isinstance(told, Fault) and told.retry_after_s == MAX_PAUSE_S
