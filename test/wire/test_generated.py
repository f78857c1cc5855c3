"""The code that `make wire` generates: it is that of decode.proto, for old and new protobufs."""

from __future__ import annotations

import re
from pathlib import Path

from google.protobuf.descriptor import FieldDescriptor

from edge_cloud_spec.wire import decode_pb2 as pb

FOLDER = Path(pb.__file__).parent
FIELD = re.compile(r"^ +(?:(repeated|optional) )?([\w.]+) (\w+) = (\d+);", re.MULTILINE)
TYPES = {
    value: name.removeprefix("TYPE_").lower()
    for name, value in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}
Field = tuple[str, str, str, str]


def declared(proto: str) -> set[Field]:
    """Each field of a .proto file: its message, type, name and number."""
    messages = re.findall(r"^message (\w+) \{\n(.*?)^\}", proto, re.MULTILINE | re.DOTALL)
    return {(name, *found[1:]) for name, body in messages for found in FIELD.findall(body)}


def generated() -> set[Field]:
    fields = [
        (name, field)
        for name, message in pb.DESCRIPTOR.message_types_by_name.items()
        for field in message.fields
    ]
    return {
        (name, f.message_type.name if f.message_type else TYPES[f.type], f.name, str(f.number))
        for name, f in fields
    }


def test_the_generated_code_is_that_of_decode_proto() -> None:
    proto = (FOLDER / "decode.proto").read_text()
    assert declared(proto) == generated(), "run: make wire"
    assert len(generated()) > 40
    changed = proto.replace("uint32 protocol = 1", "uint64 protocol = 1")
    assert {field[:2] for field in declared(changed) ^ generated()} == {
        ("Open", "uint32"),
        ("Open", "uint64"),
    }


def test_the_generated_code_asks_for_no_newer_protobuf_than_pyproject_does() -> None:
    """A protoc of 5.27 and later writes a check that older protobufs do not have."""
    for file in ("decode_pb2.py", "decode_pb2.pyi"):
        assert "runtime_version" not in (FOLDER / file).read_text(), "run: make wire"
    pyproject = (FOLDER.parents[1] / "pyproject.toml").read_text()
    assert '"protobuf>=4.21.12"' in pyproject, "as in Debian 12 and Ubuntu 24.04: make oldest"
