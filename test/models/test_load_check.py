"""A checkpoint is computed as in transformers, or refused before it is used: nothing that its files
ask for is silently left out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import helpers.checkpoints as helper
import numpy as np
import pytest
from helpers.cloud.served_answers import worker_of
from safetensors.numpy import load_file, save_file

from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import checkpoint
from edge_cloud_spec.models import load as loading
from edge_cloud_spec.models.load import identity, load
from edge_cloud_spec.models.passes import layer
from edge_cloud_spec.models.prompt import Prompt, PromptSpec, logits_processors
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec_lab.harness.reference import generate, load_reference

Edit = Callable[[Path], None]


def sets(name: str, **fields: Any) -> Edit:
    """Set fields of a JSON file; None removes one, and a dict's fields are added."""

    def edit(directory: Path) -> None:
        path = directory / name
        content = json.loads(path.read_text()) if path.exists() else {}
        for key, value in fields.items():
            content[key] = _added(content.get(key), value)
        path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))

    return edit


def _added(old: Any, new: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return old | {key: _added(old.get(key), value) for key, value in new.items()}


def text(**fields: Any) -> Edit:
    return sets("config.json", text_config=fields)


def pictures(**fields: Any) -> Edit:
    return sets("preprocessor_config.json", **fields)


def nested(directory: Path) -> None:
    """What transformers 5 writes beside the file of before, when a checkpoint is saved again."""
    content = json.loads((directory / "preprocessor_config.json").read_text())
    content |= {"size": {"shortest_edge": 4096, "longest_edge": 8192}, "max_pixels": None}
    sets("processor_config.json", image_processor=content)(directory)


def merged(directory: Path) -> None:
    """Other weights, in one file beside the index of the old."""
    weights = load_file(directory / "model.safetensors")
    for name in weights:
        weights[name] *= np.float16(1.1 if ".layers.1." in name else 1.0)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


EQUAL: dict[str, tuple[str, Edit]] = {
    "as it is": ("qwen2_vl", lambda directory: None),
    "penalties": ("qwen2_5_vl", sets("generation_config.json", repetition_penalty=1.3)),
    "no ngrams": ("qwen3_vl", sets("generation_config.json", no_repeat_ngram_size=2)),
    "suppressed": ("qwen3_vl", sets("generation_config.json", suppress_tokens=[*range(60)])),
    "sampling": ("qwen3_vl", sets("generation_config.json", do_sample=True, top_k=1, top_p=0.01)),
    "a nested processor": ("qwen3_vl", nested),
    "linear rope": ("qwen2_vl", text(rope_parameters={"rope_type": "linear", "factor": 2.0})),
    "merged weights": ("qwen3_vl", merged),
    "another activation": ("qwen2_vl", text(hidden_act="gelu")),
    "another epsilon": ("qwen2_5_vl", text(rms_norm_eps=0.1)),
}
REFUSED: dict[str, tuple[str, Edit, str]] = {
    "windows": (
        "qwen2_5_vl",
        text(use_sliding_window=True, sliding_window=8, max_window_layers=1, layer_types=None),
        "sliding_attention, .* set sliding_window to null",
    ),
    "dynamic rope": (
        "qwen2_vl",
        text(rope_parameters={"rope_type": "dynamic", "factor": 2.0}),
        "asks for dynamic, .* leave out",
    ),
    **{
        f"{name} {value}": ("qwen3_vl", pictures(**{name: value}), f"{name} to {value}, .* set it")
        for name, value in (
            ("do_resize", False),
            ("do_normalize", False),
            ("do_rescale", False),
            ("resample", 2),
            ("rescale_factor", 0.5),
        )
    },
    **{
        f"{name}: {value}": ("qwen3_vl", pictures(**{name: value, "min_pixels": None}), "copy it")
        for name, value in (("size", 224), ("image_mean", 0.5), ("patch_size", [16]))
    },
    "a processor that is a name": (
        "qwen3_vl",
        sets("processor_config.json", image_processor="fast"),
        "processor_config.json does not describe",
    ),
    "an end by name": (
        "qwen3_vl",
        sets("generation_config.json", eos_token_id=["<|im_end|>"]),
        "eos_token_id .* give token ids",
    ),
    **{
        f"image token {index}": (
            "qwen3_vl",
            sets("config.json", image_token_id=index),
            f"no image token {index}: its files belong to another",
        )
        for index in (-200, 10**6, 10**12)
    },
    "beams": ("qwen3_vl", sets("generation_config.json", num_beams=2), "--generation-config none"),
}


@pytest.fixture
def directory(tmp_path: Path) -> Callable[[str], Path]:
    return lambda family: Path(shutil.copytree(helper.checkpoint(family), tmp_path / "model"))


def answer(model: Vlm, jpeg: bytes) -> tuple[tuple[int, ...], Prompt, PromptSpec]:
    """Our greedy answer, to which prompt of which specification."""
    spec = model.spec(8)
    prompt = model.prompt(CLAUSES.request("find the silver bottle", jpeg), spec)
    session, processors = model.open(prompt), logits_processors(spec, prompt, None)
    while len(session.tokens) < 8 and not {*session.tokens} & {*spec.end_ids}:
        row = session.logits_after(-1)
        row = row if processors is None else processors.after(session.tokens).of(row)
        session.extend([int(row.argmax())])
    return session.tokens, prompt, spec


@pytest.mark.parametrize("name", EQUAL)
def test_a_directory_that_loads_answers_as_transformers(
    name: str, directory: Callable[[str], Path]
) -> None:
    family, edit = EQUAL[name]
    model_directory = directory(family)
    edit(model_directory)
    model = load(model_directory)
    tokens, prompt, spec = answer(model, helper.jpeg(2, 200, 100))
    theirs = generate(load_reference(str(model_directory), model), prompt, spec, GREEDY)
    assert tokens == theirs


@pytest.mark.parametrize("name", REFUSED)
def test_a_directory_that_asks_for_more_is_refused_with_what_to_do(
    name: str, directory: Callable[[str], Path]
) -> None:
    family, edit, message = REFUSED[name]
    model_directory = directory(family)
    edit(model_directory)
    with pytest.raises(UserError, match=message):
        load(model_directory, check=False)


def test_the_weights_that_are_loaded_name_the_model(directory: Callable[[str], Path]) -> None:
    model_directory = directory("qwen3_vl")
    before = identity(model_directory)
    merged(model_directory)
    assert identity(model_directory) != before == identity(helper.checkpoint())


def test_a_forward_that_differs_is_refused(
    directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is that a new checkpoint asks for: here its scale of rotary positions is lost."""
    model_directory = directory("qwen2_5_vl")
    rotary = layer.RotaryEmbedding.__init__

    def forgetful(self: Any, *args: Any) -> None:
        rotary(self, *args)
        self._frequency = self._frequency / 2
        self._cos = self._sin = self._cos[:0]
        self._reach(0)

    load(model_directory)
    monkeypatch.setattr(layer.RotaryEmbedding, "__init__", forgetful)
    with pytest.raises(UserError, match="first answer: its logits are others than in transf"):
        load(model_directory)
    load(model_directory, check=False)


def test_a_field_that_changes_scores_and_is_not_known_is_refused(
    directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model_directory = directory("qwen3_vl")
    sets("generation_config.json", encoder_repetition_penalty=0.2)(model_directory)
    monkeypatch.setattr(checkpoint, "_UNAPPLIED", {})
    with pytest.raises(UserError, match=r"generation_config\.json is not applied"):
        load(model_directory)
    load(model_directory, generation_config="none")


@pytest.mark.parametrize("fields", [{"max_pixels": 40_000}, {"image_mean": [0.1, 0.9, 0.1]}])
def test_pictures_that_differ_are_refused(
    fields: dict[str, Any], directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model_directory = directory("qwen3_vl")
    unedited = checkpoint.image_preprocessing(model_directory)
    pictures(**fields)(model_directory)
    load(model_directory)
    monkeypatch.setattr(checkpoint, "image_preprocessing", lambda _: unedited)
    with pytest.raises(UserError, match=r"patches here and .* take the preprocessor_config\.json"):
        load(model_directory)


def test_a_quantized_checkpoint_answers_before_it_is_used(
    directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernels may lack this device or dtype; a drafter's, too, which is not compared."""
    model_directory = directory("qwen3_vl")
    model, config = loading._model, {"quant_method": "fp8"}

    def broken(*args: Any) -> Any:
        loaded = model(*args)
        loaded.lm_head.forward = lambda rows: rows @ np.zeros(3)
        return loaded

    monkeypatch.setattr(loading, "_model", broken)
    sets("config.json", quantization_config=config)(model_directory)
    with pytest.raises(UserError, match=r"gives no first answer .*, or another dtype, device"):
        load(model_directory, check=False)


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"size": {"height": 224, "width": 224}}, "preprocessor_config"),
        ({"merge_size": 4}, "all files as published"),
    ],
    ids=str,
)
def test_pictures_that_transformers_cannot_make_or_read_are_refused_with_their_remedy(
    fields: dict[str, Any], remedy: str, directory: Callable[[str], Path]
) -> None:
    model_directory = directory("qwen3_vl")
    pictures(**fields, min_pixels=None, max_pixels=None)(model_directory)
    with pytest.raises(UserError, match=f"(?s)gives no first answer .*: take .*{remedy}"):
        load(model_directory)


TEMPLATES = {
    "refuses a system text": (
        "{% if messages[0].role == 'system' %}{{ raise_exception('No system role') }}{% endif %}",
        "No system role.*dialect without system_text",
    ),
    "wants texts": (
        "{% for m in messages %}{{ m.role + m.content }}{% endfor %}",
        "chat template cannot be rendered",
    ),
    "writes parts": ("{% for m in messages %}{{ m.content }}{% endfor %}", "renders 0 times"),
    "a syntax error": ("{% for m in messages %}{{ m.role }", "cannot be rendered"),
    "begins a thought": (
        "{% for m in messages %}{% for c in m.content if c.type == 'image' %}"
        "<|image_pad|>{% endfor %}{% endfor %}assistant\n<think>\n",
        "begins a thought.*Instruct",
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_serve_ends_at_a_template_that_makes_no_prompt(
    name: str, directory: Callable[[str], Path]
) -> None:
    template, message = TEMPLATES[name]
    model_directory = directory("qwen3_vl")
    (model_directory / "chat_template.jinja").write_text(template)
    options = ("--target", str(model_directory), "--device", "cpu", "--no-check")
    with pytest.raises(UserError, match=message):
        worker_of(*options)


def test_a_template_that_refuses_a_system_text_serves_a_dialect_without_one(
    directory: Callable[[str], Path],
) -> None:
    model_directory = directory("qwen3_vl")
    template = model_directory / "chat_template.jinja"
    template.write_text(TEMPLATES["refuses a system text"][0] + template.read_text())
    options = ("--target", str(model_directory), "--device", "cpu", "--no-check")
    for dialect, imposed in (("navila", ""), ("any", None)):
        models = worker_of(*options, "--dialect", dialect)._models
        assert models.spec.system_text == imposed
        assert models.speaker.prompt(models.spec.request("hello"), models.spec).common


def test_of_named_templates_the_default_is_taken(directory: Callable[[str], Path]) -> None:
    model_directory = directory("qwen3_vl")
    whole = load(model_directory, check=False).chat_template
    (model_directory / "chat_template.jinja").unlink()
    named = {"tool_use": "{{ tools }}", "default": whole}
    listed = [{"name": name, "template": template} for name, template in named.items()]
    sets("tokenizer_config.json", chat_template=listed)(model_directory)
    assert load(model_directory).chat_template == whole


def test_the_tokenizers_end_counts_where_no_file_names_one(
    directory: Callable[[str], Path],
) -> None:
    model_directory = directory("qwen3_vl")
    sets("generation_config.json", eos_token_id=None)(model_directory)
    config = json.loads((model_directory / "config.json").read_text())
    del config["text_config"]["eos_token_id"]
    (model_directory / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
    sets("tokenizer_config.json", eos_token="<|im_end|>")(model_directory)
    model = load(model_directory, check=False)
    assert model.end_ids == (model.tokenizer.convert_tokens_to_ids("<|im_end|>"),)


def test_options_that_have_no_effect_are_refused() -> None:
    for option in ("--no-check", "--generation-config=none"):
        with pytest.raises(UserError, match="leave out --"):
            worker_of("--target", "openai:http://127.0.0.1:9/v1", option)
