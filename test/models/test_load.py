"""Loading: all families, quantized and GGUF drafters, and what a broken directory gets."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import ALL_FAMILIES, LAYERS, checkpoint, prompt_of, reference, vlm
from safetensors.numpy import load_file, save_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from edge_cloud_spec.doctor.machine import check_model
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.health import Level
from edge_cloud_spec.instruction import known_instructions
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.cache import KeyValueCache
from edge_cloud_spec.models.families import FAMILIES
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.load import choose, identity, load
from edge_cloud_spec.models.load_drafter import DraftModelSettings, load_drafter
from edge_cloud_spec.models.passes.attention import PassItem
from edge_cloud_spec.models.passes.layer import GatedMlp, quantize_linears
from edge_cloud_spec.models.passes.transformer import Transformer
from edge_cloud_spec.models.tokenizer import tokenizer_digest
from edge_cloud_spec_lab.bench.models import crop_alike


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint(), tmp_path / "model"))


def cut_weights(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])


def lose_a_tensor(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    del tensors["model.language_model.norm.weight"]
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})


def lose_a_shard(model: Path) -> None:
    (model / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def weights(change: Callable[[dict[str, np.ndarray]], object]) -> Callable[[Path], None]:
    def damage(model: Path) -> None:
        tensors = load_file(model / "model.safetensors")
        change(tensors)
        save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})

    return damage


def every(value: float) -> Callable[[dict[str, np.ndarray]], object]:
    return lambda tensors: tensors.update({name: t * value for name, t in tensors.items()})


def torch_weights(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")


HEAD = "model.language_model.embed_tokens.weight"
POINTER = "version https://git-lfs.example/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize(
    "name, damage, message",
    [
        *(
            (name, POINTER, rf"{name} is a Git LFS pointer: run `git lfs pull`")
            for name in (
                "config.json",
                "generation_config.json",
                "model.safetensors",
                "tokenizer.json",
                "tokenizer_config.json",
                "preprocessor_config.json",
            )
        ),
        ("adapter_config.json", "{}", "has an adapter .*merge_and_unload"),
        ("", weights(lambda w: w.update({f"{HEAD}.lora_A.default.weight": w[HEAD]})), "an adapter"),
        (
            "",
            weights(lambda w: w.update({HEAD: w[HEAD][:-9]})),
            r"embed_tokens\S+ as \[\d+, 32\], by",
        ),
        ("", weights(every(np.nan)), "no numbers, or all alike, in transformers, too; fetch or"),
        ("", weights(every(0.0)), "no numbers, or all alike"),
        ("", torch_weights, r"in pytorch_model\.bin, and that format may run code: load them"),
        *(
            (name, Path.unlink, rf"{name} is missing .* copy it")
            for name in (
                "config.json",
                "model.safetensors",
                "tokenizer.json",
                "preprocessor_config.json",
            )
        ),
        ("", lose_a_shard, r"model-00001-of-00002\.safetensors is missing"),
        ("", cut_weights, "cannot be loaded"),
        ("", lose_a_tensor, "lack 1 tensors"),
        ("config.json", '{"model_type": "llava"}', "'llava' model: choose one of qwen2_vl"),
        ("config.json", "[]", "not a JSON object"),
        ("config.json", "{", "cannot be read"),
    ],
)
def test_a_damaged_directory_is_named_with_what_to_do(
    copied: Path, name: str, damage: Callable[[Path], None] | str, message: str
) -> None:
    if isinstance(damage, str):
        (copied / name).write_text(damage)
    else:
        damage(copied / name)
    with pytest.raises(UserError, match=message):
        load(copied)


@pytest.mark.parametrize("inner", ["inner", "snapshots/abc", "models--own--its/snapshots/abc"])
def test_a_folder_that_the_model_lies_in_is_refused_with_the_models_own(
    tmp_path: Path, inner: str
) -> None:
    shutil.copytree(checkpoint(), tmp_path / inner)
    with pytest.raises(UserError, match=f"give one of these, .*{inner}$"):
        load(tmp_path)
    load(tmp_path / inner)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"quantize": "int3"}, "quantization 'int3' is unknown: choose"),
        ({"quantize": "int4"}, "int4 weights do not run on a CPU: choose int8"),
        ({"dtype": "fp8"}, "dtype 'fp8' is unknown"),
        ({"device": "gpu7"}, "device 'gpu7' is unknown"),
        ({"name_or_dir": "/nowhere/at/all"}, "not a model directory"),
        ({"threads": -1}, "threads is -1"),
    ],
)
def test_unusable_options_say_what_to_choose(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(**{"name_or_dir": checkpoint(), **options})


@pytest.mark.parametrize(
    "family, options",
    [
        *((family, {"quantize": "int8"}) for family in ("qwen3_vl", "qwen3_vl_moe")),
        *((family, {"quantize": "dynamic-int8"}) for family in ("qwen3_vl", "qwen3_vl_moe")),
        *((family, {"dtype": "bfloat16"}) for family in ALL_FAMILIES),
    ],
)
def test_fewer_bits_stay_close_and_have_another_name(family: str, options: dict[str, str]) -> None:
    exact, small = vlm(family), load(checkpoint(family), **options)
    prompt = prompt_of(exact)
    ours, theirs = (each.open(prompt).forward([5, 6, 7]) for each in (small, exact))
    assert ours.dtype == np.float32
    assert 0 < np.abs(ours - theirs).max() < 0.1 * np.abs(theirs).max()
    assert small.identity != exact.identity


class _Int4OnCpu(TorchDispatchMode):
    """The int4 product of CUDA by torch's own for CPUs: the same numbers, packed otherwise."""

    products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if func is aten._convert_weight_to_int4pack.default:
            pairs = args[0].int()  # two weights a byte
            weights = torch.stack([pairs >> 4, pairs & 15], -1).flatten(1)
            return aten._convert_weight_to_int4pack_for_cpu(weights, args[1])
        if func is aten._weight_int4pack_mm.default:
            self.products += 1
            return aten._weight_int4pack_mm_for_cpu(*args)
        return func(*args, **(kwargs or {}))


def _gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_int4_quantizes_each_product_of_a_layer_and_stays_close(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the CUDA kernel itself, which nothing here can run."""
    _gpu(monkeypatch, (8, 7))
    computed: list[nn.Module] = []  # the MLPs, or experts, that a row went through
    own = GatedMlp.forward
    monkeypatch.setattr(
        GatedMlp, "forward", lambda self, x: (computed.append(self), own(self, x))[1]
    )

    def rows(quantize: str) -> np.ndarray:
        model = reference.__wrapped__(family).bfloat16()
        transformer = Transformer(FAMILIES[family].text_model(model), model.lm_head, quantize)
        hidden = torch.randn(3, transformer.hidden_size, generator=torch.Generator().manual_seed(1))
        cache = KeyValueCache(transformer.cache_layout, 3, KvMemory())
        items = [PassItem(cache, 0, [1, 2, 3])]
        return transformer.forward(hidden.bfloat16(), [0, 1, 2], items).float().numpy()

    with torch.inference_mode(), _Int4OnCpu() as kernel:
        exact = rows("none")
        assert kernel.products == 0
        computed.clear()
        small = rows("int4")
    assert len(computed) > LAYERS if "moe" in family else len(computed) == LAYERS
    assert kernel.products == 2 * LAYERS + 2 * len(computed)
    assert 0 < np.abs(small - exact).max() < 0.2 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("capability", "dtype", "kind", "message"),
    [
        (None, "auto", "int4", "int4 weights do not run on a CPU: choose int8"),
        ((7, 5), "auto", "int4", r"capability 8\.0.* cuda has 7\.5: choose int8"),
        ((8, 7), "float16", "int4", "bfloat16, not in float16: choose dtype auto"),
        ((8, 7), "auto", "int4", r"model\.safetensors is missing"),  # what is left of it
        ((8, 7), "auto", "no torchao: int4", "int4 needs torchao .*requirements/transformers"),
        ((8, 7), "auto", "no torchao: int8", "int8 needs torchao .*requirements/transformers"),
    ],
)
def test_int4_is_refused_before_the_weights_are_read(
    copied: Path,
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int] | None,
    dtype: str,
    kind: str,
    message: str,
) -> None:
    (copied / "model.safetensors").unlink()
    _gpu(monkeypatch, capability)
    if kind.startswith("no torchao"):
        monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(UserError, match=message):
        load(copied, device="auto", dtype=dtype, quantize=kind[-4:])


def test_layers_that_int4_groups_do_not_divide_are_refused() -> None:
    with pytest.raises(UserError, match="groups of 32 inputs, and this model has 40, 64: choose"):
        quantize_linears(nn.Sequential(nn.Linear(64, 40), nn.Linear(40, 8)), "int4")


def test_a_missing_package_or_memory_is_no_fault_of_the_files(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = copied / "config.json"
    whole = file.read_text()
    quantized = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    file.write_text(json.dumps(json.loads(whole) | quantized))
    with pytest.raises(UserError, match="gptq quantized: load it as it is"):
        load(copied, quantize="int8")
    with pytest.raises(UserError, match=r"(accelerate|optimum).*: install the package"):
        load(copied)
    file.write_text(whole)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(nn.Module, "to", full)
    with pytest.raises(UserError, match=r"free memory, or choose a smaller model or dtype$"):
        load(copied)


@pytest.mark.parametrize(
    ("cuda", "asked", "chosen"),
    [
        (False, ("auto", "auto"), ("cpu", "float32")),
        (False, ("auto", "bfloat16"), ("cpu", "bfloat16")),
        (True, ("auto", "auto"), ("cuda", "bfloat16")),
        (True, ("auto", "float32"), ("cuda", "float32")),
        (True, ("cuda:1", "auto"), ("cuda:1", "bfloat16")),
        (True, ("cpu", "auto"), ("cpu", "float32")),
    ],
)
def test_auto_is_cuda_in_bfloat16_where_it_is_and_a_cpu_in_float32(
    cuda: bool, asked: tuple[str, str], chosen: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert choose(*asked) == chosen


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_the_layout_of_published_checkpoints_loads_the_same(family: str, tmp_path: Path) -> None:
    """Flat config, older tensor names, the template in chat_template.json, several shards."""
    source = checkpoint(family)
    config = json.loads((source / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    config |= text | {
        "model_type": family,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]},
    }
    if family == "qwen2_vl":
        config["vision_config"]["model_type"] = "qwen2_vl"
    (tmp_path / "config.json").write_text(json.dumps(config))
    names = {}
    shards: list[dict[str, np.ndarray]] = [{}, {}]
    for index, (name, tensor) in enumerate(load_file(source / "model.safetensors").items()):
        name = name.replace("model.language_model.", "model.").replace("model.visual.", "visual.")
        shards[index % 2][name] = tensor
        names[name] = f"model-0000{index % 2 + 1}-of-00002.safetensors"
    for index, shard in enumerate(shards):
        file = tmp_path / f"model-0000{index + 1}-of-00002.safetensors"
        save_file(shard, file, metadata={"format": "pt"})
    index_text = json.dumps({"metadata": {"total_size": 1}, "weight_map": names})
    (tmp_path / "model.safetensors.index.json").write_text(index_text)
    template = (source / "chat_template.jinja").read_text()
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        shutil.copy(source / name, tmp_path / name)
    published, ours = load(tmp_path), vlm(family)
    prompt = prompt_of(published)
    assert prompt.digest == prompt_of(ours).digest
    rows, expected = (model.open(prompt).forward([5, 6]) for model in (published, ours))
    assert np.abs(rows - expected).max() < 1e-5


def test_identity_tells_weights_apart_before_they_are_loaded() -> None:
    loaded = vlm(dtype="float32").identity
    assert identity(checkpoint(), "float32") == loaded != vlm(seed=1, dtype="float32").identity


def test_padding_rows_are_cropped_and_another_tokenizer_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draft, target = vlm(seed=1, vocabulary=350), vlm(vocabulary=384)
    crop_alike(draft, target)
    assert draft.vocabulary == target.vocabulary == len(target.tokenizer) < 350
    whole = target.open(prompt_of(target)).forward([1, 2])
    assert whole.shape == (3, target.vocabulary)
    cropped = copy(target)
    cropped.crop(100)
    rows = cropped.open(prompt_of(target)).forward([1, 2])
    assert rows.shape == (3, 100) and np.abs(rows - whole[:, :100]).max() < 1e-5
    with pytest.raises(ValueError, match="cannot crop"):
        target.crop(10_000)
    words = ("a", "b"), ("b", "a"), ("a", "b", "c"), ("a", "x")
    made = [dict(zip(each, range(3), strict=False)) for each in words]
    digests = {tokenizer_digest(SimpleNamespace(get_vocab=each.copy)) for each in made}
    assert len(digests) == len(words)
    monkeypatch.setattr(draft, "tokenizer_digest", digests.pop())
    with pytest.raises(UserError, match="different tokenizers: choose two models of one family"):
        crop_alike(draft, target)


# A drafter in a GGUF file, as far as this process looks at it; llama.cpp need not be there


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(EMBEDDED / "drafter", folder)
    (folder / "model.safetensors").unlink()
    for name in ("x.gguf", "mmproj-x.gguf"):
        (folder / name).write_bytes(b"GGUF")
    return folder / "x.gguf"


def test_a_library_that_is_missing_is_one_sentence(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llama_cpp.py").write_text("raise ImportError('not here')")
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", ""), str(Path.cwd())]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    with pytest.raises(UserError, match=r"there is no llama-cpp-python\): pip install '[^']*'.*$"):
        load_drafter(DraftModelSettings(path=str(file)))


def test_a_file_is_known_by_what_lies_beside_it(file: Path) -> None:
    here, there = known_instructions(file), known_instructions(EMBEDDED / "drafter")
    assert here is not None and there is not None and here.pattern == there.pattern
    assert check_model("drafter", str(file)).level == Level.OK
    (file.parent / "mmproj-x.gguf").unlink()
    finding = check_model("drafter", str(file))
    assert finding.level == Level.ERROR and "mmproj-x.gguf is missing" in finding.message
    (file.parent / "tokenizer.json").unlink()
    assert "lacks tokenizer.json" in check_model("drafter", str(file)).message
    assert check_model("drafter", str(file.with_name("y.gguf"))).level == Level.ERROR


def test_a_file_of_text_alone_needs_no_vision_part(tmp_path: Path) -> None:
    """Whether or not llama.cpp is there to find that it is no model."""
    file = Path(shutil.copytree(checkpoint("llama"), tmp_path / "model")) / "x.gguf"
    (file.parent / "model.safetensors").unlink()
    file.write_bytes(b"GGUF")
    assert check_model("drafter", str(file)).level == Level.OK
    with pytest.raises(UserError, match=r"llama\.cpp cannot load .*x\.gguf"):
        load_drafter(DraftModelSettings(path=str(file)))


@pytest.mark.parametrize("family", ["llama", "qwen3_vl"])
def test_a_directory_is_checked_for_the_files_of_its_family(family: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint(family), tmp_path / "model"))
    assert check_model("target", str(folder)).level == Level.OK
    (folder / "preprocessor_config.json").unlink(missing_ok=True)
    found = check_model("target", str(folder))
    assert (found.level == Level.OK) == (family == "llama"), found.message
