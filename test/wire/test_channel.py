"""Addresses, tokens and the size of a message: what a channel takes and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.wire.channel import check_address, is_loopback
from edge_cloud_spec.wire.secret_files import read_authority, read_token, read_tokens


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


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        ":1",
        "host:",
        "host:http",
        "host:70000",
        "http://host:1",
        "a host:1",
        "me@host:1",
    ],
)
def test_an_address_needs_host_and_port(address: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT"):
        check_address(address)


UNUSABLE = {
    "missing": None,
    "empty": b"",
    "blank": b"\r\n \t\r\n",
    "umlaut": "gehéim".encode(),
    "UTF-16": "secret".encode("utf-16"),
    "NUL": b"sec\0ret\n",
    "control": b"sec\x1bret\n",
    "one bad line of two": b"good\nb\x7fad\n",
    "long line": b"x" * 4097,
    "10 MB": b"secret\n" * 1_500_000,
}


@pytest.mark.parametrize("name", [*UNUSABLE, "pipe", "folder"])
def test_a_token_file_that_cannot_be_used_is_named_and_not_quoted(
    tmp_path: Path, name: str
) -> None:
    path, content = tmp_path / "token", UNUSABLE.get(name)
    if name == "pipe":
        os.mkfifo(path)
    elif name == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    for read in (read_token, read_tokens):
        with pytest.raises(UserError, match="with the token or key") as refused:
            read(str(path))
        assert str(path) in str(refused.value) and "ret" not in str(refused.value)
    if name in ("pipe", "folder", "10 MB"):
        with pytest.raises(UserError, match="certificate"):
            read_authority(str(path), "certificate")


def test_a_token_file_of_any_editor_is_read(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b" secret\n")
    assert read_token(str(path)) == "secret"
    path.write_bytes(b"\xef\xbb\xbfnew\r\n\r\nold \r\nnew")
    assert read_tokens(str(path)) == ("new", "old", "new")
    with pytest.raises(UserError, match="one line") as refused:
        read_token(str(path))
    assert "new" not in str(refused.value)
