"""Addresses, tokens and the size of a message: what a channel takes and what it refuses."""

from __future__ import annotations

import pytest

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.wire.channel import MESSAGE_BYTES, check_address, is_loopback
from edge_cloud_spec.wire.secret_files import read_token, read_tokens


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
    with pytest.raises(UserError, match="with the token or key"):
        read_token(str(path))
    for content in (b"", b"\n", "gehéim".encode(), b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(UserError, match="with the token or key"):
            read_token(str(path))
    path.write_bytes(b" secret\n")
    assert read_token(str(path)) == "secret"
    path.write_bytes(b"new\n\nold\n")
    assert read_tokens(str(path)) == ("new", "old")
    with pytest.raises(UserError, match="one line") as refused:
        read_token(str(path))
    assert "new" not in str(refused.value)
