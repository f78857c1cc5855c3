"""A YAML file from anywhere: in bounded time and memory, one sentence or what it says."""

from __future__ import annotations

import os
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from edge_cloud_spec.agent_tools.describer import Describer
from edge_cloud_spec.bringup.graph import GraphSettings
from edge_cloud_spec.bringup.launch_arguments import settings_of
from edge_cloud_spec.cli import all_commands, parser_of
from edge_cloud_spec.cloud.serving.metrics import metrics_address
from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.doctor.machine import check_model
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.edge.link.route import ClientSettings
from edge_cloud_spec.endpoint.listener import listen
from edge_cloud_spec.endpoint.upstream import Upstream
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.health import Level
from edge_cloud_spec.instruction import instruction_pattern
from edge_cloud_spec.models.checkpoint import checkpoint_directory, image_preprocessing
from edge_cloud_spec.models.llama import load_llama
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.load_drafter import DraftModelSettings, load_drafter
from edge_cloud_spec.models.openai_server import OpenAiServer
from edge_cloud_spec.observe.recorder import bag_folder
from edge_cloud_spec.options import flat_fields
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.share import path_of
from edge_cloud_spec.wire.channel import check_address
from edge_cloud_spec.wire.secret_files import Reloaded, read_token

LEVELS = "abcdefghijklmn"
LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise(LEVELS)
)
MERGES = "a: &a {k: x}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in pairwise(LEVELS)
)
HOSTILE: dict[str, str | bytes] = {
    "aliases": LAUGHS,
    "aliases in examples": "examples:\n  " + LAUGHS.replace("\n", "\n  ") + "\n",
    "merged aliases": MERGES,
    "itself": "summary: &s [*s]\n",
    "deep": "summary: " + "[" * 100_000,
    "long": "summary: " + "x" * 2**19,
    "a number without end": "most: 0x" + "f" * 2**17 + "\n",
    "base 60": "most: " + ":".join(["59"] * 30_000),
    "no date": "most: 2026-99-99\n",
    "an object": "summary: !!python/object/apply:os.system ['true']\n",
    "a list as key": "? [a]\n: x\n",
    "a field twice": "summary: x\nsummary: y\n",
    "a phrase twice": "summary: x\nactions: {go: stop, halt: stop, go: search}\n",
    "two documents": "a: 1\n---\nb: 2\n",
    "NUL": b"most: \0\n",
    "no UTF-8": b"most: \xff\n",
    "wide": "examples: [" + ", ".join("[[[[a, b], c], d], e]" for _ in range(1000)) + "]\n",
}


def graph(path: str) -> Any:
    return GraphSettings(parameters=path)


@pytest.mark.parametrize("load", [load_dialect, load_preset, graph])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_yaml_file_is_one_sentence(
    tmp_path: Path, load: Callable[[str], object], name: str
) -> None:
    path, content = tmp_path / "own.yaml", HOSTILE[name]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=r"own\.yaml") as error:
        load(str(path))
    assert len(str(error.value)) < 500 and str(error.value).isprintable()


@pytest.mark.parametrize("load", [load_dialect, load_preset, graph])
def test_a_pipe_or_a_folder_is_not_waited_for_and_what_is_missing_is_named(
    tmp_path: Path, load: Callable[[str], object]
) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    for name in ("pipe.yaml", "folder.yaml", "missing.yaml"):
        with pytest.raises(UserError, match=name):
            load(str(tmp_path / name))


def test_a_file_of_another_editor_is_read(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes(b"\xef\xbb\xbfsummary: x\r\nactions: {a: stop}\r\nexamples: {a: stop}\r\n")
    with pytest.raises(UserError, match="means"):  # read to the last line
        load_dialect(str(path))


NO_PATHS = {
    "long": "x" * 300,
    "deep": "x/" * 3000,
    "null": "a\0b",
    "long in home": "~/" + 300 * "x",
}
READERS: tuple[Callable[[str], object], ...] = (
    path_of,
    load,
    checkpoint_directory,
    image_preprocessing,
    instruction_pattern,
    load_llama,
    read_token,
    graph,
    bag_folder,
    lambda name: load_drafter(DraftModelSettings(path=name)),
    lambda name: load_drafter(DraftModelSettings(path=name + ".gguf")),
    lambda name: DecodeSettings(load_preset(name)),
    lambda name: load_dialect(name + ".yaml"),
    lambda name: ClientSettings(token_file=name).check(),
    lambda name: ClientSettings(authority=name).check(),
    lambda name: settings_of(launched(record=name)),
    lambda name: settings_of(launched(robot=name)),
    lambda name: Reloaded(lambda: read_token(name), name),
)


def launched(**given: str) -> dict[str, str]:
    """The texts of all launch arguments."""
    texts = {name: str(value) for name, (value, _) in flat_fields(GraphSettings()).items()}
    return texts | given


@pytest.mark.parametrize("name", NO_PATHS)
@pytest.mark.parametrize("read", READERS)
def test_what_is_no_path_is_one_sentence(read: Callable[[str], object], name: str) -> None:
    with pytest.raises(UserError) as error:
        read(NO_PATHS[name])
    assert len(str(error.value).splitlines()) == 1


def test_doctor_goes_on_where_a_model_is_no_path() -> None:
    for name in NO_PATHS.values():
        assert check_model("drafter", name).level == Level.ERROR


def test_a_path_that_is_not_there_yet_is_one_and_a_home_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "file").touch()
    for name in ("new", "file", "file/new", "no/folder/new"):
        assert path_of(f"~/{name}") == tmp_path / name
    assert path_of("~nobody-here/x") == Path("~nobody-here/x")


def parsers() -> Iterator[tuple[str, ArgumentParser]]:
    """The parser of each command, by its words."""
    for name in all_commands()[0]:
        (parser,) = (found[name] for found in subcommands(parser_of([name])))
        yield name, parser
        for inner in [word for found in subcommands(parser) for word in found]:
            (outer,) = (found[name] for found in subcommands(parser_of([name, inner])))
            yield f"{name} {inner}", next(found[inner] for found in subcommands(outer))


def subcommands(parser: ArgumentParser) -> list[Mapping[str, ArgumentParser]]:
    return [each.choices for each in parser._actions if isinstance(each, _SubParsersAction)]


def test_every_option_that_takes_a_path_refuses_what_is_none() -> None:
    types = {(words, each.dest): each.type for words, p in parsers() for each in p._actions}
    assert not [option for option, taken in types.items() if taken is Path]
    paths = {option for option, taken in types.items() if taken is path_of}
    assert {("decode", "image"), ("replay", "bag"), ("bench rooms", "json")} < paths


@pytest.mark.parametrize("digits", ["9" * 5000, "0" * 5000, "99999", "", "-1", "1.5", "²"])
@pytest.mark.parametrize(
    "read",
    [
        check_address,
        metrics_address,
        listen,
        lambda address: ClientSettings(cloud=address).check(),
        lambda address: settings_of(launched(cloud=address)),
        lambda address: Upstream(f"https://{address}/v1"),
        lambda address: OpenAiServer(f"https://{address}/v1", "a-model"),
        lambda address: Describer(f"https://{address}/v1", str),
    ],
)
def test_a_port_that_is_none_is_one_sentence(read: Callable[[str], object], digits: str) -> None:
    if not digits and read not in (check_address, metrics_address, listen):
        return  # https://host:/v1 has its scheme's port
    with pytest.raises(UserError):
        read(f"host:{digits}")
