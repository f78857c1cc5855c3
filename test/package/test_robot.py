"""A robot without torch: what its programs import, and what it does without model libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.checkpoints import FAMILIES, checkpoint, jpeg, prompt_of, vlm

TORCH = {"torch", "transformers", "safetensors", "torchao", "huggingface_hub"}
MODELS = TORCH | {"tokenizers", "jinja2", "llama_cpp", "openai", "llguidance"}
LINK = {"grpc", "asyncio", "ssl"}
# What each program of a robot does not load before its node is made: megabytes and seconds.
SPARED = {
    "cloud_bridge": MODELS | {"PIL"},
    "drafter": MODELS | LINK,
    "instruction_server": MODELS | LINK | {"PIL", "rclpy.lifecycle"},
    "monitor": MODELS | LINK | {"PIL", "numpy", "rclpy.lifecycle", "google.protobuf"},
    "navigator": MODELS | LINK | {"google.protobuf"},
    "stop_guard": MODELS | LINK | {"PIL", "rclpy.lifecycle", "google.protobuf", "hashlib"},
}
LOADED = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps([*sys.modules]))
"""
WITHOUT_TORCH = """
import json, sys
from pathlib import Path
for name in ("torch", "transformers", "safetensors", "torchao"):
    sys.modules[name] = None
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.checkpoint import checkpoint_files
from edge_cloud_spec.models.llama import LlamaDrafter, vision_file
from edge_cloud_spec.models.load_drafter import DraftModelSettings, load_drafter
from edge_cloud_spec.models.openai_drafter import served_drafter
from edge_cloud_spec.models.processor import Processor
from edge_cloud_spec.models.prompt import PromptSpec
from edge_cloud_spec.nav.answer import CLAUSES
directory, spec, picture = sys.argv[1:]
made = Processor(checkpoint_files(Path(directory)), "a robot")
prompt = made.prompt(
    CLAUSES.request("find the silver bottle", Path(picture).read_bytes()),
    PromptSpec.from_bytes(Path(spec).read_bytes()),
)
values = prompt.images[0].pixels().sum().item()
print(json.dumps([prompt.digest.hex(), made.tokenizer_digest.hex(), values]))
assert load_drafter(DraftModelSettings(path="bytes")).identity == "bytes"
try:
    load_drafter(DraftModelSettings(path=directory))
except UserError as error:
    print(error)
"""


def run(code: str, *arguments: str) -> str:
    argv = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.mark.parametrize("node", SPARED)
def test_a_node_loads_no_library_that_it_does_not_need(node: str) -> None:
    pytest.importorskip("rclpy")
    loaded = set(json.loads(run(LOADED, f"edge_cloud_spec.nodes.{node}")))
    assert f"edge_cloud_spec.nodes.{node}" in loaded
    assert not SPARED[node] & loaded


@pytest.mark.parametrize("family", FAMILIES)
def test_without_torch_a_robot_makes_the_prompt_that_its_cloud_makes(
    family: str, tmp_path: Path
) -> None:
    model, prompt = vlm(family), prompt_of(vlm(family))
    spec, picture = tmp_path / "spec", tmp_path / "picture.jpg"
    spec.write_bytes(model.spec(64).to_bytes())
    picture.write_bytes(jpeg())
    figures, refused = run(
        WITHOUT_TORCH, str(checkpoint(family)), str(spec), str(picture)
    ).splitlines()
    digest, words, values = json.loads(figures)
    assert digest == prompt.digest.hex() and words == model.tokenizer_digest.hex()
    assert values == prompt.images[0].pixels().sum().item()
    assert "no GGUF file, no openai:URL and not bytes" in refused
    assert "needs torch" in refused and "requirements/torch.txt" in refused
