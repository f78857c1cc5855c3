"""Messages survive the wire; other bytes are refused with a named error and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.wire.channel import MESSAGE_BYTES, check_address, is_loopback, read_token
from edge_cloud_spec.wire.codec import decode_client, decode_server, encode_client, encode_server
from edge_cloud_spec.wire.messages import (
    ClientMessage,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Resume,
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
)
opens = st.builds(
    Open,
    u64,
    text,
    st.binary(max_size=60),
    text,
    policies,
    st.sampled_from(["greedy", "coupled", "rejection"]),
    text,
    st.binary(max_size=16),
    text,
    st.binary(max_size=16),
    u32,
    u32,
    u32,
)


@st.composite
def draft_messages(draw: st.DrawFn) -> DraftMessage:
    size = draw(st.integers(0, 9))
    tokens = tuple(draw(u32) for _ in range(size))
    parents = tuple(draw(st.integers(-1, i)) for i in range(size)) if draw(st.booleans()) else ()
    rows = None
    if size and draw(st.booleans()):
        rows = np.random.default_rng(draw(u32)).random((size, 5), np.float32)
    return DraftMessage(draw(digests), Draft(tokens, parents or None, rows), draw(u32))


micro = st.integers(0, 2**32 - 1).map(lambda n: n * 1e-6)
clients = st.one_of(
    opens,
    draft_messages(),
    st.builds(Generate, digests, st.booleans()),
    st.builds(Resume, text, digests),
    st.just(Close()),
)
servers = st.one_of(
    st.builds(Opened, text, st.binary(max_size=50), digests),
    st.builds(
        Verdict,
        digests,
        st.lists(u32, max_size=9).map(tuple),
        st.none() | u32,
        u32,
        st.sampled_from(["", "end", "length"]),
        st.lists(u32, max_size=9).map(tuple),
        u32,
        micro,
        micro,
        micro,
    ),
    st.builds(Fault, text, text),
)


def plain(message: ClientMessage) -> object:
    """A message that can be compared: drafts hold arrays."""
    if not isinstance(message, DraftMessage):
        return message
    rows = message.draft.rows
    held = None if rows is None else (rows.dtype.str, rows.shape, rows.tobytes())
    return (message.base, message.draft.tokens, message.draft.parents, held, message.round)


@given(clients)
def test_what_a_robot_says_arrives_as_it_was(message: ClientMessage) -> None:
    assert plain(decode_client(encode_client(message))) == plain(message)


@given(servers)
def test_what_a_cloud_says_arrives_as_it_was(message: ServerMessage) -> None:
    assert decode_server(encode_server(message)) == message


def test_rows_arrive_as_the_very_numbers() -> None:
    rows = np.array([[0.1, 0.7, np.float32(1e-30), 0.2]], np.float32)
    arrived = decode_client(
        encode_client(DraftMessage(PrefixDigest(0, 1), Draft((1,), rows=rows), 0))
    )
    assert isinstance(arrived, DraftMessage)
    assert arrived.draft.rows is not None
    assert arrived.draft.rows.tobytes() == rows.tobytes()


def check_refusal_or_message(data: bytes) -> None:
    for decode in (decode_client, decode_server):
        try:
            decode(data)
        except ValueError as error:  # WireError is one
            assert str(error)


@settings(max_examples=150)
@given(st.binary(max_size=200))
def test_random_bytes_are_a_named_error_or_a_message(data: bytes) -> None:
    check_refusal_or_message(data)


@settings(max_examples=150)
@given(
    clients.map(encode_client) | servers.map(encode_server),
    st.lists(st.tuples(u32, st.integers(0, 255)), max_size=4),
    u32,
)
def test_mutated_messages_are_a_named_error_or_a_message(
    data: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    mutated = bytearray(data)
    for place, value in changes:
        if mutated:
            mutated[place % len(mutated)] = value
    check_refusal_or_message(bytes(mutated))
    check_refusal_or_message(bytes(mutated[: cut % (len(mutated) + 1)]))


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 40, encode_server(Fault("x", "y")) + b"\xff"], ids=["", "ff", "tail"]
)
def test_what_is_no_message_is_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_server(data)


def test_rows_that_do_not_fit_the_tokens_are_refused() -> None:
    whole = encode_client(
        DraftMessage(PrefixDigest(0, 0), Draft((1,), rows=np.ones((1, 3), np.float32)), 0)
    )
    ragged = whole.replace(b"\x22\x0c" + np.ones(3, "<f4").tobytes(), b"\x22\x0c" + b"x" * 11, 1)
    with pytest.raises(WireError):
        decode_client(ragged)
    from edge_cloud_spec.wire import decode_pb2 as pb

    for tokens, dense in (([], b"1234"), ([1, 2], b"1234"), ([1], b"12345")):
        body = pb.ClientMessage(draft=pb.Draft(tokens=tokens, dense=dense))
        with pytest.raises(WireError, match="whole float32 rows"):
            decode_client(body.SerializeToString())


def test_a_round_of_ids_is_small() -> None:
    """DESIGN: up at most 48 B and down 32 B under the coupled rule."""
    base = PrefixDigest(60, 2**64 - 1)
    draft = Draft((151_000, 151_001, 151_002, 151_003))
    assert len(encode_client(DraftMessage(base, draft, 12))) <= 48
    verdict = Verdict(base, (0, 1, 2), 151_000, 12, verify_s=0.05, queue_s=0.001)
    assert len(encode_server(verdict)) <= 40


def test_a_frame_fits_into_a_message() -> None:
    assert MESSAGE_BYTES > 8 * 2**20


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.8.9.1:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("unix:/tmp/socket", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("192.168.1.2:1", False),
        ("127.0.0.1.example.org:1", False),
        ("127.example.org:1", False),
        ("localhost.example.org:1", False),
    ],
)
def test_only_this_machine_is_loopback(address: str, loopback: bool) -> None:
    check_address(address)
    assert is_loopback(address) == loopback


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:http", "host:70000"])
def test_an_address_needs_host_and_port(address: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT"):
        check_address(address)


def test_a_token_file_that_cannot_be_used_is_named(tmp_path) -> None:
    path = tmp_path / "token"
    with pytest.raises(UserError, match="token file"):
        read_token(str(path))
    for content in (b"", b"\n", "gehéim".encode(), b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(UserError, match="token file"):
            read_token(str(path))
    path.write_bytes(b" secret\n")
    assert read_token(str(path)) == "secret"
