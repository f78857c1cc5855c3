"""What is passed around does not change under anybody's hands, and arrays are not compared."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

OWNED = {  # their owners change them
    "AnswerCounts",
    "Counters",
    "DecodeStats",
    "ClientShare",
    "DuePass",
    "HeardAnswer",
    "_Client",
    "_Entry",
    "_Progress",
    "_Publisher",
    "_Run",
}


def values() -> Iterator[type]:
    """The dataclasses of the parts that have no I/O, and of the wire."""
    for folder in ("decoding", "edge", "cloud", "nav", "wire"):
        package = importlib.import_module(f"edge_cloud_spec.{folder}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name == "edge_cloud_spec.cloud.vllm_plugin":
                continue  # is imported in vLLM's own environment
            module = importlib.import_module(found.name)
            for each in vars(module).values():
                own = inspect.isclass(each) and each.__module__ == found.name
                if own and dataclasses.is_dataclass(each):
                    yield each


@pytest.mark.parametrize("kind", sorted(values(), key=str), ids=lambda kind: kind.__name__)
def test_a_value_is_frozen_and_one_that_holds_an_array_is_itself_alone(kind: type) -> None:
    options = kind.__dataclass_params__  # type: ignore[attr-defined]
    assert options.frozen == (kind.__name__ not in OWNED)
    fields = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    arrays = [name for name, told in fields.items() if "NDArray" in told]
    assert not (arrays and options.eq), f"{arrays} make == fail"
